//go:build unix

package kill

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patience bounds what a test waits for beyond the timeouts of package xfer: starting
// a process on a machine that has other things to do.
const patience = 20 * time.Second

// process is a sender or receiver that runs.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.Closer
	lines chan string   // what it says; closed at its end
	read  chan struct{} // closed when all it said was read
	err   bytes.Buffer  // to be read after its end
	ended bool
}

// start starts a process. What is in env comes on top of the test's environment.
func start(t *testing.T, env ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(os.Args[0]), lines: make(chan string, 1000), read: make(chan struct{})} // more lines than any says
	p.cmd.Env = append(append(os.Environ(), "GORACE=atexit_sleep_ms=0", timeoutEnv+"="+timeout.String()), env...)
	p.cmd.Stderr = &p.err
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.stdin = stdin
	go func() {
		defer close(p.read)
		defer close(p.lines)
		for in := bufio.NewScanner(stdout); in.Scan(); {
			p.lines <- in.Text()
		}
	}()
	t.Cleanup(p.destroy)
	return p
}

// startSend starts a sender of the file at path.
func startSend(t *testing.T, v variant, addr, path string, more ...string) *process {
	t.Helper()
	return start(t, append(more, roleEnv+"=send", variantEnv+"="+v.name, peerEnv+"="+addr, pathEnv+"="+path)...)
}

// startRecv starts a receiver into dir and returns its address.
func startRecv(t *testing.T, v variant, dir string, more ...string) (p *process, addr string) {
	t.Helper()
	p = start(t, append(more, roleEnv+"=recv", variantEnv+"="+v.name, pathEnv+"="+dir)...)
	return p, p.expect(wordAddr)
}

// expect waits for the line that begins with word, and returns the rest.
func (p *process) expect(words ...string) string {
	p.t.Helper()
	word := strings.Join(words, " ")
	ctx, cancel := context.WithTimeout(p.t.Context(), timeout+patience)
	defer cancel()
	for {
		select {
		case line, more := <-p.lines:
			if !more {
				p.t.Fatalf("the process ended without saying %q: %v: %s", word, p.wait(), &p.err)
			}
			if rest, ok := strings.CutPrefix(line, word+" "); ok {
				return rest
			}
		case <-ctx.Done():
			p.t.Fatalf("nothing like %q came within %v", word, timeout+patience)
		}
	}
}

// said returns the rest of the line that begins with word among all that the process
// said until its end, or "".
func (p *process) said(word string) (rest string) {
	for line := range p.lines {
		if r, ok := strings.CutPrefix(line, word+" "); ok {
			rest = r
		}
	}
	return rest
}

// wait waits for the end of the process, which is not to take longer than the
// timeout of package xfer, and returns how it ended.
func (p *process) wait() error {
	p.t.Helper()
	limit := time.AfterFunc(timeout+patience, func() { _ = p.cmd.Process.Kill() }) // fails only if it has ended
	<-p.read                                                                       // Wait closes the pipe
	err := p.cmd.Wait()
	p.ended = true
	if !limit.Stop() {
		p.t.Fatalf("the process hung for longer than its timeout of %v; stderr: %s", timeout, &p.err)
	}
	return err
}

// stop ends a receiver in order.
func (p *process) stop() {
	p.t.Helper()
	_ = p.stdin.Close() // closed already if it has ended, which wait then tells
	if err := p.wait(); err != nil {
		p.t.Errorf("the receiver ended with %v: %s", err, &p.err)
	}
}

// destroy leaves nothing behind, whatever the state of the process.
func (p *process) destroy() {
	if !p.ended {
		_ = p.cmd.Process.Kill() // as above
		<-p.read
		_ = p.cmd.Wait() // killed
	}
}

// wasKilled reports whether a process ended by SIGKILL.
func wasKilled(err error) bool {
	exit, ok := err.(*exec.ExitError) //nolint:errorlint // as exec returns it
	if !ok {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// at makes a process end at step n.
func at(n int) string { return fmt.Sprintf("%s=%d", stepEnv, n) }
