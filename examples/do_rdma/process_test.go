package dordma

import (
	"context"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"cinnabar"
	"cinnabar/examples/internal/enginetest"
	"cinnabar/internal/testproc"
)

// programs is the folder with the two programs, built once.
var programs string

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(testproc.BuildInto(&programs, "./client", "./server")))
}

// received is what the server prints for each request of a client that exposes the tutorial's text.
const received = "Server received bulk: Matthi"

// command is a process of one of the programs.
func command(program string, args ...string) testproc.Command {
	return testproc.Command{Path: filepath.Join(programs, program), Args: args}
}

// wantLines waits until n lines more contain the text, and returns the last of them.
func wantLines(s *testproc.Stream, n int, text string) (line string) {
	for range n {
		line = s.Take("^.*" + regexp.QuoteMeta(text) + ".*$")[0]
	}
	return line
}

// server is a running server.
type server struct {
	*testproc.Process
	addr string
}

func startServer(t *testing.T) *server { return startServerAt(t, "tcp://127.0.0.1:0") }

func startServerAt(t *testing.T, address string) *server {
	t.Helper()
	p := testproc.Start(t, command("server", address))
	_, addr, _ := strings.Cut(wantLines(p.Stderr, 1, "Server running at address "), "address ")
	return &server{p, addr}
}

// stop interrupts the server, which must have printed so many lines and nothing else.
func (s *server) stop(t *testing.T, requests int) {
	t.Helper()
	s.Interrupt()
	if err := s.Wait(); err != nil {
		t.Errorf("the server ended with %v", err)
	}
	if got, want := s.Stdout.String(), strings.Repeat(received+"\n", requests); got != want {
		t.Errorf("the server printed %q, want %q", got, want)
	}
}

// wantClient runs a client to its end and compares.
func wantClient(t *testing.T, code int, stderr string, args ...string) {
	t.Helper()
	p := testproc.Run(t, command("client", args...))
	if got := p.ExitCode(); got != code || p.Stdout.String() != "" || !strings.Contains(p.Stderr.String(), stderr) {
		t.Errorf("client %q: exit code %d, printed %q and %q, want %d and %q", args, got, p.Stdout, p.Stderr, code, stderr)
	}
}

// The tutorial's run.
// parity: T01 T03 T21
func TestTutorial(t *testing.T) {
	s := startServer(t)
	wantClient(t, 0, "", s.addr)
	if got := wantLines(s.Stdout, 1, "bulk"); got != received {
		t.Errorf("the server printed %q, want %q", got, received)
	}
	s.stop(t, 1)
	if Address != "tcp://127.0.0.1:1234" {
		t.Errorf("the tutorial's address is not %q", Address)
	}
	wantClient(t, 1, s.addr, "-grace", "0s", s.addr) // there is nobody any more
}

// A client of the newer form of the tutorial has its response when the server has pulled, so it needs no grace time.
func TestAnswered(t *testing.T) {
	s := startServer(t)
	wantClient(t, 0, "", "-answer", s.addr)
	if got := wantLines(s.Stdout, 1, "bulk"); got != received {
		t.Errorf("the server printed %q, want %q", got, received)
	}
	s.stop(t, 1)
}

// TestOverVerbs runs both programs on the software device.
func TestOverVerbs(t *testing.T) {
	p := testproc.Start(t, command("server", "-device", "software", "ofi+verbs"))
	_, addr, _ := strings.Cut(wantLines(p.Stderr, 1, "Server running at address "), "address ")
	wantClient(t, 0, "level=WARN", "-answer", "-device", "software", addr)
	(&server{p, addr}).stop(t, 1)
}

// A server of the newer form answers every request. A client of the older form wants no response and is served all the
// same by a Go server.
func TestServerOfTheNewerForm(t *testing.T) {
	e, err := cinnabar.Listen(t.Context(), "ofi+tcp://127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	served := make(chan struct{}, 2)
	if err := Answered.Handle(e, func(context.Context, cinnabar.BulkHandle) (struct{}, error) {
		served <- struct{}{}
		return struct{}{}, nil
	}); err != nil {
		t.Fatal(err)
	}
	wantClient(t, 0, "", "-answer", e.Addr())
	wantClient(t, 0, "", "-grace", "0s", e.Addr())
	<-served
	<-served
}

// So little memory travels inside the request: a client that does not wait is served too.
func TestClientsAtOnce(t *testing.T) {
	const clients = 8
	s := startServer(t)
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() { wantClient(t, 0, "", "-grace", "0s", s.addr) })
	}
	wg.Wait()
	wantLines(s.Stdout, clients, received)
	s.stop(t, clients)
}

// The grace time ends when the client is interrupted.
func TestInterruptedClient(t *testing.T) {
	s := startServer(t)
	client := testproc.Start(t, command("client", "-grace", "1h", s.addr))
	wantLines(s.Stdout, 1, received) // the request has arrived
	client.Interrupt()
	if err := client.Wait(); err != nil {
		t.Errorf("the client ended with %v", err)
	}
	s.stop(t, 1)
}

func TestUsage(t *testing.T) {
	wantClient(t, 1, "Usage: ", "a", "b")
	wantClient(t, 1, "Usage: ", "-grace", "long")
	wantClient(t, 1, "nonsense", "nonsense")
	wantServer(t, "Usage: ", "a", "b")
	wantServer(t, "nonsense", "nonsense")
}

// A second server at an address fails, and says why.
// parity: T01
func TestAddressInUse(t *testing.T) {
	s := startServer(t)
	wantServer(t, "HG_ADDRINUSE", s.addr)
	s.stop(t, 0)
}

// wantServer runs a server that cannot start.
func wantServer(t *testing.T, stderr string, args ...string) {
	t.Helper()
	p := testproc.Run(t, command("server", args...))
	if got := p.ExitCode(); got != 1 || p.Stdout.String() != "" || !strings.Contains(p.Stderr.String(), stderr) {
		t.Errorf("server %q: exit code %d, printed %q and %q, want 1 and %q", args, got, p.Stdout, p.Stderr, stderr)
	}
}

// More memory than a request holds is pulled over the network; handles that are good for nothing cost the server a line
// in its log.
func TestServerWithAnyClient(t *testing.T) {
	s := startServer(t)
	e, ep := enginetest.Dial(t, s.addr)
	expose := func(mode cinnabar.Mode, segments ...[]byte) *cinnabar.Bulk {
		b, err := e.Expose(mode, segments...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		return b
	}
	send := func(h cinnabar.BulkHandle) {
		if err := RPC.Send(t.Context(), ep, h); err != nil {
			t.Fatal(err)
		}
	}
	large := make([]byte, 1<<20)
	copy(large, Text)
	revoked := expose(cinnabar.ReadOnly, large)
	gone := revoked.Handle()
	if err := revoked.Close(); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []cinnabar.BulkHandle{{}, expose(cinnabar.WriteOnly, large).Handle(), gone} {
		send(bad)
		wantLines(s.Stderr, 1, "handler of a one-way request fails")
	}
	if err := cinnabar.NewOneWay[uint8]("do_rdma", cinnabar.WithFlavor(cinnabar.Thallium)).Send(t.Context(), ep, 1); err != nil {
		t.Fatal(err)
	}
	wantLines(s.Stderr, 1, "request refused: arguments cannot be decoded")
	send(expose(cinnabar.ReadOnly, large).Handle())
	send(expose(cinnabar.ReadWrite, large[:1], large[1:4], large[4:]).Handle())
	wantLines(s.Stdout, 2, received)
	s.stop(t, 2)
}
