//go:build linux

package rdmacore

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cinnabar/verbs"
)

// seat is the place in which one goroutine at a time waits for the events of a completion queue by itself. An event then wakes that goroutine
// alone, and not the goroutine of a watcher that wakes it in turn.
type seat struct {
	mu   sync.Mutex // held by the goroutine that waits
	file *os.File   // a duplicate of the completion channel's descriptor
	conn syscall.RawConn
	// roused is set by rouse. It may be false after a rouse, but then wait returns os.ErrDeadlineExceeded.
	roused atomic.Bool
	// up is true if no goroutine may wait here any more, because a connection of the queue has ended or the queue is being closed: the end
	// of a connection may bring no completion.
	up atomic.Bool
}

func (s *seat) open(fd int) error {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	s.file = os.NewFile(uintptr(dup), "rdma completions")
	s.conn, err = s.file.SyscallConn()
	return err
}

// rouse makes the goroutine that waits look again.
func (s *seat) rouse() {
	s.roused.Store(true)
	_ = s.file.SetReadDeadline(time.Unix(1, 0)) // it fails after close only, when no goroutine waits
}

// leave ends the use of the seat, and makes the goroutine that waits return.
func (s *seat) leave() {
	s.up.Store(true)
	s.rouse()
}

// close waits until the seat is empty.
func (s *seat) close() {
	s.leave()
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.file.Close() // a duplicate: nothing is lost with it
}

var _ verbs.CQParker = (*cq)(nil)

// Park implements [verbs.CQParker].
//
// +checklocksignore: it does not know TryLock.
func (c *cq) Park(stop func() bool) bool {
	s := &c.seat
	if s.up.Load() || !s.mu.TryLock() {
		return false
	}
	defer s.mu.Unlock()
	for reset := s.roused.Swap(false); ; reset = true {
		if reset {
			_ = s.file.SetReadDeadline(time.Time{}) // before the checks, because rouse comes after a change of the state that they read
		}
		switch {
		case s.up.Load():
			return false
		case stop != nil && stop():
			return true
		case c.Arm(false) != nil: // the caller arms too, and gets the error
			return false
		case c.holds() || stop != nil && stop():
			return true
		}
		if err := s.wait(c); err == nil {
			if c.followed.Load() {
				c.notify() // because Disconnect may wait for the same event
			}
			return true
		} else if !errors.Is(err, os.ErrDeadlineExceeded) {
			return false
		}
	}
}

// wait reads one event. It returns os.ErrDeadlineExceeded after rouse.
func (s *seat) wait(c *cq) error {
	var failed error
	err := s.conn.Read(func(uintptr) bool {
		failed = nextCQEvent(c.channel)
		return !errors.Is(failed, syscall.EAGAIN)
	})
	return errors.Join(err, failed)
}

// holds polls into the stash, and reports whether that has a completion or the queue has failed.
func (c *cq) holds() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	var wc [batchSize]verbs.WC
	n, _, err := c.pollLocked(wc[:])
	c.stash = append(c.stash, wc[:n]...)
	return len(c.stash) > 0 || len(c.late) > 0 || err != nil || c.broken() != nil
}

// Unpark implements [verbs.CQParker].
func (c *cq) Unpark() { c.seat.rouse() }
