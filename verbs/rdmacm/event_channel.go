package rdmacm

import (
	"context"
	"log/slog"
	"slices"
	"sync"

	"cinnabar/verbs"
)

// EventChannel collects the events of its identifiers (struct rdma_event_channel):
// methods of an [ID] return at once, and an [Event] reports the result of each. [verbs.Dial]
// and [verbs.Listen] are the synchronous form.
//
// All methods are safe for concurrent use. Close also closes the identifiers, and returns
// when their goroutines have ended.
type EventChannel struct {
	log *slog.Logger // nil: nowhere

	mu sync.Mutex // taken after ID.mu
	// Oldest first; bounded, see ID.accept.
	queue []*Event // +checklocks:mu
	// The identifiers, with the number of their events not acknowledged.
	ids    map[*ID]int   // +checklocks:mu
	closed bool          // +checklocks:mu
	wake   chan struct{} // room for one: the queue may have something for Get
	done   chan struct{} // closed by Close
}

// NewEventChannel makes an event channel. Events of kinds that this package
// does not know are reported to log, which may be nil.
func NewEventChannel(log *slog.Logger) *EventChannel {
	return &EventChannel{log: log, ids: map[*ID]int{}, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// NewID makes an identifier on dev and delivers its events to this channel
// (rdma_create_id).
func (ch *EventChannel) NewID(dev *verbs.Device) (*ID, error) {
	id := &ID{dev: dev, ch: ch, resolve: verbs.Resolve, cancels: map[uint64]context.CancelFunc{}}
	if err := ch.adopt(id); err != nil {
		return nil, err
	}
	return id, nil
}

// adopt makes id one of the channel's.
func (ch *EventChannel) adopt(id *ID) error {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.closed {
		return ch.closedErr()
	}
	ch.ids[id] = 0
	return nil
}

func (ch *EventChannel) closedErr() error {
	return verbs.Errorf("event channel", verbs.ErrClosed, "the channel was closed")
}

// Get returns the oldest event, waiting for one until ctx ends or the channel is
// closed ([verbs.ErrClosed]). Each event goes to one caller, which acknowledges it with
// [Event.Ack].
func (ch *EventChannel) Get(ctx context.Context) (*Event, error) {
	for {
		if e := ch.take(); e != nil {
			return e, nil
		}
		select {
		case <-ch.wake:
		case <-ch.done:
			return nil, ch.closedErr()
		case <-ctx.Done():
			if e := ch.take(); e != nil {
				return e, nil
			}
			return nil, ctx.Err()
		}
	}
}

// take removes the oldest event, nil if there is none.
func (ch *EventChannel) take() *Event {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if len(ch.queue) == 0 {
		return nil
	}
	e := ch.queue[0]
	ch.queue = slices.Delete(ch.queue, 0, 1)
	if len(ch.queue) > 0 {
		ch.signal() // another Get may be waiting
	}
	ch.ids[e.owner]++
	e.ch = ch
	if e.slot != nil {
		<-e.slot
	}
	return e
}

// signal wakes one Get, or the next one to come.
func (ch *EventChannel) signal() {
	select {
	case ch.wake <- struct{}{}:
	default:
	}
}

// push adds an event, unless the channel is closed. An unknown kind is reported,
// and delivered like the others, because the program chooses how to handle it.
func (ch *EventChannel) push(e *Event) {
	if int(e.Type) >= NumEventTypes && ch.log != nil {
		ch.log.LogAttrs(context.Background(), slog.LevelWarn, "unknown connection management event", slog.Uint64("type", uint64(e.Type)))
	}
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.closed {
		return
	}
	ch.queue = append(ch.queue, e)
	ch.signal()
}

// ack subtracts e from the number of events not acknowledged, to which take has added it.
func (ch *EventChannel) ack(e *Event) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if _, ok := ch.ids[e.owner]; ok && e.ch == ch {
		ch.ids[e.owner]--
	}
	e.ch = nil
}

// release removes id and returns its events that were not taken. It refuses
// while taken events are not acknowledged.
func (ch *EventChannel) release(id *ID, op string) ([]*Event, error) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if n := ch.ids[id]; n > 0 {
		return nil, verbs.Errorf(op, verbs.ErrBusy, "%d of its events are not acknowledged; call Ack on them first", n)
	}
	delete(ch.ids, id)
	var own []*Event
	ch.queue = slices.DeleteFunc(ch.queue, func(e *Event) bool {
		if e.owner == id {
			own = append(own, e)
		}
		return e.owner == id
	})
	return own, nil
}

// Close closes the channel and its identifiers, whether or not their events are
// acknowledged. A second Close does nothing.
func (ch *EventChannel) Close() error {
	var first error
	for _, id := range ch.shut() {
		if err := id.end(); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// shut marks the channel closed and hands over its identifiers.
func (ch *EventChannel) shut() []*ID {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.closed {
		return nil
	}
	ch.closed = true
	close(ch.done)
	var ids []*ID
	for id := range ch.ids {
		ids = append(ids, id)
	}
	ch.ids, ch.queue = nil, nil
	return ids
}
