package sm

import (
	"runtime"
	"sync/atomic"
	"time"

	"cinnabar/internal/na"
	"cinnabar/internal/shm"
)

// role is the right to receive from a conn, and who is expected to use it.
//
// Each endpoint has a poller, a goroutine that looks at all conns, runs the tasks that requests bring, spins for a while
// after traffic, and then parks. A goroutine that waits for something from a peer takes that peer's conn instead
// (drive): the conn is claimed, so that what comes does not wake the poller. It stays claimed when the waiter has got
// what it wanted, since that waiter will soon be back with its next call, until nobody has driven it for a tick of the
// watcher or others wait for the peer too.
type role struct {
	held   atomic.Bool   // a goroutine has the receive role; it keeps the role when it tears the conn down
	missed atomic.Bool   // the poller has parked without a look, since it was held
	claim  atomic.Uint32 // 1: drivers receive; the poller does not
	drives atomic.Uint64 // how often somebody drove

	message na.Message // of whoever holds the role

	watched      bool   // guarded by watcher.mu
	watchedDrive uint64 // the watching goroutine's
}

// enter takes the receive role, if it is free.
func (c *conn) enter() bool { return !c.role.held.Load() && c.role.held.CompareAndSwap(false, true) }

// enterOrMiss is enter for the poller that is about to park: if somebody has the role, perhaps after his last look at the
// ring, he wakes the poller when he leaves.
func (c *conn) enterOrMiss() bool {
	if c.enter() {
		return true
	}
	c.role.missed.Store(true)
	return c.enter()
}

// leave gives it back. What others have left undone because they did not get the role is seen to.
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

// polled tells whether the poller is to receive, not drivers.
func (c *conn) polled() bool { return c.role.claim.Load() == 0 || c.ending.Load() != nil }

// takeClaim keeps the poller away. The caller has the receive role.
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

// handBackTries is how often the receive role is tried for a conn that is to be handed back.
const handBackTries = 64

// handBack ends a claim: what comes wakes the poller again, and what has come too. Only who has the receive role may do
// it: another driver would else go on with a conn whose doorbell is off and that nobody thinks is claimed. If one has the
// role, the conn is his to hand back, or the watcher's.
func (c *conn) handBack() {
	if c.role.claim.Load() == 0 {
		return
	}
	for range handBackTries {
		if c.enter() {
			c.unclaim()
			c.leave()
			return
		}
		shm.Pause(1)
	}
}

// unclaim is handBack for who has the receive role.
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

// spinner bounds how long a goroutine spins. Not more than Endpoint.maxSpin do at a time; drivers go first.
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

// spinPolicy decides whether a waiter spins before it parks. After spinMisses vain spins in a row it backs off: a slow peer, or
// other programs that use the processors, make spinning a waste of time, so only one wait in spinRetry spins.
//
// Two sides that both park respond too late for each other's spin, however little they have to do, because waking a thread takes
// longer than a spin. Therefore a spin of a backed-off waiter is long: spinFactor times the usual time, enough for the other side
// to wake. If a message comes, the next spinPatient spins are long too. The other side's own long spin falls into that time, and
// then both sides are awake.
type spinPolicy struct {
	misses   atomic.Int32 // vain spins in a row, up to spinMisses
	turns    atomic.Int32 // waits since the waiter backed off
	patience atomic.Int32 // number of long spins to come
	rarer    atomic.Int32 // a backed-off waiter spins on every (spinRetry << rarer)th wait
}

const (
	spinMisses  = 3             // vain spins in a row after which a waiter backs off
	spinRetry   = 16            // a backed-off waiter spins on every 16th wait
	spinFactor  = 4             // length of a long spin, in usual spins
	spinPatient = spinRetry + 8 // long spins after a backed-off waiter's spin that received a message
	spinRarest  = 6             // limit of rarer, if long spins receive messages and usual ones do not
	spinStalled = 4             // rarer after another program took the processor
	spinVain    = 3             // limit of rarer, if long spins receive nothing
)

// try returns how long the waiter spins, in usual spins; 0: it parks at once.
func (l *spinPolicy) try() (factor time.Duration) {
	if l.misses.Load() >= spinMisses {
		if l.turns.Add(1)%(spinRetry<<l.rarer.Load()) != 0 {
			return 0
		}
		return spinFactor
	}
	if l.patience.Load() > 0 {
		l.patience.Add(-1)
		return spinFactor
	}
	return 1
}

// hit records that a message came during a spin.
func (l *spinPolicy) hit(long bool) {
	if l.misses.Load() >= spinMisses {
		l.patience.Store(spinPatient)
		l.rarer.Store(min(l.rarer.Load()+1, spinRarest))
	}
	if l.misses.Load() != 0 {
		l.misses.Store(0)
	}
	if !long && l.rarer.Load() != 0 {
		l.rarer.Store(0)
	}
}

// miss records a vain spin. A vain spin of a backed-off waiter makes the next one rarer, because the peer is slow or has no
// processor, and fewer than one call in a hundred may pay for a vain spin.
func (l *spinPolicy) miss(long bool) {
	if l.misses.Load() < spinMisses {
		l.misses.Add(1)
		return
	}
	if n := l.rarer.Load(); long && n < spinVain {
		l.rarer.Store(n + 1)
	}
}

// stall records that another program had the processor during a spin, and backs off.
func (l *spinPolicy) stall() {
	l.misses.Store(spinMisses)
	l.turns.Store(0)
	l.patience.Store(0)
	l.rarer.Store(spinStalled)
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
		s.look(e.lonely)
	} else {
		shm.Pause(1)
	}
	return true
}

// look finds out whether to go on. If not, there is one more round for what has come meanwhile.
//
// The processor is not given to other threads meanwhile: the peer's would be the one to take it, if it is on the same
// processor, and two that hand it to each other stay there although another one is idle. A thread that parks is woken
// where there is room. Nor is there a turn for other goroutines, unless they have no other thread (lonely): each would wake
// a thread to look for them, which takes the processor that the peer spins on.
func (s *spinner) look(lonely bool) {
	if lonely {
		runtime.Gosched()
	}
	now := time.Now()
	switch {
	case now.Sub(s.looked) >= spinStall:
		s.policy.stall()
		s.over = true
	case now.After(s.until):
		s.policy.miss(s.window > s.usual)
		s.over = true
	}
	s.looked = now
}

func (s *spinner) begin(e *Endpoint) bool {
	if e.cfg.Spin <= 0 {
		return false
	}
	if s.window = s.policy.try() * e.cfg.Spin; s.window == 0 {
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

// reset starts the time anew, after something has come.
func (s *spinner) reset() {
	if s.rounds > 0 {
		if !s.over { // else it is late
			s.policy.hit(s.window > s.usual)
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
	if (p.state.Load() != pollActive || c.addr.awaits.Load() <= 1) && s.begin(c.ep) {
		c.driveSpinning(ev, &s)
		s.stop(c.ep)
	} else if !r.held.Load() {
		c.handBack() // or nobody would receive while there are drivers that may not spin
	}
	if !ev.IsSet() && p.state.Load() == pollInTask {
		p.takeOver(begun) // perhaps the poller is in the very task that waits here
	}
}

// driveSpinning takes the receive role, unless somebody else makes progress.
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
	if !ev.IsSet() || c.serves.Load() || c.addr.awaits.Load() > 0 || c.ending.Load() != nil {
		c.unclaim()
	}
	c.leave()
}

// driveMessages is how much a driver takes that is not for it alone: it has to come back to its caller, who may have a
// deadline.
const driveMessages = 1024

// driveHeld receives until ev is set, or for the spin time.
func (c *conn) driveHeld(ev *na.Event, s *spinner) {
	for taken := 0; taken < driveMessages && !ev.IsSet() && !c.dead.Load(); {
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

// detachTasks gives tasks that came while somebody drives to goroutines: the driver must not be kept.
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
