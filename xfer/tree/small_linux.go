package tree

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// hasSmall is true because this system can open a file relative to the descriptor of its directory.
const hasSmall = true

// uninterrupted calls do until no signal interrupts it. Signals can interrupt calls on file systems over a network.
func uninterrupted(do func() error) error {
	for {
		if err := do(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// openSmall opens the entry name of a directory, and follows no link.
func openSmall(dir int, name string, flag int, mode fs.FileMode) (fd int, err error) {
	err = uninterrupted(func() error {
		fd, err = unix.Openat(dir, name, flag|unix.O_NOFOLLOW|unix.O_CLOEXEC, uint32(mode.Perm()))
		return err
	})
	return fd, err
}

// writeSmall writes all of b to a new file.
func writeSmall(fd int, b []byte) error {
	for len(b) > 0 {
		var n int
		err := uninterrupted(func() (err error) {
			n, err = unix.Write(fd, b)
			return err
		})
		if err != nil {
			return err
		}
		if n <= 0 {
			return io.ErrShortWrite
		}
		b = b[n:]
	}
	return nil
}

// readSmall fills b from the beginning of a file, and returns the number of bytes. It is less than len(b) if the file is shorter.
func readSmall(fd int, b []byte) (n int, err error) {
	for n < len(b) {
		var k int
		err := uninterrupted(func() (err error) {
			k, err = unix.Pread(fd, b[n:], int64(n))
			return err
		})
		if err != nil || k <= 0 {
			return n, err
		}
		n += k
	}
	return n, nil
}

// modeOf returns the permissions of an open file.
func modeOf(fd int) (fs.FileMode, error) {
	var st unix.Stat_t
	err := uninterrupted(func() error { return unix.Fstat(fd, &st) })
	return fs.FileMode(st.Mode) & fs.ModePerm, err
}

// setModeOf sets the permissions of an open file.
func setModeOf(fd int, mode fs.FileMode) error {
	return uninterrupted(func() error { return unix.Fchmod(fd, uint32(mode.Perm())) })
}

// setTimeIn sets the time of modification of the entry name of a directory.
func setTimeIn(dir int, name string, t time.Time) error {
	to, err := unix.TimeToTimespec(t)
	if err != nil {
		return err
	}
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, to}
	return uninterrupted(func() error { return unix.UtimesNanoAt(dir, name, times, unix.AT_SYMLINK_NOFOLLOW) })
}

// openStamp returns the state of an open file, and whether it is a regular one.
func openStamp(fd int) (s stamp, regular bool, err error) {
	var st unix.Stat_t
	err = uninterrupted(func() error { return unix.Fstat(fd, &st) })
	s = stamp{size: st.Size, time: time.Unix(st.Mtim.Unix()), id: identity{uint64(st.Dev), st.Ino}} //nolint:unconvert // Dev has another type on some processors
	return s, st.Mode&unix.S_IFMT == unix.S_IFREG, err
}

// closeSmall closes a file. The caller looks at the error, because some file systems report a full disk only here.
func closeSmall(fd int) error {
	if err := unix.Close(fd); err != nil && !errors.Is(err, unix.EINTR) { // the descriptor is closed after EINTR too
		return err
	}
	return nil
}

const (
	flagsNew  = os.O_WRONLY | os.O_CREATE | os.O_EXCL
	flagsRead = os.O_RDONLY | syscall.O_NONBLOCK // because opening a pipe would block
)
