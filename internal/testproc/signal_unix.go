//go:build unix

package testproc

import (
	"errors"
	"os/exec"
	"syscall"
)

// killed reports whether err, an error of exec.Cmd.Wait, says that SIGKILL has ended a process.
func killed(err error) bool {
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// Suspend stops the process, as Ctrl-Z does, and returns when all its threads have stopped.
func (p *Process) Suspend() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(p.Pid(), &status, syscall.WUNTRACED, nil)
		if err == nil && status.Stopped() {
			return
		}
		if !errors.Is(err, syscall.EINTR) {
			p.t.Fatalf("%s (%s) does not stop: status %#x, %v", p.name, p.state(), uint32(status), err)
		}
	}
}

// Resume continues a process that Suspend has stopped (SIGCONT).
func (p *Process) Resume() {
	p.t.Helper()
	p.signal(syscall.SIGCONT)
}
