package sm

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar/internal/na"
	"cinnabar/internal/progress"
	"cinnabar/internal/sweep"
)

// tasks holds the tasks that requests have brought to the poller. The poller runs them one after the other. If a task takes long, or
// waits for a message itself, its goroutine goes on with it alone, and another goroutine becomes the poller.
type tasks struct {
	mu sync.Mutex
	// +checklocks:mu
	list []na.Task
	// +checklocks:mu
	next int
	// gen is the generation of the poller. A goroutine of an older generation is the poller no more.
	// +checklocks:mu
	gen uint32
	// +checklocks:mu
	inTask bool
	// begun counts the tasks that have begun.
	begun atomic.Uint64
}

// offer adds tasks. Only the poller calls it.
func (t *tasks) offer(list []na.Task) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.list = append(t.list, list...)
}

// start marks the end of the last task and returns the next one, nil if there is none. mine is false if the caller, of generation gen,
// was replaced.
func (t *tasks) start(gen uint32) (task na.Task, mine bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gen != gen {
		return nil, false
	}
	t.inTask = t.next < len(t.list)
	if !t.inTask {
		clear(t.list)
		t.list, t.next = t.list[:0], 0
		return nil, true
	}
	task = t.list[t.next]
	t.next++
	t.begun.Add(1)
	return task, true
}

// replace starts a new generation if the poller is still in the task that began as number begun, and returns it.
func (t *tasks) replace(begun uint64) (gen uint32, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.inTask || t.begun.Load() != begun {
		return 0, false
	}
	t.gen++
	t.inTask = false
	return t.gen, true
}

// nextGeneration starts a new generation after the goroutine of gen has ended in a task, and returns it.
func (t *tasks) nextGeneration(gen uint32) (next uint32, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gen != gen {
		return 0, false
	}
	t.gen++
	t.inTask = false
	return t.gen, true
}

// pending reports whether there are tasks that have not ended.
func (t *tasks) pending() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.inTask || t.next < len(t.list)
}

// runTasks runs the tasks that there are, while drivers may receive. mine is false if another goroutine has become the poller.
func (p *poller) runTasks(gen uint32, s *progress.Spin) (ran, mine bool) {
	if !p.offered {
		return false, true
	}
	p.offered = false
	p.state.Store(pollInTask)
	p.ep.watch.watchTasks()
	s.Found() // a task is a success of its spin
	s.End()
	for {
		t, mine := p.tasks.start(gen)
		if !mine {
			return true, false
		}
		if t == nil {
			p.state.Store(pollActive)
			return true, true
		}
		t.Run()
	}
}

// replacePoller makes another goroutine the poller if the present one is still in the task that began as number begun.
func (p *poller) replacePoller(begun uint64) {
	if gen, ok := p.tasks.replace(begun); ok {
		p.startPoller(gen)
	}
}

// startPoller starts the goroutine of a new generation.
func (p *poller) startPoller(gen uint32) {
	p.state.Store(pollActive)
	p.offered = true // the new goroutine owns this field, and all others but tasks
	p.ep.runners.Add()
	go p.run(gen)
}

// watchInterval is the time after which a conn without a driver returns to the poller, and the longest time that one task keeps the
// poller from its work.
const watchInterval = time.Millisecond

// watcher checks the conns that drivers have claimed, and the poller while it runs tasks. It has a goroutine and a timer only then.
type watcher struct {
	ep   *Endpoint
	stop chan struct{}
	wg   sync.WaitGroup // its goroutine
	seen []*conn        // used by its goroutine: the conns of one sweep
	task uint64         // used by its goroutine: the number of the task at the last look
	idle int            // used by its goroutine: ticks without a new task

	watching atomic.Bool // it checks the poller's tasks

	mu sync.Mutex
	// +checklocks:mu
	list []*conn
	// +checklocks:mu
	running bool
	// +checklocks:mu
	closed bool
}

// add adds c to the conns that are checked while they are claimed.
func (w *watcher) add(c *conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.role.watched || w.closed { // once closed, conns fail
		return
	}
	c.role.watched = true
	w.list = append(w.list, c)
	w.startLocked()
}

// watchTasks makes the watcher check the poller while it runs tasks, and for some time after.
func (w *watcher) watchTasks() {
	if w.watching.Load() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.watching.Store(true)
		w.startLocked()
	}
}

// +checklocks:w.mu
func (w *watcher) startLocked() {
	if !w.running {
		w.running = true
		w.wg.Go(func() { sweep.Run(watchInterval, w.stop, w.sweep) })
	}
}

// idleTicks is the number of ticks for which the watcher checks a poller without tasks, so that the next task need not start the
// watcher again.
const idleTicks = 16

// sweep checks the conns and the poller, without the lock, and reports whether there is anything left to check.
func (w *watcher) sweep() bool {
	busy := w.lookTasks()
	w.mu.Lock()
	w.seen = append(w.seen[:0], w.list...)
	w.mu.Unlock()
	for i, c := range w.seen {
		if c.look() {
			w.seen[i] = nil
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.seen {
		if c != nil {
			c.role.watched = !c.dead.Load() && c.role.claim.Load() != 0 // it may have been claimed since the look
		}
	}
	clear(w.seen)
	w.list = slices.DeleteFunc(w.list, func(c *conn) bool { return !c.role.watched })
	if !busy {
		w.watching.Store(false)
		busy = w.ep.poll.tasks.pending()
		w.watching.Store(busy)
	}
	w.running = busy || len(w.list) > 0
	return w.running
}

// lookTasks replaces the poller if it is in the same task as at the last look, and reports whether there were tasks
// lately.
func (w *watcher) lookTasks() bool {
	p := w.ep.poll
	begun := p.tasks.begun.Load()
	if begun == w.task {
		p.replacePoller(begun)
		w.idle++
	} else {
		w.idle = 0
	}
	w.task = begun
	return w.idle < idleTicks || p.tasks.pending()
}

// look ends the claim of c if no goroutine has driven it since the last look. It reports whether c is still claimed.
func (c *conn) look() bool {
	drives := c.role.drives.Load()
	quiet := drives == c.role.watchedDrive
	c.role.watchedDrive = drives
	if c.dead.Load() {
		return false
	}
	if quiet && !c.role.held.Load() {
		c.releaseClaim()
	}
	return c.role.claim.Load() != 0
}

// close stops the watcher.
func (w *watcher) close() {
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		close(w.stop)
	}
	w.mu.Unlock()
	w.wg.Wait()
}
