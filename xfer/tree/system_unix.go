//go:build linux || darwin

package tree

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// identityOf returns the identity of a file and the number of its names.
func identityOf(info fs.FileInfo) (identity, int) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return identity{}, 1
	}
	return identity{uint64(st.Dev), st.Ino}, int(min(st.Nlink, 2)) //nolint:unconvert // Dev has another type on macOS
}

// lockDir locks an open directory without waiting, so that other processes see that a receiver writes below it. The lock ends with the
// last descriptor of this opening, and so with the process.
func lockDir(f *os.File) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var lerr error
	err = c.Control(func(fd uintptr) { lerr = unix.Flock(int(fd), unix.LOCK_EX|unix.LOCK_NB) })
	return errors.Join(err, lerr)
}
