package ofitcp

import (
	"slices"
	"sync"
	"time"

	"cinnabar/internal/invariants"
	"cinnabar/internal/sweep"
)

// watchInterval is the time after which a connection without a driver goes back to its background goroutine, and for which
// a task may keep that goroutine from reading.
const watchInterval = time.Millisecond

// watcher looks after connections that are claimed by drivers, and those with a background goroutine that runs tasks. It has a
// goroutine and a timer only while there are such connections.
type watcher struct {
	ep   *Endpoint
	stop chan struct{}
	wg   sync.WaitGroup // its goroutine
	seen []*conn        // that goroutine's

	mu invariants.Mutex
	// +checklocks:mu
	list []*conn
	// +checklocks:mu
	running bool
	// +checklocks:mu
	closed bool
}

// add makes the watcher look after c while c needs it. The caller has made needsWatch true before.
func (w *watcher) add(c *conn) {
	r := &c.role
	if r.watched.Load() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.watched.Load() {
		return
	}
	if w.closed {
		c.handBack()
		return
	}
	r.watched.Store(true)
	w.list = append(w.list, c)
	if !w.running {
		w.running = true
		w.wg.Go(func() { sweep.Run(watchInterval, w.stop, w.sweep) })
	}
}

// sweep looks at each connection, without the lock, and reports whether any is left.
func (w *watcher) sweep() bool {
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
			c.role.watched.Store(false) // first, because add does nothing for a connection that is watched
			c.role.watched.Store(c.needsWatch())
		}
	}
	clear(w.seen)
	w.list = slices.DeleteFunc(w.list, func(c *conn) bool { return !c.role.watched.Load() })
	w.running = len(w.list) > 0
	return w.running
}

// look hands c back if no goroutine has driven it since the last look, and replaces its background goroutine if that is in the
// same task as then. It reports whether c had any traffic that makes another look worthwhile.
func (c *conn) look() bool {
	r := &c.role
	drives, begun := r.drives.Load(), r.begun.Load()
	quiet := drives == r.watchedDrive && begun == r.watchedTask
	if drives == r.watchedDrive && !r.held.Load() {
		c.handBack()
	}
	if begun == r.watchedTask {
		c.takeOver(begun)
	}
	r.watchedDrive, r.watchedTask = drives, begun
	return !quiet || c.needsWatch()
}

// needsWatch reports whether c depends on the watcher: it is claimed, or has tasks.
func (c *conn) needsWatch() bool {
	r := &c.role
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.claim.Load() || r.inTask || r.next < len(r.tasks)
}

// close ends the watching; everything has been handed back. It forgets the connections: their peers have a cleanup that
// refers to the endpoint, so that a reference from the endpoint would keep both for ever.
func (w *watcher) close() {
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		close(w.stop)
	}
	w.mu.Unlock()
	w.wg.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list, w.seen = nil, nil
}
