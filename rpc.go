package cinnabar

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/envelope"
	"cinnabar/internal/hg"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
	"cinnabar/stats"
)

// RPC describes a remote procedure by its name and types. It belongs to no engine: declare it once, as a package
// variable, and share it between the side that calls and the side that serves. Use struct{} for no arguments or no
// result. It is safe for concurrent use.
type RPC[In, Out any] struct {
	proc  *procedure
	calls sync.Pool // of *callValues[In, Out]
}

// callValues has the arguments and the result of a call in memory that outlives the stack frame of Call.
type callValues[In, Out any] struct {
	in  In
	out Out
}

// NewRPC describes a remote procedure. It panics if a type cannot be encoded; the text names the field.
func NewRPC[In, Out any](name string, opts ...RPCOption) *RPC[In, Out] {
	return &RPC[In, Out]{proc: newProcedure(name, false, reflect.TypeFor[In](), reflect.TypeFor[Out](), opts)}
}

// Name returns the procedure's name.
func (r *RPC[In, Out]) Name() string { return r.proc.name }

// ID returns the 64-bit id that stands for the procedure on the wire when that provider serves it. Procedures of flavour
// Mercury have the same id for all.
func (r *RPC[In, Out]) ID(provider uint16) uint64 { return r.proc.id(provider) }

// Call sends a request to the process and provider that to names, waits for the response, and returns the result.
//
// If ctx ends first, Call returns an [*Error] of codes.Timeout or codes.Canceled. The request is not taken back, and the
// context of a handler that has begun does not end, because Mercury has no message for that. A code that the peer answers is an *Error with
// Remote set.
//
// The memory of in must not change while Call runs, because the peer may read a large []byte from it directly. The program may change it as soon as
// Call has returned. A []byte of at least 128 KiB in a result, or in the arguments that a handler gets, may be a part of the received message. The program
// may keep and change it, and the garbage collector frees the message when the program does not refer to the []byte any more.
//
// If a handler makes the call with its context, the request carries the id of the RPC that the handler serves ([CallInfo].Parent), and
// the worker of the handler is free for other requests meanwhile.
func (r *RPC[In, Out]) Call(ctx context.Context, to Target, in In) (Out, error) {
	x, _ := r.calls.Get().(*callValues[In, Out])
	if x == nil {
		x = new(callValues[In, Out])
	}
	x.in = in
	if err := r.proc.call(ctx, to, &x.in, &x.out); err != nil {
		var none Out
		return none, err // without x: an interceptor that gives up may have left next running with it
	}
	out := x.out
	*x = callValues[In, Out]{}
	r.calls.Put(x)
	return out, nil
}

// Start begins a call and returns at once. When ctx ends, the call is cancelled. in may be changed as soon as Start has
// returned, unless the engine has Interceptors or a Monitor: then in and the memory that it refers to must not change before the end.
// Errors, also those of the arguments, are found by Wait.
func (r *RPC[In, Out]) Start(ctx context.Context, to Target, in In) *Pending[Out] {
	f := &flight[In, Out]{proc: r.proc, x: callValues[In, Out]{in: in}}
	f.op = f
	if err := f.start(ctx, to); err != nil {
		f.err = err
		f.end()
	}
	return &f.Pending
}

// flight is a call that was begun with Start.
type flight[In, Out any] struct {
	Pending[Out]
	proc  *procedure
	route route
	x     callValues[In, Out]

	k      *hg.Call           // nil if the call could not be made, or is made by another goroutine
	record *opRecord          // set with k
	halt   context.CancelFunc // cancels the call that another goroutine makes; nil if there is none
	err    error              // of a call without k

	use invariants.Mutex
	// +checklocks:use
	freed bool // k may be another call's
}

func (f *flight[In, Out]) start(ctx context.Context, to Target) error {
	if err := f.route.find(ctx, f.proc, to); err != nil {
		return err
	}
	f.route.pending = f
	if f.route.e.hooked() {
		f.startApart(ctx)
		return nil
	}
	peer := f.route.ep.reached() // before the arguments are encoded, because a handle in them has the keys of the network to peer
	f.route.over = f.route.e.core.RouteTo(peer)
	payload, err := f.prepare(ctx)
	if err != nil {
		return err
	}
	f.k.Notify(f)
	if peer != nil {
		f.send(peer, payload)
	} else {
		f.startNamed(ctx, payload)
	}
	f.watch(ctx)
	return nil
}

// send starts the prepared call.
func (f *flight[In, Out]) send(peer na.Addr, payload []byte) {
	f.k.Start(peer, hg.ID(f.route.id), hg.CallOptions{Proc: f.proc, Provider: f.route.provider, Keep: f.proc.out.keep()}, payload)
}

// startNamed starts the prepared call on a goroutine of its own, because it resolves a name first.
func (f *flight[In, Out]) startNamed(ctx context.Context, payload []byte) {
	ctx, f.halt = context.WithCancel(ctx)
	go func() {
		defer f.halt()
		peer, err := f.route.ep.reach(ctx)
		if err != nil {
			f.drop(f.route.fail(err))
			return
		}
		f.use.Lock() // a call is cancelled before Start, which has no effect, or after it
		f.send(peer, payload)
		f.use.Unlock()
		if ctx.Err() != nil { // abort may have come before the call was started
			f.abort()
		}
	}()
}

// drop ends a prepared call that is not started.
func (f *flight[In, Out]) drop(err error) {
	f.use.Lock()
	k := f.k
	f.k, f.err = nil, err
	f.use.Unlock()
	f.record.end()
	k.Free()
	f.end()
	f.route.e.end()
}

// prepare begins the operation and encodes the arguments. There is no operation if it fails, or if a type's own encoding
// panics.
func (f *flight[In, Out]) prepare(ctx context.Context) (payload []byte, err error) {
	e := f.route.e
	if err := e.begin(); err != nil {
		return nil, f.route.fail(err)
	}
	if f.proc.native {
		if err := any(&f.x.in).(envelope.Arguments).Depart(ctx); err != nil {
			e.end()
			return nil, f.route.departure(ctx, err)
		}
	}
	k := e.core.NewCall()
	defer func() {
		if f.k == nil {
			k.Free()
			e.end()
		}
	}()
	if payload, err = f.proc.makeInput(k, f.route.parent(), &f.x.in, f.route.over); err != nil {
		return nil, f.route.unencodable(err)
	}
	f.k, f.record = k, f.route.begin(k)
	return payload, nil
}

// startApart makes the call on a goroutine of its own, because interceptors may block.
func (f *flight[In, Out]) startApart(ctx context.Context) {
	ctx, f.halt = context.WithCancel(ctx)
	go func() {
		defer f.halt()
		f.err = f.route.invoke(ctx, &f.x.in, &f.x.out)
		f.end()
	}()
}

// abort implements operation. The call's completion may come before Cancel returns, so it takes no lock.
func (f *flight[In, Out]) abort() {
	if f.halt != nil {
		f.halt()
	}
	f.use.Lock()
	defer f.use.Unlock()
	if f.k == nil || f.freed {
		return
	}
	f.k.Cancel()
	if f.proc.native {
		any(&f.x.in).(envelope.Arguments).Abandon()
	}
}

// CallDone implements [hg.Notifier]. A result that was fetched is decoded at once, although the program may never wait for it,
// since its memory counts against Config.OverflowBudget until then.
func (f *flight[In, Out]) CallDone(k *hg.Call) {
	fetched := k.Fetched()
	e := f.route.e
	f.record.end()
	f.end()
	if fetched {
		go func() { _, _ = f.Wait() }() // it ends by itself: the call is over
	}
	e.end()
}

// driven implements operation. It returns nil while another goroutine makes the call (halt is not nil), because that goroutine receives.
func (f *flight[In, Out]) driven() (na.GroupDriver, na.Addr) {
	if f.halt != nil || f.k == nil {
		return nil, nil
	}
	return f.route.e.group, f.route.ep.reached()
}

// result implements operation: it decodes the response.
func (f *flight[In, Out]) result() (out Out, err error) {
	switch {
	case f.k == nil:
		err = f.err
	default:
		defer f.free()
		if err = f.k.Err(); err != nil {
			err = f.route.fail(err)
		} else {
			f.route.expect(&f.x.out, f.k)
			err = f.route.decode(f.k, &f.x.out)
		}
	}
	if err != nil {
		return out, err
	}
	return f.x.out, nil
}

func (f *flight[In, Out]) free() {
	f.use.Lock()
	defer f.use.Unlock()
	f.freed = true
	f.k.Free()
}

// OneWay is an RPC without response. There is nothing to wait for, so the type has no Call. It is safe for concurrent
// use.
type OneWay[In any] struct {
	proc  *procedure
	sends sync.Pool // of *In
}

// NewOneWay describes an RPC without response. It panics if In cannot be encoded.
func NewOneWay[In any](name string, opts ...RPCOption) *OneWay[In] {
	return &OneWay[In]{proc: newProcedure(name, true, reflect.TypeFor[In](), reflect.TypeFor[struct{}](), opts)}
}

// Name returns the procedure's name.
func (r *OneWay[In]) Name() string { return r.proc.name }

// ID returns the 64-bit id that stands for the procedure on the wire when that provider serves it.
func (r *OneWay[In]) ID(provider uint16) uint64 { return r.proc.id(provider) }

// Send sends the request and returns once the network has taken it. That the peer has received it, knows the procedure
// and runs it, is not known.
func (r *OneWay[In]) Send(ctx context.Context, to Target, in In) error {
	x, _ := r.sends.Get().(*In)
	if x == nil {
		x = new(In)
	}
	*x = in
	if err := r.proc.call(ctx, to, x, nil); err != nil {
		return err // without x, as in RPC.Call
	}
	*x = *new(In)
	r.sends.Put(x)
	return nil
}

// Handle registers h, which runs for each request that reaches on. The engine logs the error that h returns, because no caller waits for it. If a
// peer wants a response all the same, it gets an empty one, or the code of h's error.
func (r *OneWay[In]) Handle(on Registrar, h func(context.Context, In) error, opts ...HandleOption) error {
	if h == nil {
		return register[In, struct{}](r.proc, on, nil, opts)
	}
	return register(r.proc, on, &handler[In, struct{}]{short: func(ctx context.Context, in In) (struct{}, error) {
		return struct{}{}, h(ctx, in)
	}}, opts)
}

// Remove undoes Handle.
func (r *OneWay[In]) Remove(on Registrar) error { return remove(r.proc, on) }

// route is the destination of one call, with the id and the peer of the request.
type route struct {
	proc     *procedure
	e        *Engine
	ep       *Endpoint
	id       uint64
	provider uint16
	over     hg.Route  // the network to ep, set before the arguments are encoded
	within   *scope    // the handler that makes the call, nil if none does
	pending  pendingOp // see opRecord
	bounded  bool      // the context has a deadline
}

// find fills in rt, or returns an error if the call has no valid target.
func (rt *route) find(ctx context.Context, p *procedure, to Target) error {
	var given bool
	switch t := to.(type) { // no interface call, so that a ProviderHandle need not move to the heap
	case *Endpoint:
		rt.ep = t
	case ProviderHandle:
		rt.ep, rt.provider, given = t.Endpoint, t.ID, true
	case *ProviderHandle: // which has its methods
		if t != nil {
			rt.ep, rt.provider, given = t.Endpoint, t.ID, true
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
	rt.e, rt.id, rt.within = rt.ep.e, p.id(rt.provider), scopeFrom(ctx)
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
	codes.Again: errOverloaded,
	codes.Busy: errors.New("its handler has run and says so, or its results cannot be sent, because they are too long for a message and results " +
		"for this host wait to be fetched; let the calls under way end before the next one"),
	codes.Permission: errors.New("it is shutting down, or its handler forbids it"),
	codes.Draining:   errors.New("it is shutting down and has not begun the call; call another server"),
	codes.Overflow: errors.New("it expects more bytes of arguments than were sent, or takes no arguments, or sends no result, of that length; " +
		"compare the types of both sides, field by field, and its MaxOverflow and NoOverflow, and see its log"),
	codes.ProtoNoSupport: errors.New("it may serve the RPC of this name in another flavour: an RPC of package native is called with that package, " +
		"and every other RPC without it"),
	codes.OtherError: errors.New("its handler failed; its log has the text, if it is a program of this module"),
}

// errOverloaded explains codes.Again.
var errOverloaded = errors.New("it has more requests than it takes; try again later")

// absent returns the error, with its remedies, of a call for an RPC that the peer does not know.
func (rt *route) absent() error {
	if rt.proc.native {
		return fmt.Errorf("no native RPC %q with id %#016x is registered there for provider %d; compare name and provider id; "+
			"programs in C, and RPCs of cinnabar.NewRPC, serve no native calls", rt.proc.name, rt.id, rt.provider)
	}
	if rt.proc.flavor == Mercury {
		return fmt.Errorf("no RPC %q with id %#x is registered there; compare name and flavour", rt.proc.name, rt.id)
	}
	return fmt.Errorf("no RPC %q with id %#016x is registered there for provider %d; compare name, flavour and provider id "+
		"(MARGO_REGISTER: %d, margo_register_name and Thallium: 0)", rt.proc.name, rt.id, rt.provider, wire.DefaultProvider)
}

// expect prepares the results of a native call for decode.
func (rt *route) expect(out any, k *hg.Call) {
	if rt.proc.native {
		out.(envelope.Results).Expect(envelope.Limits{MaxBytes: rt.e.cfg.MaxOverflow, Budget: k})
	}
}

// decode reads the response of k into *out.
func (rt *route) decode(k *hg.Call, out any) error {
	code, err := rt.proc.decodeOutput(k.Output(), out, rt.over, k.Owned())
	if err != nil {
		return rt.fail(err)
	}
	if code != codes.Code(0) {
		return rt.refused(code)
	}
	if rt.proc.native {
		if code, cause := out.(envelope.Results).Failure(); code != codes.Code(0) {
			return &Error{Op: rt.op(), RPC: rt.proc.label(rt.provider), Addr: rt.ep.String(), Code: code, Remote: true, Err: cause}
		}
	}
	return nil
}

// departure returns the error of a native call that is not sent, because its context has ended, or its metadata or trace context is not valid.
func (rt *route) departure(ctx context.Context, err error) error {
	if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) { // the timer of ctx may be late
		return rt.fail(err)
	}
	return rt.unencodable(err)
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
	return rt.roundTrip(ctx, in, out, nil)
}

// begin records the call as under way.
func (rt *route) begin(k *hg.Call) *opRecord {
	d := opRecord{op: rt.op(), proc: rt.proc, provider: rt.provider, ep: rt.ep, pending: rt.pending, call: k, bounded: rt.bounded}
	if rt.within != nil {
		d.within = rt.within.svc
	}
	return rt.e.ops.begin(&d)
}

// roundTrip makes the call, without interceptors. It records the times of the steps in times; nil: there is no monitor.
func (rt *route) roundTrip(ctx context.Context, in, out any, times *stats.Timing) error {
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
	var native envelope.Arguments
	if rt.proc.native {
		native = in.(envelope.Arguments)
		if err := native.Depart(ctx); err != nil {
			return rt.departure(ctx, err)
		}
	}
	rt.over = rt.e.core.RouteTo(to)
	opts := hg.CallOptions{OneWay: rt.proc.oneWay, Proc: rt.proc, Provider: rt.provider, Keep: rt.proc.out.keep()}
	if rt.proc.lends(in, rt.over) && !rt.e.hooked() && rt.e.core.Lends(to) { // an interceptor may give up before the call has ended
		head, lent, tail, err := rt.proc.lendInput(k, rt.parent(), in, rt.over)
		if err != nil {
			return rt.unencodable(err)
		}
		k.StartLent(to, hg.ID(rt.id), opts, head, lent, tail)
	} else {
		payload, err := rt.proc.makeInput(k, rt.parent(), in, rt.over)
		if err != nil {
			return rt.unencodable(err)
		}
		if times != nil {
			times.Encoded = time.Now()
		}
		k.Start(to, hg.ID(rt.id), opts, payload)
	}
	if times != nil {
		times.Sent = time.Now()
	}
	err = rt.wait(ctx, k)
	if times != nil {
		times.Ended = time.Now()
	}
	if err != nil {
		if native != nil && ctx.Err() != nil {
			native.Abandon()
		}
		return rt.fail(err)
	}
	if rt.proc.oneWay {
		return nil
	}
	rt.expect(out, k)
	err = rt.decode(k, out)
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
