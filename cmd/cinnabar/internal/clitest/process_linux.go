//go:build linux

package clitest

import (
	"os/exec"
	"syscall"
	"testing"
)

// Freeze stops a process. Its host goes on acknowledging the segments that arrive for it.
func Freeze(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
}
