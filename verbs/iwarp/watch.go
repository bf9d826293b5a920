package iwarp

import (
	"sync"
	"time"
)

// watchInterval is how soon a connection goes back to its background reader
// after a program has stopped polling without saying so.
const watchInterval = time.Millisecond

// watcher looks after connections that are read by whoever polls: when the
// polling stops, the background reader takes over. It has a goroutine and a timer
// only while there is such a connection.
type watcher struct {
	dev  *device
	stop chan struct{}

	mu sync.Mutex
	// +checklocks:mu
	list []*conn
	// +checklocks:mu
	running bool
	// +checklocks:mu
	closed bool
}

func (w *watcher) init(d *device) { w.dev, w.stop = d, make(chan struct{}) }

// add has c watched until it is handed back.
func (w *watcher) add(c *conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		c.handBack()
		return
	}
	c.watchedPolls = c.polls.Load()
	if !c.watched {
		c.watched = true
		w.list = append(w.list, c)
	}
	if !w.running {
		w.running = true
		w.dev.wg.Go(w.run)
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

// sweep hands back what was not polled since the last sweep and reports whether
// anything is left to watch.
func (w *watcher) sweep() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	kept := w.list[:0]
	for _, c := range w.list {
		n := c.polls.Load()
		if n == c.watchedPolls {
			c.handBack()
		}
		c.watchedPolls = n
		if c.watched = c.polled.Load(); c.watched {
			kept = append(kept, c)
		}
	}
	clear(w.list[len(kept):])
	w.list = kept
	w.running = len(kept) > 0
	return w.running
}

func (w *watcher) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.closed = true
		close(w.stop)
	}
}
