//go:build rdma && linux && cgo

package rdmacore

import (
	"context"
	"sync"

	"cinnabar/verbs/driver"
)

// maxEvents bounds the asynchronous events that nobody has fetched. The oldest
// are dropped beyond it: who does not read events misses them anyway.
const maxEvents = 4096

// eventQueue holds asynchronous events until they are fetched.
type eventQueue struct {
	wake chan struct{} // capacity 1
	done chan struct{}

	mu sync.Mutex
	// +checklocks:mu
	list []driver.AsyncEvent
	// +checklocks:mu
	closed bool
}

func (q *eventQueue) init() {
	q.wake = make(chan struct{}, 1)
	q.done = make(chan struct{})
}

func (q *eventQueue) add(ev driver.AsyncEvent) {
	q.mu.Lock()
	if len(q.list) == maxEvents {
		q.list = append(q.list[:0], q.list[1:]...)
	}
	q.list = append(q.list, ev)
	q.mu.Unlock()
	q.signal()
}

func (q *eventQueue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *eventQueue) take() (ev driver.AsyncEvent, ok bool) {
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

func (q *eventQueue) next(ctx context.Context) (driver.AsyncEvent, error) {
	for {
		if ev, ok := q.take(); ok {
			return ev, nil
		}
		select {
		case <-q.wake:
		case <-q.done:
			return driver.AsyncEvent{}, driver.Errorf("wait for event", driver.ErrClosed, "the device is closed")
		case <-ctx.Done():
			return driver.AsyncEvent{}, context.Cause(ctx)
		}
	}
}

func (q *eventQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.closed = true
		close(q.done)
	}
}

// NextEvent implements driver.Device.
func (d *device) NextEvent(ctx context.Context) (driver.AsyncEvent, error) { return d.events.next(ctx) }

// readAsync takes one event from the library.
func (d *device) readAsync() error {
	raw, err := nextAsync(d.ctx)
	if err != nil {
		return err
	}
	if ev, ok := d.translate(raw); ok {
		d.events.add(ev)
	}
	return nil
}

// translate finds the object that an event is about; false means that it is closed.
func (d *device) translate(raw rawAsync) (driver.AsyncEvent, bool) {
	ev := driver.AsyncEvent{Type: raw.typ}
	switch raw.typ {
	case driver.EventCQErr:
		c := d.findCQ(raw.id)
		if c == nil {
			return ev, false
		}
		c.overrun.Store(true)
		ev.Context, ev.Err = c.context, driver.ErrCQOverrun
		c.tell()
	case driver.EventSRQErr, driver.EventSRQLimitReached:
		s := d.findSRQ(raw.id)
		if s == nil {
			return ev, false
		}
		ev.Context = s.init.Context
		if raw.typ == driver.EventSRQLimitReached {
			s.limit.Store(0)
		}
	case driver.EventQPFatal, driver.EventQPReqErr, driver.EventQPAccessErr:
		q := d.findQP(raw.id)
		if q == nil {
			return ev, false
		}
		ev.Context, ev.QPNum = q.init.Context, q.num
		ev.Err = driver.Errorf("queue pair", nil, "the device reports: %v", raw.typ)
		q.told.Store(true)
		q.broken(ev.Err)
	case driver.EventCommEst, driver.EventSQDrained, driver.EventPathMig, driver.EventPathMigErr, driver.EventQPLastWQEReached:
		q := d.findQP(raw.id)
		if q == nil {
			return ev, false
		}
		ev.Context, ev.QPNum = q.init.Context, q.num
	default:
		ev.Port = uint8(raw.id)
	}
	return ev, true
}
