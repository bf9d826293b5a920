package xfer

import (
	"os"

	"golang.org/x/sys/unix"
)

// renameExclusive renames from to to, two names without separators in root, unless
// there is a to. The error is then fs.ErrExist, and errors.ErrUnsupported where the
// file system cannot promise that: renameatx_np(2) says ENOTSUP.
func renameExclusive(root *os.Root, from, to string) error {
	return within(root, func(dir int) error { return unix.RenameatxNp(dir, from, dir, to, unix.RENAME_EXCL) })
}
