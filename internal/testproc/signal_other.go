//go:build !unix

package testproc

import (
	"errors"
	"os/exec"
)

// killed reports whether err, of exec.Cmd.Wait, is of a process that was ended: there are no signals to tell apart, and
// TerminateProcess, as package os calls it, sets the status 1.
func killed(err error) bool {
	exit, ok := errors.AsType[*exec.ExitError](err)
	return ok && exit.ExitCode() == 1
}
