package margo_test

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/examples/margo"
	"cinnabar/internal/testproc"
)

// programs are the packages of the programs, by the prefix of their names, and built the directories in which they are built
// together.
var (
	programs = map[string][]string{
		"":          {"./server", "./client", "./composition/daemon", "./composition/benchmark"},
		"multiplex": {"./multiplex/server", "./multiplex/client"},
	}
	built map[string]string
)

func TestMain(m *testing.M) {
	built = make(map[string]string)
	for folder, list := range programs {
		dir, err := testproc.Build(append([]string{"-ldflags=-w"}, list...)...) // -w: they are linked sooner
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		built[folder] = dir
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		for _, dir := range built {
			_ = os.RemoveAll(dir)
		}
		os.Exit(code)
	}))
}

// executable is where a program is built.
func executable(program string) string {
	folder, base := path.Split(strings.TrimPrefix(program, "composition/"))
	name := filepath.Join(built[strings.TrimSuffix(folder, "/")], base)
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	return name
}

const (
	loopback     = "ofi+tcp://127.0.0.1"
	processLimit = time.Minute // for servers that do not begin
)

// command is a process of a program, which is one of this folder if it is given by its name only.
func command(t *testing.T, program string, args ...string) testproc.Command {
	t.Helper()
	if !filepath.IsAbs(program) {
		program = executable(program)
	}
	dir := t.TempDir() // Margo's programs leave files
	return testproc.Command{Path: program, Args: args, Dir: dir, Env: []string{"FI_TCP_IFACE=lo", "TMPDIR=" + dir}}
}

// serverProcess is a running server.
type serverProcess struct {
	*testproc.Process
	t    *testing.T
	addr string
}

// launch starts a server that will be killed at the end of the test, unless it has ended by then.
func launch(t *testing.T, program string, args ...string) *serverProcess {
	t.Helper()
	return &serverProcess{Process: testproc.Start(t, command(t, program, args...)), t: t}
}

// serve starts a server of this folder and waits for its address.
func serve(t *testing.T, program string, args ...string) *serverProcess {
	t.Helper()
	s := launch(t, program, args...)
	line := s.Stdout.Line()
	addr, ok := strings.CutPrefix(line, "accepting calls at ")
	if !ok {
		t.Fatalf("%s says %q; it should say where it is", program, line)
	}
	s.addr = addr
	return s
}

// end waits for the server, which must end well, and returns the rest of its lines, sorted.
func (s *serverProcess) end() []string {
	s.t.Helper()
	if err := s.Wait(); err != nil {
		s.t.Errorf("the server ended with %v\n%s", err, s.Stderr)
	}
	return sorted(strings.TrimPrefix(s.Stdout.String(), "accepting calls at "+s.addr+"\n"))
}

// sorted are the lines of a text: those of calls at once may come in any order.
func sorted(text string) []string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	slices.Sort(lines)
	return lines
}

// runClient runs a client, which must end well, and returns its lines, sorted.
func runClient(t *testing.T, program string, args ...string) []string {
	t.Helper()
	p := testproc.Run(t, command(t, program, args...))
	if err := p.Wait(); err != nil {
		t.Fatalf("%s ended with %v\n%s%s", program, err, p.Stdout, p.Stderr)
	}
	return sorted(p.Stdout.String())
}

// wantLines compares lines, of which want has the beginnings.
func wantLines(t *testing.T, who string, got []string, want ...string) {
	t.Helper()
	if !slices.EqualFunc(got, want, strings.HasPrefix) {
		t.Errorf("%s says\n%s\nwant\n%s", who, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// What the programs say, sorted, but for the address.
var (
	fourResults  = []string{"call 0: result 0", "call 1: result 0", "call 2: result 0", "call 3: result 0"}
	fourTimeouts = []string{"call 0: HG_TIMEOUT", "call 1: HG_TIMEOUT", "call 2: HG_TIMEOUT", "call 3: HG_TIMEOUT"}
	fourCalls    = []string{"call with 0", "call with 1", "call with 2", "call with 3"}
	dumped       = append(slices.Clone(fourCalls), "state written to ")
	fourHanging  = []string{"call with 0, which hangs", "call with 1, which hangs", "call with 2, which hangs", "call with 3, which hangs"}
	things       = []string{
		"svc1_do_other_thing at provider 1", "svc1_do_other_thing at provider 2", "svc1_do_thing at provider 1",
		"svc1_do_thing at provider 2", "svc2_do_other_thing at provider 3", "svc2_do_thing at provider 3",
	}
	measured = []string{"call ", "composed ", "direct "}
)

// TestExample is the pair of Margo's examples.
// parity: G95
func TestExample(t *testing.T) {
	s := serve(t, "server", loopback)
	wantLines(t, "client", runClient(t, "client", s.addr), fourResults...)
	lines := s.end()
	wantLines(t, "server", lines, dumped...)
	_, name, _ := strings.Cut(lines[len(lines)-1], "state written to ")
	if state, err := os.ReadFile(name); err != nil || !strings.Contains(string(state), "my_rpc") {
		t.Errorf("the state is %q, %v; it should name the call that is served", state, err)
	}
}

// TestBasic is what Margo's tests do with a server, for each kind of pool: the address by a file, the end by Margo's
// remote shutdown.
// parity: G95
func TestBasic(t *testing.T) {
	for _, kind := range []string{"fifo_wait", "prio_wait", "earliest_first"} {
		t.Run(kind, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "address")
			s := serve(t, "server", "-f", file, "-p", kind, loopback)
			if addr, err := os.ReadFile(file); err != nil || string(addr) != s.addr {
				t.Errorf("the file says %q, %v; want %q", addr, err, s.addr)
			}
			wantLines(t, "client", runClient(t, "client", "-remote", s.addr), fourResults...)
			wantLines(t, "server", s.end(), fourCalls...)
		})
	}
}

// TestTimeout has four calls given up, those among them that were not even sent in time. The server, told to end, waits for
// its handlers, which end as their caller has gone.
// parity: G95
func TestTimeout(t *testing.T) {
	s := serve(t, "server", "-hang", "1h", loopback)
	wantLines(t, "client", runClient(t, "client", "-timeout", "50ms", s.addr), fourTimeouts...)
	for _, line := range s.end() {
		if line != "" && !slices.Contains(fourHanging, line) {
			t.Errorf("the server says %q", line)
		}
	}
}

// TestMultiplex has three providers of two services in one process.
// parity: G12
func TestMultiplex(t *testing.T) {
	s := serve(t, "multiplex/server", loopback)
	wantLines(t, "client", runClient(t, "multiplex/client", s.addr), things...)
	wantLines(t, "server", s.end(), things...)
}

// TestComposition has a service write to the client's memory, directly and for another service: in one process, and in
// two.
// parity: G12
func TestComposition(t *testing.T) {
	t.Run("one", func(t *testing.T) {
		s := serve(t, "composition/daemon", loopback, "data-xfer,delegator")
		wantLines(t, "benchmark", runClient(t, "composition/benchmark", "-address", loopback, s.addr, s.addr, "3"), measured...)
		wantLines(t, "daemon", s.end(), "")
	})
	t.Run("two", func(t *testing.T) {
		data, delegator := serve(t, "composition/daemon", loopback, "data-xfer"), serve(t, "composition/daemon", loopback, "delegator")
		lines := runClient(t, "composition/benchmark", "-address", loopback, delegator.addr, data.addr, "3")
		wantLines(t, "benchmark", lines, measured...)
		wantLines(t, "daemon", append(data.end(), delegator.end()...), "", "")
	})
}

// TestCompositionMoves shows that the bytes arrive: the memory differs from what the client had.
// parity: G12
func TestCompositionMoves(t *testing.T) {
	data, client := listen(t), listen(t)
	delegator := listen(t)
	memory, err := data.Alloc(cinnabar.ReadOnly, margo.ReadSize)
	check(t, err)
	copy(memory.Bytes()[margo.ReadSize-4:], "end.")
	check(t, margo.HandleRead(data, data, memory))
	provider, err := data.NewProvider(margo.ProviderID, "")
	check(t, err)
	check(t, margo.HandleRead(provider, data, memory))
	check(t, margo.HandleDelegate(delegator, delegator))
	to, err := client.Lookup(delegator.Addr())
	check(t, err)

	mine, err := client.Alloc(cinnabar.WriteOnly, margo.ReadSize)
	check(t, err)
	service := data.Addr()
	_, err = margo.Delegate.Call(t.Context(), to, margo.DelegateIn{Service: &service, Data: mine.Handle()})
	check(t, err)
	if got := string(mine.Bytes()[margo.ReadSize-4:]); got != "end." {
		t.Errorf("the last bytes are %q", got)
	}
	check(t, mine.Close())
	_, err = margo.Delegate.Call(t.Context(), to, margo.DelegateIn{Data: mine.Handle()})
	if !errors.Is(err, codes.InvalidArg) {
		t.Errorf("a call that names no service: %v, want %v", err, codes.InvalidArg)
	}
}

func listen(t *testing.T) *cinnabar.Engine {
	t.Helper()
	e, err := cinnabar.Listen(t.Context(), loopback, nil)
	check(t, err)
	t.Cleanup(func() { check(t, e.Close()) })
	return e
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestUsage starts each program wrongly.
func TestUsage(t *testing.T) {
	for _, tt := range []struct {
		args string
		want string
	}{
		{"server", "usage: "},
		{"server -p random " + loopback, `"random"`},
		{"server nonsense", "nonsense"},
		{"client", "usage: "},
		{"client nonsense", "nonsense"},
		{"multiplex/server", "usage: "},
		{"multiplex/client a b", "usage: "},
		{"composition/daemon " + loopback, "usage: "},
		{"composition/daemon " + loopback + " other", `"other"`},
		{"composition/benchmark a b", "usage: "},
		{"composition/benchmark a b 0", `"0"`},
	} {
		args := strings.Fields(tt.args)
		p := testproc.Run(t, command(t, args[0], args[1:]...))
		if p.ExitCode() == 0 || !strings.Contains(p.Stdout.String()+p.Stderr.String(), tt.want) {
			t.Errorf("%s: %q, %q; want it to fail and say %s", tt.args, p.Stdout, p.Stderr, tt.want)
		}
	}
}
