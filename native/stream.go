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
)

// Stream describes a stream between Go programs by its name and types: the client sends elements of type In, the server sends elements of type Out, both at
// any time. It belongs to no engine: declare it once, as a package variable, and share it between both sides. A stream in one direction has
// struct{} as its other type. It is safe for concurrent use.
type Stream[In, Out any] struct {
	spec    spec
	in, out codec.Plan
	open    *cinnabar.RPC[request[struct{}], response[struct{}]]
	gets    *cinnabar.RPC[frameMessage, batch[Out]]
}

// NewStream describes a stream. The options are those of [New] except WithCompressor and Idempotent. It panics if a type cannot be encoded, or if an option is not
// valid; the text names the field or the option.
//
// Elements are encoded for the network, when they are sent. So a peer accesses the memory of a bulk handle in an element over the network, even if
// the two processes also share memory (Config.AutoSM).
func NewStream[In, Out any](name string, opts ...Option) *Stream[In, Out] {
	s := &Stream[In, Out]{spec: spec{
		name: name, codec: hgproc.Codec{}, stream: true, in: reflect.TypeFor[In](), out: reflect.TypeFor[Out](),
	}}
	for _, o := range opts {
		o.apply(&s.spec)
	}
	err := s.spec.check()
	if s.spec.compressor != nil {
		err = errors.New("the elements of a stream are not compressed; leave WithCompressor out")
	}
	if s.spec.idempotent {
		err = errors.New("nothing repeats a stream; leave Idempotent out")
	}
	if err == nil {
		if s.in, err = s.spec.codec.Plan(reflect.TypeFor[In]()); err != nil {
			err = fmt.Errorf("the client's elements cannot be encoded: %w", err)
		}
	}
	if err == nil {
		if s.out, err = s.spec.codec.Plan(reflect.TypeFor[Out]()); err != nil {
			err = fmt.Errorf("the server's elements cannot be encoded: %w", err)
		}
	}
	if err != nil {
		panic(fmt.Sprintf("native: stream %q: %v", name, err))
	}
	s.open = cinnabar.NewRPC[request[struct{}], response[struct{}]](name, cinnabar.WithCodec(&enveloped[struct{}, struct{}]{&s.spec}))
	s.gets = cinnabar.NewRPC[frameMessage, batch[Out]](frameName, cinnabar.WithCodec(&frameCodec{&batchPlan[Out]{s.out}}))
	return s
}

// Name returns the name of the stream.
func (s *Stream[In, Out]) Name() string { return s.spec.name }

// ID returns the 64-bit id that stands for the stream on the wire when that provider serves it. An [RPC] of the same name has the same id, so a
// provider serves only one of the two.
func (s *Stream[In, Out]) ID(provider uint16) uint64 { return s.open.ID(provider) }

// otherShape returns the error for a client that opens an RPC as a stream, or calls a stream as an RPC.
func (s *spec) otherShape() error {
	text := "the caller opens a stream %q, which is an RPC of native.New here: call it, or declare it with native.NewStream on both sides"
	if s.stream {
		text = "the caller makes a call of %q, which is a stream of native.NewStream here: open it, or declare it with native.New on both sides"
	}
	return &wireError{codes.ProtoNoSupport, fmt.Sprintf(text, s.name)}
}

// Handle registers h with an engine or a provider. h runs for each stream that a client opens, on a goroutine that may block. The stream ends when h
// returns: the client receives the elements that h has sent, then the error that h returns, or none, with the metadata of [SetMetadata]. Errors,
// the context of h, and a nil h are as for [RPC.Handle]; Config.MaxHandlerTime bounds the time of the whole
// stream. h should receive and send with its context, or one that is derived from it, because h's worker can then serve other requests while h waits.
//
// After h has returned, the stream stays open until the client has received the elements that h has sent, or h's context ends.
//
// An engine serves at most half of Config.MaxHandlers streams at a time, and half of these for one host. It refuses further ones with codes.Again. Engines
// with shared pools (Config.Parent) share this limit.
func (s *Stream[In, Out]) Handle(on cinnabar.Registrar, h func(context.Context, *ServerStream[In, Out]) error, opts ...cinnabar.HandleOption) error {
	if h == nil {
		return s.open.Handle(on, nil, opts...)
	}
	internal := errors.Join(handleCancels(on), handleFrames(on)) // first, because frames may follow the first request at once
	err := s.open.Handle(on, func(ctx context.Context, r request[struct{}]) (response[struct{}], error) {
		served := r.in.stream()
		err := h(ctx, &ServerStream[In, Out]{core: served, in: s.in, out: s.out})
		served.finish(ctx)
		if fault := served.failure(); fault != nil {
			err = fault
		}
		return response[struct{}]{in: r.in}, err
	}, opts...)
	if err == nil && internal != nil {
		return errors.Join(internal, s.Remove(on))
	}
	return err // it names s, and the cause of internal is the same
}

// Remove undoes Handle: requests are answered codes.NoEntry. Handlers that run are not affected.
func (s *Stream[In, Out]) Remove(on cinnabar.Registrar) error { return s.open.Remove(on) }

// Open opens a stream to the process and provider that to names. It does not wait for the server: if the server refuses the stream, Receive and Wait
// return the error, and Open and Send do if it is known by then.
//
// ctx bounds the whole stream. The request carries the time until its deadline, and its trace context and metadata, as [RPC.Call] does. When ctx ends, the
// handler's context ends too. A program that neither receives until the end nor calls Wait must cancel ctx or call Cancel, because the stream has a
// handler at the server and memory on both sides until then.
func (s *Stream[In, Out]) Open(ctx context.Context, to cinnabar.Target) (*ClientStream[In, Out], error) {
	c := &ClientStream[In, Out]{stream: s, to: to, id: callIDs.Add(1), opened: ctx}
	c.life, c.cancel = context.WithCancelCause(ctx)
	c.out.mu.Lock()
	for range streamCredits {
		c.credits = append(c.credits, fullCredit)
	}
	c.idle.Store(true)
	c.out.mu.Unlock()
	c.call = s.open.Start(c.life, to, request[struct{}]{out: &outgoing{spec: &s.spec, to: to, id: c.id}})
	select {
	case <-c.call.Done():
		if err := c.result(); err != nil { // of the arguments, the metadata or the address; nothing is sent
			return nil, err
		}
	default:
	}
	return c, nil
}
