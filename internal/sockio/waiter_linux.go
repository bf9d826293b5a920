package sockio

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// waiter is one direction's way of parking: an epoll set that holds the socket,
// disarmed but for the time somebody waits.
type waiter struct {
	events uint32 // what the direction waits for

	mu sync.Mutex
	// set is the epoll set's descriptor in Go's poller; nil until somebody waits.
	// +checklocks:mu
	set *os.File

	// What follows is its waiter's own.
	raw    syscall.RawConn // of set
	step   func(fd uintptr) bool
	armed  bool
	parked bool // step has been called since park
	event  [1]unix.EpollEvent
}

// open makes the epoll set when it is first needed.
func (w *waiter) open(sock syscall.RawConn) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.set != nil {
		return nil
	}
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // makes os.NewFile hand it to the poller
		_ = unix.Close(fd) // the error at hand is the one to tell
		return os.NewSyscallError("fcntl", err)
	}
	set := os.NewFile(uintptr(fd), "epoll")
	raw, err := set.SyscallConn()
	if err == nil {
		err = control2(sock, raw, func(s, e int) error {
			return unix.EpollCtl(e, unix.EPOLL_CTL_ADD, s, &unix.EpollEvent{Events: unix.EPOLLONESHOT, Fd: int32(s)})
		})
	}
	if err != nil {
		_ = set.Close() // the error at hand is the one to tell
		return os.NewSyscallError("epoll_ctl", err)
	}
	w.set, w.raw = set, raw
	w.step = w.ready
	return nil
}

// control2 calls f with two descriptors.
func control2(a, b syscall.RawConn, f func(a, b int) error) error {
	var failed error
	err := a.Control(func(x uintptr) {
		if err := b.Control(func(y uintptr) { failed = f(int(x), int(y)) }); err != nil {
			failed = err
		}
	})
	return errors.Join(err, failed)
}

// arm asks for one event; with events 0 it takes that back.
func (w *waiter) arm(sock syscall.RawConn, events uint32) error {
	err := control2(sock, w.raw, func(s, e int) error {
		return unix.EpollCtl(e, unix.EPOLL_CTL_MOD, s, &unix.EpollEvent{Events: events | unix.EPOLLONESHOT, Fd: int32(s)})
	})
	return os.NewSyscallError("epoll_ctl", err)
}

// park waits for the direction to become ready, or for wake.
func (w *waiter) park(sock syscall.RawConn) error {
	if err := w.arm(sock, w.events); err != nil {
		return err
	}
	w.armed, w.parked = true, false
	err := w.raw.Read(w.step)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return w.set.SetReadDeadline(time.Time{}) // before ready is called: a later wake sets it anew
	}
	return err
}

// ready takes the event, if there is one, by which the set is disarmed. It ends
// the parking also if the poller has seen an event that is gone: somebody else
// reads, and the caller's ready is to find out.
func (w *waiter) ready(fd uintptr) bool {
	n, err := unix.EpollWait(int(fd), w.event[:], 0)
	if n > 0 {
		w.armed = false
	}
	parked := w.parked
	w.parked = true
	return n > 0 || parked || err != nil && err != unix.EINTR
}

// disarm makes sure that what arrives wakes nobody.
func (w *waiter) disarm(sock syscall.RawConn) error {
	if !w.armed {
		return nil
	}
	w.armed = false
	return w.arm(sock, 0)
}

// wake ends the direction's present or next parking. Its error is that of a closed
// set, on which nobody parks.
func (w *waiter) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.set != nil {
		_ = w.set.SetReadDeadline(past)
	}
}

func (w *waiter) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.set != nil {
		_ = w.set.Close() // nothing is written through it that could fail to arrive
	}
}
