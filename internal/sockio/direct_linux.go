package sockio

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Direct is true where TryReadv and TryWritev act on the socket itself, and
// false where they copy from and to a staging buffer.
const Direct = true

// socket is the implementation behind Conn.
type socket = direct

// direct does system calls on the descriptor of a net.TCPConn.
//
// The try calls reach the descriptor through RawConn.Control, which only counts
// a reference; RawConn.Read would wait for the read lock that the parked
// waitRead holds.
type direct struct {
	tcp *net.TCPConn
	raw syscall.RawConn

	rx, tx   transfer // owned by the caller of tryReadv and of tryWritev
	rxW, txW waiter   // owned by the caller of waitRead and of waitWrite

	// reset is the first failure that either direction met. The kernel reports
	// it to one call only and then shows an end of stream to readers, which
	// must not take an abort for the peer's goodbye.
	reset atomic.Pointer[net.OpError]

	closed atomic.Bool
	mu     sync.Mutex
	// parked counts the waiters inside RawConn.
	// +checklocks:mu
	parked int
	// done says that tcp has been closed, or is about to be.
	// +checklocks:mu
	done bool
}

// waiter is one direction's way of parking.
type waiter struct {
	park     func(func(fd uintptr) bool) error // RawConn.Read or RawConn.Write
	deadline func(time.Time) error             // the direction's deadline, by which a waiter is woken
	ready    func() bool                       // the caller's, during wait
	step     func(fd uintptr) bool             // built once, so that waiting allocates nothing
}

func (d *direct) init(c *net.TCPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	d.tcp, d.raw = c, raw
	d.rx.do, d.tx.do = d.rx.receive, d.tx.send
	d.rxW = waiter{park: raw.Read, deadline: c.SetReadDeadline}
	d.txW = waiter{park: raw.Write, deadline: c.SetWriteDeadline}
	for _, w := range []*waiter{&d.rxW, &d.txW} {
		w.step = func(uintptr) bool { return d.closed.Load() || w.ready() }
	}
	return nil
}

func (d *direct) waitRead(ready func() bool) error  { return d.wait(&d.rxW, ready) }
func (d *direct) waitWrite(ready func() bool) error { return d.wait(&d.txW, ready) }
func (d *direct) wakeRead()                         { d.rxW.wake() }
func (d *direct) wakeWrite()                        { d.txW.wake() }

// wake ends the direction's present or next parking. The error is that of a
// closed connection, on which nobody parks.
func (w *waiter) wake() { _ = w.deadline(past) }

// wait parks w until ready returns true or the connection is closed.
func (d *direct) wait(w *waiter, ready func() bool) error {
	if !d.enter() {
		return net.ErrClosed
	}
	w.ready = ready
	err := w.park(w.step)
	for errors.Is(err, os.ErrDeadlineExceeded) && !d.closed.Load() {
		// Cleared before closed is looked at again by step: a close that
		// comes later sets the deadline anew.
		if err = w.deadline(time.Time{}); err == nil {
			err = w.park(w.step)
		}
	}
	w.ready = nil
	d.leave()
	if d.closed.Load() {
		return net.ErrClosed
	}
	return err
}

// enter counts a waiter in, unless the connection is closed.
func (d *direct) enter() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed.Load() {
		return false
	}
	d.parked++
	return true
}

// leave counts a waiter out. The last one out of a closed connection releases
// the descriptor.
func (d *direct) leave() {
	d.mu.Lock()
	d.parked--
	last := d.lastLocked()
	d.mu.Unlock()
	if last {
		_ = d.tcp.Close() // Close has returned already
	}
}

// lastLocked reports whether the caller is to release the descriptor.
//
// +checklocks:d.mu
func (d *direct) lastLocked() bool {
	if !d.closed.Load() || d.parked > 0 || d.done {
		return false
	}
	d.done = true
	return true
}

// close marks the connection closed. net.TCPConn.Close would wait for the parked
// waiters, and so for itself if a ready function called it; therefore the last
// waiter does it.
func (d *direct) close() error {
	d.mu.Lock()
	if d.closed.Load() {
		d.mu.Unlock()
		return net.ErrClosed
	}
	d.closed.Store(true)
	last := d.lastLocked()
	d.mu.Unlock()
	if last {
		return d.tcp.Close()
	}
	d.wakeRead()
	d.wakeWrite()
	return nil
}

func (d *direct) closeWrite() error { return d.tcp.CloseWrite() }

func (d *direct) mss() int {
	n := 0
	err := d.raw.Control(func(fd uintptr) {
		if v, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG); err == nil {
			n = v
		}
	})
	if err != nil {
		return 0
	}
	return n
}

func (d *direct) setUserTimeout(ms int) error {
	var failed error
	err := d.raw.Control(func(fd uintptr) {
		failed = os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, ms))
	})
	return errors.Join(err, failed)
}
