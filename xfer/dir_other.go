//go:build !linux && !darwin

package xfer

import (
	"errors"
	"os"
)

// renameExclusive is not to be had on this system.
func renameExclusive(*os.Root, string, string) error { return errors.ErrUnsupported }
