package ofitcp

import (
	"time"

	"cinnabar/internal/na"
)

// drive is [Endpoint.Drive] for one connection, or [Endpoint.DriveGroup] if group is true.
func (c *conn) drive(ev *na.Event, group bool) {
	r := &c.role
	r.claim.Drive()
	if r.undriven.Load() && c.peer.expected.Len()+int(c.moving.Load()) <= 1 {
		r.undriven.Store(false) // the only operation is the caller's
	}
	c.uncork()
	if c.later.Load() && c.peer.expected.Len() <= gatherFrom {
		c.sendGathered()
	}
	if ev.IsSet() {
		return
	}
	bg := r.bg.Load()
	if bg == bgInTask {
		r.tasks.Detach(c.ep.runTask) // the present task may be the caller's, so the tasks behind it would wait for this message too
	}
	s := c.spinner(true)
	if (bg != bgActive || r.yielded.Load() || c.lone() || c.keepsFor(group)) && s.begin() {
		c.driveSpinning(ev, &s, bg, group)
		s.End()
	} else if !r.held.Load() {
		c.handBack() // or no goroutine would read while there are drivers that may not spin, or that find the background about to rest
	}
	if !ev.IsSet() {
		r.undriven.Store(true)
		c.takeOver(r.tasks.Begun()) // because no goroutine reads while the background goroutine is in a task, which may be the caller's
	}
}

// keepsFor reports whether a driver of a group keeps the claim although further operations wait for the peer. That is so if all of these operations belong to
// the driver, no goroutine may wait for one of them without driving, and no transfer of memory is under way.
func (c *conn) keepsFor(group bool) bool {
	return group && !c.role.undriven.Load() && c.moving.Load() == 0
}

// driveSpinning takes the read role, unless another goroutine makes progress. bg is the state of the background goroutine.
func (c *conn) driveSpinning(ev *na.Event, s *spinner, bg uint32, group bool) {
	r := &c.role
	if bg == bgActive {
		if !c.preemptReader(ev, s) {
			return
		}
	} else if !r.held.CompareAndSwap(false, true) {
		return
	}
	if bg != bgInTask && r.claim.Take() {
		c.watch()
		if bg == bgParked {
			c.sock.WakeRead() // so that bytes that come wake no goroutine
		}
	}
	if r.yielded.Load() {
		r.yielded.Store(false) // the driver has come
		r.yieldMisses.Store(0)
	}
	c.driveHeld(ev, s)
	c.release()
	if !ev.IsSet() || c.serves.Load() || c.expects.Load() > 0 || c.peer.expected.Len() > 0 && !c.keepsFor(group) {
		c.handBack()
	}
}

// lone reports whether only the caller waits for the peer, and the peer asks for nothing itself. Then the caller reads for
// itself although the background does so already: being woken would take it longer.
func (c *conn) lone() bool {
	return !c.serves.Load() && c.peer.expected.Len()+int(c.moving.Load()) <= 1
}

// preemptReader claims the connection and takes the read role as soon as the background goroutine gives it back, which is in
// moments. False: it was not worth while.
func (c *conn) preemptReader(ev *na.Event, s *spinner) bool {
	r := &c.role
	if r.claim.Take() {
		c.watch()
	}
	for !r.held.CompareAndSwap(false, true) {
		if ev.IsSet() || c.dead.Load() || !s.vain(false) {
			c.handBack()
			return false
		}
	}
	return true
}

// driveTime is the longest time that a driver reads: it has to come back to its caller, which may have a
// deadline, also while there is always something to read that is not for it, or while every read takes long because the
// processors are busy.
const driveTime = 20 * time.Millisecond

// gatherRounds is the number of vain reads in a row after which a driver writes the gathered requests. So many take about 5 µs.
const gatherRounds = 16

// driveReads is after how many reads in a row that have brought something the clock is looked at for that.
const driveReads = 4

// driveHeld reads until ev is set, or for the spin time, or for driveTime.
func (c *conn) driveHeld(ev *na.Event, s *spinner) {
	for reads := 1; !ev.IsSet() && !c.dead.Load(); {
		if c.receive() {
			c.rx.handed = false // because the handler of that request may have come and gone when the background reads again
			c.detachTasks()
			if reads%driveReads == 0 && s.late(time.Now()) {
				return
			}
			reads++
			s.Found()
			continue
		}
		if !s.vain(c.rx.body) || s.rounds%lateRounds == 0 && s.late(time.Now()) {
			return
		}
		if s.rounds%gatherRounds == 0 && c.later.Load() {
			c.sendGathered() // because the callers that could queue further requests may have other work
		}
		if s.rounds%pollRounds == 0 && c.blocked.Load() {
			c.unblock()
		}
	}
}

// After an expected driver has not come, which may be the scheduler's doing, yieldReader does nothing for yieldBackoff requests. Each
// further time in a row doubles that, up to yieldBackoffMost times.
const (
	yieldBackoff     = 8
	yieldBackoffMost = 6
)

// yieldReader leaves the reading to the handler of the request that the background goroutine, which has the read role, has just read.
// Handlers of this peer's requests come to drive, because they typically move memory, and the peer sends nothing before. So the handler
// runs where the background did, instead of both at once on processors that the peer may need. A handler that answers without having
// come to drive, or the watcher, undoes it, and then it is not tried for a while. No operation that waits for the peer may depend on the
// reading.
func (c *conn) yieldReader() {
	if !c.rx.handed {
		return
	}
	c.rx.handed = false
	r := &c.role
	if len(c.rx.tasks) > 0 || shared.crowded(c) || c.expects.Load() > 0 || c.peer.expected.Len() > 0 {
		return
	}
	if r.yieldCredit.Load() < 0 {
		r.yieldCredit.Add(1)
		return
	}
	r.claim.Take()
	r.yielded.Store(true)
	c.watch()
}

// detachTasks starts a goroutine for each task that came while a goroutine drives: the driver must not be kept, and the
// background may be busy.
func (c *conn) detachTasks() {
	for _, t := range c.rx.tasks {
		c.ep.runTask(t)
	}
	clear(c.rx.tasks)
	c.rx.tasks = c.rx.tasks[:0]
}
