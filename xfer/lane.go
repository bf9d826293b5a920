package xfer

import (
	"sync"
	"sync/atomic"
)

// lane is a goroutine that does jobs in order and tells what came of each: one
// reads or writes the disk, another computes the digest, so that both overlap with
// the network. It ends with stop, which waits for it.
type lane struct {
	jobs    chan action // room for all that can be under way, so that giving a job never blocks
	stopped atomic.Bool
	wg      sync.WaitGroup
}

// newLane starts a lane for at most depth jobs at a time.
func newLane(depth int, do func(action) event, tell func(event)) *lane {
	l := &lane{jobs: make(chan action, depth)}
	l.wg.Go(func() {
		for a := range l.jobs {
			if l.stopped.Load() {
				continue // nobody wants the result any more
			}
			tell(do(a))
		}
	})
	return l
}

// cancel has the jobs skipped that have not begun. The session has finished, so
// nobody gives any more.
func (l *lane) cancel() {
	if !l.stopped.Swap(true) {
		close(l.jobs)
	}
}

// stop is cancel, and waits for the job that has begun.
func (l *lane) stop() {
	l.cancel()
	l.wg.Wait()
}
