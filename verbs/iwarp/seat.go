package iwarp

import (
	"sync"
	"sync/atomic"

	"cinnabar/internal/rundown"
	"cinnabar/internal/sockio"
	"cinnabar/verbs"
)

// seat is the place in the network poller in which the reader of a connection's socket sleeps. Mostly the background reader sits
// there. A goroutine that waits for a completion of the only connection of its queue takes the seat instead and is then itself the
// reader, because a message that wakes it directly costs one wake-up, and one that wakes the background reader, which wakes the
// goroutine, costs two and the work to arrange it.
//
//	                   Park, the connection is claimed
//	background reader ────────────────────────────────▶ goroutine in Park
//	                  ◀────────────────────────────────
//	                   after Park has returned, and no poll has come for a watchInterval;
//	                   or at once, if the claim has ended or reading pauses
type seat struct {
	mu         sync.Mutex  // held by the goroutine that waits in the socket for input
	background atomic.Bool // it is the background reader
	taken      atomic.Bool // a goroutine is in Park, and will read; also if it waits for mu still

	// The goroutine in Park owns the following fields.
	queue *cq
	done  <-chan struct{}
	ready func() bool // readSeated, made once
}

var _ verbs.CQParker = (*cq)(nil)

// Park implements [verbs.CQParker]. It returns false if the queue has no connection or several, because a goroutine sleeps in one
// socket only.
func (q *cq) Park(done <-chan struct{}) bool {
	p := q.conns.Load()
	return p != nil && len(*p) == 1 && (*p)[0].sit(q, done)
}

// Unpark implements [verbs.CQParker].
func (q *cq) Unpark() {
	if c := q.asleep.Load(); c != nil && q.asleep.CompareAndSwap(c, nil) {
		c.sock.WakeRead()
	}
}

// sit is Park for the connection of q.
func (c *conn) sit(q *cq, done <-chan struct{}) bool {
	s := &c.seat
	if !sockio.Direct || c.mustStand() || !s.taken.CompareAndSwap(false, true) {
		return false
	}
	c.claimed.Store(true)
	if c.txBlocked.Load() {
		c.wakeWriter() // because nothing polls
	}
	if s.background.Load() {
		c.sock.WakeRead() // the background reader finds the claim, and leaves
	}
	s.mu.Lock()
	s.queue, s.done = q, done
	err := c.sock.WaitRead(s.ready)
	q.asleep.Store(nil)
	s.queue, s.done = nil, nil
	s.mu.Unlock()
	c.leaveSeat()
	return err == nil && !c.mustStand()
}

// mustStand reports whether nothing may be read now, for which the background reader waits.
func (c *conn) mustStand() bool { return c.closed.Load() || c.paused.Load() }

// leaveSeat has the connection watched, so that it returns to the background reader if the goroutine does not poll again.
func (c *conn) leaveSeat() {
	c.seat.taken.Store(false) // before the look at watched, as sweep looks in the other order
	if c.claimed.Load() && !c.watched.Load() {
		c.dev.watch.add(c)
	}
}

// readSeated reads until the socket is empty or the queue has a completion. It is called when there may be input, and after Unpark.
// True ends Park.
func (c *conn) readSeated() bool {
	q := c.seat.queue
	q.asleep.Store(nil)
	for more := true; more; {
		if c.seatedDone() {
			return true
		}
		c.rxMu.Lock()
		more = c.receiveLocked(true)
		c.rxMu.Unlock()
		c.afterRx()
	}
	q.asleep.Store(c) // before the last look, because Unpark does nothing without it
	return c.seatedDone()
}

// seatedDone reports whether the goroutine in Park has a reason to return.
func (c *conn) seatedDone() bool {
	s := &c.seat
	return s.queue.ready.Load() > 0 || s.done != nil && rundown.IsClosed(s.done) || c.mustStand()
}

// waitInBackground is WaitRead for the background reader.
func (c *conn) waitInBackground(ready func() bool) error {
	c.seat.mu.Lock()
	defer c.seat.mu.Unlock()
	c.seat.background.Store(true) // before ready looks at claimed, as sit looks in the other order
	defer c.seat.background.Store(false)
	return c.sock.WaitRead(ready)
}
