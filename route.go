package cinnabar

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/hg"
	"cinnabar/internal/hg/wire"
	"cinnabar/stats"
)

// route is where one call goes.
type route struct {
	proc     *procedure
	e        *Engine
	ep       *Endpoint
	id       uint64
	provider uint16
	within   *serving // the handler that makes the call, nil if none does
	pending  leaving  // see doing
	bounded  bool     // the context has a deadline
}

// find fills in rt, or returns an error if the call has no valid target.
func (rt *route) find(ctx context.Context, p *procedure, to Target) error {
	var given bool
	switch t := to.(type) { // no interface call, so that a ProviderHandle need not move to the heap
	case *Endpoint:
		rt.ep = t
	case ProviderHandle:
		rt.ep, rt.provider, given = t.ep, t.id, true
	case *ProviderHandle: // which has its methods
		if t != nil {
			rt.ep, rt.provider, given = t.ep, t.id, true
		}
	}
	rt.proc = p
	if err := rt.ep.usable(); err != nil {
		return rt.fail(err)
	}
	var err error
	if rt.provider, err = p.provider(rt.provider, given); err != nil {
		return argumentError(rt.op(), p.name, rt.ep.String(), "%w", err)
	}
	rt.e, rt.id, rt.within = rt.ep.e, p.id(rt.provider), servingFrom(ctx)
	if err := ctx.Err(); err != nil {
		return rt.fail(err)
	}
	_, rt.bounded = ctx.Deadline()
	return nil
}

func (rt *route) op() string {
	if rt.proc.oneWay {
		return "send"
	}
	return "call"
}

// parent returns the id of the RPC that the call is made for.
func (rt *route) parent() uint64 {
	if rt.within == nil {
		return wire.NoParent
	}
	return rt.within.id
}

// fail makes the call's error from that of a layer below.
func (rt *route) fail(err error) error {
	e := errorFrom(rt.op(), rt.proc.label(rt.provider), rt.ep.String(), err).(*Error) //nolint:errorlint // it returns nothing else
	switch {
	case e.Remote && e.Code == codes.NoEntry && e.Err == nil:
		e.Err = rt.absent()
	case e.Remote && e.Err == nil:
		e.Err = hints[e.Code]
	case !e.Remote && e.Code == codes.Canceled && rt.e != nil && rt.e.gate.Closed() && (e.Err == nil || codeOf(e.Err) == codes.OtherError):
		e.Err = ErrClosed
	}
	return e
}

// unencodable returns the error of a call with arguments that cannot be encoded.
func (rt *route) unencodable(err error) error {
	return encodingError(rt.op(), rt.proc.label(rt.provider), rt.ep.String(), err)
}

// hints explain the codes that a peer answers, because the wire carries no text. Only the peer knows the cause.
var hints = map[codes.Code]error{
	codes.Again:      errOverloaded,
	codes.Permission: errors.New("it is shutting down, or its handler forbids it"),
	codes.Overflow: errors.New("it expects more bytes of arguments than were sent, or takes no arguments, or sends no result, of that length; " +
		"compare the types of both sides, field by field, and its MaxOverflow and NoOverflow, and see its log"),
	codes.OtherError: errors.New("its handler failed; its log has the text, if it is a program of this module"),
}

// errOverloaded explains codes.Again.
var errOverloaded = errors.New("it has more requests than it takes; try again later")

// absent returns the error, with its remedies, of a call for an RPC that the peer does not know.
func (rt *route) absent() error {
	if rt.proc.flavor == Mercury {
		return fmt.Errorf("no RPC %q with id %#x is registered there; compare name and flavour", rt.proc.name, rt.id)
	}
	return fmt.Errorf("no RPC %q with id %#016x is registered there for provider %d; compare name, flavour and provider id "+
		"(MARGO_REGISTER: %d, margo_register_name and Thallium: 0)", rt.proc.name, rt.id, rt.provider, wire.DefaultProvider)
}

// decode reads a response into *out.
func (rt *route) decode(b []byte, out any) error {
	code, err := rt.proc.decodeOutput(b, out)
	if err != nil {
		return rt.fail(err)
	}
	if code != codes.Code(0) {
		return rt.refused(code)
	}
	return nil
}

// refused makes the error of a code that the peer's Margo, or its handler, answered.
func (rt *route) refused(code codes.Code) error {
	e := &Error{Op: rt.op(), RPC: rt.proc.label(rt.provider), Addr: rt.ep.String(), Code: code, Remote: true}
	e.Err = hints[code]
	if code == codes.NoEntry {
		e.Err = fmt.Errorf("%q is registered there for provider %d without a handler, or its handler says so", rt.proc.name, rt.provider)
	}
	return e
}

// call makes one call: *in goes, *out comes.
func (p *procedure) call(ctx context.Context, to Target, in, out any) error {
	var rt route
	if err := rt.find(ctx, p, to); err != nil {
		return err
	}
	if rt.e.hooked() {
		hooked := rt // the one that stays on the stack is for the others
		return hooked.invoke(ctx, in, out)
	}
	return rt.exchange(ctx, in, out, nil)
}

// begin records the call as under way.
func (rt *route) begin(k *hg.Call) *doing {
	d := doing{op: rt.op(), proc: rt.proc, provider: rt.provider, ep: rt.ep, pending: rt.pending, call: k, bounded: rt.bounded}
	if rt.within != nil {
		d.within = rt.within.svc
	}
	return rt.e.doing.begin(&d)
}

// exchange makes the call, without interceptors. It records the times of the steps in times; nil: there is no monitor.
func (rt *route) exchange(ctx context.Context, in, out any, times *stats.Timing) error {
	if err := rt.e.begin(); err != nil {
		return rt.fail(err)
	}
	defer rt.e.end()
	to, err := rt.ep.reach(ctx)
	if err != nil {
		return rt.fail(err)
	}
	k := rt.e.core.NewCall()
	defer k.Free()
	defer rt.begin(k).end()
	payload, err := rt.proc.appendInput(k.Input(), rt.parent(), in)
	if err != nil {
		return rt.unencodable(err)
	}
	if times != nil {
		times.Encoded = time.Now()
	}
	k.Start(to, hg.ID(rt.id), hg.CallOptions{OneWay: rt.proc.oneWay, Proc: rt.proc, Provider: rt.provider}, payload)
	if times != nil {
		times.Sent = time.Now()
	}
	err = rt.wait(ctx, k)
	if times != nil {
		times.Ended = time.Now()
	}
	if err != nil {
		return rt.fail(err)
	}
	if rt.proc.oneWay {
		return nil
	}
	err = rt.decode(k.Output(), out)
	if times != nil {
		times.Decoded = time.Now()
	}
	return err
}

// wait waits for the call's end. A handler's worker is free meanwhile.
func (rt *route) wait(ctx context.Context, k *hg.Call) error {
	if rt.within != nil {
		rt.within.pause()
		defer rt.within.resume()
	}
	return k.Wait(ctx)
}
