package ofitcp

import (
	"sync/atomic"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/internal/progress"
	"cinnabar/internal/sockio"
)

// role is the read role of a connection, which one goroutine at a time holds.
//
// Each connection has a background goroutine that reads, runs the tasks that requests bring, spins for a while after
// traffic, and then parks in the poller. A goroutine that waits for something from the peer takes the role instead
// (drive). If the background was parked, or no other goroutine waits for the peer, it then stays away even when the waiter has
// its result, because that waiter will soon be back with its next call: the connection is claimed, until no goroutine has
// driven it for some ticks of the watcher, or others wait for the peer too.
type role struct {
	held        atomic.Bool          // a goroutine is reading
	claim       progress.Claim       // while it is taken, drivers read and the background goroutine rests
	yielded     atomic.Bool          // the background goroutine rests because it expects a driver that has not come yet
	yieldMisses atomic.Int32         // number of expected drivers in a row that have not come
	yieldCredit atomic.Int32         // if below 0: minus the number of requests for which no driver is expected
	undriven    atomic.Bool          // a goroutine may wait for a message of the peer without driving; see drive and Endpoint.Undriven
	bg          atomic.Uint32        // bgActive and so on
	resume      chan struct{}        // capacity 1; wakes a background goroutine that rests
	turn        atomic.Int32         // bytes of small messages in one read, and in one turn
	inTurn      hostquota.ReaderTurn // of the background goroutine, which alone uses this and the next field
	woken       bool                 // the background goroutine has called readable since its WaitRead began
	tasks       progress.Tasks[na.Task]
	watch       progress.Watch
	watchedTask uint64 // value of tasks.Begun at the last look of the watcher
}

// States of the background goroutine, in role.bg.
//
//	                       nothing came for the spin time
//	bgInTask <--> bgActive -------------------------------> bgParked
//	       runTasks |   ^ <----------------------------------- |
//	                |   |        readable: bytes came
//	                v   | resume
//	              bgResting: a driver has claimed the connection or holds the role, or reading pauses
const (
	bgActive  uint32 = iota // reads or spins
	bgInTask                // runs tasks
	bgParked                // in the poller
	bgResting               // waits for resume
)

// background is the goroutine that makes progress when no goroutine drives. It ends when the connection has ended, or when it
// was replaced.
func (c *conn) background(gen uint32) {
	killed := true
	defer func() {
		if killed {
			c.revive(gen)
		}
	}()
	mine := c.progress(gen)
	killed = false
	if !mine {
		c.ep.runners.Done() // it was counted there when it was replaced
		return
	}
	c.seeOff()
	c.ep.dropConn(c)
	c.ep.wg.Done()
}

// revive has another goroutine go on for one that a task has ended with [runtime.Goexit].
func (c *conn) revive(gen uint32) {
	next, mine := c.role.tasks.Ended(gen)
	if !mine {
		c.ep.runners.Done()
		return
	}
	c.role.bg.Store(bgActive)
	c.uncork() // because runTasks uncorks only after the last task, and the task that has ended the goroutine may have been the last
	go c.background(next)
}

// progress reads and runs tasks until the connection is dead and its tasks are run. False: another
// goroutine has taken over.
func (c *conn) progress(gen uint32) (mine bool) {
	r := &c.role
	for !c.dead.Load() {
		if !c.serve(gen) {
			return false
		}
		c.leaveTurn()
		r.woken = false
		shared.parking(c)
		r.bg.Store(bgParked)
		c.spins.Park()
		err := c.sock.WaitRead(c.onReadable)
		r.bg.Store(bgActive)
		if err != nil {
			c.fail(na.Unreachable, lost(err))
		}
		if !c.hasTasks() {
			c.rest()
		}
	}
	if mine = c.serve(gen); mine {
		c.leaveTurn()
	}
	return mine
}

// readable reads the socket, because WaitRead has found it readable. WaitRead returns when readable returns true. The first call of WaitRead
// comes before the goroutine parks, each further one after a wake-up.
func (c *conn) readable() bool {
	first := !c.role.woken
	c.role.woken = true
	if !first {
		c.ep.cfg.Progress.Woken(0)
	}
	if c.dead.Load() || c.role.claim.Taken() || c.role.held.Load() {
		return true
	}
	if c.paused.Load() {
		return true // because rest ends the pause
	}
	crowded := shared.crowded(c)
	c.sock.Stand(crowded)
	if sockio.Direct && first && (c.ep.readers.Full() || crowded) {
		return false // because the first read of a parked connection mostly finds nothing, and would cost the host a turn; else the poller calls again
	}
	c.enterTurn()
	if c.dead.Load() || c.role.claim.Taken() || !c.role.held.CompareAndSwap(false, true) {
		c.leaveTurn()
		return true
	}
	got := c.receive()
	if got {
		c.yieldReader()
		c.offerTasks()
	}
	if !got || shared.crowded(c) {
		c.unstage()
	}
	c.release()
	if !got {
		c.leaveTurn()
	}
	return got || c.dead.Load() || c.paused.Load()
}

// rest waits while another goroutine has the role, or nothing may be read.
func (c *conn) rest() {
	r := &c.role
	r.bg.Store(bgResting)
	var timer *time.Timer
	var ration <-chan time.Time
	for (r.claim.Taken() || r.held.Load() || c.paused.Load()) && !c.dead.Load() {
		c.leaveTurn()
		if ration == nil && c.paused.Load() && c.owes.Load() < maxReplies && c.awaitsPeer() {
			if timer == nil {
				timer = time.NewTimer(rationTime)
				defer timer.Stop()
			} else {
				timer.Reset(rationTime)
			}
			ration = timer.C
		}
		select {
		case <-r.resume:
		case <-c.origin.done:
		case <-ration:
			c.ration.Store(rationBytes)
			c.paused.Store(false)
			ration = nil
		}
	}
	r.bg.Store(bgActive)
}

// hasTasks reports whether there are tasks that have not begun.
func (c *conn) hasTasks() bool { return c.role.tasks.Waiting() > 0 }

// release gives the role back. If the connection has ended, it lets go of memory.
func (c *conn) release() {
	r := &c.role
	r.held.Store(false)
	if c.dead.Load() {
		c.abortRx()
	}
	if r.bg.Load() == bgResting && !r.claim.Taken() {
		c.wake()
	}
}

func (c *conn) wake() {
	select {
	case c.role.resume <- struct{}{}:
	default:
	}
}

// handBack ends a claim.
func (c *conn) handBack() {
	r := &c.role
	if r.yielded.Load() && r.yielded.Swap(false) {
		r.yieldCredit.Store(-yieldBackoff << min(r.yieldMisses.Add(1)-1, yieldBackoffMost))
	}
	if r.claim.End() {
		c.wake()
	}
}

// serve reads, runs tasks and spins, until nothing has come for the spin time or another goroutine reads. False: the
// goroutine was replaced.
func (c *conn) serve(gen uint32) bool {
	s := c.spinner(false)
	defer s.End()
	r := &c.role
	t := turn{from: c.rxBytes.Load()}
	r.turn.Store(turnBytes)
	if !c.hasTasks() {
		c.enterTurn() // does nothing if readable has begun the turn
	}
	within := false
	for hot := r.tasks.Begun() > 0 || t.from > 0; ; {
		ran, mine := c.runTasks(gen, &s)
		if !mine {
			return false
		}
		if ran {
			c.enterTurn()
		}
		if sockio.Direct && !within && shared.crowded(c) {
			return true // parking costs less than a vain read, and the poller finds bytes that are there
		}
		if c.dead.Load() || r.claim.Taken() || !r.held.CompareAndSwap(false, true) {
			return true
		}
		got := c.receive()
		within = c.rx.body
		c.yieldReader()
		c.offerTasks()
		if shared.crowded(c) {
			c.unstage()
		}
		c.release()
		switch {
		case got || ran:
			s.Found()
			c.yield(&t, &s)
		case !hot:
			return true
		default:
			c.leaveTurn()
			if !s.vain(within) {
				return true
			}
		}
	}
}

// turn is the portion of a reader's work after which it yields to the readers of other connections.
type turn struct {
	from  uint64    // conn.rxBytes at its begin
	begun time.Time // when the reader last yielded; zero: it has not, so the turn is not timed
}

const (
	// turnBytes is the most and turnLeast the least number of bytes that a turn reads. turnBytes is one stage of small messages.
	turnBytes = stageBytes
	turnLeast = 2 << 10
	// turnTime is the target length of a turn: a longer turn halves the bytes of the next, one of less than a quarter doubles
	// them.
	turnTime = 250 * time.Microsecond
)

// yield lets the readers of other connections run at the end of a turn, because the reader of a peer that sends without pause
// would otherwise keep the processor until the scheduler preempts it after 10 ms. It gives back the right to spin, because another
// goroutine may spin while this reader waits for its next turn.
func (c *conn) yield(t *turn, s *spinner) {
	r := &c.role
	now := c.rxBytes.Load()
	if now-t.from < uint64(r.turn.Load()) {
		return
	}
	t.from = now
	if c.ep.cfg.Quota.Used(hostquota.Connections) <= 1 {
		return
	}
	if !t.begun.IsZero() {
		switch took := time.Since(t.begun); {
		case took > turnTime:
			r.turn.Store(max(r.turn.Load()/2, turnLeast))
		case took < turnTime/4:
			r.turn.Store(min(2*r.turn.Load(), turnBytes))
		}
	}
	s.End()
	c.nextTurn()
	t.begun = time.Now()
}

// offerTasks gives the tasks of one read to the background goroutine, which is the caller. It has the read role.
func (c *conn) offerTasks() {
	c.role.tasks.Offer(c.rx.tasks)
	clear(c.rx.tasks)
	c.rx.tasks = c.rx.tasks[:0]
}

// runTasks gives back the right to spin, and runs the tasks that have not begun. mine is false when another goroutine has taken over.
func (c *conn) runTasks(gen uint32, s *spinner) (ran, mine bool) {
	if !c.hasTasks() { // the goroutine is still the background goroutine, because only one in a task is replaced
		return false, true
	}
	r := &c.role
	c.leaveTurn() // before the first task begins, because a goroutine that replaces this one uses role.inTurn from then on
	if r.tasks.Waiting() > 1 {
		c.setCork(true)
	}
	r.bg.Store(bgInTask)
	c.watch()
	s.End()
	for {
		t, more, mine := r.tasks.Next(gen)
		if !mine {
			return true, false
		}
		if !more {
			r.bg.Store(bgActive)
			c.uncork()
			return true, true
		}
		t.Run()
	}
}

// takeOver replaces the background goroutine if it is still in the task that began as number begun: the new one reads,
// and runs the tasks that the old one has not begun.
func (c *conn) takeOver(begun uint64) {
	r := &c.role
	if r.bg.Load() != bgInTask {
		return
	}
	c.ep.runners.Add() // counts the old goroutine; before Replace, because the old goroutine may end right after it
	next, ok := r.tasks.Replace(begun)
	if !ok {
		c.ep.runners.Done()
		return
	}
	r.bg.Store(bgActive)
	c.uncork()
	go c.background(next) // endpoint.wg counts this goroutine instead of the old one
}

// setCork sets corked.
func (c *conn) setCork(on bool) {
	c.mu.Lock()
	c.corked.Store(on)
	c.mu.Unlock()
}

// uncork clears corked and sends the collected answers.
func (c *conn) uncork() {
	if c.corked.Load() {
		c.setCork(false)
		c.kick()
	}
}
