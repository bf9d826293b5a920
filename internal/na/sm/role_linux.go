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
// likely to be back soon with its next call. The claim ends when no goroutine has driven the conn for some ticks of the watcher, or when
// other operations wait for the peer too, unless all of these belong to a goroutine that drives for them one after the other. If callers
// of the process wait for several conns at once, joint receives for all of them.
type role struct {
	held   atomic.Bool    // a goroutine has the receive role; it keeps the role when it tears the conn down
	missed atomic.Bool    // the poller parks without a look at the conn, because another goroutine has the role
	wanted atomic.Bool    // the poller waits for the role
	claim  progress.Claim // while it is taken, drivers receive and the poller does not
	watch  progress.Watch
	joined atomic.Bool // true while joint receives from the conn; written with the lock of joint held
	// unasked is the number of messages in a row that joint has received while no operation waited for the peer. Only the goroutine of joint
	// uses it.
	unasked int
	// undriven is true if a goroutine may wait for an operation with the peer without driving. The goroutine that receives the message of the
	// last such operation sets undriven to false. It may do so just after another goroutine has set undriven and begun to wait; that goroutine
	// then waits until the watcher ends the claim.
	undriven atomic.Bool

	message na.Message // used by the holder of the role
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
func (c *conn) polled() bool { return !c.role.claim.Taken() || c.ending.Load() != nil }

// takeClaim claims the conn for drivers, so that the poller does not receive from it. The caller has the receive role.
func (c *conn) takeClaim() {
	if !c.role.claim.Take() {
		return
	}
	c.sleeping(false)
	if c.ext == nil && c.recvEvent >= 0 {
		c.ep.poll.setMuted(c.recvEvent, c.id, true)
	}
	c.ep.watch.Add(&c.role.watch) // no claim is left behind if the watcher is closed, because the endpoint then ends all conns
}

// releaseClaimTries bounds the attempts of releaseClaim to take the receive role.
const releaseClaimTries = 64

// releaseClaim ends a claim, so that messages wake the poller again, including those that are in the ring. It needs the receive role,
// because a driver with the role would otherwise go on with an unclaimed conn and disabled wake-ups. If a driver has the role, that
// driver or the watcher ends the claim later.
func (c *conn) releaseClaim() {
	if !c.role.claim.Taken() {
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
	if c.dead.Load() || !c.role.claim.End() {
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
	if c := e.connTo(a); c != nil && !ev.IsSet() {
		c.drive(ev, false)
	}
}

// DriveGroup implements [na.GroupDriver].
func (e *Endpoint) DriveGroup(a na.Addr, ev *na.Event) {
	if c := e.connTo(a); c != nil && !c.self && !ev.IsSet() {
		c.drive(ev, true)
	}
}

// Undriven implements [na.GroupDriver].
func (e *Endpoint) Undriven(a na.Addr) {
	if c := e.connTo(a); c != nil {
		c.role.undriven.Store(true)
		c.releaseClaim()
	}
}

// DrivesTransfers implements [na.GroupDriver].
func (e *Endpoint) DrivesTransfers(na.Addr) bool { return false }

// connTo returns the connection to the peer a, or nil.
func (e *Endpoint) connTo(a na.Addr) *conn {
	p, ok := a.(*Addr)
	if !ok || p.ep != e {
		return nil
	}
	return p.conn.Load()
}

// drive implements [Endpoint.Drive] for one conn, or [Endpoint.DriveGroup] if group is true.
func (c *conn) drive(ev *na.Event, group bool) {
	r, p := &c.role, c.ep.poll
	r.claim.Drive()
	begun := p.tasks.Begun()
	joined := joint.wanted(c) && joint.join(c)
	if !joined {
		s := c.spins.Spin(true)
		leave := p.state.Load() == pollActive && c.addr.expected.Len() > 1 && !c.keepsFor(group)
		if !leave && s.Begin() {
			joint.driver.Store(c.serial)
			c.driveSpinning(ev, &s, group)
			joint.driver.Store(0)
			s.End()
			joined = !ev.IsSet() && joint.wanted(c) && joint.join(c)
		} else if !r.held.Load() {
			c.releaseClaim() // so that the poller receives, because this driver may not spin
		}
	}
	if ev.IsSet() {
		return
	}
	r.undriven.Store(true)
	c.spins.Park()
	if !joined && c.ep.expects() {
		p.wake() // so that the poller looks for the message instead
	}
	if p.state.Load() == pollInTask {
		p.replacePoller(begun) // because the poller may be in the task that waits here
	}
}

// driveSpinning receives from c until ev is set or the spin ends, unless another goroutine has the receive role.
func (c *conn) driveSpinning(ev *na.Event, s *progress.Spin, group bool) {
	if !c.enter() {
		return
	}
	if c.dead.Load() {
		c.leave()
		return
	}
	c.takeClaim()
	c.driveHeld(ev, s)
	if !ev.IsSet() || c.serves.Load() || c.operations() > 0 && !c.keepsFor(group) || c.ending.Load() != nil {
		c.unclaim()
	}
	c.leave()
}

// keepsFor reports whether a driver keeps the claim although further operations wait for the peer, because all of these belong to the
// goroutine that drives for a group.
func (c *conn) keepsFor(group bool) bool { return group && !c.role.undriven.Load() }

// operations returns the number of operations that wait for the peer. If there is none, no goroutine waits for the peer either.
func (c *conn) operations() int {
	n := c.addr.expected.Len()
	if n == 0 && c.role.undriven.Load() {
		c.role.undriven.Store(false)
	}
	return n
}

// driveMessages bounds the messages that a driver takes before it returns to its caller, which may have a deadline.
const driveMessages = 1024

// driveHeld receives until ev is set, the spin ends, the poller wants the role, or joint receives for other callers.
func (c *conn) driveHeld(ev *na.Event, s *progress.Spin) {
	for taken := 0; taken < driveMessages && !ev.IsSet() && !c.dead.Load() && !c.role.wanted.Load(); {
		n := c.receive(min(max(c.addr.expected.Len(), 1), receiveBatch))
		if n == 0 {
			if !s.Vain() || joint.running.Load() {
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
