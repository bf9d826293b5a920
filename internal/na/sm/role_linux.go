package sm

import (
	"runtime"
	"sync/atomic"
	"time"

	"cinnabar/internal/na"
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

// spinner bounds the time that a goroutine spins. At most Endpoint.maxSpin goroutines spin at a time, and drivers come before the
// poller.
type spinner struct {
	driver bool
	policy *spinPolicy
	on     bool
	rounds int
	window time.Duration
	usual  time.Duration
	until  time.Time
	looked time.Time // at the clock
	over   bool
}

// spinPolicy decides whether a waiter spins before it parks. After spinMisses vain spins in a row it backs off: a slow peer, or other
// programs that use the processors, make spinning a waste of time, so only one wait in spinRetry spins.
//
// Two sides that both park respond too late for each other's spin, however little they have to do, because waking a thread takes
// longer than a spin. Therefore a spin of a backed-off waiter is long: spinFactor times the usual time, enough for the other side to
// wake. If a message comes, the next longSpinCount spins are long too. The other side's own long spin falls into that time, and then
// both sides are awake.
type spinPolicy struct {
	misses     atomic.Int32 // vain spins in a row, up to spinMisses
	turns      atomic.Int32 // waits since the waiter backed off
	longSpins  atomic.Int32 // number of further long spins
	retryShift atomic.Int32 // a backed-off waiter spins on every (spinRetry << rarer)th wait
}

const (
	spinMisses    = 3             // vain spins in a row after which a waiter backs off
	spinRetry     = 16            // a backed-off waiter spins on every 16th wait
	spinFactor    = 4             // length of a long spin, in usual spins
	longSpinCount = spinRetry + 8 // long spins after a backed-off waiter's spin that received a message
	maxRetryShift = 6             // limit of retryShift if long spins receive messages and usual ones do not
	stalledShift  = 4             // retryShift after another program took the processor
	vainShift     = 3             // limit of retryShift if long spins receive nothing
)

// factor returns how long the waiter spins, in usual spins; 0: it parks at once.
func (l *spinPolicy) factor() time.Duration {
	if l.misses.Load() >= spinMisses {
		if l.turns.Add(1)%(spinRetry<<l.retryShift.Load()) != 0 {
			return 0
		}
		return spinFactor
	}
	if l.longSpins.Load() > 0 {
		l.longSpins.Add(-1)
		return spinFactor
	}
	return 1
}

// success records that a message came during a spin.
func (l *spinPolicy) success(long bool) {
	if l.misses.Load() >= spinMisses {
		l.longSpins.Store(longSpinCount)
		l.retryShift.Store(min(l.retryShift.Load()+1, maxRetryShift))
	}
	if l.misses.Load() != 0 {
		l.misses.Store(0)
	}
	if !long && l.retryShift.Load() != 0 {
		l.retryShift.Store(0)
	}
}

// failure records a vain spin. A vain spin of a backed-off waiter makes the next one rarer, because the peer is slow or has no
// processor, and fewer than one call in a hundred may pay for a vain spin.
func (l *spinPolicy) failure(long bool) {
	if l.misses.Load() < spinMisses {
		l.misses.Add(1)
		return
	}
	if n := l.retryShift.Load(); long && n < vainShift {
		l.retryShift.Store(n + 1)
	}
}

// stall records that another program had the processor during a spin, and backs off.
func (l *spinPolicy) stall() {
	l.misses.Store(spinMisses)
	l.turns.Store(0)
	l.longSpins.Store(0)
	l.retryShift.Store(stalledShift)
}

const (
	// spinLook is the number of vain rounds, about a microsecond, between two readings of the clock.
	spinLook = 16
	// spinStall is the least time between two readings of the clock after which spin assumes that another program has had the
	// processor. Spinning is then worse than parking, because a parked thread gets a processor when it is woken, and a spinning
	// one only at the end of the other program's time slice, some milliseconds later.
	spinStall = 100 * time.Microsecond
)

// spin is called after a vain round. It reports whether to go on.
func (s *spinner) spin(e *Endpoint) bool {
	if !s.on && !s.begin(e) {
		return false
	}
	switch {
	case s.rounds == 0:
		s.looked = time.Now()
		s.until = s.looked.Add(s.window)
	case s.over:
		return false
	case !s.driver && e.driving.Load()+e.spinning.Load() > e.maxSpin:
		return false
	}
	s.rounds++
	if s.rounds%spinLook == 0 {
		s.look(e.oneThread)
	} else {
		shm.Pause(1)
	}
	return true
}

// look reads the clock and decides whether the spin goes on. After the decision to stop, spin allows one more round, for messages that
// came in the meantime.
//
// It does not yield the processor to other threads, because the peer's thread would take it, if it is on the same processor, and two
// threads that yield to each other stay on one processor although another is idle. A thread that parks is woken on a free processor.
// It does not yield to other goroutines either, unless the process has one thread (oneThread), because the scheduler would wake
// another thread to look for goroutines, and that thread takes the processor on which the peer spins.
func (s *spinner) look(oneThread bool) {
	if oneThread {
		runtime.Gosched()
	}
	now := time.Now()
	switch {
	case now.Sub(s.looked) >= spinStall:
		s.policy.stall()
		s.over = true
	case now.After(s.until):
		s.policy.failure(s.window > s.usual)
		s.over = true
	}
	s.looked = now
}

func (s *spinner) begin(e *Endpoint) bool {
	if e.cfg.Spin <= 0 {
		return false
	}
	if s.window = s.policy.factor() * e.cfg.Spin; s.window == 0 {
		return false
	}
	s.on, s.usual = true, e.cfg.Spin
	n := s.count(e).Add(1)
	if n > e.maxSpin || !s.driver && n+e.driving.Load() > e.maxSpin {
		s.stop(e)
	}
	return s.on
}

func (s *spinner) count(e *Endpoint) *atomic.Int32 {
	if s.driver {
		return &e.driving
	}
	return &e.spinning
}

// reset restarts the time limit after a message.
func (s *spinner) reset() {
	if s.rounds > 0 {
		if !s.over { // else the message came too late for the spin
			s.policy.success(s.window > s.usual)
		}
		s.rounds, s.over = 0, false
	}
}

func (s *spinner) stop(e *Endpoint) {
	if s.on {
		s.on = false
		s.rounds, s.over = 0, false
		s.count(e).Add(-1)
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
	s := spinner{driver: true, policy: &c.spinPolicy}
	begun := p.tasks.begun.Load()
	if (p.state.Load() != pollActive || c.addr.expected.Len() <= 1) && s.begin(c.ep) {
		c.driveSpinning(ev, &s)
		s.stop(c.ep)
	} else if !r.held.Load() {
		c.releaseClaim() // so that the poller receives, because this driver may not spin
	}
	if !ev.IsSet() && p.state.Load() == pollInTask {
		p.replacePoller(begun) // because the poller may be in the task that waits here
	}
}

// driveSpinning receives from c until ev is set or the spin ends, unless another goroutine has the receive role.
func (c *conn) driveSpinning(ev *na.Event, s *spinner) {
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
func (c *conn) driveHeld(ev *na.Event, s *spinner) {
	for taken := 0; taken < driveMessages && !ev.IsSet() && !c.dead.Load() && !c.role.wanted.Load(); {
		n := c.receive(1)
		if n == 0 {
			if !s.spin(c.ep) {
				return
			}
			continue
		}
		taken += n
		s.reset()
		c.detachTasks()
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
}
