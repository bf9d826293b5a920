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
	if err != nil || r.in == nil || !r.in.head.accepts || !p.spec.compresses(r.in.head.compressor) {
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

// Decode implements [codec.Plan].
func (p *responsePlan[Out]) Decode(b []byte, v any) (int, error) {
	r := v.(*response[Out])
	h, n, err := parseResponseHead(b)
	if err != nil {
		return 0, err
	}
	r.metadata = h.metadata
	if h.failure != nil {
		r.failure = p.spec.received(h.failure, h.metadata)
		return len(b), nil
	}
	body := b[n:]
	if h.compressed {
		name := "a Compressor that the request does not name"
		if p.spec.compressor != nil {
			name = p.spec.compressor.Name()
		}
		if body, err = p.spec.unpack(name, h.size, body, r.limits); err != nil {
			return 0, err
		}
	}
	if _, err := p.out.Decode(body, &r.Out); err != nil {
		return 0, err
	}
	return len(b), nil
}
