package cinnabar

import (
	"context"
	"reflect"
	"sync"
)

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

// Registered tells whether on serves the procedure.
func (r *OneWay[In]) Registered(on Registrar) bool { return registered(r.proc, on) }
