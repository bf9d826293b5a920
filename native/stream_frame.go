package native

import (
	"context"
	"fmt"
	"reflect"

	"cinnabar"
	"cinnabar/codec"
	"cinnabar/codes"
	"cinnabar/internal/envelope"
)

// frameName is the name of the RPC that carries the frames of all streams. The underscores keep it out of pools, which may be full of the handlers
// of the streams.
const frameName = "__native_stream__"

// frameRPC carries puts, and serves puts and gets.
var frameRPC = cinnabar.NewRPC[frameMessage, frameAnswer](frameName, cinnabar.WithCodec(&frameCodec{}))

// frameCall is a request with a frame at the server. It may be answered late.
type frameCall = cinnabar.Call[frameMessage, frameAnswer]

// frameMessage is the request that carries a frame. It implements [envelope.Arguments] on the pointer.
type frameMessage struct {
	frame   frame            // at the caller
	arrival envelope.Arrival // at the server
}

// Depart implements [envelope.Arguments].
func (*frameMessage) Depart(context.Context) error { return nil }

// Abandon implements [envelope.Arguments]. The cancel of the call that has opened the stream is enough.
func (*frameMessage) Abandon() {}

// Arrive implements [envelope.Arguments].
func (m *frameMessage) Arrive(a envelope.Arrival) { m.arrival = a }

// Begin implements [envelope.Arguments].
func (*frameMessage) Begin(ctx context.Context) (context.Context, error) { return ctx, nil }

// End implements [envelope.Arguments].
func (*frameMessage) End() {}

// frameAnswer is the response to a frame. It implements [envelope.Results] on the pointer.
type frameAnswer struct{ frame frame }

// Refuse implements [envelope.Results]. A frame has no envelope for an error, because the response of its stream carries the error.
func (*frameAnswer) Refuse(envelope.Arguments, codes.Code, error) bool { return false }

// Expect implements [envelope.Results].
func (*frameAnswer) Expect(envelope.Limits) {}

// Failure implements [envelope.Results].
func (*frameAnswer) Failure() (codes.Code, error) { return 0, nil }

// batch is the elements of the response to a get.
type batch[T any] struct {
	frame frame // without body
	items []T
}

// Refuse implements [envelope.Results].
func (*batch[T]) Refuse(envelope.Arguments, codes.Code, error) bool { return false }

// Expect implements [envelope.Results].
func (*batch[T]) Expect(envelope.Limits) {}

// Failure implements [envelope.Results].
func (*batch[T]) Failure() (codes.Code, error) { return 0, nil }

// frameCodec is the codec of RPCs that carry frames. batch is the plan of their results; nil: of frameAnswer.
type frameCodec struct{ batch codec.Plan }

// Name implements [codec.Codec].
func (*frameCodec) Name() string { return "native" }

// Enveloped implements [envelope.Codec].
func (*frameCodec) Enveloped() envelope.Mark { return envelope.Mark{} }

// Continues implements [envelope.Continuing].
func (*frameCodec) Continues() {}

// Plan implements [codec.Codec].
func (c *frameCodec) Plan(t reflect.Type) (codec.Plan, error) {
	switch {
	case t == reflect.TypeFor[frameMessage]():
		return messagePlan{}, nil
	case c.batch != nil:
		return c.batch, nil
	}
	return answerPlan{}, nil
}

// messagePlan is the encoding of frameMessage.
type messagePlan struct{}

// Append implements [codec.Plan].
func (messagePlan) Append(b []byte, v any) ([]byte, error) {
	return v.(*frameMessage).frame.encode(b)
}

// Decode implements [codec.Plan]. The handler reads the frame, because the stream ends if it cannot be read.
func (messagePlan) Decode(b []byte, _ any) (int, error) { return len(b), nil }

// answerPlan is the encoding of frameAnswer.
type answerPlan struct{}

// Append implements [codec.Plan].
func (answerPlan) Append(b []byte, v any) ([]byte, error) {
	return v.(*frameAnswer).frame.encode(b)
}

// Decode implements [codec.Plan]. Only credits are decoded by it.
func (answerPlan) Decode(b []byte, v any) (n int, err error) {
	v.(*frameAnswer).frame, err = parseFrame(b, magicCredit)
	return len(b), err
}

// batchPlan is the encoding of batch[T].
type batchPlan[T any] struct{ element codec.Plan }

// Append implements [codec.Plan]. Servers send the elements that they have encoded before.
func (*batchPlan[T]) Append(b []byte, v any) ([]byte, error) {
	return v.(*batch[T]).frame.encode(b)
}

// Decode implements [codec.Plan].
func (p *batchPlan[T]) Decode(b []byte, v any) (n int, err error) {
	out := v.(*batch[T])
	if out.frame, err = parseFrame(b, magicElements); err != nil {
		return 0, err
	}
	if !fullCredit.admits(out.frame.size) { // before memory is allocated
		return 0, overrun(&out.frame, fullCredit)
	}
	rest := out.frame.body
	out.frame.body = nil
	out.items = make([]T, out.frame.size.count) // as many as there are in the frame
	for i := range out.items {
		var element []byte
		element, rest, _ = cutElement(rest)
		if _, err := p.element.Decode(element, &out.items[i]); err != nil {
			return 0, elementError(err)
		}
	}
	return len(b), nil
}

// elementError is the error of an element that cannot be decoded.
func elementError(err error) error {
	return fmt.Errorf("native: an element of a stream cannot be decoded; compare the types of both sides: %w", err)
}

// overrun is the error of a frame that is larger than its credit.
func overrun(f *frame, c credit) error {
	return badFrame("a frame of %d elements and %d bytes, beyond the credit of %d elements and %d bytes", f.size.count, f.size.bytes, c.count, c.bytes)
}

// handleFrames registers frameRPC with an engine or a provider. Further calls have no effect.
func handleFrames(on cinnabar.Registrar) error {
	err := frameRPC.HandleCall(on, serveFrame)
	if isTaken(err) {
		return nil
	}
	return err
}

// serveFrame takes a frame. Its stream answers it at once, or later.
func serveFrame(c *frameCall) {
	a := &c.In.arrival
	f, err := parseFrame(a.Payload, magicPut, magicGet)
	s, _ := a.Streams.Find(a.Conn, f.id).(*servedStream)
	switch {
	case err != nil:
		s.offend(c, err)
	case s == nil:
		answerOver(c, &f)
	default:
		s.take(c, &f)
	}
}

// answerOver answers a frame of a stream that the server does not have: it has ended, or the request that opens it is still on its way.
func answerOver(c *frameCall, f *frame) {
	answer := frame{magic: magicCredit, flags: flagOver, id: f.id, seq: f.seq}
	if f.magic == magicGet {
		answer.magic = magicElements
	}
	_ = c.Respond(c.Context(), frameAnswer{answer}) // a caller that is gone needs no answer
}
