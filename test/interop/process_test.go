//go:build linux

package interop

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience bounds every wait for a program. It is long because the machine may have other things to do.
const patience = 40 * time.Second

// process is a program that runs. It is killed at the end of its test if it still does then.
type process struct {
	t     *testing.T
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ended bool

	mu     sync.Mutex
	stdout []string      // lines that nobody has asked for yet
	stderr bytes.Buffer  // all of it
	eof    int           // how many of the two streams have ended
	news   chan struct{} // capacity 1: something above has changed
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
	p := &process{t: t, name: path[strings.LastIndexByte(path, '/')+1:], cmd: exec.Command(path, args...), news: make(chan struct{}, 1)}
	p.cmd.Env = append(os.Environ(), "FI_TCP_IFACE="+iface)
	p.cmd.Dir = buildDir // some leave files there
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.stdin = stdin
	go p.read(stdout, func(line string) { p.stdout = append(p.stdout, line) })
	go p.read(stderr, func(line string) { p.stderr.WriteString(line + "\n") })
	t.Cleanup(p.destroy)
	return p
}

// read has keep called, with p.mu held, for each line until the stream's end.
func (p *process) read(from io.Reader, keep func(string)) {
	for in := bufio.NewScanner(from); in.Scan(); {
		p.change(func() { keep(in.Text()) })
	}
	p.change(func() { p.eof++ })
}

func (p *process) change(f func()) {
	p.mu.Lock()
	f()
	p.mu.Unlock()
	select {
	case p.news <- struct{}{}:
	default:
	}
}

// await waits until ready, which is called with p.mu held, returns true. It returns false if both streams end before.
func (p *process) await(what string, ready func() bool) bool {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		p.mu.Lock()
		ok, over := ready(), p.eof == 2
		p.mu.Unlock()
		if ok || over {
			return ok
		}
		select {
		case <-p.news:
		case <-ctx.Done():
			p.t.Fatalf("%s does not say %s within %v\n%s", p.name, what, patience, p.log())
		}
	}
}

// expect waits for the first line that begins with the word and returns it; lines before it stay for others.
func (p *process) expect(word string) line {
	p.t.Helper()
	var found line
	ok := p.await(fmt.Sprintf("%q", word), func() bool {
		for i, l := range p.stdout {
			if l == word || strings.HasPrefix(l, word+" ") {
				found = line(l)
				p.stdout = append(p.stdout[:i], p.stdout[i+1:]...)
				return true
			}
		}
		return false
	})
	if !ok {
		p.t.Fatalf("%s ended without saying %q: %v\n%s", p.name, word, p.wait(), p.log())
	}
	return found
}

// expectLog waits until standard error has the text and returns the line that has it.
func (p *process) expectLog(text string) string {
	p.t.Helper()
	var found string
	ok := p.await(fmt.Sprintf("%q on standard error", text), func() bool {
		for l := range strings.Lines(p.stderr.String()) {
			if strings.Contains(l, text) {
				found = strings.TrimSuffix(l, "\n")
				return true
			}
		}
		return false
	})
	if !ok {
		p.t.Fatalf("%s ended without logging %q: %v\n%s", p.name, text, p.wait(), p.log())
	}
	return found
}

// log returns what the program has said and nobody asked for.
func (p *process) log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.stdout, "\n") + "\n" + p.stderr.String()
}

// errors returns standard error so far.
func (p *process) errors() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stderr.String()
}

// wait waits for the program's end and returns how it ended.
func (p *process) wait() error {
	p.t.Helper()
	p.await("its end", func() bool { return false })
	p.ended = true
	return p.cmd.Wait()
}

// kill ends the program as a crash would.
func (p *process) kill() {
	p.t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		p.t.Fatal(err)
	}
	_ = p.wait() // it says that it was killed
}

// destroy leaves nothing behind, whatever the state of the program.
func (p *process) destroy() {
	if p.ended {
		return
	}
	_ = p.cmd.Process.Kill() // fails only if it has ended
	_ = p.wait()             // killed
}

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
	if _, err := io.WriteString(q.stdin, command+"\n"); err != nil {
		q.t.Fatalf("%s takes no command: %v\n%s", q.name, err, q.log())
	}
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
	if err := q.stdin.Close(); err != nil {
		q.t.Errorf("closing the standard input of %s: %v", q.name, err)
	}
	q.bye()
}

// bye waits for a peer that ends by itself.
func (q *peer) bye() {
	q.t.Helper()
	if got := q.expect("bye"); !got.has("ret=0") {
		q.t.Errorf("%s says %q at its end", q.name, got)
	}
	if err := q.wait(); err != nil {
		q.t.Errorf("%s ended with %v\n%s", q.name, err, q.log())
	}
}
