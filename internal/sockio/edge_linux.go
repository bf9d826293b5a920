package sockio

import (
	"errors"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cinnabar/internal/invariants"
)

// edge parks the reader of [Conn.WaitReadEdge]. While its readers park for nearly every message it has a duplicate of the socket in Go's
// poller, as a net.TCPConn has. The set of a waiter costs two system calls more for each parking, and a message costs more to wake its
// reader: the kernel runs a thread that is woken through one epoll set on the processor of the sender, which is about to sleep itself,
// and a thread that is woken through two sets on another processor, which it has to wake up first.
//
//	             edgeParks parkings, between which no other goroutine has read
//	waiter's set ─────────────────────────────────────────────────────────────▶ duplicate
//	             ◀─────────────────────────────────────────────────────────────
//	             edgeReads reads by spinning goroutines, between which none has parked
type edge struct {
	waiting atomic.Bool  // a goroutine is in waitReadEdge
	reads   atomic.Int32 // reads outside of waitReadEdge since the last parking

	mu invariants.Mutex
	// file is the duplicate; nil: there is none.
	// +checklocks:mu
	file *os.File
	// used is true while a goroutine may be parked on file.
	// +checklocks:mu
	used bool

	// The waiting goroutine owns the following fields.
	parks   int // parkings in a row, up to edgeParks
	ready   func() bool
	done    bool // ready has returned true
	counted bool // this wait is in parks
	look    func() bool
	step    func(fd uintptr) bool
}

const (
	edgeParks = 3
	edgeReads = 16
)

// init makes the functions that call ready.
func (e *edge) init() {
	e.look = func() bool {
		if e.done = e.ready(); !e.done && !e.counted {
			e.counted = true
			e.parks = min(e.parks+1, edgeParks)
			if e.reads.Swap(0) > 0 {
				e.parks = 1
			}
		}
		return e.done
	}
	e.step = func(uintptr) bool { return e.look() }
}

// waitReadEdge is [Conn.WaitReadEdge].
func (d *direct) waitReadEdge(ready func() bool) error {
	e := &d.edge
	e.ready, e.counted = ready, false
	e.waiting.Store(true)
	defer e.waiting.Store(false)
	if e.parks < edgeParks {
		return d.wait(&d.rxW, e.look)
	}
	if !d.enter() {
		return net.ErrClosed
	}
	defer d.leave()
	raw, err := e.open(d)
	if err != nil {
		return d.wait(&d.rxW, e.look) // because the process may have no descriptor left
	}
	defer e.release()
	for !d.closed.Load() {
		err := raw.Read(e.step)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			if err := e.deadline(time.Time{}); err != nil { // before ready is called: a later wake sets it anew
				return err
			}
		case err != nil && !d.closed.Load():
			return err
		case err == nil && !d.closed.Load():
			return nil
		}
	}
	return net.ErrClosed
}

// open makes the duplicate, unless there is one, and marks it as used.
func (e *edge) open(d *direct) (syscall.RawConn, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.file == nil {
		fd := -1
		err := d.control(func(sock int) (err error) {
			fd, err = unix.FcntlInt(uintptr(sock), unix.F_DUPFD_CLOEXEC, 0)
			return os.NewSyscallError("fcntl", err)
		})
		if err != nil {
			return nil, err
		}
		if err := unix.SetNonblock(fd, true); err != nil { // makes os.NewFile hand it to the poller; the try calls do not depend on it
			_ = unix.Close(fd) // the error at hand is the one to return
			return nil, os.NewSyscallError("fcntl", err)
		}
		e.file = os.NewFile(uintptr(fd), "tcp")
	}
	raw, err := e.file.SyscallConn()
	e.used = err == nil
	return raw, err
}

// release ends the use of the duplicate.
func (e *edge) release() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.used = false
}

func (e *edge) deadline(t time.Time) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.file.SetReadDeadline(t)
}

// wake ends the present parking on the duplicate, and reports whether there may be one.
func (e *edge) wake() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.used {
		_ = e.file.SetReadDeadline(Past) // fails on a closed file only, on which no goroutine parks
	}
	return e.used
}

// spun counts a read outside of waitReadEdge. After edgeReads of them it closes the duplicate, because each arrival on that wakes a
// thread of the scheduler, also while a goroutine spins.
func (e *edge) spun() {
	if e.waiting.Load() || e.reads.Load() > edgeReads || e.reads.Add(1) != edgeReads {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.used {
		e.closeLocked()
	}
}

func (e *edge) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closeLocked()
}

// +checklocks:e.mu
func (e *edge) closeLocked() {
	if e.file != nil {
		_ = e.file.Close() // nothing is written through it that could fail to arrive
		e.file = nil
	}
}
