package hg

import (
	"context"
	"errors"
	"runtime"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/na"
)

// Bounds of waiting.
const (
	// selfTurns is how often a waiter gives way before it parks.
	selfTurns = 8
	// settleTime is how long a waiter waits for its operation, cancelled after the end of the context, to let go of memory.
	// After it the operation is left to itself.
	settleTime = time.Second
	// oneWayAckTime is how long the payload of a one-way RPC is lent to a peer. Releases before 2.4.1 never say that
	// they have pulled it.
	oneWayAckTime = 5 * time.Second
	// ackTime is the same for the payload of a response, because the caller does not report that it has given up.
	ackTime = 60 * time.Second
	// slowest is the rate that a peer is granted beyond that, in bytes per second.
	slowest = 1 << 20
)

// patience returns how long to lend n bytes.
func patience(base time.Duration, n int) time.Duration {
	return base + time.Duration(float64(n)/slowest*float64(time.Second))
}

// await waits until ev is set, first by making progress with peer a, unless that is nil. It returns false if ctx ends
// before.
func (c *Class) await(ctx context.Context, a na.Addr, ev *na.Event) bool {
	if ev.IsSet() {
		return true
	}
	if a != nil {
		c.ep.Drive(a, ev)
	} else {
		giveWay(ev)
	}
	wake := ev.Park()
	if wake == nil {
		return true
	}
	done := ctx.Done()
	if done == nil {
		<-wake
		c.woken(ev)
		return true
	}
	select {
	case <-wake:
		c.woken(ev)
		return true
	case <-done:
		return ev.Unpark()
	}
}

// woken records that a waiter was parked until ev was set.
func (c *Class) woken(ev *na.Event) {
	if p := c.cfg.Progress; p != nil {
		p.Woken(ev.Rang())
	}
}

// giveWay lets other goroutines run, because ev is set within this process: a quick handler of a call to the own address then runs on this
// processor, and the waiter need not park, which costs the waking of a thread on an idle machine.
func giveWay(ev *na.Event) {
	for range selfTurns {
		runtime.Gosched()
		if ev.IsSet() {
			return
		}
	}
}

// settle waits a short while for a cancelled operation.
func settle(ev *na.Event) bool {
	wake := ev.Park()
	if wake == nil {
		return true
	}
	timer := time.NewTimer(settleTime)
	defer timer.Stop()
	select {
	case <-wake:
		return true
	case <-timer.C:
		return ev.Unpark()
	}
}

// endOf translates the end of a context.
func endOf(ctx context.Context) (codes.Code, error) {
	err := context.Cause(ctx)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return codes.Timeout, err
	}
	return codes.Canceled, err
}
