package sockio

import (
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cinnabar/internal/invariants"
	"cinnabar/internal/rawcall"
)

// waiter parks the goroutine that waits for one direction: an epoll set that contains the socket, and is armed only while the
// goroutine waits.
type waiter struct {
	events uint32 // the events that the direction waits for

	mu invariants.Mutex
	// set is the epoll set's descriptor in Go's poller; nil before the first wait.
	// +checklocks:mu
	set *os.File

	// The waiting goroutine owns the following fields. The two descriptors do not change while it waits, because the last waiter to
	// leave closes them.
	raw    syscall.RawConn // of set
	setFD  int
	sockFD int
	step   func(fd uintptr) bool
	armed  bool
	parked bool // step has been called since park
	ctl    unix.EpollEvent
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
		_ = unix.Close(fd) // the error at hand is the one to return
		return os.NewSyscallError("fcntl", err)
	}
	set := os.NewFile(uintptr(fd), "epoll")
	raw, err := set.SyscallConn()
	if err == nil {
		err = sock.Control(func(s uintptr) { w.sockFD = int(s) })
	}
	if err == nil {
		err = os.NewSyscallError("epoll_ctl", unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, w.sockFD, &unix.EpollEvent{Events: unix.EPOLLONESHOT}))
	}
	if err != nil {
		_ = set.Close() // the error at hand is the one to return
		return err
	}
	w.set, w.raw, w.setFD = set, raw, fd
	w.step = w.ready
	return nil
}

// arm asks for one event; with events 0 it takes that back.
func (w *waiter) arm(events uint32) error {
	w.ctl = unix.EpollEvent{Events: events | unix.EPOLLONESHOT}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(w.setFD, unix.EPOLL_CTL_MOD, w.sockFD, &w.ctl))
}

// park waits for the direction to become ready, or for wake.
func (w *waiter) park() error {
	if err := w.arm(w.events); err != nil {
		return err
	}
	w.armed, w.parked = true, false
	err := w.raw.Read(w.step)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return w.deadline(time.Time{}) // before ready is called: a later wake sets it anew
	}
	return err
}

// ready takes the event, if there is one, which disarms the set. It also ends the parking if the poller has seen an event that is
// gone, because another goroutine has read; the caller's ready then finds no bytes.
func (w *waiter) ready(fd uintptr) bool {
	n, err := rawcall.Events(int(fd), w.event[:])
	if n > 0 {
		w.armed = false
	}
	parked := w.parked
	w.parked = true
	return n > 0 || parked || err != nil && !errors.Is(err, unix.EINTR)
}

// disarm disarms the set, so that arriving bytes wake no goroutine.
func (w *waiter) disarm() error {
	if !w.armed {
		return nil
	}
	w.armed = false
	return w.arm(0)
}

// wake ends the present or next parking. An error is that of a closed set, on which no goroutine parks.
func (w *waiter) wake() { _ = w.deadline(Past) }

func (w *waiter) deadline(t time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.set == nil {
		return nil
	}
	return w.set.SetReadDeadline(t)
}

func (w *waiter) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.set != nil {
		_ = w.set.Close() // nothing is written through it that could fail to arrive
	}
}
