package sum

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/examples/internal/enginetest"
	"cinnabar/internal/testproc"
)

// programs is the folder with the two programs, built once.
var programs string

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(testproc.BuildInto(&programs, "./client", "./server")))
}

// What the tutorial's programs print, the server before the address and the client in all.
const (
	serverLine  = "[info] Server running at address "
	clientLines = "[debug] Got response: 36\n[debug] Got response: 36\n[debug] Got response: 36\n[debug] Got response: 36\n"
)

// command is a process of one of the programs.
func command(program string, args ...string) testproc.Command {
	return testproc.Command{Path: filepath.Join(programs, program), Args: args}
}

// serverProcess is a running server.
type serverProcess struct {
	*testproc.Process
	addr string
}

func startServer(t *testing.T, args ...string) *serverProcess {
	t.Helper()
	return ready(testproc.Start(t, command("server", args...)))
}

// ready waits until a server can be called.
func ready(p *testproc.Process) *serverProcess {
	return &serverProcess{p, strings.TrimPrefix(p.Stderr.Line(), serverLine)}
}

// wantEnd waits for the server, which must have printed no more than the tutorial's.
func (s *serverProcess) wantEnd(t *testing.T) {
	t.Helper()
	if err := s.Wait(); err != nil {
		t.Errorf("the server ended with %v", err)
	}
	if got, want := s.Stderr.String(), serverLine+s.addr+"\n\n"; got != want || s.Stdout.String() != "" {
		t.Errorf("the server printed %q and %q, want only %q on standard error", s.Stdout, got, want)
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

// The tutorial's run: four clients in a row, then the server has had its 16 calls and ends itself.
func TestTutorial(t *testing.T) {
	s := startServer(t, "ofi+tcp://127.0.0.1:0")
	for range Calls / 4 {
		wantClient(t, 0, clientLines, s.addr)
	}
	s.wantEnd(t)
	wantClient(t, 1, s.addr, s.addr) // there is nobody any more
}

// TestOverVerbs runs both programs on the software device, with a call to each address in turn.
func TestOverVerbs(t *testing.T) {
	const warning = "level=WARN"
	s := testproc.Start(t, command("server", "-device", "software", "ofi+verbs"))
	addr := s.Stderr.Expect(`^\[info\] Server running at address (ofi\+verbs;ofi_rxm://\S+)$`)[1]
	for range Calls / 4 {
		p := testproc.Run(t, command("client", "-device", "software", addr))
		if code, got := p.ExitCode(), p.Stderr.String(); code != 0 || !strings.HasSuffix(got, clientLines) || strings.Count(got, warning) != 1 {
			t.Errorf("exit code %d, printed %q", code, got)
		}
	}
	if err := s.Wait(); err != nil || strings.Count(s.Stderr.String(), warning) != 1 {
		t.Errorf("the server ended with %v, and printed %q", err, s.Stderr)
	}
	wantClient(t, 1, "RDMA device", "-device", "nosuch0", "ofi+verbs://127.0.0.1:1")
}

// Without an address the server chooses one, and clients reach it there.
func TestServerChoosesAddress(t *testing.T) {
	s := startServer(t)
	for range Calls / 4 {
		wantClient(t, 0, clientLines, s.addr)
	}
	s.wantEnd(t)
}

func TestClientsAtOnce(t *testing.T) {
	s := startServer(t, "ofi+tcp://127.0.0.1:0")
	var wg sync.WaitGroup
	for range Calls / 4 {
		wg.Go(func() { wantClient(t, 0, clientLines, s.addr) })
	}
	wg.Wait()
	s.wantEnd(t)
}

func TestInterruptedServer(t *testing.T) {
	s := startServer(t, "ofi+tcp://127.0.0.1:0")
	wantClient(t, 0, clientLines, s.addr)
	s.Interrupt()
	s.wantEnd(t)
}

func TestUsage(t *testing.T) {
	wantClient(t, 0, "Usage: ")
	wantClient(t, 0, "<server address>", "a", "b")
	wantClient(t, 1, "nonsense", "nonsense")
	for _, args := range [][]string{{"a", "b"}, {"nonsense"}} {
		p := testproc.Run(t, command("server", args...))
		if p.ExitCode() != 1 || p.Stderr.String() == "" {
			t.Errorf("server %q: exit code %d, %q", args, p.ExitCode(), p.Stderr)
		}
	}
}

// Arrays that fit into no message are pulled over the network, in one piece and in many, and as many values as are asked
// for of what is exposed. 13 calls, of which some are refused, and three that show that the server goes on.
func TestServerWithAnyClient(t *testing.T) {
	s := startServer(t, "ofi+tcp://127.0.0.1:0")
	e, ep := enginetest.Dial(t, s.addr)
	values := make([]byte, 1<<20)
	var want int32
	for i := range len(values) / 4 {
		values[4*i] = byte(i)
		want += int32(byte(i))
	}
	var many [][]byte
	for i := range 1024 {
		many = append(many, values[i<<10:(i+1)<<10])
	}
	expose := func(mode cinnabar.Mode, segments ...[]byte) cinnabar.BulkHandle {
		b, err := e.Expose(mode, segments...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		return b.Handle()
	}
	whole := expose(cinnabar.ReadOnly, values)
	for _, tt := range []struct {
		name string
		in   In
		want int32
		code codes.Code
	}{
		{"one segment", In{1 << 18, whole}, want, 0},
		{"1024 segments", In{1 << 18, expose(cinnabar.ReadOnly, many...)}, want, 0},
		{"writable too", In{1 << 18, expose(cinnabar.ReadWrite, values)}, want, 0},
		{"part of it", In{3, whole}, 0 + 1 + 2, 0},
		{"nothing", In{0, whole}, 0, 0},
		{"small", In{3, expose(cinnabar.ReadOnly, values[:12])}, 3, 0},
		{"more than there is", In{1<<18 + 1, whole}, 0, codes.InvalidArg},
		{"far more", In{1<<31 - 1, whole}, 0, codes.InvalidArg},
		{"fewer than none", In{-1, whole}, 0, codes.InvalidArg},
		{"null handle", In{N: 1}, 0, codes.InvalidArg},
		{"not readable", In{3, expose(cinnabar.WriteOnly, values)}, 0, codes.Permission},
		{"revoked", In{1 << 18, revoked(t, e, values)}, 0, codes.Fault},
		{"after all that", In{3, whole}, 3, 0},
	} {
		out, err := RPC.Call(t.Context(), ep, tt.in)
		switch {
		case tt.code == 0 && (err != nil || out.Ret != tt.want):
			t.Errorf("%s: %d, %v, want %d", tt.name, out.Ret, err, tt.want)
		case tt.code != 0 && err == nil, tt.code != 0 && tt.code != codes.Fault && !errors.Is(err, tt.code):
			t.Errorf("%s: %d, %v, want %v", tt.name, out.Ret, err, tt.code)
		}
	}
	for range 3 {
		if _, err := RPC.Call(t.Context(), ep, In{3, whole}); err != nil {
			t.Error(err)
		}
	}
	s.wantEnd(t)
}

// revoked is a handle of memory that is exposed no more.
func revoked(t *testing.T, e *cinnabar.Engine, values []byte) cinnabar.BulkHandle {
	t.Helper()
	b, err := e.Expose(cinnabar.ReadOnly, values)
	if err != nil {
		t.Fatal(err)
	}
	h := b.Handle()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	return h
}

// A client that ends while the server pulls from it leaves the server to others.
func TestClientThatLeaves(t *testing.T) {
	s := startServer(t, "ofi+tcp://127.0.0.1:0")
	e, err := cinnabar.Open(t.Context(), "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		t.Fatal(err)
	}
	ep, err := e.Lookup(s.addr)
	if err != nil {
		t.Fatal(err)
	}
	b, err := e.Alloc(cinnabar.ReadOnly, 16<<20)
	if err != nil {
		t.Fatal(err)
	}
	var calls []*cinnabar.Pending[Out]
	for range Calls - 4 {
		calls = append(calls, RPC.Start(t.Context(), ep, In{4 << 20, b.Handle()}))
	}
	if _, err := calls[0].Wait(); err != nil { // the others are under way
		t.Error(err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	wantClient(t, 0, clientLines, s.addr)
}

// The C programs of the tutorial, at the other end.
func TestTutorialsPrograms(t *testing.T) {
	if os.Getenv("CINNABAR_TUTORIAL_SERVER") == "" {
		tutorial(t, "CINNABAR_TUTORIAL_CLIENT") // skips here, not in each part
	}
	t.Run("server", func(t *testing.T) {
		s := startTutorialServer(t)
		for range Calls / 4 {
			wantClient(t, 0, clientLines, s.addr)
		}
		if err := s.Wait(); err != nil {
			t.Errorf("the tutorial's server ended with %v: %s", err, s.Stderr)
		}
	})
	t.Run("client", func(t *testing.T) {
		program := tutorial(t, "CINNABAR_TUTORIAL_CLIENT")
		s := startServer(t, "ofi+tcp://127.0.0.1:0")
		for range Calls / 4 {
			p := testproc.Run(t, testproc.Command{Path: program, Args: []string{s.addr}, Env: []string{"FI_TCP_IFACE=lo"}})
			if err := p.Wait(); err != nil || p.Stderr.String() != clientLines {
				t.Errorf("the tutorial's client: %v, %q", err, p.Stderr)
			}
		}
		s.wantEnd(t)
	})
}

// tutorial returns the path of one of the tutorial's programs.
func tutorial(t *testing.T, variable string) string {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" {
		t.Skipf("%s does not name the program of Margo's tutorial 04_bulk", variable)
	}
	return path
}

func startTutorialServer(t *testing.T) *serverProcess {
	t.Helper()
	return ready(testproc.Start(t, testproc.Command{Path: tutorial(t, "CINNABAR_TUTORIAL_SERVER"), Env: []string{"FI_TCP_IFACE=lo"}}))
}
