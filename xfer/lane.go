package xfer

import (
	"sync"
	"sync/atomic"
)

// lane is a goroutine that does jobs in order and reports each as an event:
// one reads or writes the disk, another computes the digest, so that both
// overlap with the network. It ends with stop, which waits for it.
type lane struct {
	jobs    chan action // room for all that can be under way, so that giving a job never blocks
	results chan<- event
	stopped atomic.Bool
	wg      sync.WaitGroup
}

// newLane starts a lane for at most depth jobs at a time. results needs room
// for as many events.
func newLane(depth int, results chan<- event, do func(action) event) *lane {
	l := &lane{jobs: make(chan action, depth), results: results}
	l.wg.Go(func() {
		for a := range l.jobs {
			if l.stopped.Load() {
				continue // nobody wants the result any more
			}
			results <- do(a)
		}
	})
	return l
}

// cancel has the jobs skipped that have not begun.
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
