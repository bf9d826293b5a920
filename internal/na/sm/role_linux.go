package sm

import (
	"runtime"
	"sync/atomic"

	"cinnabar/internal/na"
	"cinnabar/internal/progress"
	"cinnabar/internal/shm"
)

// role is the right to receive from a conn, and the record of the goroutines that are expected to use it.
//
// Each endpoint has a poller, a goroutine that looks at all conns, runs the tasks of requests, spins for a while after traffic, and
// then parks. A goroutine that waits for a message of a peer receives from that peer's conn itself instead (drive), and claims the
// conn, so that messages do not wake the poller. The conn stays claimed after the driver has its message, because that driver is
// likely to be back soon with its next call. The claim ends when no goroutine has driven the conn for a tick of the watcher, or when
// other operations wait for the peer too.
type role struct {
	held   atomic.Bool   // a goroutine has the receive role; it keeps the role when it tears the conn down
	missed atomic.Bool   // the poller has parked without a look, since it was held
	wanted atomic.Bool   // the poller waits for the role
	claim  atomic.Uint32 // 1: drivers receive; the poller does not
	drives atomic.Uint64 // number of calls of drive

	message na.Message // used by the holder of the role

	watched      bool   // guarded by watcher.mu
	watchedDrive uint64 // the watching goroutine's
}

// enter takes the receive role, if it is free.
func (c *conn) enter() bool { return !c.role.held.Load() && c.role.held.CompareAndSwap(false, true) }

// enterOrMiss is enter for a poller that is about to park. If another goroutine has the role, which may have looked at the ring for
// the last time, that goroutine wakes the poller when it leaves.
func (c *conn) enterOrMiss() bool {
	if c.enter() {
		return true
	}
	c.role.missed.Store(true)
	return c.enter()
}

// takeRole waits for the receive role on behalf of the poller. It returns false if c is dead. A driver that has the role leaves it after
// its present message, because it could otherwise delay the poller, and so all other peers, for as long as it spins.
func (c *conn) takeRole() bool {
	c.role.wanted.Store(true)
	defer c.role.wanted.Store(false)
	for !c.enter() {
		if c.dead.Load() {
			return false
		}
		runtime.Gosched()
	}
	return true
}

// leave releases the receive role. It does the work for which other goroutines could not get the role: it wakes the poller, or tears
// the conn down.
func (c *conn) leave() {
	c.role.held.Store(false)
	if c.role.missed.Load() && c.role.missed.Swap(false) {
		c.ep.poll.wake()
	}
	switch {
	case c.dead.Load():
		c.tryTearDown()
	case c.ending.Load() != nil:
		c.ep.poll.wake()
	}
}

// polled reports whether the poller receives from the conn, and not drivers.
func (c *conn) polled() bool { return c.role.claim.Load() == 0 || c.ending.Load() != nil }

// takeClaim claims the conn for drivers, so that the poller does not receive from it. The caller has the receive role.
func (c *conn) takeClaim() {
	if c.role.claim.Swap(1) != 0 {
		return
	}
	c.sleeping(false)
	if c.ext == nil && c.recvEvent >= 0 {
		c.ep.poll.setMuted(c.recvEvent, c.id, true)
	}
	c.ep.watch.add(c)
}

// releaseClaimTries bounds the attempts of releaseClaim to take the receive role.
const releaseClaimTries = 64

// releaseClaim ends a claim, so that messages wake the poller again, including those that are in the ring. It needs the receive role,
// because a driver with the role would otherwise go on with an unclaimed conn and disabled wake-ups. If a driver has the role, that
// driver or the watcher ends the claim later.
func (c *conn) releaseClaim() {
	if c.role.claim.Load() == 0 {
		return
	}
	for range releaseClaimTries {
		if c.enter() {
			c.unclaim()
			c.leave()
			return
		}
		shm.Pause(1)
	}
}

// unclaim is releaseClaim for a goroutine that has the receive role.
func (c *conn) unclaim() {
	if c.dead.Load() || c.role.claim.Swap(0) == 0 {
		return
	}
	c.sleeping(true)
	if c.ext == nil && c.recvEvent >= 0 {
		c.ep.poll.setMuted(c.recvEvent, c.id, false) // wakes the poller if there are tokens
	} else if c.ready() {
		c.ep.poll.wake()
	}
}

// Drive implements [na.Endpoint].
func (e *Endpoint) Drive(a na.Addr, ev *na.Event) {
	p, ok := a.(*Addr)
	if !ok || p.ep != e {
		return
	}
	if c := p.conn.Load(); c != nil && !ev.IsSet() {
		c.drive(ev)
	}
}

// drive is [Endpoint.Drive] for one conn.
func (c *conn) drive(ev *na.Event) {
	r, p := &c.role, c.ep.poll
	r.drives.Add(1)
	s := c.spins.Spin(true)
	begun := p.tasks.begun.Load()
	if (p.state.Load() != pollActive || c.addr.expected.Len() <= 1) && s.Begin() {
		c.driveSpinning(ev, &s)
		s.End()
	} else if !r.held.Load() {
		c.releaseClaim() // so that the poller receives, because this driver may not spin
	}
	if ev.IsSet() {
		return
	}
	c.spins.Park()
	if c.ep.expects() {
		p.wake() // so that the poller looks for the message instead
	}
	if p.state.Load() == pollInTask {
		p.replacePoller(begun) // because the poller may be in the task that waits here
	}
}

// driveSpinning receives from c until ev is set or the spin ends, unless another goroutine has the receive role.
func (c *conn) driveSpinning(ev *na.Event, s *progress.Spin) {
	if !c.enter() {
		return
	}
	if c.dead.Load() {
		c.leave()
		return
	}
	c.takeClaim()
	c.driveHeld(ev, s)
	if !ev.IsSet() || c.serves.Load() || c.addr.expected.Len() > 0 || c.ending.Load() != nil {
		c.unclaim()
	}
	c.leave()
}

// driveMessages bounds the messages that a driver takes before it returns to its caller, which may have a deadline.
const driveMessages = 1024

// driveHeld receives until ev is set, the spin ends, or the poller wants the role.
func (c *conn) driveHeld(ev *na.Event, s *progress.Spin) {
	for taken := 0; taken < driveMessages && !ev.IsSet() && !c.dead.Load() && !c.role.wanted.Load(); {
		n := c.receive(1)
		if n == 0 {
			if !s.Vain() {
				return
			}
			shm.Pause(1)
			continue
		}
		taken += n
		s.Found()
		c.detachTasks()
		c.ep.handOver()
	}
}

// handOver lets the goroutines run that have got a request since the last call, because they would otherwise wait for a thread that
// the scheduler wakes, while the caller spins.
func (e *Endpoint) handOver() {
	if e.handed.Load() && e.handed.Swap(false) {
		e.cfg.Progress.HandOver()
	}
}

// detachTasks starts a goroutine for each task that came while a driver received, because the driver must return to its caller.
func (c *conn) detachTasks() {
	if len(c.tasks) == 0 {
		return
	}
	for _, t := range c.tasks {
		c.ep.runTask(t)
	}
	clear(c.tasks)
	c.tasks = c.tasks[:0]
	c.ep.handed.Store(true)
}
