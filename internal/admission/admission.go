// Package admission calls the program's function that accepts or refuses peers, before an engine accepts a connection. It bounds the time of each
// call, the number of calls at the same time, and the number of them for one host, so that a function that waits for a slow service
// delays neither other hosts nor the end of the engine.
//
// The places for calls are divided among hosts as all resources are (package hostquota): the last quarter is for hosts that hold few. A place
// that is given up goes to a waiting host with the fewest calls; among equals the one whose last call began first has it, so hosts take turns.
package admission

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"cinnabar/identity"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/invariants"
)

const (
	// maxCalls is the largest number of calls at the same time, and maxOfHost the largest number of those for one host while there is room.
	maxCalls  = 64
	maxOfHost = 16
	// Time bounds the sum of the wait for a place and the call.
	Time = 5 * time.Second
)

// Func is the function of the program. It returns nil to accept the peer, and otherwise the reason.
type Func func(context.Context, identity.Peer) error

// Gate calls a Func. A nil Gate accepts each peer. All methods are safe for concurrent use.
type Gate struct {
	ask   Func
	time  time.Duration
	panic func(value any, stack []byte)

	mu invariants.Mutex
	// running is the number of calls that have not returned.
	// +checklocks:mu
	running int
	// +checklocks:mu
	hosts map[hostquota.Host]*lane
	// begun is the number of calls that have begun.
	// +checklocks:mu
	begun uint64
	// idle is closed when no call runs; nil: nothing waits for that.
	// +checklocks:mu
	idle chan struct{}
}

// lane is the calls of one host. The Gate's lock guards it. A host has a lane only while it has calls.
type lane struct {
	running int    // calls that have not returned
	last    uint64 // number of the call that has begun last
	waiting []chan struct{}
}

// New returns a Gate for ask, or nil if ask is nil. panicked is called with the value of a panic in ask, which counts as a refusal.
func New(ask Func, panicked func(value any, stack []byte)) *Gate {
	if ask == nil {
		return nil
	}
	g := &Gate{ask: ask, time: Time, panic: panicked}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hosts = map[hostquota.Host]*lane{}
	return g
}

// ErrRefused is the error of a peer that was not accepted.
var ErrRefused = errors.New("refused by Config.Admit")

// errSlow is the cause of a refusal because Time has passed before a decision.
var errSlow = fmt.Errorf("%w: it did not decide within %v", ErrRefused, Time)

// Admit calls the function for a peer of a host. It returns an error that matches ErrRefused if the function returns an error, panics, or does not return
// in time. ctx ends when the connection or the endpoint is closed. A function that goes on after its context has ended keeps its place
// among the calls.
func (g *Gate) Admit(ctx context.Context, host hostquota.Host, p identity.Peer) error {
	if g == nil {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, g.time, errSlow)
	defer cancel()
	if err := g.enter(ctx, host); err != nil {
		return err
	}
	result := make(chan error, 1)
	go func() {
		defer g.leave(host)
		g.call(ctx, p, result)
	}()
	select {
	case err := <-result:
		if err != nil {
			return fmt.Errorf("%w: %w", ErrRefused, err)
		}
		return nil
	case <-ctx.Done():
		return refusal(ctx)
	}
}

// refusal returns the error for a peer about which the function has not decided when ctx ends.
func refusal(ctx context.Context) error {
	err := context.Cause(ctx)
	if errors.Is(err, ErrRefused) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrRefused, err)
}

// call calls the function, and sends its result. A panic, and a function that ends its goroutine (runtime.Goexit), are errors.
func (g *Gate) call(ctx context.Context, p identity.Peer, result chan<- error) {
	err := errors.New("it ended its goroutine")
	defer func() {
		if v := recover(); v != nil {
			g.panic(v, debug.Stack())
			err = errors.New("it panicked")
		}
		result <- err
	}()
	err = g.ask(ctx, p)
}

// enter waits for a place for a call of host, and takes it.
func (g *Gate) enter(ctx context.Context, host hostquota.Host) error {
	g.mu.Lock()
	l := g.hosts[host]
	if l == nil {
		l = &lane{}
		g.hosts[host] = l
	}
	if g.mayLocked(l) { // no other call of the host waits, because leave has begun those that may
		g.beginLocked(l)
		g.mu.Unlock()
		return nil
	}
	begins := make(chan struct{})
	l.waiting = append(l.waiting, begins)
	g.mu.Unlock()
	select {
	case <-begins:
		return nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(l.waiting, begins)
	if i < 0 { // begun meanwhile
		return nil
	}
	l.waiting = slices.Delete(l.waiting, i, i+1)
	g.forgetLocked(host, l)
	return refusal(ctx)
}

// mayLocked reports whether a further call of a host may begin.
// +checklocks:g.mu
func (g *Gate) mayLocked(l *lane) bool {
	return l.running < maxOfHost && hostquota.Grants(maxCalls, int64(g.running)+1, int64(l.running)+1)
}

// +checklocks:g.mu
func (g *Gate) beginLocked(l *lane) {
	g.running++
	g.begun++
	l.running++
	l.last = g.begun
}

// +checklocks:g.mu
func (g *Gate) forgetLocked(host hostquota.Host, l *lane) {
	if l.running == 0 && len(l.waiting) == 0 {
		delete(g.hosts, host)
	}
}

// leave gives up the place of a call, and begins the waiting calls that may begin now.
func (g *Gate) leave(host hostquota.Host) {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := g.hosts[host]
	g.running--
	l.running--
	for next := g.nextLocked(); next != nil; next = g.nextLocked() {
		begins := next.waiting[0]
		next.waiting = slices.Delete(next.waiting, 0, 1)
		g.beginLocked(next)
		close(begins)
	}
	g.forgetLocked(host, l)
	if g.running == 0 && g.idle != nil {
		close(g.idle)
		g.idle = nil
	}
}

// nextLocked returns the waiting host whose turn it is, nil if none may begin a call.
// +checklocks:g.mu
func (g *Gate) nextLocked() (next *lane) {
	for _, l := range g.hosts {
		if len(l.waiting) == 0 || !g.mayLocked(l) {
			continue
		}
		if next == nil || cmp.Or(cmp.Compare(l.running, next.running), cmp.Compare(l.last, next.last)) < 0 {
			next = l
		}
	}
	return next
}

// Wait waits until no call runs, or ctx ends. The context of each call has ended before.
func (g *Gate) Wait(ctx context.Context) error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	running, idle := g.running, g.idle
	if running > 0 && idle == nil {
		idle = make(chan struct{})
		g.idle = idle
	}
	g.mu.Unlock()
	if running == 0 {
		return nil
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%d calls of Config.Admit have not returned: %w", running, context.Cause(ctx))
	}
}
