package ofitcp

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar/internal/na"
	"cinnabar/internal/sockio"
)

// role is the read role of a connection and who may have it.
//
// Each connection has a background goroutine that reads, runs the tasks that requests bring, spins for a while after
// traffic, and then parks in the poller. A goroutine that waits for something from the peer takes the role instead
// (drive). If the background was parked it then stays away even when the waiter has got what it wanted, since that
// waiter will soon be back with its next call: the connection is claimed, until nobody has driven it for a tick of the
// watcher, or others wait for the peer too.
type role struct {
	held   atomic.Bool   // somebody is reading
	claim  atomic.Bool   // drivers read; the background rests
	bg     atomic.Uint32 // bgActive and so on
	resume chan struct{} // capacity 1: the background's turn
	drives atomic.Uint64 // how often somebody drove

	mu sync.Mutex
	// tasks are what requests have brought and nobody has begun.
	// +checklocks:mu
	tasks []na.Task
	// +checklocks:mu
	next int
	// gen tells the background goroutine that it was replaced because a task kept it.
	// +checklocks:mu
	gen uint32
	// +checklocks:mu
	inTask bool
	// begun counts the tasks that have begun.
	begun atomic.Uint64

	watched      bool   // guarded by watcher.mu
	watchedDrive uint64 // the watching goroutine's, as is the next
	watchedTask  uint64
}

const (
	bgActive  uint32 = iota // reads or spins
	bgInTask                // runs tasks
	bgParked                // in the poller
	bgResting               // waits for resume
)

// background is the goroutine that makes progress when nobody drives. It ends when the connection has ended, or when it
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
		go c.background(gen)
	} else {
		c.ep.runners.Done()
	}
}

// progress is what the background goroutine does until the connection is dead and its tasks are run. False: another
// goroutine has taken over.
func (c *conn) progress(gen uint32) (mine bool) {
	r := &c.role
	for !c.dead.Load() {
		if !c.serve(gen) {
			return false
		}
		r.bg.Store(bgParked)
		err := c.sock.WaitRead(c.onReadable)
		r.bg.Store(bgActive)
		if err != nil {
			c.fail(na.Unreachable, lost(err))
		}
		if !c.hasTasks() {
			c.rest()
		}
	}
	return c.serve(gen)
}

// readable reads when the poller says so; true ends the parking.
func (c *conn) readable() bool {
	if c.dead.Load() || c.role.claim.Load() || !c.role.held.CompareAndSwap(false, true) {
		return true
	}
	got := c.receive()
	if got {
		c.offerTasks()
	} else {
		c.unstage()
	}
	c.release()
	return got || c.dead.Load() || c.paused.Load()
}

// rest waits while somebody else has the role, or nothing may be read.
func (c *conn) rest() {
	r := &c.role
	r.bg.Store(bgResting)
	for (r.claim.Load() || r.held.Load() || c.paused.Load()) && !c.dead.Load() {
		select {
		case <-r.resume:
		case <-c.done:
		}
	}
	r.bg.Store(bgActive)
}

// hasTasks reports whether there are tasks that nobody has begun.
func (c *conn) hasTasks() bool {
	r := &c.role
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.next < len(r.tasks)
}

// release gives the role back. Who comes behind a connection's end lets go of memory.
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
	if c.role.claim.Swap(false) {
		c.wake()
	}
}

// serve reads, runs tasks and spins, until nothing has come for the spin time or somebody else reads. False: the
// goroutine was replaced.
func (c *conn) serve(gen uint32) bool {
	s := spinner{luck: &c.luck}
	defer s.stop(c.ep)
	r := &c.role
	for hot := r.begun.Load() > 0 || c.rxBytes.Load() > 0; ; {
		ran, mine := c.runTasks(gen, &s)
		if !mine {
			return false
		}
		if c.dead.Load() || r.claim.Load() || !r.held.CompareAndSwap(false, true) {
			return true
		}
		got := c.receive()
		c.offerTasks()
		c.release()
		switch {
		case got || ran:
			s.reset()
		case !hot || !s.spin(c.ep):
			return true
		}
	}
}

// spinner bounds how long a goroutine spins. Not more than Endpoint.maxSpin goroutines do at a time; drivers go first.
type spinner struct {
	driver bool
	luck   *luck
	on     bool
	rounds int
	until  time.Time
}

// luck remembers whether spinning has paid lately. Where it does not, because the peer takes its time or other programs
// want the processors, it is tried only now and then.
type luck struct {
	misses atomic.Int32 // spins in a row that brought nothing
	turns  atomic.Int32 // chances to spin since
}

const (
	luckMisses = 4  // so many are normal
	luckRetry  = 16 // after them, every so manyth chance is taken
)

// try reports whether to spin.
func (l *luck) try() bool {
	return l.misses.Load() < luckMisses || l.turns.Add(1)%luckRetry == 0
}

// spinRounds is after how many vain reads the clock is looked at.
const spinRounds = 16

// spin is called after a vain read. It lets others run and reports whether to go on.
func (s *spinner) spin(e *Endpoint) bool {
	if !s.on && !s.begin(e) {
		return false
	}
	switch {
	case s.rounds == 0:
		s.until = time.Now().Add(e.cfg.Spin)
	case s.rounds%spinRounds == 0 && time.Now().After(s.until):
		s.luck.misses.Add(1)
		return false
	case !s.driver && e.driving.Load()+e.spinning.Load() > e.maxSpin:
		return false
	}
	s.rounds++
	runtime.Gosched()
	return true
}

func (s *spinner) begin(e *Endpoint) bool {
	if !sockio.Direct || e.cfg.Spin <= 0 || !s.luck.try() {
		return false
	}
	s.on = true
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
		s.luck.misses.Store(0)
		s.rounds = 0
	}
}

func (s *spinner) stop(e *Endpoint) {
	if s.on {
		s.on = false
		s.count(e).Add(-1)
	}
}

// drive is [Endpoint.Drive] for one connection.
func (c *conn) drive(ev *na.Event) {
	r := &c.role
	r.drives.Add(1)
	c.uncork()
	if c.later.Load() {
		c.sendGathered()
	}
	if ev.IsSet() {
		return
	}
	s := spinner{driver: true, luck: &c.luck}
	if bg := r.bg.Load(); bg != bgActive && s.begin(c.ep) {
		c.driveSpinning(ev, &s, bg)
		s.stop(c.ep)
	} else if !r.held.Load() {
		c.handBack() // or nobody would read while there are drivers that may not spin, or that find the background about to rest
	}
	if !ev.IsSet() {
		c.takeOver(r.begun.Load()) // if the background is in a task, perhaps in this one, nobody else would read
	}
}

// driveSpinning takes the read role, unless somebody else makes progress. bg is what the background goroutine does.
func (c *conn) driveSpinning(ev *na.Event, s *spinner, bg uint32) {
	r := &c.role
	if !r.held.CompareAndSwap(false, true) {
		return
	}
	if bg != bgInTask && !r.claim.Swap(true) {
		c.ep.watch.add(c)
		if bg == bgParked {
			c.sock.WakeRead() // so that what comes wakes nobody
		}
	}
	c.driveHeld(ev, s)
	c.release()
	if !ev.IsSet() || c.serves.Load() || c.expects.Load() > 0 || c.peer.awaits.Load() > 0 {
		c.handBack()
	}
}

// driveReads is how often a driver reads what is not for it alone: it has to come back to its caller, who may have a
// deadline, also while there is always something to read.
const driveReads = 128

// driveHeld reads until ev is set, or for the spin time.
func (c *conn) driveHeld(ev *na.Event, s *spinner) {
	for reads := 0; reads < driveReads && !ev.IsSet() && !c.dead.Load(); {
		if c.receive() {
			reads++
			c.detachTasks()
			s.reset()
			continue
		}
		if !s.spin(c.ep) {
			return
		}
		if s.rounds%spinRounds == 0 && c.blocked.Load() {
			c.unblock()
		}
	}
}

// detachTasks gives tasks that came while somebody drives to goroutines: the driver must not be kept, and the
// background may be busy.
func (c *conn) detachTasks() {
	for _, t := range c.rx.tasks {
		c.ep.runTask(t)
	}
	clear(c.rx.tasks)
	c.rx.tasks = c.rx.tasks[:0]
}

// offerTasks gives the tasks that one read has brought to the background, which is the caller.
func (c *conn) offerTasks() {
	if len(c.rx.tasks) == 0 {
		return
	}
	r := &c.role
	r.mu.Lock()
	r.tasks = append(r.tasks, c.rx.tasks...)
	many := len(r.tasks)-r.next > 1
	r.mu.Unlock()
	clear(c.rx.tasks)
	c.rx.tasks = c.rx.tasks[:0]
	if many {
		c.setCork(true)
	}
	c.ep.watch.add(c)
}

// runTasks runs what there is to run, while others may spin. mine is false when another goroutine has taken over.
func (c *conn) runTasks(gen uint32, s *spinner) (ran, mine bool) {
	for {
		t, mine := c.nextTask(gen)
		if t == nil {
			return ran, mine
		}
		ran = true
		s.stop(c.ep)
		t.Run()
	}
}

// nextTask ends a task and begins the next one, if there is one.
func (c *conn) nextTask(gen uint32) (t na.Task, mine bool) {
	r := &c.role
	r.mu.Lock()
	if r.gen != gen {
		r.mu.Unlock()
		return nil, false
	}
	r.inTask = r.next < len(r.tasks)
	if r.inTask {
		t = r.tasks[r.next]
		r.next++
		r.begun.Add(1)
		r.bg.Store(bgInTask)
		r.mu.Unlock()
		return t, true
	}
	ran := r.next > 0
	if ran {
		clear(r.tasks)
		r.tasks, r.next = r.tasks[:0], 0
		r.bg.Store(bgActive)
	}
	r.mu.Unlock()
	if ran {
		c.uncork()
	}
	return nil, true
}

// takeOver replaces the background goroutine if it is still in the task that began as number begun: the new one reads,
// and runs the tasks that the old one has not begun.
func (c *conn) takeOver(begun uint64) {
	r := &c.role
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

// setCork has small answers collected, to leave together.
func (c *conn) setCork(on bool) {
	c.mu.Lock()
	c.corked = on
	c.mu.Unlock()
}

// uncork sends what was collected.
func (c *conn) uncork() {
	c.mu.Lock()
	was := c.corked
	c.corked = false
	c.mu.Unlock()
	if was {
		c.kick()
	}
}
