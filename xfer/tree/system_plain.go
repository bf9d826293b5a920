//go:build !linux && !darwin

package tree

import (
	"errors"
	"io/fs"
	"os"
)

// identityOf knows no identity on this system, so that further names of a file are sent as files.
func identityOf(fs.FileInfo) (identity, int) { return identity{}, 1 }

// isLocked is never true, because there are no locks.
func isLocked(error) bool { return false }

// private is false, because a directory that cannot be locked is not used again.
func private(fs.FileInfo) bool { return false }

// owned is not known. An error comes at the end then.
func owned(fs.FileInfo) bool { return true }

// allocated is not known.
func allocated(info fs.FileInfo) int64 { return info.Size() }

// lockDir always fails, because this system has no such lock. Directories of killed receivers are therefore never removed.
func lockDir(*os.File) error { return errors.ErrUnsupported }
