//go:build linux

package interop

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"cinnabar/internal/testproc"
)

// patience bounds every wait for a program. It is long because the machine may have other things to do.
const patience = 40 * time.Second

// process is a program that runs. It is killed at the end of its test if it still does then.
type process struct {
	*testproc.Process
	t    *testing.T
	name string
}

// start starts a program. Its libfabric takes the loopback interface where the program names none.
func start(t *testing.T, p *program, args ...string) *process {
	t.Helper()
	return startFile(t, p.executable(t), args...)
}

func startFile(t *testing.T, path string, args ...string) *process {
	t.Helper()
	return startOn(t, "lo", path, args...)
}

// startOn starts a program whose libfabric takes that interface where the program names none.
func startOn(t *testing.T, iface, path string, args ...string) *process {
	t.Helper()
	return &process{testproc.Start(t, testproc.Command{
		Path:  path,
		Args:  args,
		Env:   []string{"FI_TCP_IFACE=" + iface},
		Dir:   buildDir, // some leave files there
		Limit: patience,
	}), t, path[strings.LastIndexByte(path, '/')+1:]}
}

// expect waits for the first line that begins with the word and returns it; lines before it stay for others.
func (p *process) expect(word string) line {
	p.t.Helper()
	return line(p.Stdout.Take("^" + regexp.QuoteMeta(word) + "( .*)?$")[0])
}

// expectLog waits until standard error has a line with the text and returns that line.
func (p *process) expectLog(text string) string {
	p.t.Helper()
	return p.Stderr.Take("^.*" + regexp.QuoteMeta(text) + ".*$")[0]
}

// log returns everything that the program has printed.
func (p *process) log() string { return p.Stdout.String() + p.Stderr.String() }

// peer is hg_peer or margo_peer, ready to serve and to be told commands.
type peer struct {
	*process
	addr      string
	checksums bool // its Mercury was built with them
}

// startPeer starts a peer program and waits until it can be called.
func startPeer(t *testing.T, p *program, options ...string) *peer {
	t.Helper()
	return ready(start(t, p, networkOptions(p, options)...))
}

// ready waits until a peer program can be called.
func ready(p *process) *peer {
	q := &peer{process: p}
	ready := q.expect("ready")
	q.addr, q.checksums = ready.value("addr"), ready.value("checksums") == "1"
	return q
}

// aim makes addr the target of the commands that follow.
func (q *peer) aim(addr string) {
	q.t.Helper()
	q.check("target addr="+addr, "ret=0")
}

// start sends a command and does not wait for its end.
func (q *peer) start(command string) {
	q.t.Helper()
	q.Send(command)
}

// result waits for what the command, or its first word, says at its end.
func (q *peer) result(command string) line {
	q.t.Helper()
	word, _, _ := strings.Cut(command, " ")
	if word == "notify" {
		word = "notify-sent"
	}
	return q.expect(word)
}

// do has the peer run a command and returns what it says.
func (q *peer) do(command string) line {
	q.t.Helper()
	q.start(command)
	return q.result(command)
}

// check runs a command whose result must have the words.
func (q *peer) check(command, words string) {
	q.t.Helper()
	if got := q.do(command); !got.has(words) {
		q.t.Errorf("%s says %q to %q; it should say %q\n%s", q.name, got, command, words, q.log())
	}
}

// stop ends the peer in order: its libraries must find nothing left in use.
func (q *peer) stop() {
	q.t.Helper()
	q.CloseInput()
	q.bye()
}

// bye waits for a peer that ends by itself.
func (q *peer) bye() {
	q.t.Helper()
	if got := q.expect("bye"); !got.has("ret=0") {
		q.t.Errorf("%s says %q at its end", q.name, got)
	}
	if err := q.Wait(); err != nil {
		q.t.Errorf("%s ended with %v\n%s", q.name, err, q.log())
	}
}
