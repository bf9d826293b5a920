package iwarp

import (
	"sync"
	"sync/atomic"

	"cinnabar/internal/sockio"
	"cinnabar/verbs"
)

// seat is the right to wait in the network poller for input of a connection. The background reader of the connection has it at first. A
// goroutine that waits for a completion takes it, if its queue has only that connection, and then reads the socket itself. A message then
// costs one wake-up. It would cost two, and the hand-over between them, if it woke the background reader and the reader woke the goroutine.
//
//	                   Park, the connection is claimed
//	background reader ────────────────────────────────▶ goroutine in Park
//	                  ◀────────────────────────────────
//	                   after Park has returned, and no poll has come for a progress.WatchInterval;
//	                   or at once, if the claim has ended or reading pauses
type seat struct {
	mu         sync.Mutex  // held by the goroutine that waits in the socket for input
	background atomic.Bool // the background reader holds mu
	taken      atomic.Bool // a goroutine is in Park, and holds mu or waits for it

	// The goroutine in Park owns the following fields.
	queue *cq
	stop  func() bool // nil: never
	ready func() bool // readSeated, made once
}

var _ verbs.CQParker = (*cq)(nil)

// Park implements [verbs.CQParker]. It returns false unless the queue has exactly one connection, because a goroutine can wait for the input of
// one socket only.
func (q *cq) Park(stop func() bool) bool {
	p := q.conns.Load()
	return p != nil && len(*p) == 1 && (*p)[0].sit(q, stop)
}

// Unpark implements [verbs.CQParker].
func (q *cq) Unpark() {
	if c := q.asleep.Load(); c != nil && q.asleep.CompareAndSwap(c, nil) {
		c.sock.WakeRead()
	}
}

// sit is Park for the connection of q.
func (c *conn) sit(q *cq, stop func() bool) bool {
	return sockio.Direct && c.takeSeat() && c.readInSeat(q, stop)
}

// takeSeat gives the seat to the caller. It returns false if another goroutine has it, or nothing may be read now.
func (c *conn) takeSeat() bool {
	if c.mustStand() || !c.seat.taken.CompareAndSwap(false, true) {
		return false
	}
	if c.mustStand() { // again, because closed may have been set since the first call, and readUntilClosed then waits for the seat
		c.returnSeat()
		return false
	}
	return true
}

// returnSeat ends takeSeat.
func (c *conn) returnSeat() {
	c.seat.taken.Store(false)
	if c.closed.Load() {
		c.wakeReader() // readUntilClosed waits for the seat
	}
}

// readInSeat is sit for a goroutine that has the seat.
func (c *conn) readInSeat(q *cq, stop func() bool) bool {
	s := &c.seat
	c.claim.Take()
	if c.txBlocked.Load() {
		c.wakeWriter() // because no poll will send the rest
	}
	if s.background.Load() {
		c.sock.WakeRead() // the background reader then sees the claim, and releases mu
	}
	s.mu.Lock()
	s.queue, s.stop = q, stop
	err := c.sock.WaitRead(s.ready)
	q.asleep.Store(nil)
	s.queue, s.stop = nil, nil
	s.mu.Unlock()
	c.leaveSeat()
	return err == nil && !c.mustStand()
}

// mustStand reports whether a goroutine must leave the seat, because the connection is closed or reading pauses. Only the background reader
// waits for the end of a pause.
func (c *conn) mustStand() bool { return c.closed.Load() || c.paused.Load() }

// leaveSeat adds the connection to the watcher's list, so that the background reader reads again if the goroutine does not poll soon.
func (c *conn) leaveSeat() {
	c.returnSeat() // before Add, because the watcher drops a connection from its list before it calls Depends
	if c.claim.Taken() {
		c.watched()
	}
}

// readSeated reads, as readWhile does, until the queue has a completion. WaitRead calls it when the socket may have input, and after Unpark.
// Park returns when readSeated returns true.
func (c *conn) readSeated() bool {
	q := c.seat.queue
	q.asleep.Store(nil)
	if c.readWhile(true, c.seatedDone) {
		return true
	}
	q.asleep.Store(c) // before the last look, because Unpark does nothing without it
	return c.seatedDone()
}

// seatedDone reports whether the goroutine in Park has a reason to return.
func (c *conn) seatedDone() bool {
	s := &c.seat
	return s.queue.ready.Load() > 0 || s.stop != nil && s.stop() || c.mustStand()
}

// waitInBackground is WaitRead for the background reader.
func (c *conn) waitInBackground(ready func() bool) error {
	c.seat.mu.Lock()
	defer c.seat.mu.Unlock()
	c.seat.background.Store(true) // before ready loads claim, because sit takes the claim before it loads background
	defer c.seat.background.Store(false)
	return c.sock.WaitRead(ready)
}
