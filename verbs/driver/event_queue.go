package driver

import (
	"context"
	"sync"
)

// maxEvents bounds the asynchronous events that nobody has fetched. The oldest
// are dropped beyond it: who does not read events misses them anyway.
const maxEvents = 4096

// AsyncEvents is what devices keep asynchronous events in until they are fetched.
// Init comes first. All methods but Init are safe for concurrent use.
type AsyncEvents struct {
	wake chan struct{} // capacity 1
	done chan struct{}

	mu sync.Mutex
	// +checklocks:mu
	list []AsyncEvent
	// +checklocks:mu
	closed bool
}

// Init prepares the queue.
func (q *AsyncEvents) Init() {
	q.wake = make(chan struct{}, 1)
	q.done = make(chan struct{})
}

// Add appends an event.
func (q *AsyncEvents) Add(ev AsyncEvent) {
	q.mu.Lock()
	if len(q.list) == maxEvents {
		q.list = append(q.list[:0], q.list[1:]...)
	}
	q.list = append(q.list, ev)
	q.mu.Unlock()
	q.signal()
}

func (q *AsyncEvents) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *AsyncEvents) take() (ev AsyncEvent, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.list) == 0 {
		return ev, false
	}
	ev = q.list[0]
	q.list = append(q.list[:0], q.list[1:]...)
	if len(q.list) > 0 {
		q.signal() // another waiter may have lost its wake-up to this one
	}
	return ev, true
}

// Next waits for an event and takes it. The error is the cause of ctx, or
// ErrClosed after Close, once no event is left. It implements Device.NextEvent.
func (q *AsyncEvents) Next(ctx context.Context) (AsyncEvent, error) {
	for {
		if ev, ok := q.take(); ok {
			return ev, nil
		}
		select {
		case <-q.wake:
		case <-q.done:
			return AsyncEvent{}, Errorf("wait for event", ErrClosed, "the device is closed")
		case <-ctx.Done():
			return AsyncEvent{}, context.Cause(ctx)
		}
	}
}

// Close ends waiting. Further calls do nothing.
func (q *AsyncEvents) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.closed = true
		close(q.done)
	}
}
