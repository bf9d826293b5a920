package native

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar"
	"cinnabar/codec"
	"cinnabar/codes"
	"cinnabar/internal/codecplan"
	"cinnabar/internal/envelope"
)

// request is the arguments of an RPC with their envelope. It implements [envelope.Arguments] on the pointer.
type request[In any] struct {
	out *outgoing // at the caller
	in  *incoming // at the server
	In  In
}

// Depart implements [envelope.Arguments].
func (r *request[In]) Depart(ctx context.Context) error { return r.out.depart(ctx) }

// Abandon implements [envelope.Arguments].
func (r *request[In]) Abandon() { r.out.spec.cancels.add(r.out.to, r.out.head.id) }

// Arrive implements [envelope.Arguments].
func (r *request[In]) Arrive(a envelope.Arrival) {
	r.in = arrived(&a)
}

// Begin implements [envelope.Arguments].
func (r *request[In]) Begin(context.Context) (context.Context, error) { return r.in, r.in.begin() }

// End implements [envelope.Arguments].
func (r *request[In]) End() { r.in.end() }

// call returns the call at the server.
func (r *request[In]) call() *incoming { return r.in }

// callIDs counts the calls of the process. Its ids differ for all engines, so they differ on each connection.
var callIDs atomic.Uint64

// outgoings are calls that have ended, to be used again, all zero.
var outgoings sync.Pool // of *outgoing

// outgoing is a call at its caller.
type outgoing struct {
	spec *spec
	to   cinnabar.Target
	id   uint64 // of the stream that the call opens; 0: it opens none
	head requestHead
}

// depart makes the envelope from the context.
func (o *outgoing) depart(ctx context.Context) error {
	o.head = requestHead{id: o.id, stream: o.id != 0, trace: TraceFrom(ctx), metadata: outgoingMetadata(ctx)}
	if o.id == 0 {
		o.head.id = callIDs.Add(1)
	}
	if d, ok := ctx.Deadline(); ok {
		if o.head.remaining = time.Until(d); o.head.remaining <= 0 {
			return context.DeadlineExceeded
		}
	}
	if c := o.spec.compressor; c != nil {
		o.head.compressor, o.head.accepts = c.Name(), true
	}
	if err := o.head.metadata.check(); err != nil {
		return err
	}
	if o.head.trace.IsZero() {
		return nil
	}
	return o.head.trace.check()
}

var errTaken = &wireError{codes.ProtocolError, "malformed native envelope: another call over this connection has the same id"}

// requestPlan is the encoding of request[In].
type requestPlan[In any] struct {
	spec *spec
	in   codec.Plan
}

// Append implements [codec.Plan].
func (p *requestPlan[In]) Append(b []byte, v any) ([]byte, error) {
	r := v.(*request[In])
	h := &r.out.head
	h.compressed, h.size = false, 0
	head := appendRequestHead(b, h)
	whole, err := p.in.Append(head, &r.In)
	if err != nil || p.spec.compressor == nil {
		return whole, err
	}
	body, err := p.spec.squeeze(whole[len(head):])
	if err != nil || body == nil {
		return whole, err
	}
	h.compressed, h.size = true, uint64(len(whole)-len(head))
	return append(appendRequestHead(b, h), body...), nil
}

// Lends implements [codecplan.LendingPlan].
func (p *requestPlan[In]) Lends(v any, least int) bool {
	return p.spec.compressor == nil && codecplan.Lends(p.in, &v.(*request[In]).In, least)
}

// AppendAround implements [codecplan.LendingPlan].
func (p *requestPlan[In]) AppendAround(b []byte, v any, least int) (out []byte, at int, lent []byte, err error) {
	if p.spec.compressor != nil {
		out, err = p.Append(b, v)
		return out, 0, nil, err
	}
	r := v.(*request[In])
	h := &r.out.head
	h.compressed, h.size = false, 0
	return codecplan.AppendAround(p.in, appendRequestHead(b, h), &r.In, least)
}

// OverSharedMemory implements [codecplan.Outer].
func (p *requestPlan[In]) OverSharedMemory() codec.Plan {
	return &requestPlan[In]{p.spec, codecplan.OverSharedMemory(p.in)}
}

// Keeps implements [codecplan.KeepingPlan].
func (p *requestPlan[In]) Keeps() bool { return codecplan.Keeps(p.in) }

// Decode implements [codec.Plan].
func (p *requestPlan[In]) Decode(b []byte, v any) (int, error) {
	n, _, err := p.decode(b, v, false)
	return n, err
}

// DecodeKept implements [codecplan.KeepingPlan].
func (p *requestPlan[In]) DecodeKept(b []byte, v any) (int, bool, error) { return p.decode(b, v, true) }

// decode reads a request. If keep is true, the memory of b belongs to the arguments, and kept reports whether they refer to it.
func (p *requestPlan[In]) decode(b []byte, v any, keep bool) (n int, kept bool, err error) {
	r := v.(*request[In])
	head, n, err := parseRequestHead(b)
	if err != nil {
		return 0, false, err
	}
	if r.in.keep(&head, p.spec); head.stream != p.spec.stream {
		return 0, false, p.spec.otherShape()
	}
	body := b[n:]
	if head.compressed {
		if body, err = p.spec.unpack(head.compressor, head.size, body, r.in.limits()); err != nil {
			return 0, false, err
		}
		keep = false // because a Compressor of the program may still refer to the memory
	}
	kept, err = decodePart(p.in, body, &r.In, keep)
	return len(b), kept, err
}

// decodePart reads the value *v behind an envelope.
func decodePart(p codec.Plan, b []byte, v any, keep bool) (kept bool, err error) {
	if keep {
		_, kept, err = codecplan.DecodeKept(p, b, v)
	} else {
		_, err = p.Decode(b, v)
	}
	return kept, err
}
