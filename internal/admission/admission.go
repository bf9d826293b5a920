// Package admission calls the program's function that accepts or refuses peers, before an engine accepts a connection. It bounds the time of each
// call, the number of calls at the same time, and the number of them for one host, so that a function that waits for a slow service
// delays neither other hosts nor the end of the engine.
package admission

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"cinnabar/identity"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/invariants"
)

const (
	// maxCalls is the largest number of calls at the same time, and maxOfHost the largest number of those for one host.
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
	// running is the number of calls that have not returned, and ofHost that of each host.
	// +checklocks:mu
	running int
	// +checklocks:mu
	ofHost map[hostquota.Host]int
	// changed is closed, and replaced, when a call has returned.
	// +checklocks:mu
	changed chan struct{}
}

// New returns a Gate for ask, or nil if ask is nil. panicked is called with the value of a panic in ask, which counts as a refusal.
func New(ask Func, panicked func(value any, stack []byte)) *Gate {
	if ask == nil {
		return nil
	}
	return &Gate{ask: ask, time: Time, panic: panicked, ofHost: map[hostquota.Host]int{}, changed: make(chan struct{})}
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

// enter waits until fewer than maxCalls calls run, fewer than maxOfHost of them for host, and counts one more.
func (g *Gate) enter(ctx context.Context, host hostquota.Host) error {
	for {
		g.mu.Lock()
		if g.running < maxCalls && g.ofHost[host] < maxOfHost {
			g.running++
			g.ofHost[host]++
			g.mu.Unlock()
			return nil
		}
		changed := g.changed
		g.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return refusal(ctx)
		}
	}
}

// leave gives up the place of a call.
func (g *Gate) leave(host hostquota.Host) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running--
	if g.ofHost[host]--; g.ofHost[host] == 0 {
		delete(g.ofHost, host)
	}
	close(g.changed)
	g.changed = make(chan struct{})
}

// Wait waits until no call runs, or ctx ends. The context of each call has ended before.
func (g *Gate) Wait(ctx context.Context) error {
	if g == nil {
		return nil
	}
	for {
		g.mu.Lock()
		running, changed := g.running, g.changed
		g.mu.Unlock()
		if running == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%d calls of Config.Admit have not returned: %w", running, context.Cause(ctx))
		}
	}
}
