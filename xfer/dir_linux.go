package xfer

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// renameExclusive renames from to to, two names without separators in root, unless
// there is a to. The error is then fs.ErrExist, and errors.ErrUnsupported where the
// file system cannot promise that: renameat2(2) says EINVAL.
func renameExclusive(root *os.Root, from, to string) error {
	return within(root, func(dir int) error {
		err := unix.Renameat2(dir, from, dir, to, unix.RENAME_NOREPLACE)
		if errors.Is(err, unix.EINVAL) {
			return errors.ErrUnsupported
		}
		return err
	})
}
