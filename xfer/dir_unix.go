//go:build linux || darwin

package xfer

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// lockTemp locks a temporary file without waiting, so that other processes see that a receiver writes it. The lock ends with the
// last descriptor of this opening of the file, and so with the process.
func lockTemp(f *os.File) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var lerr error
	err = c.Control(func(fd uintptr) { lerr = unix.Flock(int(fd), unix.LOCK_EX|unix.LOCK_NB) })
	return errors.Join(err, lerr)
}

// isLocked reports whether an error of lockTemp says that another process has the lock.
func isLocked(err error) bool { return errors.Is(err, unix.EWOULDBLOCK) }

// trusted reports whether a file belongs to this user, has one name, and no other user may write to it.
func trusted(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid() && st.Nlink == 1 && info.Mode().Perm()&0o022 == 0
}

// keepLock returns a second descriptor of f, which keeps the lock of lockTemp while f is closed; nil: there is none, and the
// lock ends with f.
func keepLock(f *os.File) io.Closer {
	c, err := f.SyscallConn()
	if err != nil {
		return nil
	}
	var dup int
	var derr error
	if err := c.Control(func(fd uintptr) { dup, derr = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }); err != nil || derr != nil {
		return nil
	}
	return os.NewFile(uintptr(dup), f.Name())
}

// within calls do with a descriptor of the directory, and again as long as a signal
// interrupts it, which some file systems let happen.
func within(root *os.Root, do func(dir int) error) error {
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	c, err := dir.SyscallConn()
	if err == nil {
		var derr error
		err = c.Control(func(fd uintptr) {
			for derr = do(int(fd)); errors.Is(derr, syscall.EINTR); {
				derr = do(int(fd))
			}
		})
		err = errors.Join(err, derr)
	}
	_ = dir.Close() // nothing was written to it
	return err
}
