package native

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"cinnabar"
	"cinnabar/codec"
	"cinnabar/codec/hgproc"
	"cinnabar/codes"
	"cinnabar/internal/envelope"
)

// RPC describes a remote procedure between Go programs by its name and types. It belongs to no engine: declare it once, as a package
// variable, and share it between the side that calls and the side that serves. It is safe for concurrent use.
type RPC[In, Out any] struct {
	spec spec
	rpc  *cinnabar.RPC[request[In], response[Out]]
}

// spec is the part of an RPC without its types. Only its field cancels changes.
type spec struct {
	name       string
	codec      codec.Codec
	compressor Compressor // nil: none
	details    []detail
	stream     bool // declared by NewStream
	idempotent bool
	in, out    reflect.Type // of the program
	cancels    canceller
}

// Option is an option of [New].
type Option interface{ apply(*spec) }

type option func(*spec)

func (o option) apply(s *spec) { o(s) }

// WithCodec sets the encoding of arguments, results and details, in place of [hgproc.Codec].
func WithCodec(c codec.Codec) Option { return option(func(s *spec) { s.codec = c }) }

// WithCompressor compresses arguments, and results if both sides declare a Compressor of the same name, from 256 bytes on and if that makes them
// shorter. A side without the option compresses nothing; a server without it refuses compressed arguments with codes.ProtoNoSupport. The option is
// not for RPCs with bulk handles in their arguments: the engine does not find the handles of a call that is given up in compressed bytes, so an
// access of its server to the closed memory ends the connection.
func WithCompressor(c Compressor) Option { return option(func(s *spec) { s.compressor = c }) }

// WithDetail declares a type of errors that travel with their fields: if [errors.AsType] finds an E in the error of a handler, the caller finds
// an equal one in the error of Call. E is a type that the codec encodes, or a pointer to one. name stands for it on the wire: 1 to 64 of the
// characters a to z, 0 to 9, '.', '_' and '-'. An RPC has at most 16 such types, and one error carries at most 16 KiB of details.
func WithDetail[E error](name string) Option {
	return option(func(s *spec) { s.details = append(s.details, newDetail[E](name)) })
}

// New describes a remote procedure. It panics if a type cannot be encoded, or if an option is not valid; the text names the field or the
// option.
func New[In, Out any](name string, opts ...Option) *RPC[In, Out] {
	r := &RPC[In, Out]{spec: spec{name: name, codec: hgproc.Codec{}, in: reflect.TypeFor[In](), out: reflect.TypeFor[Out]()}}
	for _, o := range opts {
		o.apply(&r.spec)
	}
	if err := r.spec.check(); err != nil {
		panic(fmt.Sprintf("native: RPC %q: %v", name, err))
	}
	r.rpc = cinnabar.NewRPC[request[In], response[Out]](name, cinnabar.WithCodec(&enveloped[In, Out]{&r.spec}))
	return r
}

// check completes the details, and returns an error that names the option which is not valid.
func (s *spec) check() error {
	if c := s.compressor; c != nil && !isName(c.Name(), maxName) {
		return fmt.Errorf("%q is no name of a Compressor; a name has 1 to %d of the characters a to z, 0 to 9, '.', '_' and '-'", c.Name(), maxName)
	}
	if len(s.details) > maxDetails {
		return fmt.Errorf("%d types of details are declared; at most %d are possible", len(s.details), maxDetails)
	}
	names := map[string]bool{}
	for i := range s.details {
		d := &s.details[i]
		switch {
		case !isName(d.name, maxName):
			return fmt.Errorf("%q is no name of a detail; a name has 1 to %d of the characters a to z, 0 to 9, '.', '_' and '-'", d.name, maxName)
		case names[d.name]:
			return fmt.Errorf("two details are named %q", d.name)
		case d.typ.Kind() == reflect.Interface:
			return fmt.Errorf("detail %q is of type %v; it must be no interface, because the caller decodes into the type", d.name, d.typ)
		}
		names[d.name] = true
		var err error
		if d.plan, err = s.codec.Plan(d.typ); err != nil {
			return fmt.Errorf("detail %q cannot be encoded: %w", d.name, err)
		}
	}
	return nil
}

// enveloped is the codec of the RPC of the engine that carries an RPC of this package.
type enveloped[In, Out any] struct{ spec *spec }

// Name implements [codec.Codec].
func (c *enveloped[In, Out]) Name() string { return "native" }

// Enveloped implements [envelope.Codec].
func (c *enveloped[In, Out]) Enveloped() envelope.Mark { return envelope.Mark{} }

// Described implements [envelope.Described].
func (c *enveloped[In, Out]) Described() envelope.Types {
	return envelope.Types{In: c.spec.in, Out: c.spec.out, Stream: c.spec.stream, Codec: c.spec.codec.Name()}
}

// Plan implements [codec.Codec].
func (c *enveloped[In, Out]) Plan(t reflect.Type) (codec.Plan, error) {
	switch t {
	case reflect.TypeFor[request[In]]():
		p, err := c.spec.codec.Plan(reflect.TypeFor[In]())
		return &requestPlan[In]{c.spec, p}, err
	case reflect.TypeFor[response[Out]]():
		p, err := c.spec.codec.Plan(reflect.TypeFor[Out]())
		return &responsePlan[Out]{c.spec, p}, err
	}
	return c.spec.codec.Plan(t)
}

// Idempotent declares that two executions of a call have the same effect as one. So a client may send the call again if it does not know whether
// a server has executed it, or send it to two servers: see package balance.
func Idempotent() Option { return option(func(s *spec) { s.idempotent = true }) }

// Idempotent reports whether the RPC is declared with the option [Idempotent].
func (r *RPC[In, Out]) Idempotent() bool { return r.spec.idempotent }

// Name returns the procedure's name.
func (r *RPC[In, Out]) Name() string { return r.spec.name }

// ID returns the 64-bit id that stands for the procedure on the wire when that provider serves it. It differs from the id of the
// RPC of Margo with the same name.
func (r *RPC[In, Out]) ID(provider uint16) uint64 { return r.rpc.ID(provider) }

// CallOption is an option of [RPC.Call].
type CallOption interface{ applyCall(*callOptions) }

type callOptions struct{ metadata *Metadata }

type callOption func(*callOptions)

func (o callOption) applyCall(c *callOptions) { o(c) }

// ReceiveMetadata stores the metadata of the response in *m when Call returns, also with the error of a handler. Without any, *m is nil.
func ReceiveMetadata(m *Metadata) CallOption {
	return callOption(func(c *callOptions) { c.metadata = m })
}

// Call sends a request to the process and provider that to names, waits for the response, and returns the result.
//
// The memory of in must not change while Call runs, and may be changed when Call has returned, as with [cinnabar.RPC.Call].
//
// The request carries the time until the deadline of ctx, and its trace context and metadata ([WithTrace], [WithMetadata]). If ctx ends before
// the response comes, Call returns an [*cinnabar.Error] of codes.Timeout or codes.Canceled at once, and sends a cancel, which ends the context
// of the handler. If the handler returns an error, Call returns an *cinnabar.Error with Remote set and with an [*Error] as its cause.
func (r *RPC[In, Out]) Call(ctx context.Context, to cinnabar.Target, in In, opts ...CallOption) (Out, error) {
	var metadata *Metadata
	if len(opts) > 0 { // the options are in the heap
		var o callOptions
		for _, opt := range opts {
			opt.applyCall(&o)
		}
		metadata = o.metadata
	}
	o, _ := outgoings.Get().(*outgoing)
	if o == nil {
		o = new(outgoing)
	}
	o.spec, o.to = &r.spec, to
	res, err := r.rpc.Call(ctx, to, request[In]{out: o, In: in})
	if err == nil { // otherwise an interceptor may have left the call running
		*o = outgoing{}
		outgoings.Put(o)
	}
	if metadata != nil {
		*metadata = res.metadata
		if e, ok := errors.AsType[*Error](err); ok {
			*metadata = e.metadata
		}
	}
	return res.Out, err
}

// Handle registers h with an engine or a provider. h runs for each of its requests, on a goroutine that may block. The value that h returns is
// the response. An error travels with its code ([codes.Of]), its text, and its details ([WithDetail]), so the text must not have secrets of the
// server. The engine logs the error as it does with those of RPCs of package cinnabar. A panic is answered codes.OtherError without text.
//
// h's context ends when the caller cancels the call, at the caller's deadline or after Config.MaxHandlerTime, when the connection to the caller is
// lost, and when the engine is closed or stops waiting for handlers. The deadline is the arrival of the request plus the time that
// the caller had left when it sent the request, so the clocks of the two need not agree. If that time is over, or the request is cancelled,
// before a worker is free for the request, it is answered without a call of h.
//
// A nil h registers the name alone: requests are answered codes.NoEntry.
func (r *RPC[In, Out]) Handle(on cinnabar.Registrar, h func(context.Context, In) (Out, error), opts ...cinnabar.HandleOption) error {
	if h == nil {
		return r.rpc.Handle(on, nil, opts...)
	}
	cancels := handleCancels(on) // first, because the first request may be cancelled at once
	err := r.rpc.Handle(on, func(ctx context.Context, in request[In]) (response[Out], error) {
		out, err := h(ctx, in.In)
		return response[Out]{in: in.in, Out: out}, err
	}, opts...)
	if err == nil && cancels != nil {
		return errors.Join(cancels, r.Remove(on))
	}
	return err // it names r, and the cause of cancels is the same
}

// isTaken reports whether a registration failed because the RPC is registered already.
func isTaken(err error) bool { return errors.Is(err, codes.Exist) }

// Remove undoes Handle: requests are answered codes.NoEntry. Handlers that run are not affected.
func (r *RPC[In, Out]) Remove(on cinnabar.Registrar) error { return r.rpc.Remove(on) }
