//go:build !unix

package testproc

import (
	"errors"
	"os/exec"
)

// killed reports whether err, an error of exec.Cmd.Wait, is that of a killed process: its status is 1, because package os passes
// that to TerminateProcess.
func killed(err error) bool {
	exit, ok := errors.AsType[*exec.ExitError](err)
	return ok && exit.ExitCode() == 1
}
