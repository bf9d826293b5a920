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
	return identity{uint64(st.Dev), st.Ino}, int(st.Nlink) //nolint:unconvert // Dev has another type on macOS
}

// isLocked reports whether an error of lockDir says that another process has the lock.
func isLocked(err error) bool { return errors.Is(err, unix.EWOULDBLOCK) }

// private reports whether a directory belongs to this user, and no other may look into it.
func private(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid() && info.Mode().Perm()&0o077 == 0
}

// owned reports whether this user may set mode and time of a file.
func owned(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && (int(st.Uid) == os.Geteuid() || os.Geteuid() == 0)
}

// allocated returns the bytes that a file takes on the disk.
func allocated(info fs.FileInfo) int64 {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return info.Size()
	}
	return st.Blocks * 512
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
