package progress

import (
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cinnabar/internal/rawcall"
)

// timerfd is a timer of the kernel, which the network poller of Go's runtime watches. A thread of the process wakes only if the timer expires, so
// an alarm that is restarted before each expiry wakes no thread.
type timerfd struct {
	file *os.File
	raw  syscall.RawConn
	spec unix.ItimerSpec       // the next expiry and the interval after it; the argument of set
	set  func(fd uintptr)      // starts the timer
	off  func(fd uintptr)      // stops the timer
	take func(fd uintptr) bool // reads the number of expirations, and returns false only if the timer has not expired

	expirations [8]byte // memory of take
	failed      error   // error of the last read by take; nil after success
}

func newSystemAlarm() (alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("timerfd_create", err)
	}
	t := &timerfd{file: os.NewFile(uintptr(fd), "timerfd")}
	interval := unix.NsecToTimespec(int64(WatchInterval))
	t.spec = unix.ItimerSpec{Interval: interval, Value: interval}
	t.set = func(fd uintptr) { err = unix.TimerfdSettime(int(fd), 0, &t.spec, nil) }
	if t.raw, err = t.file.SyscallConn(); err == nil {
		if cerr := t.raw.Control(t.set); cerr != nil {
			err = cerr
		}
	}
	if err != nil {
		_ = t.file.Close() // the error at hand is the one to return
		return nil, err
	}
	t.set = func(fd uintptr) { _ = unix.TimerfdSettime(int(fd), 0, &t.spec, nil) } // does not fail, because the same call has succeeded before
	var never unix.ItimerSpec
	t.off = func(fd uintptr) { _ = unix.TimerfdSettime(int(fd), 0, &never, nil) } // does not fail either
	t.take = func(fd uintptr) bool {
		_, t.failed = rawcall.Read(int(fd), t.expirations[:])
		return !errors.Is(t.failed, unix.EAGAIN) && !errors.Is(t.failed, unix.EINTR)
	}
	return t, nil
}

func (t *timerfd) wait() bool {
	return t.raw.Read(t.take) == nil && t.failed == nil
}

func (t *timerfd) restart(after time.Duration) {
	t.spec.Value = unix.NsecToTimespec(int64(after))
	_ = t.raw.Control(t.set) // fails only after stop
}

func (t *timerfd) pause() { _ = t.raw.Control(t.off) } // fails only after stop

func (t *timerfd) stop() { _ = t.file.Close() } // ends wait; the error does not matter, because nothing was written
