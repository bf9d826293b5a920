//go:build unix

package testproc

import (
	"errors"
	"io/fs"
	"path/filepath"
	"syscall"
	"testing"
)

func TestSuspend(t *testing.T) {
	p := Start(t, Command{Role: "echo"})
	p.Suspend()
	p.Send("while stopped")
	p.Resume()
	if got := p.Stdout.Line(); got != "WHILE STOPPED" {
		t.Errorf("line %q", got)
	}
	p.Suspend()
	p.Kill() // a stopped process can be killed
	if !p.WasKilled() {
		t.Errorf("killed, and now %s", p.state())
	}
}

func TestSignals(t *testing.T) {
	for name, send := range map[string]func(*Process){"interrupt": (*Process).Interrupt, "terminated": (*Process).Terminate} {
		p := Start(t, Command{Role: "stubborn"})
		p.Stdout.Line()
		send(p)
		if err := p.Wait(); err == nil || err.Error() != "signal: "+name || p.WasKilled() || p.ExitCode() != -1 {
			t.Errorf("%s: %v, %d", name, err, p.ExitCode())
		}
	}
}

// No process that has ended is left to the system as a zombie.
func TestNoZombie(t *testing.T) {
	p := Run(t, Command{Role: "say"})
	if pid, err := syscall.Wait4(p.Pid(), nil, syscall.WNOHANG, nil); err != syscall.ECHILD {
		t.Errorf("process %d can still be waited for: %d, %v", p.Pid(), pid, err)
	}
}

// TestStartRefused has the system refuse a process, because of an attribute that is passed to it.
func TestStartRefused(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	p, err := TryStart(t, Command{Role: "silent", Attr: &syscall.SysProcAttr{Chroot: missing}})
	if p != nil || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
		t.Errorf("%v, %v; want the error of the system", p, err)
	}
}
