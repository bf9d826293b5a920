package iwarp

import (
	"sync"
	"time"

	"cinnabar/internal/sweep"
)

// watchInterval is the time after which a connection returns to its background reader
// when a program has stopped polling without arming the queue.
const watchInterval = time.Millisecond

// watcher looks after connections that pollers read: when the polling stops, it
// returns them to their background readers. It has a goroutine and a timer
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

// add watches c until endClaim.
func (w *watcher) add(c *conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		c.endClaim()
		return
	}
	c.watchedPolls = c.polls.Load()
	if !c.watched.Load() {
		c.watched.Store(true)
		w.list = append(w.list, c)
	}
	if !w.running {
		w.running = true
		w.dev.wg.Go(func() { sweep.Run(watchInterval, w.stop, w.sweep) })
	}
}

// sweep calls endClaim on the connections that were not polled since the last sweep, and
// reports whether there are connections to watch. It drops a connection in which a poller
// sleeps, and the poller adds the connection again when it leaves.
func (w *watcher) sweep() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	kept := w.list[:0]
	for _, c := range w.list {
		n := c.polls.Load()
		idle := n == c.watchedPolls
		c.watchedPolls = n
		if idle {
			c.watched.Store(false) // before the look at the seat, as leaveSeat looks in the other order
			if c.seat.taken.Load() {
				continue
			}
			c.endClaim()
		}
		c.watched.Store(c.claimed.Load())
		if c.watched.Load() {
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
