package na

import (
	"sync/atomic"

	"cinnabar/internal/progress"
)

// Event is something that happens once and that one goroutine waits for: first by making progress ([Endpoint.Drive]),
// then parked on the channel that Park returns. The zero Event has not happened. Reset makes it ready for reuse.
type Event struct {
	state atomic.Uint32
	wake  chan struct{} // capacity 1, made by the first Park and kept
	rang  int64         // when Set has last sent on wake
}

const (
	eventPending uint32 = iota
	eventParked
	eventSet
)

// Set makes the event happen and wakes the parked waiter. Only the first call has an effect. The event's owner may reuse
// it as soon as it sees it set, and a parked owner as soon as it has the token that Set sends: Set does not touch ev afterwards.
func (ev *Event) Set() {
	for {
		switch ev.state.Load() {
		case eventSet:
			return
		case eventPending:
			if ev.state.CompareAndSwap(eventPending, eventSet) {
				return
			}
		case eventParked:
			wake := ev.wake // before the owner can see the event set
			if ev.state.CompareAndSwap(eventParked, eventSet) {
				ev.rang = progress.Now()
				wake <- struct{}{}
				return
			}
		}
	}
}

// Rang returns the time of the signal, by [progress.Now], to a waiter that has received from the channel of Park.
func (ev *Event) Rang() int64 { return ev.rang }

// IsSet reports whether the event has happened.
func (ev *Event) IsSet() bool { return ev.state.Load() == eventSet }

// Park prepares for waiting. It returns nil if the event has happened; otherwise a channel from which one value can be
// received once it has. If the waiter gives up instead of receiving, it must call Unpark.
func (ev *Event) Park() <-chan struct{} {
	if ev.IsSet() {
		return nil
	}
	if ev.wake == nil {
		ev.wake = make(chan struct{}, 1)
	}
	if !ev.state.CompareAndSwap(eventPending, eventParked) {
		return nil
	}
	return ev.wake
}

// Unpark undoes Park for a waiter that did not receive, and reports whether the event has happened meanwhile.
func (ev *Event) Unpark() bool {
	if ev.state.CompareAndSwap(eventParked, eventPending) {
		return false
	}
	<-ev.wake // Set has sent, or is about to
	return true
}

// Reset makes an event pending again. The event is set, or no goroutine is going to set it.
func (ev *Event) Reset() { ev.state.Store(eventPending) }
