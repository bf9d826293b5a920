package ofitcp

import (
	"sync/atomic"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
	"cinnabar/internal/sockio"
)

// role is the read role of a connection, which one goroutine at a time holds.
//
// Each connection has a background goroutine that reads, runs the tasks that requests bring, spins for a while after
// traffic, and then parks in the poller. A goroutine that waits for something from the peer takes the role instead
// (drive). If the background was parked, or no other goroutine waits for the peer, it then stays away even when the waiter has
// its result, because that waiter will soon be back with its next call: the connection is claimed, until no goroutine has
// driven it for a tick of the watcher, or others wait for the peer too.
type role struct {
	held        atomic.Bool   // a goroutine is reading
	claim       atomic.Bool   // drivers read; the background rests
	yielded     atomic.Bool   // the background rests because a driver is expected, which has not come
	yieldMisses atomic.Int32  // number of expected drivers in a row that have not come
	yieldCredit atomic.Int32  // if below 0: minus the number of requests for which no driver is expected
	bg          atomic.Uint32 // bgActive and so on
	resume      chan struct{} // capacity 1: the background's turn
	drives      atomic.Uint64 // number of calls of drive
	turn        atomic.Int32  // bytes of small messages in one read, and in one turn
	place       readPlace     // of the background goroutine, which alone uses this and the next three fields
	began       time.Time     // the time at which its turn began
	read        uint64        // rxBytes at that time
	woken       bool          // the poller has called readable since the goroutine parked
	fresh       []na.Task     // tasks that the background goroutine has read and not put into tasks; it is empty while one of its tasks runs

	mu invariants.Mutex
	// tasks are those of requests. The ones from next on have not begun.
	// +checklocks:mu
	tasks []na.Task
	// +checklocks:mu
	next int
	// left is the number of tasks in fresh and tasks that have not begun.
	left atomic.Int32
	// gen changes when the background goroutine is replaced because a task kept it.
	// +checklocks:mu
	gen uint32
	// +checklocks:mu
	inTask bool
	// begun counts the tasks that have begun.
	begun atomic.Uint64

	watched      atomic.Bool // in watcher.list; changed with watcher.mu held
	watchedDrive uint64      // the watching goroutine's, as is the next
	watchedTask  uint64
}

// States of the background goroutine, in role.bg.
//
//	                       nothing came for the spin time
//	bgInTask <--> bgActive -------------------------------> bgParked
//	       nextTask |   ^ <----------------------------------- |
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
	r := &c.role
	r.mu.Lock()
	mine := r.gen == gen
	if mine {
		r.inTask = false
		r.bg.Store(bgActive)
	}
	r.mu.Unlock()
	if mine {
		c.uncork() // because the task may have been the last one, and then no call of nextTask does
		go c.background(gen)
	} else {
		c.ep.runners.Done()
	}
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
		shared.parking(c.ep.cfg.Progress)
		r.bg.Store(bgParked)
		c.spins.Park()
		err := c.sock.WaitRead(c.onReadable)
		c.ep.cfg.Progress.Woken(0)
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

// readable reads when the poller says so; true ends the parking.
func (c *conn) readable() bool {
	first := !c.role.woken
	c.role.woken = true
	if c.dead.Load() || c.role.claim.Load() || c.role.held.Load() {
		return true
	}
	if c.paused.Load() {
		return true // because rest ends the pause
	}
	if sockio.Direct && first && (c.ep.readers.full.Load() || shared.crowded()) {
		return false // because the first read of a parked connection mostly finds nothing, and would cost the host a turn; else the poller calls again
	}
	c.enterTurn()
	if c.dead.Load() || c.role.claim.Load() || !c.role.held.CompareAndSwap(false, true) {
		c.leaveTurn()
		return true
	}
	got := c.receive()
	if got {
		c.yieldReader()
		c.offerTasks()
	}
	if !got || shared.crowded() {
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
	for (r.claim.Load() || r.held.Load() || c.paused.Load()) && !c.dead.Load() {
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
func (c *conn) hasTasks() bool { return c.role.left.Load() > 0 }

// release gives the role back. If the connection has ended, it lets go of memory.
func (c *conn) release() {
	r := &c.role
	r.held.Store(false)
	if c.dead.Load() {
		c.abortRx()
	}
	if r.bg.Load() == bgResting && !r.claim.Load() {
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
	if r.claim.Swap(false) {
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
	for hot := r.begun.Load() > 0 || t.from > 0; ; {
		ran, mine := c.runTasks(gen, &s)
		if !mine {
			return false
		}
		if ran {
			c.enterTurn()
		}
		if sockio.Direct && !within && shared.crowded() {
			return true // parking costs less than a vain read, and the poller finds bytes that are there
		}
		if c.dead.Load() || r.claim.Load() || !r.held.CompareAndSwap(false, true) {
			return true
		}
		got := c.receive()
		within = c.rx.body
		c.yieldReader()
		c.offerTasks()
		if shared.crowded() {
			c.unstage()
		}
		c.release()
		switch {
		case got || ran:
			s.Found()
			c.yield(&t)
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
// would otherwise keep the processor until the scheduler preempts it after 10 ms.
func (c *conn) yield(t *turn) {
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
	c.nextTurn()
	t.begun = time.Now()
}

// offerTasks gives the tasks of one read to the background goroutine, which is the caller. It has the read role.
func (c *conn) offerTasks() {
	c.role.fresh = append(c.role.fresh, c.rx.tasks...)
	c.role.left.Add(int32(len(c.rx.tasks)))
	clear(c.rx.tasks)
	c.rx.tasks = c.rx.tasks[:0]
}

// runTasks runs the tasks that have not begun, while others may spin. mine is false when another goroutine has taken over.
func (c *conn) runTasks(gen uint32, s *spinner) (ran, mine bool) {
	for ran || c.hasTasks() { // a goroutine that is not in a task is not replaced, so there is nothing to look for
		if !ran { // the first task has not begun: from then on another goroutine may replace this one, take a place and end the collecting
			c.leaveTurn()
			if len(c.role.fresh) > 1 {
				c.setCork(true)
			}
		}
		t, mine := c.nextTask(gen)
		if t == nil {
			return ran, mine
		}
		ran = true
		s.End()
		t.Run()
	}
	return ran, true
}

// nextTask ends a task and begins the next one, if there is one.
func (c *conn) nextTask(gen uint32) (t na.Task, mine bool) {
	r := &c.role
	r.mu.Lock()
	if r.gen != gen {
		r.mu.Unlock()
		return nil, false
	}
	r.tasks = append(r.tasks, r.fresh...)
	clear(r.fresh)
	r.fresh = r.fresh[:0]
	r.inTask = r.next < len(r.tasks)
	if r.inTask {
		t = r.tasks[r.next]
		r.next++
		r.left.Add(-1)
		r.begun.Add(1)
		r.bg.Store(bgInTask)
	} else {
		clear(r.tasks)
		r.tasks, r.next = r.tasks[:0], 0
		r.bg.Store(bgActive)
	}
	r.mu.Unlock()
	if t != nil {
		c.ep.watch.add(c)
	} else {
		c.uncork()
	}
	return t, true
}

// takeOver replaces the background goroutine if it is still in the task that began as number begun: the new one reads,
// and runs the tasks that the old one has not begun.
func (c *conn) takeOver(begun uint64) {
	r := &c.role
	if r.bg.Load() != bgInTask {
		return
	}
	r.mu.Lock()
	stuck := r.inTask && r.begun.Load() == begun
	if stuck {
		r.gen++
		gen := r.gen
		r.inTask = false
		r.bg.Store(bgActive)
		c.ep.replace(func() { c.background(gen) })
	}
	r.mu.Unlock()
	if stuck {
		c.uncork()
	}
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
