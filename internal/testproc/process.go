package testproc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// roleEnv names the role of a process that runs the test binary. It is empty in a process that runs tests.
const roleEnv = "CINNABAR_TESTPROC_ROLE"

const (
	// defaultLimit is long because the machine may be busy. No test passes or fails by it unless a process hangs.
	defaultLimit = time.Minute

	// pipeDelay bounds the wait for the outputs of a process that has ended, because its own child processes may keep them open.
	pipeDelay = 10 * time.Second
)

// Command describes a process to start.
type Command struct {
	// Role is a key of the map that TestMain passes to Main. The process runs the test binary, and Main calls the function
	// of the role with Args.
	Role string

	// Path is the path of a program. Role is empty then, unless the program is the test binary under another path. If both are
	// empty, the process runs the test binary with the flags in Args: -test.run=^TestOther$, for example.
	Path string

	Args  []string
	Env   []string      // NAME=VALUE, added to the environment of the test
	Dir   string        // working directory; "": that of the test
	Limit time.Duration // limit of each wait; 0: one minute

	Attr *syscall.SysProcAttr // further attributes, such as another user or another namespace; nil: none

	pipeDelay time.Duration // limit of the wait for the outputs after the end of the process; 0: the constant
}

// Main calls the function of the process's role and ends the process: with status 1 if the function returns an error, which
// Main prints on standard error, otherwise with status 0. In a process without a role it returns. TestMain calls it first.
func Main(roles map[string]func(args []string) error) {
	name := os.Getenv(roleEnv)
	if name == "" {
		return
	}
	role, ok := roles[name]
	if !ok {
		role = func([]string) error { return fmt.Errorf("testproc: no role %q in this test binary", name) }
	}
	if err := role(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:forbidigo // TestMain of a role's process has nothing else to do
	}
	os.Exit(0) //nolint:forbidigo // as above
}

// InputClosed returns a channel that is closed when the process's standard input ends, because the test has called CloseInput
// or the process of the test has ended. A role that serves should return then.
func InputClosed() <-chan struct{} {
	c := make(chan struct{})
	go func() {
		defer close(c)
		_, _ = io.Copy(io.Discard, os.Stdin) // an error ends the input too
	}()
	return c
}

// Process is a process that a test has started.
type Process struct {
	Stdout, Stderr *Stream

	t     testing.TB
	name  string
	cmd   *exec.Cmd
	input io.WriteCloser
	limit time.Duration
	done  chan struct{} // closed when exec.Cmd.Wait has returned
	err   error         // the result of exec.Cmd.Wait; set before done is closed
}

// Start starts a process. The end of the test kills it if it still runs.
func Start(t testing.TB, c Command) *Process {
	t.Helper()
	p, err := TryStart(t, c)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return p
}

// TryStart is Start for a process that the system may refuse to start, because of its attributes for example. It returns the error
// of the system in its chain.
func TryStart(t testing.TB, c Command) (*Process, error) {
	t.Helper()
	p := &Process{t: t, limit: cmp.Or(c.Limit, defaultLimit), done: make(chan struct{})}
	p.Stdout, p.Stderr = newStream(p, "standard output"), newStream(p, "standard error")
	path := c.Path
	if path == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("testproc: find the test binary: %w", err)
		}
		path = self
	}
	p.name = cmp.Or(c.Role, filepath.Base(path))
	p.cmd = exec.Command(path, c.Args...)
	p.cmd.Dir, p.cmd.SysProcAttr = c.Dir, c.Attr
	p.cmd.Env = append(os.Environ(), quickExit(), roleEnv+"="+c.Role)
	p.cmd.Env = append(p.cmd.Env, c.Env...)
	p.cmd.Stdout, p.cmd.Stderr = p.Stdout, p.Stderr
	p.cmd.WaitDelay = cmp.Or(c.pipeDelay, pipeDelay)
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("testproc: make the input of %s: %w", p.name, err)
	}
	p.input = in
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("testproc: start %s: %w", p.name, err)
	}
	go func() {
		p.err = p.result(p.cmd.Wait())
		close(p.done)
		p.Stdout.end()
		p.Stderr.end()
	}()
	t.Cleanup(p.destroy)
	return p, nil
}

// result adds [exec.ErrWaitDelay] to err, the result of exec.Cmd.Wait, if another process had an output open at the end, because
// exec.Cmd.Wait returns that error only for a process that ends with status 0.
func (p *Process) result(err error) error {
	switch {
	case !p.Stdout.wasCut() && !p.Stderr.wasCut() || errors.Is(err, exec.ErrWaitDelay):
		return err
	case err == nil:
		return exec.ErrWaitDelay
	}
	return fmt.Errorf("%w; %w", err, exec.ErrWaitDelay)
}

// quickExit is the environment variable that keeps a process with the race detector from sleeping for a second when it
// ends.
func quickExit() string {
	return "GORACE=" + strings.TrimSpace(os.Getenv("GORACE")+" atexit_sleep_ms=0")
}

// Run starts a process without input and returns when it has ended.
func Run(t testing.TB, c Command) *Process {
	t.Helper()
	p := Start(t, c)
	p.CloseInput()
	_ = p.Wait() // the caller gets the result by ExitCode or Wait
	return p
}

// destroy runs at the end of the test. It kills the process, and logs its end and output if the test has failed.
func (p *Process) destroy() {
	p.t.Helper()
	killed := !p.Ended()
	_ = p.cmd.Process.Kill() // the only error is that the process has ended
	<-p.done
	if p.t.Failed() {
		p.t.Logf("%s", p.report(killed))
	}
}

// report returns the end and the output of the process as text. killed: destroy has killed it.
func (p *Process) report(killed bool) string {
	end := p.state()
	if killed {
		end = "still running at the end of the test"
	}
	return fmt.Sprintf("process %s (%d): %s\n%s%s", p.name, p.Pid(), end, p.Stdout.report(), p.Stderr.report())
}

func (p *Process) state() string {
	if !p.Ended() {
		return "running"
	}
	if p.err != nil {
		return p.err.Error()
	}
	return p.cmd.ProcessState.String()
}

// Pid returns the id of the process.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// SetLimit changes the limit of waits that begin afterwards.
func (p *Process) SetLimit(d time.Duration) { p.limit = d }

// Ended reports whether the process has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Done returns a channel that is closed when the process has ended and its outputs are complete.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the end of the process and returns how it ended, as [exec.Cmd.Wait] does. The error is [exec.ErrWaitDelay] too if
// another process, such as its child, still has one of its outputs open. A process that has not ended within the limit fails the test.
func (p *Process) Wait() error {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), p.limit)
	defer cancel()
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		p.t.Fatalf("%s has not ended within %v", p.name, p.limit)
		return ctx.Err()
	}
}

// ExitCode waits as Wait does and returns the status of the process, -1 if a signal has ended it.
func (p *Process) ExitCode() int {
	p.t.Helper()
	_ = p.Wait() // the status has the same result
	return p.cmd.ProcessState.ExitCode()
}

// State waits as Wait does and returns the end of the process, with the resources that it has used.
func (p *Process) State() *os.ProcessState {
	p.t.Helper()
	_ = p.Wait() // the state has the same result
	return p.cmd.ProcessState
}

// WasKilled waits as Wait does and reports whether the process was ended by SIGKILL, or by TerminateProcess on Windows.
func (p *Process) WasKilled() bool {
	p.t.Helper()
	return killed(p.Wait())
}

// Kill ends the process without warning and waits for its end. A process that has ended already is no error.
func (p *Process) Kill() {
	p.t.Helper()
	p.signal(os.Kill)
	_ = p.Wait() // the error is that of the kill
}

// Interrupt sends the signal of Ctrl-C (SIGINT). It does not wait.
func (p *Process) Interrupt() {
	p.t.Helper()
	p.signal(os.Interrupt)
}

// Terminate asks the process to end (SIGTERM). It does not wait.
func (p *Process) Terminate() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
}

func (p *Process) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Fatalf("send %v to %s: %v", s, p.name, err)
	}
}

// Send writes a line to the standard input of the process.
func (p *Process) Send(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.input, line+"\n"); err != nil {
		p.t.Fatalf("send %q to %s (%s): %v", line, p.name, p.state(), err)
	}
}

// CloseInput ends the standard input of the process.
func (p *Process) CloseInput() {
	_ = p.input.Close() // closed already if the process has ended
}

// Build runs go build with args, such as packages and flags, and returns the temporary directory that has the programs. The caller,
// TestMain, removes the directory.
func Build(args ...string) (dir string, err error) {
	dir, err = os.MkdirTemp("", "cinnabar-testproc-")
	if err != nil {
		return "", fmt.Errorf("testproc: %w", err)
	}
	build := exec.Command("go", append([]string{"build", "-o", dir + string(filepath.Separator)}, args...)...)
	if out, err := build.CombinedOutput(); err != nil {
		return "", errors.Join(fmt.Errorf("testproc: build %q: %w\n%s", args, err, out), os.RemoveAll(dir))
	}
	return dir, nil
}

// BuildInto is Build for TestMain, and sets *dir. It prints the error and ends the process if a program cannot be built. exit
// removes the directory and ends the process, for goleak.Cleanup.
func BuildInto(dir *string, args ...string) (exit func(code int)) {
	var err error
	if *dir, err = Build(args...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:forbidigo // TestMain cannot run the tests
	}
	return func(code int) {
		_ = os.RemoveAll(*dir) // the system removes temporary files in the end
		os.Exit(code)          //nolint:forbidigo // the tests of TestMain's process have run
	}
}
