package native

import (
	"errors"

	"cinnabar/codec"
	"cinnabar/codes"
	"cinnabar/internal/codecplan"
	"cinnabar/internal/envelope"
)

// response is the results of an RPC with their envelope. It implements [envelope.Results] on the pointer.
type response[Out any] struct {
	in      *incoming // at the server: the request; nil if an interceptor has responded in place of the handler
	refusal *refusal  // at the server: sent in place of Out

	limits   envelope.Limits // at the caller
	failure  *Error          // at the caller: received in place of Out
	metadata Metadata        // at the caller
	Out      Out
}

// Refuse implements [envelope.Results].
func (r *response[Out]) Refuse(in envelope.Arguments, code codes.Code, err error) bool {
	if errors.Is(err, errForeignRequest) {
		return false
	}
	if call, ok := in.(interface{ call() *incoming }); ok {
		r.in = call.call()
	}
	r.refusal = &refusal{code: code, err: err, text: err.Error()}
	return true
}

// Expect implements [envelope.Results].
func (r *response[Out]) Expect(limits envelope.Limits) { r.limits = limits }

// Failure implements [envelope.Results].
func (r *response[Out]) Failure() (codes.Code, error) {
	if r.failure == nil {
		return 0, nil
	}
	return r.failure.Code, r.failure
}

// responsePlan is the encoding of response[Out].
type responsePlan[Out any] struct {
	spec *spec
	out  codec.Plan
}

// Append implements [codec.Plan].
func (p *responsePlan[Out]) Append(b []byte, v any) ([]byte, error) {
	r := v.(*response[Out])
	var h responseHead
	if r.in != nil {
		h.metadata = r.in.sealReply()
	}
	if r.refusal != nil {
		h.failure = p.spec.fail(r.refusal)
		return appendResponseHead(b, &h), nil
	}
	head := appendResponseHead(b, &h)
	whole, err := p.out.Append(head, &r.Out)
	if err != nil || r.in == nil || !r.in.compresses {
		return whole, err
	}
	body, err := p.spec.squeeze(whole[len(head):])
	if err != nil || body == nil {
		return whole, err
	}
	h.compressed, h.size = true, uint64(len(whole)-len(head))
	return append(appendResponseHead(b, &h), body...), nil
}

// OverSharedMemory implements [codecplan.Outer].
func (p *responsePlan[Out]) OverSharedMemory() codec.Plan {
	return &responsePlan[Out]{p.spec, codecplan.OverSharedMemory(p.out)}
}

// Keeps implements [codecplan.KeepingPlan].
func (p *responsePlan[Out]) Keeps() bool { return codecplan.Keeps(p.out) }

// Decode implements [codec.Plan].
func (p *responsePlan[Out]) Decode(b []byte, v any) (int, error) {
	n, _, err := p.decode(b, v, false)
	return n, err
}

// DecodeKept implements [codecplan.KeepingPlan].
func (p *responsePlan[Out]) DecodeKept(b []byte, v any) (int, bool, error) {
	return p.decode(b, v, true)
}

// decode reads a response. If keep is true, the memory of b belongs to the results, and kept reports whether they refer to it.
func (p *responsePlan[Out]) decode(b []byte, v any, keep bool) (n int, kept bool, err error) {
	r := v.(*response[Out])
	h, n, err := parseResponseHead(b)
	if err != nil {
		return 0, false, err
	}
	r.metadata = h.metadata
	if h.failure != nil {
		r.failure = p.spec.received(h.failure, h.metadata)
		return len(b), false, nil
	}
	body := b[n:]
	if h.compressed {
		name := "a Compressor that the request does not name"
		if p.spec.compressor != nil {
			name = p.spec.compressor.Name()
		}
		if body, err = p.spec.unpack(name, h.size, body, r.limits); err != nil {
			return 0, false, err
		}
		keep = false // as for arguments
	}
	kept, err = decodePart(p.out, body, &r.Out, keep)
	return len(b), kept, err
}
