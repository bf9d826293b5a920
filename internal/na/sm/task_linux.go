package sm

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar/internal/na"
)

// tasks are what requests have brought to the poller. It runs them one after the other; a task that takes long, or waits
// for something itself, is left to its goroutine, and another goroutine becomes the poller.
type tasks struct {
	mu sync.Mutex
	// +checklocks:mu
	list []na.Task
	// +checklocks:mu
	next int
	// gen tells a goroutine that it is the poller no more.
	// +checklocks:mu
	gen uint32
	// +checklocks:mu
	inTask bool
	// begun counts the tasks that have begun.
	begun atomic.Uint64
}

// offer gives tasks to the poller, who calls it.
func (t *tasks) offer(list []na.Task) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.list = append(t.list, list...)
}

// start begins the next task, or ends the last one: then it returns nil. mine is false if the caller, of generation gen,
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

// replace ends a generation if its poller is still in the task that began as number begun, and returns the next one.
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

// succeed ends a generation whose goroutine has ended in a task, and returns the next one.
func (t *tasks) succeed(gen uint32) (next uint32, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gen != gen {
		return 0, false
	}
	t.gen++
	t.inTask = false
	return t.gen, true
}

// pending tells whether there are tasks that have not ended.
func (t *tasks) pending() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.inTask || t.next < len(t.list)
}

// runTasks runs what there is to run, while others may receive. mine is false when another goroutine has taken over.
func (p *poller) runTasks(gen uint32, s *spinner) (ran, mine bool) {
	if !p.offered {
		return false, true
	}
	p.offered = false
	p.state.Store(pollInTask)
	p.ep.watch.watchTasks()
	s.reset() // tasks are what it has spun for
	s.stop(p.ep)
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

// takeOver has another goroutine become the poller if the present one is still in the task that began as number begun.
func (p *poller) takeOver(begun uint64) {
	if gen, ok := p.tasks.replace(begun); ok {
		p.startOver(gen)
	}
}

// startOver starts the goroutine of a new generation.
func (p *poller) startOver(gen uint32) {
	p.state.Store(pollActive)
	p.offered = true // the new goroutine's, as is all but tasks
	p.ep.runners.Add()
	go p.run(gen)
}

// watchInterval is how soon a conn that nobody drives any more goes back to the poller, and how long a task may keep the
// poller from its work.
const watchInterval = time.Millisecond

// watcher looks after conns that are claimed by drivers, and after the poller while it runs tasks. It has a goroutine
// and a timer only then.
type watcher struct {
	ep   *Endpoint
	stop chan struct{}
	wg   sync.WaitGroup // its goroutine
	seen []*conn        // that goroutine's
	task uint64         // also
	idle int            // also: ticks without a task

	watching atomic.Bool // the poller's tasks

	mu sync.Mutex
	// +checklocks:mu
	list []*conn
	// +checklocks:mu
	running bool
	// +checklocks:mu
	closed bool
}

// add has c watched while it is claimed.
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

// watchTasks has the poller watched while it runs tasks, and for some time after.
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
		w.wg.Go(w.run)
	}
}

func (w *watcher) run() {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-w.stop:
			return
		}
		if !w.sweep() {
			return
		}
	}
}

// idleTicks is for how many ticks the poller is watched that has no tasks, so that the next one need not start the
// watcher anew.
const idleTicks = 16

// sweep looks at everything, without the lock, and reports whether there is anything left to look at.
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
		p.takeOver(begun)
		w.idle++
	} else {
		w.idle = 0
	}
	w.task = begun
	return w.idle < idleTicks || p.tasks.pending()
}

// look hands c back if nobody has driven it since the last look. It reports whether it is still claimed.
func (c *conn) look() bool {
	drives := c.role.drives.Load()
	quiet := drives == c.role.watchedDrive
	c.role.watchedDrive = drives
	if c.dead.Load() {
		return false
	}
	if quiet && !c.role.held.Load() {
		c.handBack()
	}
	return c.role.claim.Load() != 0
}

// close ends the watching.
func (w *watcher) close() {
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		close(w.stop)
	}
	w.mu.Unlock()
	w.wg.Wait()
}
