//go:build !linux && !darwin

package xfer

import (
	"errors"
	"os"
)

// lockTemp is not to be had on this system, so that temporary files are never found to be held by no process.
func lockTemp(*os.File) error { return errors.ErrUnsupported }

// renameExclusive is not to be had on this system.
func renameExclusive(*os.Root, string, string) error { return errors.ErrUnsupported }
