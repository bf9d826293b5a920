//go:build linux

package main

import (
	"os/exec"
	"syscall"
	"testing"
)

// freeze stops a process, whose host goes on acknowledging what comes for it.
func freeze(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
}
