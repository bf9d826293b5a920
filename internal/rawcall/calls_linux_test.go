package rawcall

import (
	"encoding/binary"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// TestEvents reads and writes a counter (eventfd), and takes its event from an epoll set.
func TestEvents(t *testing.T) {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	set := epollSet(t, fd, err)
	var events [4]unix.EpollEvent
	var b [8]byte
	if n, err := Read(fd, b[:]); n != 0 || !errors.Is(err, unix.EAGAIN) {
		t.Errorf("read of a counter at 0: %d bytes, %v", n, err)
	}
	if n, err := Events(set, events[:]); n != 0 || err != nil {
		t.Errorf("%d events of a counter at 0, %v", n, err)
	}
	binary.NativeEndian.PutUint64(b[:], 7)
	if n, err := Write(fd, b[:]); n != 8 || err != nil {
		t.Errorf("write: %d bytes, %v", n, err)
	}
	if n, err := Events(set, events[:]); n != 1 || err != nil || events[0].Fd != int32(fd) || events[0].Events != unix.EPOLLIN {
		t.Errorf("%d events, %+v, %v", n, events[0], err)
	}
	clear(b[:])
	if n, err := Read(fd, b[:]); n != 8 || err != nil || binary.NativeEndian.Uint64(b[:]) != 7 {
		t.Errorf("read: %d bytes, % x, %v", n, b, err)
	}
}

// TestClosed: every call reports the error of a descriptor that is not open.
func TestClosed(t *testing.T) {
	var b [8]byte
	var events [1]unix.EpollEvent
	_, readErr := Read(-1, b[:])
	_, writeErr := Write(-1, b[:])
	_, eventsErr := Events(-1, events[:])
	for _, err := range []error{readErr, writeErr, eventsErr} {
		if !errors.Is(err, unix.EBADF) {
			t.Errorf("error %v, want EBADF", err)
		}
	}
}

// epollSet makes an epoll set with the new descriptor fd, and closes both after the test.
func epollSet(t *testing.T, fd int, err error) (set int) {
	t.Helper()
	if err == nil {
		set, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	}
	if err == nil {
		err = unix.EpollCtl(set, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, d := range []int{fd, set} {
			if err := unix.Close(d); err != nil {
				t.Error(err)
			}
		}
	})
	return set
}
