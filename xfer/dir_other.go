//go:build !linux && !darwin

package xfer

import (
	"errors"
	"io"
	"io/fs"
	"os"
)

// lockTemp always fails, because this system has no such lock. Stale temporary files are therefore never removed.
func lockTemp(*os.File) error { return errors.ErrUnsupported }

// isLocked is never true, because there are no locks.
func isLocked(error) bool { return false }

// trusted trusts no file, because it cannot be locked.
func trusted(fs.FileInfo) bool { return false }

// keepLock has no lock to keep.
func keepLock(*os.File) io.Closer { return nil }

// renameExclusive is not to be had on this system.
func renameExclusive(*os.Root, string, string) error { return errors.ErrUnsupported }
