package testproc

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	Main(map[string]func([]string) error{
		"echo":     echo,
		"args":     func(args []string) error { fmt.Println(len(args), args); return nil },
		"say":      say,
		"serve":    serve,
		"stubborn": stubborn,
		"fail":     func([]string) error { return errors.New("no use") },
		"parent":   parent,
		"forsake":  func(args []string) error { return errors.Join(parent(args), errors.New("a child is left")) },
		"env":      func(args []string) error { fmt.Println(os.Getenv(args[0])); return nil },
		"silent":   func([]string) error { _, err := io.Copy(io.Discard, os.Stdin); return err },
	})
	goleak.VerifyTestMain(m)
}

// echo prints its input in capitals, on both outputs.
func echo([]string) error {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		fmt.Println(strings.ToUpper(in.Text()))
		fmt.Fprintln(os.Stderr, in.Text())
	}
	return in.Err()
}

// say prints each argument as it is.
func say(args []string) error {
	for _, a := range args {
		fmt.Print(a)
	}
	return nil
}

// serve returns when its input is closed.
func serve([]string) error {
	fmt.Println("ready")
	<-InputClosed()
	fmt.Println("done")
	return nil
}

// stubborn is a role that runs on when its input ends, so that only a signal ends it.
func stubborn([]string) error {
	fmt.Println("ready")
	<-time.NewTimer(time.Hour).C
	return nil
}

// parent starts a child that shares parent's standard output, and returns while the child runs.
func parent([]string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	child := exec.Command(self)
	child.Env = append(os.Environ(), roleEnv+"=silent")
	child.Stdin, child.Stdout = os.Stdin, os.Stdout // the child ends when the shared input is closed
	if err := child.Start(); err != nil {
		return err
	}
	fmt.Println(child.Process.Pid)
	return nil
}

// recorder is a testing.TB that records the failure, the log and the cleanups of a test.
type recorder struct {
	testing.TB
	failed   bool
	fatal    string
	log      string
	cleanups []func()
}

func (r *recorder) Helper()                 {}
func (r *recorder) Failed() bool            { return r.failed }
func (r *recorder) Cleanup(f func())        { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Logf(f string, a ...any) { r.log += fmt.Sprintf(f, a...) }
func (r *recorder) Fatalf(f string, a ...any) {
	r.failed, r.fatal = true, fmt.Sprintf(f, a...)
	runtime.Goexit()
}

// record runs f as a test, with its cleanups, in a goroutine of its own, which Fatalf ends.
func record(t *testing.T, f func(testing.TB)) *recorder {
	t.Helper()
	r := &recorder{TB: t}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer func() {
			for len(r.cleanups) > 0 {
				last := r.cleanups[len(r.cleanups)-1]
				r.cleanups = r.cleanups[:len(r.cleanups)-1]
				last()
			}
		}()
		f(r)
	})
	wg.Wait()
	return r
}

func wantFatal(t *testing.T, r *recorder, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(r.fatal, text) {
			t.Errorf("the test fails with %q, which does not have %q", r.fatal, text)
		}
	}
}

func TestLines(t *testing.T) {
	p := Start(t, Command{Role: "echo"})
	for _, line := range []string{"one", "", "three"} {
		p.Send(line)
		if got := p.Stdout.Line(); got != strings.ToUpper(line) {
			t.Errorf("%q comes back as %q", line, got)
		}
		if got := p.Stderr.Line(); got != line {
			t.Errorf("%q is %q on standard error", line, got)
		}
	}
	p.CloseInput()
	if err := p.Wait(); err != nil || p.ExitCode() != 0 || p.WasKilled() {
		t.Errorf("the process ended with %v, %d", err, p.ExitCode())
	}
	if got, want := p.Stdout.String(), "ONE\n\nTHREE\n"; got != want {
		t.Errorf("standard output is %q, want %q", got, want)
	}
	if line, ok := p.Stdout.NextLine(); ok {
		t.Errorf("another line: %q", line)
	}
}

func TestArgs(t *testing.T) {
	if got, want := Run(t, Command{Role: "args", Args: []string{"-a", "b c"}}).Stdout.Line(), "2 [-a b c]"; got != want {
		t.Errorf("arguments %q, want %q", got, want)
	}
	if got := Run(t, Command{Role: "env", Args: []string{"SEEN"}, Env: []string{"SEEN=yes"}}).Stdout.Line(); got != "yes" {
		t.Errorf("the variable is %q", got)
	}
}

// A line comes in pieces, several come at once, and the last one has no end.
func TestPieces(t *testing.T) {
	p := Run(t, Command{Role: "say", Args: []string{"fi", "rst\nsecond\r\nthi", "rd"}})
	for _, want := range []string{"first", "second", "third"} {
		if got := p.Stdout.Line(); got != want {
			t.Errorf("line %q, want %q", got, want)
		}
	}
}

func TestExpect(t *testing.T) {
	p := Run(t, Command{Role: "say", Args: []string{"a 1\nb 2\na 3\nb 4\nc 5\n"}})
	if got := p.Stdout.Take(`^b (\d)$`); got[1] != "2" {
		t.Errorf("Take: %q", got)
	}
	if got := p.Stdout.Take(`^a (\d)$`); got[1] != "1" {
		t.Errorf("Take of a line before: %q", got)
	}
	if got := p.Stdout.Expect(`^b (\d)$`); got[1] != "4" {
		t.Errorf("Expect: %q", got)
	}
	if got := p.Stdout.Line(); got != "c 5" {
		t.Errorf("the line behind: %q", got)
	}
	r := record(t, func(tb testing.TB) {
		Run(tb, Command{Role: "say", Args: []string{"a\nb\n"}}).Stdout.Expect("^c$")
	})
	wantFatal(t, r, "say ended", `"^c$"`, "standard output")
}

func TestServes(t *testing.T) {
	p := Start(t, Command{Role: "serve"})
	p.Stdout.Expect("^ready$")
	if p.Ended() {
		t.Error("a process that serves has ended")
	}
	p.CloseInput()
	p.Stdout.Expect("^done$")
	<-p.Done()
	if err := p.Wait(); err != nil {
		t.Error(err)
	}
}

func TestFailingRole(t *testing.T) {
	for role, text := range map[string]string{"fail": "no use\n", "unknown": "testproc: no role \"unknown\" in this test binary\n"} {
		p := Run(t, Command{Role: role})
		if p.ExitCode() != 1 || p.Stderr.String() != text {
			t.Errorf("%s: status %d, %q", role, p.ExitCode(), p.Stderr)
		}
	}
}

func TestKill(t *testing.T) {
	p := Start(t, Command{Role: "stubborn"})
	p.Stdout.Line()
	p.Kill()
	if !p.Ended() || !p.WasKilled() {
		t.Errorf("killed, and now %s", p.state())
	}
	p.Kill() // nothing happens
	p.CloseInput()
}

// A process that the test forgets is gone when the test is over, and no zombie.
func TestForgotten(t *testing.T) {
	var p *Process
	r := record(t, func(tb testing.TB) {
		p = Start(tb, Command{Role: "stubborn"})
		p.Stdout.Line()
	})
	if !p.Ended() || r.failed || r.log != "" {
		t.Errorf("%s, %v, %q", p.state(), r.failed, r.log)
	}
	if err := p.cmd.Process.Signal(os.Interrupt); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("a signal to the process: %v", err)
	}
}

// A process that hangs fails the test, whose log then has what the process has printed.
func TestHangs(t *testing.T) {
	for name, wait := range map[string]func(*Process){
		"printed a line":      func(p *Process) { p.Stdout.Line(); p.Stdout.Line() },
		"printed a line like": func(p *Process) { p.Stdout.Expect("never") },
		"ended within":        func(p *Process) { p.Stdout.Line(); _ = p.Wait() },
	} {
		r := record(t, func(tb testing.TB) { wait(Start(tb, Command{Role: "stubborn", Limit: 300 * time.Millisecond})) })
		wantFatal(t, r, "stubborn", name, "300ms")
		if !strings.Contains(r.log, "still running at the end of the test") {
			t.Errorf("%s: the log is %q", name, r.log)
		}
	}
}

// A failed test has the output in its log, and only the end of a long one.
func TestReport(t *testing.T) {
	r := record(t, func(tb testing.TB) {
		p := Run(tb, Command{Role: "say", Args: []string{strings.Repeat("x", 3*reportBytes), "the end\n"}})
		p.Stdout.Line()
		p.Stdout.Line()
	})
	wantFatal(t, r, "say ended (exit status 0) without another line on standard output")
	if len(r.log) > 2*reportBytes || !strings.HasSuffix(r.log, "xxthe end\n") || !strings.Contains(r.log, "process say (") {
		t.Errorf("the log has %d bytes: %.100q", len(r.log), r.log)
	}
}

func TestMissingProgram(t *testing.T) {
	r := record(t, func(tb testing.TB) { Start(tb, Command{Path: filepath.Join(t.TempDir(), "none")}) })
	wantFatal(t, r, "start none")
}

// A test binary without a role runs tests, even if the process that starts it has a role.
func TestRunsTests(t *testing.T) {
	p := Run(t, Command{Args: []string{"-test.run=^TestArgs$", "-test.v"}, Env: []string{"UNUSED=1"}})
	if p.ExitCode() != 0 || !strings.Contains(p.Stdout.String(), "--- PASS: TestArgs") {
		t.Errorf("status %d\n%s", p.ExitCode(), p.Stdout)
	}
}

// The end of a process is seen even though a child of it holds its output, and the child goes with its input.
func TestChildLeftBehind(t *testing.T) {
	p := Start(t, Command{Role: "parent"})
	if _, err := strconv.Atoi(p.Stdout.Line()); err != nil {
		t.Fatal(err)
	}
	p.CloseInput()
	if err := p.Wait(); err != nil {
		t.Error(err)
	}
}

func TestSendToEnded(t *testing.T) {
	r := record(t, func(tb testing.TB) {
		p := Run(tb, Command{Role: "say"})
		p.Send("hello")
	})
	wantFatal(t, r, `send "hello" to say`)
}

func TestBuild(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: go build takes seconds")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte("package main\n\nfunc main() { println(\"built\") }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	programs, err := Build(filepath.Join(dir, "main.go"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(programs) }) // in the system's temporary directory
	name := "main"
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	if got := Run(t, Command{Path: filepath.Join(programs, name)}).Stderr.Line(); got != "built" {
		t.Errorf("the program prints %q", got)
	}
	if dir, err := Build("./no/such/program"); err == nil || dir != "" || !strings.Contains(err.Error(), "no/such/program") {
		t.Errorf("a program that is not there: %q, %v", dir, err)
	}
}

// TestOutputsLeftOpen checks that the result of a process says that its child has its standard output, however the process ends.
func TestOutputsLeftOpen(t *testing.T) {
	for role, code := range map[string]int{"parent": 0, "forsake": 1} {
		t.Run(role, func(t *testing.T) {
			p := Start(t, Command{Role: role, pipeDelay: 100 * time.Millisecond})
			if err := p.Wait(); !errors.Is(err, exec.ErrWaitDelay) || p.ExitCode() != code {
				t.Errorf("exit code %d, %v; want %d and exec.ErrWaitDelay", p.ExitCode(), err, code)
			}
		})
	}
	p := Start(t, Command{Role: "fail"})
	if err := p.Wait(); err == nil || errors.Is(err, exec.ErrWaitDelay) {
		t.Errorf("a process without children: %v", err)
	}
}
