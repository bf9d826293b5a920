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
	bg     atomic.Uint32 // bgActive, bgParked or bgResting
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
	watchedDrive uint64 // guarded by watcher.mu
	watchedTask  uint64 // guarded by watcher.mu
}

const (
	bgActive  uint32 = iota // reads, spins or runs tasks
	bgParked                // in the poller
	bgResting               // waits for resume
)

// background is the goroutine that makes progress when nobody drives. It ends when the connection has ended, or when it
// was replaced.
func (c *conn) background(gen uint32) {
	for {
		if !c.serve(gen) {
			c.ep.runners.Done() // it was counted there when it was replaced
			return
		}
		c.role.bg.Store(bgParked)
		err := c.sock.WaitRead(c.readable)
		c.role.bg.Store(bgActive)
		if err != nil {
			c.fail(na.Unreachable, lost(err))
		}
		if c.dead.Load() {
			break
		}
		c.rest()
	}
	if !c.serve(gen) { // the tasks that are left
		c.ep.runners.Done()
		return
	}
	c.seeOff()
	c.ep.dropConn(c)
	c.ep.wg.Done()
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
	var s spinner
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

// spinner bounds how long a goroutine spins.
type spinner struct {
	on     bool
	rounds int
	until  time.Time
}

// spinRounds is after how many vain reads the clock is looked at.
const spinRounds = 16

// spin is called after a vain read. It lets others run and reports whether to go on.
func (s *spinner) spin(e *Endpoint) bool {
	if !s.on {
		if !sockio.Direct || e.cfg.Spin <= 0 || e.spinning.Add(1) > e.maxSpin {
			if sockio.Direct && e.cfg.Spin > 0 {
				e.spinning.Add(-1)
			}
			return false
		}
		s.on = true
	}
	switch {
	case s.rounds == 0:
		s.until = time.Now().Add(e.cfg.Spin)
	case s.rounds%spinRounds == 0 && time.Now().After(s.until):
		return false
	}
	s.rounds++
	runtime.Gosched()
	return true
}

// reset starts the time anew, after something has come.
func (s *spinner) reset() { s.rounds = 0 }

func (s *spinner) stop(e *Endpoint) {
	if s.on {
		s.on = false
		e.spinning.Add(-1)
	}
}

// drive is [Endpoint.Drive] for one connection.
func (c *conn) drive(ev *na.Event) {
	r := &c.role
	r.drives.Add(1)
	c.uncork()
	if !sockio.Direct || c.ep.cfg.Spin <= 0 || ev.IsSet() {
		return
	}
	if !r.held.CompareAndSwap(false, true) {
		return // somebody makes progress
	}
	if bg := r.bg.Load(); bg != bgActive && !r.claim.Swap(true) {
		c.ep.watch.add(c)
		if bg == bgParked {
			c.sock.WakeRead() // so that what comes wakes nobody
		}
	}
	c.driveHeld(ev)
	c.release()
	set := ev.IsSet()
	if !set || c.serves.Load() || c.expects.Load() > 0 || c.peer.awaits.Load() > 0 {
		c.handBack()
	}
	if !set {
		c.takeOver(r.begun.Load()) // if the background is in a task, perhaps in this one, nobody else would read
	}
}

// driveHeld reads until ev is set, or for the spin time.
func (c *conn) driveHeld(ev *na.Event) {
	var s spinner
	defer s.stop(c.ep)
	for !ev.IsSet() && !c.dead.Load() {
		if c.receive() {
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
	defer r.mu.Unlock()
	if r.gen != gen {
		return nil, false
	}
	r.inTask = false
	if r.next == len(r.tasks) {
		if r.next > 0 {
			clear(r.tasks)
			r.tasks, r.next = r.tasks[:0], 0
			c.uncork()
		}
		return nil, true
	}
	t = r.tasks[r.next]
	r.next++
	r.inTask = true
	r.begun.Add(1)
	return t, true
}

// takeOver replaces the background goroutine if it is still in the task that began as number begun: the new one reads,
// and runs the tasks that the old one has not begun.
func (c *conn) takeOver(begun uint64) {
	r := &c.role
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.inTask || r.begun.Load() != begun {
		return
	}
	r.gen++
	gen := r.gen
	r.inTask = false
	c.ep.replace(func() { c.background(gen) })
	c.uncork()
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
