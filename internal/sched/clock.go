package sched

import (
	"sync/atomic"
	"time"

	"cinnabar/internal/invariants"
)

// clockTick is how late a [Clock] may be: ages are for people.
const clockTick = 100 * time.Millisecond

// Clock tells for next to nothing when something begins that may become old: reading the time would cost as much as
// everything else that is recorded of a call. While it is asked often it goes by a timer; otherwise it reads the time, and
// has no timer.
type Clock struct {
	born  time.Time
	now   atomic.Int64 // the time since born at the last tick, in nanoseconds
	state atomic.Uint32

	mu invariants.Mutex
	// +checklocks:mu
	timer *time.Timer // nil until needed
}

// States of a Clock.
//
//	          Now              Now
//	resting -------> ticking -------> asked
//	        <-------         <-------
//	          a tick           a tick
const (
	clockResting uint32 = iota // it has no timer
	clockTicking               // nobody has asked since the last tick
	clockAsked
)

// NewClock makes a clock that starts at 0.
func NewClock() *Clock { return &Clock{born: time.Now()} }

// Now returns the time since the clock was made, or a moment that is at most clockTick ago, if the process has the
// processor that it needs.
func (c *Clock) Now() time.Duration {
	switch c.state.Load() {
	case clockTicking:
		c.state.CompareAndSwap(clockTicking, clockAsked)
	case clockResting:
		return c.wake()
	}
	return time.Duration(c.now.Load())
}

// Exact returns the time since the clock was made. It is never before what Now has returned.
func (c *Clock) Exact() time.Duration { return time.Since(c.born) }

// wake has the clock tick from now on.
func (c *Clock) wake() time.Duration {
	now := c.Exact()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state.Load() != clockResting {
		return now
	}
	c.now.Store(int64(now))
	if c.timer == nil {
		c.timer = time.AfterFunc(clockTick, c.tick)
	} else {
		c.timer.Reset(clockTick)
	}
	c.state.Store(clockTicking)
	return now
}

// tick is what the timer does. A clock that nobody asks any more rests after two ticks, so there is nothing to stop.
func (c *Clock) tick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.state.CompareAndSwap(clockAsked, clockTicking) {
		c.state.Store(clockResting)
		return
	}
	c.now.Store(int64(c.Exact()))
	c.timer.Reset(clockTick)
}
