package cinnabar

import (
	"context"
	"time"

	"cinnabar/identity"
	"cinnabar/stats"
)

// CallInfo describes a call.
type CallInfo struct {
	Server   bool   // the call is served here; false: it is made here
	RPC      string // its name
	ID       uint64 // its id on the wire
	Provider uint16 // if none is addressed: 65535 in the flavour Margo, 0 in Mercury and Thallium
	Peer     *Endpoint
	// Parent is the id of the RPC that the calling handler serves; 65535 if the call is made outside handlers. The caller
	// chooses it and nothing verifies it, so it serves for statistics only.
	Parent uint64
	Pool   string // at the serving side: the pool of the handler; "" if it is in none with a name
	// Identity is the proven identity of the caller, at the serving side. Peer is no proof, because the port or the process number in it is
	// a statement of the caller.
	Identity identity.Peer
}

// event returns the description in the form that events have.
func (c *CallInfo) event() stats.CallInfo {
	return stats.CallInfo{Server: c.Server, RPC: c.RPC, ID: c.ID, Provider: c.Provider, Peer: c.Peer, Parent: c.Parent, Pool: c.Pool}
}

// InfoFrom returns the description of the request that a handler serves, from the handler's context or one derived from it. Its Peer is
// the caller, an Endpoint of its own for each InfoFrom. For any other context the result is the zero CallInfo, and its Peer is nil.
func InfoFrom(ctx context.Context) CallInfo {
	s := scopeFrom(ctx)
	if s == nil || s.from == nil { // a timer's
		return CallInfo{}
	}
	return s.info()
}

// Interceptor is called around each call, at the side that makes it and at the side that serves it. next goes on with
// the call and returns the error of the call or of the handler; the caller gets the error that the interceptor returns. An
// interceptor that does not call next ends the call with its own error; with nil, the result is the zero value. next
// must be called at most once, and must have returned before the interceptor returns nil; one that returns an error may
// leave it running. It is called on many goroutines at once.
//
// At the serving side the arguments are decoded already. Handlers that answer later than they return, or from another
// goroutine, are answered outside interceptors.
type Interceptor func(ctx context.Context, c *CallInfo, next func(context.Context) error) error

// hooked reports whether the engine has interceptors or a monitor, which receive its calls.
func (e *Engine) hooked() bool { return len(e.cfg.Interceptors) > 0 || e.cfg.Monitor != nil }

// intercept calls last inside all interceptors.
func (e *Engine) intercept(ctx context.Context, info *CallInfo, last func(context.Context) error) error {
	next := last
	for i := len(e.cfg.Interceptors) - 1; i >= 0; i-- {
		hook, inner := e.cfg.Interceptors[i], next
		next = func(ctx context.Context) error { return hook(ctx, info, inner) }
	}
	return next(ctx)
}

// invoke makes a call inside interceptors and monitor.
func (rt *route) invoke(ctx context.Context, in, out any) error {
	info := CallInfo{RPC: rt.proc.name, ID: rt.id, Provider: rt.provider, Peer: rt.ep, Parent: rt.parent()}
	return rt.e.intercept(ctx, &info, func(ctx context.Context) error {
		if rt.e.cfg.Monitor == nil {
			return rt.roundTrip(ctx, in, out, nil)
		}
		rt.e.observe(ctx, stats.Event{Kind: stats.EventCall, Info: info.event()})
		times := stats.Timing{Began: time.Now()}
		err := rt.roundTrip(ctx, in, out, &times)
		rt.e.observe(ctx, stats.Event{Kind: stats.EventCall, End: true, Info: info.event(), Err: err, Times: times})
		return err
	})
}

// handleHooked runs the handler inside interceptors and monitor.
func (c *Call[In, Out]) handleHooked() {
	info := c.s.info()
	err := c.s.svc.e.intercept(c.ctx, &info, func(ctx context.Context) error { return c.handleObserved(ctx, info) })
	if c.h.short != nil {
		c.settle(err)
		return
	}
	if err != nil {
		code := errorCode(err) // before the claim, as in settle
		c.s.logFailure(code, err)
		if c.claim() {
			c.s.logUnsent(c.s.fail(code))
		}
	}
	c.guard()
}

func (c *Call[In, Out]) handleObserved(ctx context.Context, info CallInfo) (err error) {
	c.ctx = ctx
	e := c.s.svc.e
	e.observe(ctx, stats.Event{Kind: stats.EventHandle, Info: info.event()})
	err = c.invoke(ctx)
	e.observe(ctx, stats.Event{Kind: stats.EventHandle, End: true, Info: info.event(), Err: err})
	return err
}
