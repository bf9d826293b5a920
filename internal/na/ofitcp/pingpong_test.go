package ofitcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
	"cinnabar/internal/na/ofiaddr"
)

// Libfabric's own fi_pingpong speaks the protocol of this package, without Mercury's conventions: messages have no
// address of their sender. It agrees with its partner over a TCP connection of its own, on which both exchange
// addresses and synchronize.

// ppTag is the tag of all its tagged messages.
const ppTag = 1234

// ppProgram finds fi_pingpong and the name of the native tcp provider in this version of libfabric.
func ppProgram(t *testing.T) (path, provider string) {
	t.Helper()
	path, err := exec.LookPath("fi_pingpong")
	if err != nil {
		t.Skip("fi_pingpong is not installed (Debian: libfabric-bin)")
	}
	out, err := exec.Command("fi_info", "-t", "FI_EP_RDM").Output()
	if err != nil {
		t.Skipf("fi_info, which comes with fi_pingpong, does not run: %v", err)
	}
	for _, name := range []string{"net", "tcp"} { // versions 1.16 and 1.17, later ones
		if bytes.Contains(out, []byte("provider: "+name+"\n")) {
			return path, name
		}
	}
	t.Skip("this libfabric has no native tcp provider")
	return "", ""
}

// ppRun is one run against fi_pingpong.
type ppRun struct {
	t      *testing.T
	e      *Endpoint
	to     na.Addr
	ctrl   net.Conn
	tagged bool
	size   int
	recv   *call
	buf    []byte
	in     chan []byte   // messages, if not tagged
	over   chan struct{} // closed when fi_pingpong has ended
	failed error         // how, valid then
}

// ppEndpoint opens an endpoint that neither writes nor expects addresses in requests.
func ppEndpoint(t *testing.T, r *ppRun) *Endpoint {
	r.in, r.over = make(chan []byte, 64), make(chan struct{})
	e := openEndpoint(t, Config{MaxRequest: maxMessage, MaxResponse: maxMessage, Listen: true,
		Handler: handlerFunc(func(m *na.Message) na.Task {
			r.in <- bytes.Clone(m.Data)
			return nil
		})})
	e.prefix, e.prefixBytes = 0, nil
	return e
}

func (r *ppRun) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// sendName tells the partner our address, as pp_send_name does.
func (r *ppRun) sendName() {
	name := ofiaddr.Append(nil, r.e.self)
	b := binary.BigEndian.AppendUint32(nil, uint32(len(name)))
	b = binary.LittleEndian.AppendUint32(b, 2) // FI_SOCKADDR_IN
	_, err := r.ctrl.Write(append(b, name...))
	r.must(err)
}

// recvName learns the partner's address.
func (r *ppRun) recvName() {
	head := make([]byte, 8)
	_, err := io.ReadFull(r.ctrl, head)
	r.must(err)
	name := make([]byte, binary.BigEndian.Uint32(head))
	_, err = io.ReadFull(r.ctrl, name)
	r.must(err)
	a, err := ofiaddr.Parse(name)
	r.must(err)
	r.to = r.e.peer(a)
}

// said reads what the partner says on the control connection.
func (r *ppRun) said(n int) []byte {
	b := make([]byte, n)
	_, err := io.ReadFull(r.ctrl, b)
	r.must(err)
	return b
}

func (r *ppRun) say(s string) {
	_, err := io.WriteString(r.ctrl, s)
	r.must(err)
}

// pattern makes the bytes of the n-th message as pp_fill_buf does.
func pattern(n, size int) []byte {
	const alphabet = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	b := make([]byte, size)
	for i := range b {
		b[i] = alphabet[(n*7+i)%len(alphabet)]
	}
	return b
}

// post waits for the next tagged message, before its sender can know.
func (r *ppRun) post() {
	if r.tagged {
		r.e.RecvExpected(&r.recv.op, r.to, ppTag, r.buf)
	}
}

func (r *ppRun) receive() []byte {
	r.t.Helper()
	if !r.tagged {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		for over := r.over; ; over = nil {
			select {
			case b := <-r.in:
				return b
			case <-over: // the last message may be on its way
				if r.failed != nil {
					r.t.Fatal("fi_pingpong has failed")
				}
			case <-timer.C:
				r.t.Fatal("no message")
			}
		}
	}
	r.must(r.recv.wait(r.t, r.e, r.to))
	return r.buf[:r.recv.op.N]
}

func (r *ppRun) send(b []byte) {
	r.t.Helper()
	c := newCall()
	if r.tagged {
		r.e.SendExpected(&c.op, r.to, ppTag, append(make([]byte, r.e.Limits().ResponseRoom), b...))
	} else {
		r.e.SendRequest(&c.op, r.to, 0, append(make([]byte, r.e.Limits().RequestRoom), b...))
	}
	r.must(c.wait(r.t, r.e, r.to))
}

// ppRounds is how many messages go each way: enough for those that come while nobody waits yet, or while the previous
// one is not through.
const ppRounds = 10

// ppTime bounds a whole run, for a program that hangs: it polls, and has few turns on a busy machine.
var ppTime = 6 * patience

// rounds exchanges the messages; first says who begins.
func (r *ppRun) rounds(first bool) {
	for i := range ppRounds {
		if first {
			r.send(pattern(i, r.size))
		}
		if got := r.receive(); !bytes.Equal(got, pattern(i, r.size)) {
			r.t.Fatalf("message %d of %d bytes differs from what fi_pingpong sends", i, len(got))
		}
		r.post()
		if !first {
			r.send(pattern(i, r.size))
		}
	}
}

// finish exchanges the last messages.
func (r *ppRun) finish() {
	r.send([]byte("fin\x00"))
	if got := r.receive(); string(got) != "fin\x00" {
		r.t.Fatalf("last message %q", got)
	}
}

// parity(peer): H124
func TestFiPingpong(t *testing.T) {
	path, provider := ppProgram(t)
	modes, sizes := []string{"tagged", "msg"}, []int{1, 65536, 1_000_000}
	if invariants.Race {
		modes, sizes = modes[:1], sizes[1:2] // a program's start takes half a second, and the goroutines are the same
	}
	for _, mode := range modes {
		for _, size := range sizes {
			args := []string{"-p", provider, "-e", "rdm", "-m", mode, "-c", "-I", strconv.Itoa(ppRounds), "-S", strconv.Itoa(size)}
			newRun := func(t *testing.T) *ppRun {
				r := &ppRun{t: t, tagged: mode == "tagged", size: size, recv: newCall(), buf: make([]byte, maxMessage)}
				r.e = ppEndpoint(t, r)
				return r
			}
			t.Run(fmt.Sprintf("server/%s/%d", mode, size), func(t *testing.T) { newRun(t).againstServer(path, args) })
			t.Run(fmt.Sprintf("client/%s/%d", mode, size), func(t *testing.T) { newRun(t).againstClient(path, args) })
		}
	}
}

// start runs fi_pingpong, which must end well after f.
func (r *ppRun) start(path string, args []string, f func()) {
	ctx, cancel := context.WithTimeout(r.t.Context(), ppTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	r.must(cmd.Start())
	go func() {
		r.failed = cmd.Wait()
		close(r.over)
	}()
	defer func() {
		if r.t.Failed() {
			cancel()
		}
		if <-r.over; r.failed != nil || r.t.Failed() {
			r.t.Errorf("%s %s: %v\n%s", path, strings.Join(args, " "), r.failed, out.String())
		}
	}()
	f()
}

// againstServer is the client of fi_pingpong as a server.
func (r *ppRun) againstServer(path string, args []string) {
	port := freePort(r.t)
	r.start(path, append(args, "-B", strconv.Itoa(port)), func() {
		r.ctrl = dialUntil(r.t, fmt.Sprintf("127.0.0.1:%d", port))
		defer func() { _ = r.ctrl.Close() }()
		r.recvName()
		r.sendName()
		r.post()
		r.say("q\x00")
		r.said(2)
		r.rounds(true)
		count := make([]byte, 10)
		copy(count, strconv.Itoa(ppRounds))
		r.say(string(count))
		r.said(len("cnt ok") + 1)
		r.finish()
	})
}

// againstClient is the server of fi_pingpong as a client.
func (r *ppRun) againstClient(path string, args []string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	r.must(err)
	defer func() { _ = ln.Close() }()
	_, port, err := net.SplitHostPort(ln.Addr().String())
	r.must(err)
	r.start(path, append(args, "-P", port, "127.0.0.1"), func() {
		r.ctrl, err = ln.Accept()
		r.must(err)
		defer func() { _ = r.ctrl.Close() }()
		r.sendName()
		r.recvName()
		r.post()
		r.said(2)
		r.say("a\x00")
		r.rounds(false)
		r.said(10)
		r.say("cnt ok\x00")
		r.finish()
	})
}

// freePort returns a port that nobody listens on; fi_pingpong cannot choose one itself.
func freePort(t *testing.T) int {
	ln, err := net.Listen("tcp4", ":0") // on no address: fi_pingpong binds all of them, and minds those that wait for late segments
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	return ln.Addr().(*net.TCPAddr).Port
}

// dialUntil connects to a program that is starting.
func dialUntil(t *testing.T, addr string) net.Conn {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); time.Now().Before(end); <-tick.C {
		if c, err := net.Dial("tcp", addr); err == nil {
			return c
		}
	}
	t.Fatalf("nobody listens on %s", addr)
	return nil
}
