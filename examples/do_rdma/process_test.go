package dordma

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"cinnabar"
)

// programs is the folder with the two programs, built once.
var programs string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "do_rdma")
	if err != nil {
		panic(err)
	}
	programs = dir
	build := exec.Command("go", "build", "-o", dir+string(filepath.Separator), "./client", "./server")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the programs: %v\n%s", err, out)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// processLimit bounds a process; it is there for processes that hang.
const processLimit = 60 * time.Second

// received is what the server prints for each request of a client that exposes the tutorial's text.
const received = "Server received bulk: Matthi"

// command prepares a process of one of the programs.
func command(t *testing.T, program string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), processLimit)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, filepath.Join(programs, program), args...)
	cmd.WaitDelay = time.Second
	return cmd
}

// lines keeps what a process prints.
type lines struct {
	mu    sync.Mutex
	all   bytes.Buffer  // +checklocks:mu
	fresh chan struct{} // capacity 1: there is more
}

func newLines() *lines { return &lines{fresh: make(chan struct{}, 1)} }

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all.Write(b)
	select {
	case l.fresh <- struct{}{}:
	default:
	}
	return len(b), nil
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// want waits until n lines contain the text, and returns the last of them.
func (l *lines) want(t *testing.T, n int, text string) (line string) {
	t.Helper()
	timer := time.NewTimer(processLimit)
	defer timer.Stop()
	for {
		seen := 0
		for s := range strings.Lines(l.String()) {
			if strings.Contains(s, text) && strings.HasSuffix(s, "\n") {
				seen, line = seen+1, strings.TrimSuffix(s, "\n")
			}
			if seen == n {
				return line
			}
		}
		select {
		case <-l.fresh:
		case <-timer.C:
			t.Fatalf("no %d lines with %q within %v, only %q", n, text, processLimit, l)
		}
	}
}

// server is a running server.
type server struct {
	cmd            *exec.Cmd
	addr           string
	stdout, stderr *lines
}

func startServer(t *testing.T) *server { return startServerAt(t, "tcp://127.0.0.1:0") }

func startServerAt(t *testing.T, address string) *server {
	t.Helper()
	s := &server{cmd: command(t, "server", address), stdout: newLines(), stderr: newLines()}
	s.cmd.Stdout, s.cmd.Stderr = s.stdout, s.stderr
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s.cmd.ProcessState == nil {
			_ = s.cmd.Process.Kill()
			_ = s.cmd.Wait()
		}
	})
	_, s.addr, _ = strings.Cut(s.stderr.want(t, 1, "Server running at address "), "address ")
	return s
}

// stop interrupts the server, which must have printed so many lines and nothing else.
func (s *server) stop(t *testing.T, requests int) {
	t.Helper()
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("the server ended with %v", err)
	}
	if got, want := s.stdout.String(), strings.Repeat(received+"\n", requests); got != want {
		t.Errorf("the server printed %q, want %q", got, want)
	}
}

// wantClient runs a client to its end and compares.
func wantClient(t *testing.T, code int, stderr string, args ...string) {
	t.Helper()
	cmd := command(t, "client", args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != code || out.Len() > 0 || !strings.Contains(errs.String(), stderr) {
		t.Errorf("client %q: exit code %d, printed %q and %q, want %d and %q", args, got, &out, &errs, code, stderr)
	}
}

// The tutorial's run.
// parity: T01 T03 T21
func TestTutorial(t *testing.T) {
	s := startServer(t)
	wantClient(t, 0, "", s.addr)
	if got := s.stdout.want(t, 1, "bulk"); got != received {
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
	if got := s.stdout.want(t, 1, "bulk"); got != received {
		t.Errorf("the server printed %q, want %q", got, received)
	}
	s.stop(t, 1)
}

// A server of the newer form answers every request. A client of the older form wants no response and is served all the
// same by a Go server.
func TestServerOfTheNewerForm(t *testing.T) {
	e, err := cinnabar.Listen("ofi+tcp://127.0.0.1:0", nil)
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
	s.stdout.want(t, clients, received)
	s.stop(t, clients)
}

// The grace time ends when the client is interrupted.
func TestInterruptedClient(t *testing.T) {
	s := startServer(t)
	cmd := command(t, "client", "-grace", "1h", s.addr)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.stdout.want(t, 1, received) // the request has arrived
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
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
	wantServer(t, "address in use", s.addr)
	s.stop(t, 0)
}

// wantServer runs a server that cannot start.
func wantServer(t *testing.T, stderr string, args ...string) {
	t.Helper()
	cmd := command(t, "server", args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != 1 || out.Len() > 0 || !strings.Contains(errs.String(), stderr) {
		t.Errorf("server %q: exit code %d, printed %q and %q, want 1 and %q", args, got, &out, &errs, stderr)
	}
}

// dial opens an engine of the test and looks the server up.
func dial(t *testing.T, addr string) (*cinnabar.Engine, *cinnabar.Endpoint) {
	t.Helper()
	e, err := cinnabar.Open("ofi+tcp://127.0.0.1", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	ep, err := e.Lookup(addr)
	if err != nil {
		t.Fatal(err)
	}
	return e, ep
}

// More memory than a request holds is pulled over the network; handles that are good for nothing cost the server a line
// in its log.
func TestServerWithAnyClient(t *testing.T) {
	s := startServer(t)
	e, ep := dial(t, s.addr)
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
	for i, bad := range []cinnabar.BulkHandle{{}, expose(cinnabar.WriteOnly, large).Handle(), gone} {
		send(bad)
		s.stderr.want(t, i+1, "handler of a one-way request fails")
	}
	if err := cinnabar.NewOneWay[uint8]("do_rdma", cinnabar.WithFlavor(cinnabar.Thallium)).Send(t.Context(), ep, 1); err != nil {
		t.Fatal(err)
	}
	s.stderr.want(t, 1, "request refused: arguments cannot be decoded")
	send(expose(cinnabar.ReadOnly, large).Handle())
	send(expose(cinnabar.ReadWrite, large[:1], large[1:4], large[4:]).Handle())
	s.stdout.want(t, 2, received)
	s.stop(t, 2)
}
