package margo_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"cinnabar"
	"cinnabar/examples/margo"
)

// programs are the folders of the programs, by the folder in which they are built together; built is where.
var (
	programs = map[string][]string{
		"":          {"./server", "./client", "./composition/daemon", "./composition/benchmark"},
		"multiplex": {"./multiplex/server", "./multiplex/client"},
	}
	built string
)

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "margo")
	if err != nil {
		panic(err)
	}
	built = dir
	for folder, list := range programs {
		into := filepath.Join(built, folder) + string(filepath.Separator)
		build := exec.Command("go", append([]string{"build", "-ldflags=-w", "-o", into}, list...)...) // -w: they are linked sooner
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build %v: %v\n%s", list, err, out)
			os.Exit(1)
		}
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// executable is where a program is built.
func executable(program string) string {
	name := filepath.Join(built, strings.TrimPrefix(program, "composition/"))
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	return name
}

const (
	loopback     = "ofi+tcp://127.0.0.1"
	processLimit = time.Minute // for processes that hang
)

// command prepares a process, of a program of this folder if it is given by its name only.
func command(t *testing.T, program string, args ...string) *exec.Cmd {
	t.Helper()
	if !filepath.IsAbs(program) {
		program = executable(program)
	}
	ctx, cancel := context.WithTimeout(context.Background(), processLimit)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.WaitDelay = processLimit
	cmd.Dir = t.TempDir() // Margo's programs leave files
	cmd.Env = append(os.Environ(), "FI_TCP_IFACE=lo", "TMPDIR="+cmd.Dir)
	return cmd
}

// serverProcess is a running server.
type serverProcess struct {
	t      *testing.T
	cmd    *exec.Cmd
	addr   string
	stdout *bufio.Reader // what comes after the address
	stderr bytes.Buffer
}

// launch starts a server that will be killed at the end of the test, unless it has ended by then.
func launch(t *testing.T, program string, args ...string) *serverProcess {
	t.Helper()
	s := &serverProcess{t: t, cmd: command(t, program, args...)}
	s.cmd.Stderr = &s.stderr
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.stdout = bufio.NewReader(out)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s.cmd.ProcessState == nil {
			_ = s.cmd.Process.Kill()
			_ = s.cmd.Wait()
		}
	})
	return s
}

// serve starts a server of this folder and waits for its address.
func serve(t *testing.T, program string, args ...string) *serverProcess {
	t.Helper()
	s := launch(t, program, args...)
	line, err := s.stdout.ReadString('\n')
	addr, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "accepting calls at ")
	if err != nil || !ok {
		t.Fatalf("%s says %q, %v; it should say where it is\n%s", program, line, err, &s.stderr)
	}
	s.addr = addr
	return s
}

// end waits for the server, which must end well, and returns the rest of its lines, sorted.
func (s *serverProcess) end() []string {
	s.t.Helper()
	var out bytes.Buffer
	if _, err := out.ReadFrom(s.stdout); err != nil {
		s.t.Error(err)
	}
	if err := s.cmd.Wait(); err != nil {
		s.t.Errorf("the server ended with %v\n%s", err, &s.stderr)
	}
	return sorted(out.String())
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
	cmd := command(t, program, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s ended with %v\n%s%s", program, err, &out, &errs)
	}
	return sorted(out.String())
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
	provider, err := data.Provider(margo.ProviderID, "")
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
	if !errors.Is(err, cinnabar.CodeInvalidArg) {
		t.Errorf("a call that names no service: %v, want %v", err, cinnabar.CodeInvalidArg)
	}
}

func listen(t *testing.T) *cinnabar.Engine {
	t.Helper()
	e, err := cinnabar.Listen(loopback, nil)
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
		out, err := command(t, args[0], args[1:]...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), tt.want) {
			t.Errorf("%s: %v, %q; want it to fail and say %s", tt.args, err, out, tt.want)
		}
	}
}
