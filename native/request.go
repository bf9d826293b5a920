package native

import (
	"context"
	"fmt"
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
	r.in = &incoming{Arrival: a, received: time.Now()}
	r.in.arrive()
}

// Begin implements [envelope.Arguments].
func (r *request[In]) Begin(ctx context.Context) (context.Context, error) { return r.in.begin(ctx) }

// End implements [envelope.Arguments].
func (r *request[In]) End() { r.in.end() }

// call returns the call at the server.
func (r *request[In]) call() *incoming { return r.in }

// callIDs counts the calls of the process. Its ids differ for all engines, so they differ on each connection.
var callIDs atomic.Uint64

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

// incoming is a call at its server.
type incoming struct {
	envelope.Arrival
	received time.Time
	head     requestHead
	err      error  // nil unless the request is refused
	id       uint64 // in Calls; 0: the call is not in it
	stream   *servedStream
	life     handlerContext // the handler's context, set by begin

	cancelState
	stop context.CancelFunc // of the deadline; nil if there is none

	reply struct {
		sync.Mutex
		// +checklocks:Mutex
		metadata Metadata
		// +checklocks:Mutex
		sealed bool // the response is made
	}
}

var errTaken = &wireError{codes.ProtocolError, "malformed native envelope: another call over this connection has the same id"}

// arrive enters the call into Calls, so that a cancel can find it, and its stream into Streams. An envelope that cannot be read is refused when the
// whole request is decoded.
func (in *incoming) arrive() {
	id, _, err := peekRequest(in.Payload)
	if err != nil {
		return
	}
	cancelled, ok := in.Calls.Add(in.Conn, id, in)
	if !ok {
		in.err = errTaken
		return
	}
	in.id = id
	if in.Payload[offFlags]&flagStream != 0 {
		s := newServedStream(in)
		if in.err = in.Streams.Add(in.Conn, id, in.Host, s); in.err == nil {
			in.stream = s
		}
	}
	if cancelled {
		in.abort()
	}
}

// Causes of the end of a handler's context.
var (
	errCancelled = fmt.Errorf("native: the caller has cancelled the call (%w)", codes.Canceled)
	errTooLate   = fmt.Errorf("native: the time of the call was over before its handler could begin (%w)", codes.Timeout)
)

// begin makes the context of the handler.
func (in *incoming) begin(ctx context.Context) (context.Context, error) {
	if in.err != nil {
		return nil, in.err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	if cause := in.start(cancel); cause != nil {
		cancel(cause)
		return nil, cause
	}
	if d := in.allowance(); d > 0 {
		ctx, in.stop = context.WithDeadline(ctx, in.received.Add(d))
		if ctx.Err() != nil {
			return nil, errTooLate
		}
	}
	in.life = handlerContext{ctx, in}
	return &in.life, nil
}

// allowance returns the time that the handler has from the arrival of the request, 0 if there is no limit.
func (in *incoming) allowance() time.Duration {
	d := in.head.remaining
	if in.MaxTime > 0 && (d == 0 || d > in.MaxTime) {
		return in.MaxTime
	}
	return d
}

// end releases the context.
func (in *incoming) end() {
	if in.stream != nil { // before the id is free, because the next call with the id may be a stream, too
		in.Streams.Remove(in.Conn, in.id)
		in.stream.close()
	}
	if in.id != 0 {
		in.Calls.Remove(in.Conn, in.id)
	}
	if in.stop != nil {
		in.stop()
	}
	in.mu.Lock()
	cancel := in.cancel
	in.mu.Unlock()
	if cancel != nil {
		cancel(nil)
	}
}

// setReply sets metadata of the response.
func (in *incoming) setReply(key, value string) error {
	in.reply.Lock()
	defer in.reply.Unlock()
	if in.reply.sealed {
		return errAnswered
	}
	if in.reply.metadata == nil {
		in.reply.metadata = Metadata{}
	}
	old, had := in.reply.metadata[key]
	in.reply.metadata[key] = value
	err := in.reply.metadata.check()
	switch {
	case err == nil:
	case had:
		in.reply.metadata[key] = old
	default:
		delete(in.reply.metadata, key)
	}
	return err
}

// sealReply returns the metadata of the response, which does not change any more.
func (in *incoming) sealReply() Metadata {
	in.reply.Lock()
	defer in.reply.Unlock()
	in.reply.sealed = true
	return in.reply.metadata
}

// handlerContext is the context of a handler.
type handlerContext struct {
	context.Context
	in *incoming
}

type servedKey struct{}

// Value implements [context.Context].
func (c *handlerContext) Value(key any) any {
	switch key.(type) {
	case servedKey:
		return c.in
	case traceKey:
		return c.in.head.trace
	case metadataKey:
		return nil
	}
	return c.Context.Value(key)
}

// served returns the native call of the handler that ctx belongs to, nil if it belongs to none.
func served(ctx context.Context) *incoming {
	in, _ := ctx.Value(servedKey{}).(*incoming)
	return in
}

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
	if r.in.head = head; head.stream != p.spec.stream {
		return 0, false, p.spec.otherShape()
	}
	body := b[n:]
	if head.compressed {
		if body, err = p.spec.unpack(head.compressor, head.size, body, r.in.Limits); err != nil {
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
