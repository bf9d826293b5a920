package cinnabar

import (
	"context"
	"fmt"
	"slices"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/invariants"
	"cinnabar/internal/rundown"
)

// closeWait bounds how long closing waits for goroutines of the network that are in programs' code.
const closeWait = 2 * time.Second

// ending is the state of an engine's end: whether it has begun, the functions to call, and its error.
type ending struct {
	done       chan struct{}
	onShutdown callbacks
	onClose    callbacks

	mu invariants.Mutex
	// +checklocks:mu
	begun bool
	// +checklocks:mu
	err error
}

func (en *ending) init() { en.done = make(chan struct{}) }

// begin reports whether the call is the first one, which ends the engine.
func (en *ending) begin() bool {
	en.mu.Lock()
	defer en.mu.Unlock()
	first := !en.begun
	en.begun = true
	return first
}

// end says that the engine has ended.
func (en *ending) end(err error) {
	en.mu.Lock()
	en.err = err
	en.mu.Unlock()
	close(en.done)
}

// callbacks are functions that are called in the end, the last one first.
type callbacks struct {
	mu invariants.Mutex
	// +checklocks:mu
	list []*callback
}

// callback is one of them. Its pointer identifies it for remove.
type callback struct{ f func(context.Context) }

// push adds a function and returns the one that takes it out again.
func (cs *callbacks) push(f func(context.Context)) (remove func() bool) {
	c := &callback{f: f}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.list = append(cs.list, c)
	return func() bool { return cs.remove(c) }
}

func (cs *callbacks) remove(c *callback) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	i := slices.Index(cs.list, c)
	if i < 0 {
		return false
	}
	cs.list = slices.Delete(cs.list, i, i+1)
	return true
}

// pop takes the last function out, nil if there is none.
func (cs *callbacks) pop() *callback {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	n := len(cs.list)
	if n == 0 {
		return nil
	}
	c := cs.list[n-1]
	cs.list = cs.list[:n-1]
	return c
}

// OnShutdown registers f, which Shutdown calls before it refuses requests: RPCs still work in both directions. Of
// several functions the last one registered is called first (margo_push_prefinalize_callback). f must not call Shutdown
// or Close, which wait for it. remove takes f out again and reports whether it was still to be called; it may be
// ignored. Close calls no such functions.
func (e *Engine) OnShutdown(f func(context.Context)) (remove func() bool) {
	return e.ending.onShutdown.push(f)
}

// OnClose registers f, which Shutdown and Close call after the engine is closed: no RPC works any more. Of several functions the
// last one registered is called first (margo_push_finalize_callback). f must not call Shutdown or Close. remove is as
// in OnShutdown.
func (e *Engine) OnClose(f func()) (remove func() bool) {
	return e.ending.onClose.push(func(context.Context) { f() })
}

// Done returns a channel that is closed when the engine has ended, by Shutdown or Close (margo_wait_for_finalize). From then on
// Shutdown returns the error of that end at once.
func (e *Engine) Done() <-chan struct{} { return e.ending.done }

// result waits until the engine has ended, and returns the error of its end.
func (en *ending) result() error {
	<-en.done
	en.mu.Lock()
	defer en.mu.Unlock()
	return en.err
}

// Shutdown ends the engine in good order: it calls the functions that OnShutdown registered, then answers new requests
// codes.Permission, or [codes.Draining] if they are of package native, waits until all handlers have returned and all answers are sent, and closes the engine. An answer that is
// too long for a message is sent when its caller has fetched it; because an abandoned call does not fetch it, Shutdown waits for
// at most two seconds and one more for each MiB. Shutdown waits for a request that the program holds without an answer
// ([RPC.HandleCall]) while its caller's connection lives. If ctx ends earlier, Shutdown closes the engine as Close does, and
// returns an error with the number of handlers that were running.
//
// A handler may end its own engine: called with a handler's context, or one made from it, Shutdown begins and returns nil
// at once, so that it does not wait for its caller. The handler's answer is still delivered, and the channel of Done is
// closed when the engine has ended. A handler that calls Shutdown with another context waits for itself until that ends.
//
// Further calls wait for the end of the engine and return its error, or that of their own ctx if it ends earlier.
func (e *Engine) Shutdown(ctx context.Context) error {
	if s := scopeFrom(ctx); s != nil && s.svc.e == e && s.holds.Load() > 0 {
		if e.ending.begin() {
			go e.shutdownDetached(ctx)
		}
		return nil
	}
	if e.ending.begin() {
		e.shutdown(ctx)
		return e.ending.result()
	}
	select {
	case <-e.Done():
	case <-ctx.Done():
		if !rundown.IsClosed(e.Done()) {
			return errorFrom("shut down", "", e.Addr(), ctx.Err())
		}
	}
	return e.ending.result()
}

// shutdownDetached shuts down for a handler. Of ctx only the deadline counts, because the connection of its caller may end soon. The
// goroutine ends with the engine.
func (e *Engine) shutdownDetached(ctx context.Context) {
	free := context.WithoutCancel(ctx)
	if t, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		free, cancel = context.WithDeadline(free, t)
		defer cancel()
	}
	e.shutdown(detached{free})
}

// detached is a handler's context that is no handler's any more.
type detached struct{ context.Context }

func (d detached) Value(key any) any {
	if key == (scopeKey{}) {
		return nil
	}
	return d.Context.Value(key)
}

func (e *Engine) shutdown(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.contexts.ctx, cancel)() // Close cuts all this short
	for e.contexts.ctx.Err() == nil {
		c := e.ending.onShutdown.pop()
		if c == nil {
			break
		}
		c.f(ctx)
	}
	e.handlers.close()
	e.core.Hurry()
	e.finish(e.drain(ctx))
}

// drain waits until all requests are answered and the network has taken the answers.
func (e *Engine) drain(ctx context.Context) error {
	over := make(chan struct{})
	defer close(over)
	e.handlers.unanswered.drain(over)
	if err := e.handlers.gate.Wait(ctx); err != nil {
		return &Error{Op: "shut down", Addr: e.Addr(), Code: codeOf(err),
			Err: fmt.Errorf("the wait for handlers ended with %d of their requests unanswered: %w", e.handlers.gate.Users(), err)}
	}
	if err := e.core.Flush(ctx); err != nil {
		return &Error{Op: "shut down", Addr: e.Addr(), Code: codes.Of(ctx.Err()),
			Err: fmt.Errorf("the wait for the network ended with %d responses unsent: %w", e.core.Unsent(), err)}
	}
	return nil
}

// Close ends the engine at once. Operations under way fail with ErrClosed, handlers' contexts end, requests that wait for
// a handler get none; Close does not wait for handlers, except up to two seconds for those that run on goroutines of the
// network, and their later answers are lost. When it returns the network does not touch memory of the program any
// more. Called in a handler, it may take two seconds; handlers should use Shutdown. A second Close waits for the first.
func (e *Engine) Close() error {
	e.contexts.kill(ErrClosed)
	if !e.ending.begin() {
		<-e.Done()
		return nil
	}
	e.handlers.close()
	e.finish(nil)
	return e.ending.result()
}

// finish closes everything; err is the error of an earlier step, nil if there was none. It is called once.
func (e *Engine) finish(err error) {
	e.timers.end()
	e.ops.watch.end()
	e.warnLeaks()
	e.contexts.end(ErrClosed)
	e.gate.Close()
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	e.core.Shutdown()
	for _, closing := range []func(context.Context) error{e.core.Close, e.cfg.gate.Wait, e.gate.Wait} {
		if closeErr := closing(ctx); err == nil && closeErr != nil {
			err = &Error{Op: "close", Addr: e.Addr(), Code: codes.Timeout, Err: fmt.Errorf("something of the engine still runs after %v: %w", closeWait, closeErr)}
		}
	}
	for c := e.ending.onClose.pop(); c != nil; c = e.ending.onClose.pop() {
		c.f(ctx)
	}
	e.handlers.pools.leave(e)
	e.ending.end(err)
}
