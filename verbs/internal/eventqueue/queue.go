// Package eventqueue is the queue in which devices keep their asynchronous events.
package eventqueue

import (
	"context"
	"sync"

	"cinnabar/verbs"
)

// maxEvents bounds the events that are not taken. The oldest are dropped beyond it, because
// a program that takes no events would let the queue grow for ever.
const maxEvents = 4096

// Queue holds the asynchronous events of a device until they are taken. Init is called
// before the other methods, which are safe for concurrent use.
type Queue struct {
	wake chan struct{} // capacity 1
	done chan struct{}

	mu sync.Mutex
	// +checklocks:mu
	list []verbs.DeviceEvent
	// +checklocks:mu
	closed bool
}

// Init prepares the queue.
func (q *Queue) Init() {
	q.wake = make(chan struct{}, 1)
	q.done = make(chan struct{})
}

// Add appends an event.
func (q *Queue) Add(ev verbs.DeviceEvent) {
	q.mu.Lock()
	if len(q.list) == maxEvents {
		q.list = append(q.list[:0], q.list[1:]...)
	}
	q.list = append(q.list, ev)
	q.mu.Unlock()
	q.signal()
}

func (q *Queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *Queue) take() (ev verbs.DeviceEvent, ok bool) {
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

// Next implements NextEvent of verbs.DeviceDriver. It waits for an event and takes it. The error is
// the cause of ctx, or verbs.ErrClosed if the queue is closed and no event is left.
func (q *Queue) Next(ctx context.Context) (verbs.DeviceEvent, error) {
	for {
		if ev, ok := q.take(); ok {
			return ev, nil
		}
		select {
		case <-q.wake:
		case <-q.done:
			return verbs.DeviceEvent{}, verbs.Errorf("wait for event", verbs.ErrClosed, "the device is closed")
		case <-ctx.Done():
			return verbs.DeviceEvent{}, context.Cause(ctx)
		}
	}
}

// Close ends waiting. Further calls do nothing.
func (q *Queue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.closed = true
		close(q.done)
	}
}
