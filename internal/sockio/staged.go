package sockio

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"cinnabar/internal/invariants"
)

// stageSize is the size of each staging buffer, in bytes.
const stageSize = 64 << 10

// staged is the portable implementation: waiters block in net.TCPConn, and the try calls copy from and to buffers that the waiters
// fill and empty. So bytes move only while a goroutine is in WaitRead or WaitWrite, and a waiter that blocks has no ready function of
// the caller on its stack.
//
// It has no build constraint so that its tests run on every system.
type staged struct {
	tcp *net.TCPConn
	in  inbox
	out outbox
}

func (s *staged) init(c *net.TCPConn) error {
	s.tcp = c
	s.in.init(c)
	s.out.init(c)
	return nil
}

func (s *staged) tryReadv(bufs [][]byte) (int, error)  { return s.in.take(bufs) }
func (s *staged) tryWritev(bufs [][]byte) (int, error) { return s.out.put(bufs) }
func (s *staged) waitRead(ready func() bool) error     { return s.in.wait(ready) }
func (s *staged) waitWrite(ready func() bool) error    { return s.out.wait(ready) }
func (s *staged) wakeRead()                            { s.in.wake() }
func (s *staged) wakeWrite()                           { s.out.wake() }
func (s *staged) closeWrite() error                    { return s.out.finish() }

// close may lose bytes that are still staged, as Conn.Close says.
func (s *staged) close() error {
	if !s.in.shut() {
		return net.ErrClosed
	}
	s.out.shut()
	return s.tcp.Close()
}

// stage is the common part of both directions: a buffer with bytes in buf[r:w], between a goroutine that waits and one that tries.
type stage struct {
	tcp *net.TCPConn

	mu invariants.Mutex
	// event signals a change of any of the fields below; it uses mu.
	// +checklocksignore
	event sync.Cond
	// buf is accessed without mu by the waiter alone: the free space of an inbox, the staged bytes of an outbox.
	buf []byte
	// r and w bound the bytes in buf.
	// +checklocks:mu
	r int
	// +checklocks:mu
	w int
	// err is the error or the end of the stream that the waiter has met.
	// +checklocks:mu
	err error
	// woken is true if ready must be called once more.
	// +checklocks:mu
	woken bool
	// +checklocks:mu
	closed bool
}

func (s *stage) init(c *net.TCPConn) {
	s.tcp = c
	s.event.L = &s.mu
	s.buf = make([]byte, stageSize)
}

// setWoken sets woken and wakes a waiter on event.
func (s *stage) setWoken() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.woken = true
	s.event.Broadcast()
}

// shut marks the stage closed; it reports false if it was already.
func (s *stage) shut() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.closed = true
	s.event.Broadcast()
	return true
}

// empty reports whether bufs hold no byte.
func empty(bufs [][]byte) bool {
	for _, b := range bufs {
		if len(b) > 0 {
			return false
		}
	}
	return true
}

// inbox is the receiving direction.
type inbox struct{ stage }

// take copies staged bytes into bufs.
func (in *inbox) take(bufs [][]byte) (int, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case in.closed:
		return 0, net.ErrClosed
	case empty(bufs):
		return 0, nil
	case in.r == in.w && in.err != nil:
		return 0, in.err
	case in.r == in.w:
		return 0, ErrWouldBlock
	}
	start := in.r
	for _, b := range bufs {
		in.r += copy(b, in.buf[in.r:in.w])
	}
	if in.r == in.w {
		in.event.Broadcast()
	}
	return in.r - start, nil
}

// wait is WaitRead.
func (in *inbox) wait(ready func() bool) error {
	for in.open() {
		if ready() {
			return nil
		}
		in.next()
	}
	return net.ErrClosed
}

func (in *inbox) open() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return !in.closed
}

// next waits for the next event: bytes, an error, wake, or close.
func (in *inbox) next() {
	if !in.drained() {
		return
	}
	n, err := in.tcp.Read(in.buf)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		// The deadline is cleared before woken, so that a later wake sets it again. If clearing fails the connection is closed, and
		// the next Read returns the error.
		_ = in.tcp.SetReadDeadline(time.Time{})
		err = nil
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.r, in.w, in.err = 0, n, err
	in.woken = false
}

// drained waits until the buffer is empty and returns true, or returns false if ready must be called first.
func (in *inbox) drained() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	for !in.woken && !in.closed && (in.r < in.w || in.err != nil) {
		in.event.Wait()
	}
	if in.woken || in.closed {
		in.woken = false
		return false
	}
	return true
}

// wake is WakeRead.
func (in *inbox) wake() {
	in.setWoken()
	_ = in.tcp.SetReadDeadline(Past) // fails on a closed connection only
}

// outbox is the sending direction.
type outbox struct {
	stage
	// waiting is true while a goroutine in wait sends the staged bytes.
	// +checklocks:mu
	waiting bool
	// fin is true if the end of the stream follows the staged bytes.
	// +checklocks:mu
	fin bool
}

// put stages as many bytes of bufs as there is room for. Without a goroutine in wait, which sends staged bytes, it stages none.
func (o *outbox) put(bufs [][]byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
		return 0, net.ErrClosed
	case empty(bufs):
		return 0, nil
	case o.err != nil:
		return 0, o.err
	case !o.waiting || o.w == len(o.buf):
		return 0, ErrWouldBlock
	}
	start := o.w
	for _, b := range bufs {
		o.w += copy(o.buf[o.w:], b)
	}
	o.event.Broadcast()
	return o.w - start, nil
}

// wait is WaitWrite. It returns when ready has returned true and all bytes are sent.
func (o *outbox) wait(ready func() bool) error {
	if !o.begin() {
		return net.ErrClosed
	}
	done := false
	for {
		done = done || ready()
		moved := o.flush()
		switch stop, err := o.end(done); {
		case stop:
			return err
		case !done && !moved:
			o.idle()
		}
	}
}

// begin allows put to stage bytes.
func (o *outbox) begin() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting = !o.closed
	return o.waiting
}

// end reports whether wait is over: the connection is closed, or done is true and no bytes are left to send.
func (o *outbox) end(done bool) (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
		o.waiting = false
		return true, net.ErrClosed
	case done && o.r == o.w:
		o.waiting = false
		return true, nil
	}
	return false, nil
}

// idle parks until there are bytes to send, or ready must be called.
func (o *outbox) idle() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for !o.woken && !o.closed && o.r == o.w {
		o.event.Wait()
	}
	o.woken = false
}

// flush sends the staged bytes, with mu released, until none are left or ready must be called. It reports whether there were any.
func (o *outbox) flush() bool {
	moved := false
	for {
		b := o.pending()
		if len(b) == 0 {
			return moved
		}
		moved = true
		n, err := o.tcp.Write(b)
		woken := errors.Is(err, os.ErrDeadlineExceeded)
		if woken {
			_ = o.tcp.SetWriteDeadline(time.Time{}) // as in next
			err = nil
		}
		o.sent(n, err)
		if woken {
			return true
		}
	}
}

// pending returns the bytes to send; put may add more behind them in the meantime.
func (o *outbox) pending() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf[o.r:o.w]
}

// sent removes n bytes from the buffer. After an error it removes all, because no more can be sent.
func (o *outbox) sent(n int, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.r += n
	if err != nil {
		o.err, o.r = err, o.w
	}
	if o.r < o.w {
		return
	}
	o.r, o.w = 0, 0
	if o.fin && o.err == nil {
		o.fin = false
		o.err = o.tcp.CloseWrite()
	}
}

// finish is CloseWrite: at once, or after the staged bytes.
func (o *outbox) finish() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.r < o.w && !o.closed {
		o.fin = true
		return nil
	}
	return o.tcp.CloseWrite()
}

// wake is WakeWrite.
func (o *outbox) wake() {
	o.setWoken()
	_ = o.tcp.SetWriteDeadline(Past) // fails on a closed connection only
}
