package ofiverbs

import (
	"sync/atomic"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/internal/progress"
)

const (
	// driveTime is the longest time that a driver polls before it returns to its caller, which may have a deadline.
	driveTime = 20 * time.Millisecond
	// driveLooks is the number of polls, of those with a result and of those without, between two looks at the clock for driveTime.
	driveLooks = 64
)

// progress polls, runs tasks and parks until the connection ends. It returns false if another goroutine has replaced the caller.
func (c *conn) progress(gen uint32) (mine bool) {
	var turn hostquota.ReaderTurn
	for {
		if !c.runTasks(gen) {
			return false
		}
		if c.dead.Load() {
			return true
		}
		if c.driven() {
			select {
			case <-c.resume:
			case <-c.stop:
			case <-c.vc.Done():
				c.ended()
			}
			continue
		}
		c.ep.readers.Enter(&turn, c.account, c.input.Load(), c.origin.holds.Load())
		idle := c.pollFor()
		c.ep.readers.Leave(&turn, c.account, c.input.Load())
		if idle {
			c.park()
		}
	}
}

// park waits for a completion, in the device if the device can (see [verbs.CQParker]), because a message of the peer then wakes this goroutine
// directly, or else for an event of the queue. It also returns if drivers or tasks wait, or the connection ends.
func (c *conn) park() {
	c.source.Park()
	if c.parker == nil || !c.parker.Park(c.parkOver) {
		if !c.arm() {
			return
		}
		select {
		case <-c.cq.Event():
		case <-c.stop:
		case <-c.vc.Done():
			c.ended()
		}
	}
	c.ep.cfg.Progress.Woken(0)
}

// hasWork reports whether the goroutine of the connection must not wait for a completion.
func (c *conn) hasWork() bool { return c.dead.Load() || c.driven() || c.turns.tasks.Waiting() > 0 }

// driven reports whether drivers poll the connection, or are about to, so that its own goroutine does not.
func (c *conn) driven() bool { return c.wanted.Load() > 0 || c.claim.Taken() }

// pollFor polls until its spin ends. It returns false if the caller must not park, because a driver or a task waits, or the connection has
// ended.
func (c *conn) pollFor() bool {
	c.polling.Lock()
	defer c.polling.Unlock()
	c.background = true
	idle := c.spin()
	c.background = false
	return idle
}

// spin polls until the policy ends the spin. It returns false if it stopped before, because a driver or a task waits, or the connection has
// ended. While goroutines of other connections wait for their turn, it polls once.
//
// +checklocks:c.polling
func (c *conn) spin() bool {
	s := c.source.Spin(false)
	defer s.End()
	c.beginDeferring()
	defer c.endDeferring()
	for moves := c.cq.Moves(); ; {
		found := c.poll() > 0
		c.flushLater()
		c.yieldPolling()
		if c.hasWork() {
			return false
		}
		crowded := c.ep.readers.Crowded()
		if c.movedSince(&moves) || found {
			c.source.Answered()
			s.Found()
			if crowded {
				return false
			}
		} else if crowded || !s.Vain() {
			return true
		}
	}
}

// movedSince reports whether cq.Moves differs from *before, and stores the new number in *before. If it differs, the device has moved bytes
// since the last call.
func (c *conn) movedSince(before *uint64) bool {
	now := c.cq.Moves()
	was := *before
	*before = now
	return now != was
}

// arm arms the completion queue, and reports whether it has no completion then.
func (c *conn) arm() bool {
	c.polling.Lock()
	defer c.polling.Unlock()
	if err := c.cq.Arm(false); err != nil {
		c.fail(na.Unreachable, err)
		return false
	}
	c.background = true
	idle := c.poll() == 0 && !c.hasWork()
	c.background = false
	return idle
}

// drive polls for a goroutine that waits for ev, until ev is set, the spin ends, or driveTime has passed. The claim on the connection stays
// taken afterwards, because the same goroutine will probably call drive again soon for its next call. drive ends the claim if the goroutine
// of the connection has to poll for other operations or for requests.
func (c *conn) drive(ev *na.Event) {
	if c.serves.Load() {
		c.uncork() // because the caller may be one of the tasks of which the responses are held back
	}
	c.flushLater()
	if ev.IsSet() {
		return
	}
	c.claim.Drive() // not before, because a caller that returns above does not poll
	begun := c.turns.tasks.Begun()
	if c.turns.tasks.Waiting() > 0 { // if the caller is a task of the connection's goroutine, the tasks behind it would wait with it
		c.turns.tasks.Detach(c.ep.runners.Run)
	}
	c.yielded.came()
	c.wanted.Add(1)
	if s := c.source.Spin(true); s.Begin() {
		if c.claim.Take() && !c.ep.watcher.Add(&c.turns.watch) {
			c.claim.End()
		}
		c.driveUntil(ev, &s)
		s.End()
	}
	set := ev.IsSet()
	if !set {
		c.parked.Store(true)
	}
	// The watcher may have ended the claim meanwhile. The goroutine of the connection then rests only because of wanted.
	if c.wanted.Add(-1) == 0 && (!set || !c.claim.Taken() || c.serves.Load() || c.waitedFor()) {
		c.handBack()
	}
	if !set {
		c.replace(begun) // because the goroutine of the connection may be in the task that waits here
	}
}

// waitedFor reports whether a goroutine may have parked for an operation that is not over. Such a goroutine has begun its operation before
// it set parked.
func (c *conn) waitedFor() bool {
	if !c.parked.Load() || c.waits() {
		return c.parked.Load()
	}
	c.parked.Store(false)
	if c.waits() { // an operation that began meanwhile
		c.parked.Store(true)
		return true
	}
	return false
}

// waits reports whether operations wait for the peer: for its messages, for the answers of its device, or for credits.
func (c *conn) waits() bool {
	if c.peer.expected.Len() > 0 || c.moving.Load() > 0 {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.queue) > c.head
}

// handBack ends a claim, and wakes the goroutine of the connection.
func (c *conn) handBack() {
	c.yielded.vain()
	c.claim.End()
	select {
	case c.resume <- struct{}{}:
	default:
	}
}

// driveUntil polls for drive.
func (c *conn) driveUntil(ev *na.Event, s *progress.Spin) {
	c.beginDeferring()
	defer c.endDeferring()
	var last time.Time
	moves := c.cq.Moves()
	for looks := 1; !ev.IsSet() && !c.dead.Load(); looks++ {
		found := c.tryPoll() > 0
		c.flushLater()
		if c.movedSince(&moves) || found {
			s.Found()
		} else if !s.Vain() {
			return
		}
		if looks%driveLooks == 0 {
			if now := time.Now(); last.IsZero() {
				last = now.Add(driveTime)
			} else if now.After(last) {
				return
			}
		}
	}
}

// tryPoll calls poll and returns its result. If another goroutine polls, or the connection is dead, it does nothing and returns 0.
//
// +checklocksignore: the analyser does not know TryLock
func (c *conn) tryPoll() int {
	if !c.polling.TryLock() {
		return 0
	}
	defer c.polling.Unlock()
	if c.dead.Load() {
		return 0
	}
	n := c.poll()
	c.handed = false // the handler of that request may have ended before the goroutine of the connection polls again
	return n
}

// yielded is the state of a connection between a request that went to a handler and the handler's call of drive.
type yielded struct {
	on     atomic.Bool  // the goroutine of the connection rests until a handler that has begun calls drive
	misses atomic.Int32 // number of times in a row that the expected call of drive has not come
	credit atomic.Int32 // if below 0: minus the number of requests for which no driver is expected
}

// After an expected driver has not come, yieldPolling does nothing for yieldBackoff requests. Each further miss in a row doubles that number,
// up to yieldBackoffMost times. The number is small at first, because a single miss may only mean that the scheduler ran the handler late.
const (
	yieldBackoff     = 8
	yieldBackoffMost = 6
)

// yieldPolling leaves the polling to the handler that got the last request. The caller is the goroutine of the connection, which rests
// then. A handler often calls drive soon, because it transfers memory of the peer, and the peer usually sends nothing meanwhile. The
// handler can then run on the caller's processor, and the two do not occupy two processors, of which the peer may need one. If the handler
// responds without a call of drive, or the watcher finds no driver, handBack makes the goroutine of the connection poll again, and
// yieldPolling does nothing for some requests (see yieldBackoff). yieldPolling does nothing while operations wait for the peer, because
// nothing would complete them.
//
// +checklocks:c.polling
func (c *conn) yieldPolling() {
	if !c.handed {
		return
	}
	c.handed = false
	if c.turns.tasks.Waiting() > 0 || c.waits() {
		return
	}
	if c.yielded.credit.Load() < 0 {
		c.yielded.credit.Add(1)
		return
	}
	c.claim.Take()
	c.yielded.on.Store(true)
	if !c.ep.watcher.Add(&c.turns.watch) {
		c.handBack()
	}
}

// came records that a goroutine has called drive.
func (y *yielded) came() {
	if y.on.Load() {
		y.on.Store(false)
		y.misses.Store(0)
	}
}

// vain records, if a call of drive is expected, that it has not come.
func (y *yielded) vain() {
	if y.on.Load() && y.on.Swap(false) {
		y.credit.Store(-yieldBackoff << min(y.misses.Add(1)-1, yieldBackoffMost))
	}
}
