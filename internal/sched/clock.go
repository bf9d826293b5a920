package sched

import (
	"sync/atomic"
	"time"

	"cinnabar/internal/invariants"
)

// clockTick is how late a [Clock] may be. It suffices because people read the ages.
const clockTick = 100 * time.Millisecond

// Clock is a cheap clock for the begin of calls and requests, because reading the time would cost as much as
// all other records of a call. While Now is called often the Clock goes by a timer; otherwise it reads the time, and
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
	clockTicking               // Now has not been called since the last tick
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

// Exact returns the time since the clock was made. It is never less than an earlier result of Now.
func (c *Clock) Exact() time.Duration { return time.Since(c.born) }

// wake starts the timer.
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

// tick runs when the timer fires. A clock rests after two ticks without a call of Now, so there is nothing to stop.
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
