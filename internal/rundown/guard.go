package rundown

import (
	"context"
	"sync/atomic"

	"cinnabar/internal/invariants"
)

// Guard counts the users of an object. A closed Guard refuses new users. The zero Guard is open and has no users. All methods
// are safe for concurrent use. A Guard must not be copied.
//
//	open, idle <--Acquire, Release--> open, in use
//	    |                                  |
//	  Close                              Close
//	    v                                  v
//	closed, idle <------Release------ closed, in use
//
// A closed Guard that is idle stays closed and idle, unless its owner calls Reopen.
type Guard struct {
	n    atomic.Int64           // users, and those that Acquire is about to refuse; plus closed
	idle atomic.Pointer[signal] // set by waiters, taken by the Release that makes the Guard idle; changed with mu held

	// mu keeps Idle from handing out a signal between the moment at which wake has read n and that at which it closes the signal: the
	// Guard may have a user again by then, and be closed.
	mu invariants.Mutex
}

// signal has a channel that is closed when the Guard is idle.
type signal struct{ c chan struct{} }

// closed is the bit of Guard.n that Close sets. The number of users never reaches it.
const closed = 1 << 62

// Acquire adds a user and returns true, unless the Guard is closed. The user calls Release once. If Acquire returns false, the caller
// must neither use the object nor call Release.
func (g *Guard) Acquire() bool {
	if g.n.Add(1)&closed == 0 {
		return true
	}
	g.Release()
	return false
}

// Join adds a user if the Guard has at least one, even after Close, and returns false otherwise. Acquire on a closed Guard counts its caller for a moment
// before it refuses it, and Join may count this caller as a user. So Join may return true after Wait has returned.
func (g *Guard) Join() bool {
	for {
		n := g.n.Load()
		if n&^closed == 0 {
			return false
		}
		if g.n.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Release removes a user that Acquire has added.
func (g *Guard) Release() {
	n := g.n.Add(-1)
	if invariants.Enabled && (n < 0 || n == closed-1) {
		panic("rundown: Release without Acquire")
	}
	if n&^closed == 0 {
		g.wake()
	}
}

// wake closes the channel of the waiters, if there are any and the Guard has no users. A user that has come since the Release that
// calls wake calls it again.
func (g *Guard) wake() {
	if g.idle.Load() == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wakeLocked()
}

// +checklocks:g.mu
func (g *Guard) wakeLocked() {
	if s := g.idle.Load(); s != nil && g.n.Load()&^closed == 0 {
		g.idle.Store(nil)
		close(s.c)
	}
}

// Close makes Acquire refuse users from now on, and reports whether the Guard was open. It does not wait.
func (g *Guard) Close() (first bool) { return g.n.Or(closed)&closed == 0 }

// CloseIdle closes a Guard without users and returns true. If the Guard has users or is closed, it returns false and changes nothing.
func (g *Guard) CloseIdle() bool { return g.n.CompareAndSwap(0, closed) }

// Reopen undoes CloseIdle. The owner calls it if it could not end the object after CloseIdle.
func (g *Guard) Reopen() { g.n.And(^closed) }

// Closed reports whether the Guard is closed.
func (g *Guard) Closed() bool { return g.n.Load()&closed != 0 }

// Users returns the number of users.
func (g *Guard) Users() int64 { return g.n.Load() &^ closed }

// Idle returns a channel that is closed when the Guard has no users. A closed Guard then stays without users. An open Guard may
// have a new user before the caller sees that the channel is closed.
func (g *Guard) Idle() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.idle.Load()
	if s == nil {
		s = &signal{c: make(chan struct{})}
		g.idle.Store(s)
	}
	// A Release that made the Guard idle before the signal was there has not seen it. One that comes later does.
	g.wakeLocked()
	return s.c
}

// Wait returns nil when the Guard has no users, even if ctx has ended before, and otherwise the error of ctx when that ends.
func (g *Guard) Wait(ctx context.Context) error {
	for g.Users() != 0 {
		select {
		case <-g.Idle():
		case <-ctx.Done():
			if g.Users() == 0 { // the Guard became idle when ctx ended
				return nil
			}
			return ctx.Err()
		}
	}
	return nil
}

// IsClosed reports whether c is closed, without waiting. No goroutine may send on c, because IsClosed would take the value.
func IsClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
