package ofitcp

import (
	"sync"
	"time"
)

// watchInterval is how soon a connection that nobody drives any more goes back to its background goroutine, and how long
// a task may keep that goroutine from reading.
const watchInterval = time.Millisecond

// watcher looks after connections that are claimed by drivers, and those whose background goroutine runs tasks. It has a
// goroutine and a timer only while there are such connections.
type watcher struct {
	ep   *Endpoint
	stop chan struct{}
	wg   sync.WaitGroup // its goroutine

	mu sync.Mutex
	// +checklocks:mu
	list []*conn
	// +checklocks:mu
	running bool
	// +checklocks:mu
	closed bool
}

// add has c watched while it needs it.
func (w *watcher) add(c *conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := &c.role
	if r.watched {
		return
	}
	if w.closed {
		c.handBack()
		return
	}
	r.watched = true
	r.watchedDrive, r.watchedTask = r.drives.Load(), 0
	w.list = append(w.list, c)
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

// sweep looks at each connection and reports whether any is left.
func (w *watcher) sweep() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	kept := w.list[:0]
	for _, c := range w.list {
		if c.role.watched = c.look(); c.role.watched {
			kept = append(kept, c)
		}
	}
	clear(w.list[len(kept):])
	w.list = kept
	w.running = len(kept) > 0
	return w.running
}

// look hands c back if nobody has driven it since the last look, and replaces its background goroutine if that is in the
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
	return !quiet || r.claim.Load() || c.isInTask()
}

func (c *conn) isInTask() bool {
	c.role.mu.Lock()
	defer c.role.mu.Unlock()
	return c.role.inTask
}

// close ends the watching; everything has been handed back.
func (w *watcher) close() {
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		close(w.stop)
	}
	w.mu.Unlock()
	w.wg.Wait()
}
