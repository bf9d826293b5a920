package cinnabar

import (
	"context"
	"reflect"
	"sync"

	"cinnabar/internal/hg"
	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
)

// RPC describes a remote procedure by its name and types. It belongs to no engine: declare it once, as a package
// variable, and share it between the side that calls and the side that serves. Use struct{} for no arguments or no
// result. It is safe for concurrent use.
type RPC[In, Out any] struct {
	proc  *procedure
	calls sync.Pool // of *exchange[In, Out]
}

// exchange is what a call needs in memory that outlives its stack frame.
type exchange[In, Out any] struct {
	in  In
	out Out
}

// NewRPC describes a remote procedure. It panics if a type cannot be encoded, and says which field of it.
func NewRPC[In, Out any](name string, opts ...RPCOption) *RPC[In, Out] {
	return &RPC[In, Out]{proc: newProcedure(name, false, reflect.TypeFor[In](), reflect.TypeFor[Out](), opts)}
}

// Name returns the procedure's name.
func (r *RPC[In, Out]) Name() string { return r.proc.name }

// ID returns the 64-bit id that stands for the procedure on the wire when that provider serves it. Procedures of flavour
// Mercury have the same id for all.
func (r *RPC[In, Out]) ID(provider uint16) uint64 { return r.proc.id(provider) }

// Call has the procedure run by the process and provider that to names, and returns its result once it is there.
//
// If ctx ends first, Call returns an [*Error] of codes.Timeout or codes.Canceled. The request is not taken back, and a
// handler that has begun is not told: there is no such message. in may be changed as soon as Call has returned.
//
// Made by a handler with its context, the call tells the peer which RPC it is made for, and the handler's worker is free
// for others meanwhile.
func (r *RPC[In, Out]) Call(ctx context.Context, to Target, in In) (Out, error) {
	x, _ := r.calls.Get().(*exchange[In, Out])
	if x == nil {
		x = new(exchange[In, Out])
	}
	x.in = in
	if err := r.proc.call(ctx, to, &x.in, &x.out); err != nil {
		var none Out
		return none, err // without x: an interceptor that gives up may have left next running with it
	}
	out := x.out
	*x = exchange[In, Out]{}
	r.calls.Put(x)
	return out, nil
}

// Start begins a call and returns at once. When ctx ends, the call is cancelled. in may be changed as soon as Start has
// returned, unless the engine has Interceptors or a Monitor: then in and the memory that it refers to must not change before the end.
// Errors, also those of the arguments, are found by Wait.
func (r *RPC[In, Out]) Start(ctx context.Context, to Target, in In) *Pending[Out] {
	f := &flight[In, Out]{proc: r.proc, x: exchange[In, Out]{in: in}}
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
	x     exchange[In, Out]

	k     *hg.Call           // nil if the call could not be made, or is made by another goroutine
	doing *doing             // set with k
	halt  context.CancelFunc // cancels what the other goroutine does; nil if there is none
	err   error              // of a call without k

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
	payload, err := f.prepare()
	if err != nil {
		return err
	}
	f.k.Notify(f)
	if peer := f.route.ep.reached(); peer != nil {
		f.send(peer, payload)
	} else {
		f.startNamed(ctx, payload)
	}
	f.watch(ctx)
	return nil
}

// send starts the prepared call.
func (f *flight[In, Out]) send(peer na.Addr, payload []byte) {
	f.k.Start(peer, hg.ID(f.route.id), hg.CallOptions{Proc: f.proc, Provider: f.route.provider}, payload)
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
	f.doing.end()
	k.Free()
	f.end()
	f.route.e.end()
}

// prepare begins the operation and encodes the arguments. There is no operation if it fails, or if a type's own encoding
// panics.
func (f *flight[In, Out]) prepare() (payload []byte, err error) {
	e := f.route.e
	if err := e.begin(); err != nil {
		return nil, f.route.fail(err)
	}
	k := e.core.NewCall()
	defer func() {
		if f.k == nil {
			k.Free()
			e.end()
		}
	}()
	if payload, err = f.proc.appendInput(k.Input(), f.route.parent(), &f.x.in); err != nil {
		return nil, f.route.unencodable(err)
	}
	f.k, f.doing = k, f.route.begin(k)
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
	if f.k != nil && !f.freed {
		f.k.Cancel()
	}
}

// CallDone implements [hg.Notifier]. A result that was fetched is decoded at once, although nobody may ever wait for it,
// since its memory counts against Config.OverflowBudget until then.
func (f *flight[In, Out]) CallDone(k *hg.Call) {
	fetched := k.Fetched()
	e := f.route.e
	f.doing.end()
	f.end()
	if fetched {
		go func() { _, _ = f.Wait() }() // it ends by itself: the call is over
	}
	e.end()
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
			err = f.route.decode(f.k.Output(), &f.x.out)
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

// Handle has h run for each request that reaches on. The error that h returns is logged, since nobody waits for it. If a
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
