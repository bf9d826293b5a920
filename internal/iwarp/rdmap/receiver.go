package rdmap

import (
	"fmt"

	"cinnabar/internal/iwarp/ddp"
)

// Options are the opcodes that a connection accepts beside those of RFC 5040. Nothing on the wire
// negotiates the opcodes of RFC 7306.
type Options struct {
	Immediates bool // Immediate Data, with and without solicited event
	Atomics    bool // Atomic Request and Response
	// Passive is true if this side accepted the connection. It is used to
	// parse a Terminate, see [Receiver.ParseTerminate].
	Passive bool
}

// Segment is an accepted segment and its place in its message.
type Segment struct {
	Op     Opcode
	Header ddp.Header
	First  bool   // it begins its message
	Last   bool   // it ends its message
	Offset uint32 // octets of the message before it; for an untagged one, MO
	// Payload is the number of octets behind the header. With Last set,
	// Offset+Payload is the length of the message.
	Payload int
}

// Receiver checks the inbound half of one connection, segment by segment, in
// the order of the stream. It has no buffers: its owner checks the memory that an accepted
// segment may access, the receive that is posted for it, and the request that a response
// answers. It is not safe for concurrent use. The zero value is
// ready for a stream without RFC 7306.
//
//	┌──────┐   Terminate   ┌────────────┐
//	│ open │ ────────────▶ │ terminated │
//	└──────┘               └────────────┘
//	│  ▲   │ rule broken     │ any segment
//	└──┘   │                 ▼
//	valid  │               ┌────────────┐ ──┐
//	       └─────────────▶ │   failed   │   │ any segment
//	                       └────────────┘ ◀─┘
type Receiver struct {
	opts       Options
	queues     [Queues]ddp.Queue
	sendOp     Opcode // of the open message of QNSend; other queues have one-segment messages
	writes     ddp.Tagged
	responses  ddp.Tagged
	started    bool       // a segment other than a Terminate has come
	terminated bool       // the peer's Terminate has come
	failed     *Terminate // the first broken rule
}

// Init makes r the receiver of a new stream.
func (r *Receiver) Init(o Options) { *r = Receiver{opts: o} }

// Failed returns the answer to the first rule that was broken, or nil.
func (r *Receiver) Failed() *Terminate { return r.failed }

// Segment checks the next segment, with payload octets behind h.
// If it breaks a rule, the result is the Terminate to send, and the stream has
// failed: every later call returns the same Terminate, so that the first error
// is the one reported (RFC 5040 section 7.1, rule 4) and the segments behind it are
// dropped (RFC 5041 section 7.1). It allocates only then. As with every pointer
// that is an error, compare it with nil before it becomes an error value.
func (r *Receiver) Segment(h ddp.Header, payload int) (Segment, *Terminate) {
	if r.failed != nil {
		return Segment{}, r.failed
	}
	s, t := r.segment(h, payload)
	if t != nil {
		r.failed = t
		return Segment{}, t
	}
	r.started = r.started || s.Op != OpTerminate
	return s, nil
}

// ParseTerminate is [ParseTerminate] for b, the payload of a Terminate that r
// has accepted. It uses the state of the connection. As long as the active side
// has sent nothing else, the passive side has sent nothing at all (RFC 5044
// section 7.1.2), so the Terminate is about the set-up: in either bit order it
// must come from MPA, with the codes of RFC 6581 among others, or be a local
// catastrophic error. Later these codes no longer make sense.
func (r *Receiver) ParseTerminate(b []byte) (t Terminate, swapped bool, n int) {
	if r.opts.Passive && !r.started {
		return parseTerminate(b, Cause.inSetup)
	}
	return ParseTerminate(b)
}

// segment applies the rules in the order in which each makes sense only if
// those before it hold.
func (r *Receiver) segment(h ddp.Header, payload int) (Segment, *Terminate) {
	if err := h.CheckVersion(); err != nil {
		return Segment{}, refuseDDP(err, payload)
	}
	version, op := ParseControl(h.ULP)
	s := Segment{Op: op, Header: h, Last: h.Last, Payload: payload}
	switch {
	case version != Version:
		return s, s.refuse(TermInvalidVersion, fmt.Sprintf("got RDMAP version %d, want %d", version, Version))
	case r.terminated:
		return s, s.refuse(TermUnexpectedOpcode, op.String()+" after a Terminate")
	case !r.accepts(op):
		return s, s.refuse(TermUnexpectedOpcode, r.unaccepted(op))
	case h.Tagged != op.Tagged():
		return s, s.refuse(TermUnexpectedOpcode, fmt.Sprintf("%s with the tagged flag %t", op, h.Tagged))
	case h.Tagged:
		return r.tagged(s)
	}
	return r.untagged(s)
}

// accepts reports whether op is assigned and switched on.
func (r *Receiver) accepts(op Opcode) bool {
	switch op {
	case OpImmediate, OpImmediateSE:
		return r.opts.Immediates
	case OpAtomicRequest, OpAtomicResponse:
		return r.opts.Atomics
	default:
		return op <= OpTerminate
	}
}

func (r *Receiver) unaccepted(op Opcode) string {
	if op > OpAtomicResponse {
		return op.String() + " is not assigned"
	}
	return op.String() + " (RFC 7306) is switched off on this connection"
}

func (r *Receiver) tagged(s Segment) (Segment, *Terminate) {
	m := &r.writes
	if s.Op == OpReadResponse {
		m = &r.responses
	}
	var err *ddp.Error
	if s.Offset, s.First, err = m.Segment(s.Header, s.Payload); err != nil {
		return s, refuseDDP(err, s.Payload)
	}
	return s, nil
}

func (r *Receiver) untagged(s Segment) (Segment, *Terminate) {
	h := s.Header
	if err := h.CheckQueue(r.queueCount()); err != nil {
		return s, refuseDDP(err, s.Payload)
	}
	if h.QN != s.Op.Queue() {
		return s, s.refuse(TermUnexpectedOpcode, fmt.Sprintf("%s on queue %d, its queue is %d", s.Op, h.QN, s.Op.Queue()))
	}
	q := &r.queues[h.QN]
	if q.Open() && h.MSN == q.Next() && s.Op != r.sendOp {
		// RFC 5041 section 4.3: RsvdULP is the same in all segments.
		return s, s.refuse(TermUnexpectedOpcode, fmt.Sprintf("%s within a %s", s.Op, r.sendOp))
	}
	if n := s.Op.fixedLen(); n > 0 && s.Payload < n {
		return s, s.refuse(TermCatastrophic, fmt.Sprintf("%s of %d octets, want %d in one segment", s.Op, s.Payload, n))
	}
	if s.Op == OpTerminate && s.Payload < MinTerminateLen {
		return s, s.refuse(TermCatastrophic, fmt.Sprintf("Terminate of %d octets, want at least %d", s.Payload, MinTerminateLen))
	}
	var err *ddp.Error
	if s.First, err = q.Segment(h, s.Payload, s.Op.maxLen()); err != nil {
		return s, refuseDDP(err, s.Payload)
	}
	if !h.Last && h.QN != ddp.QNSend || !h.Last && s.Op.fixedLen() > 0 {
		return s, s.refuse(TermCatastrophic, s.Op.String()+" in more than one segment")
	}
	s.Offset = h.MO
	r.accepted(s)
	return s, nil
}

func (r *Receiver) accepted(s Segment) {
	switch s.Header.QN {
	case ddp.QNSend:
		r.sendOp = s.Op
	case ddp.QNTerminate:
		r.terminated = true
	}
}

// queueCount returns how many untagged queues the stream has: RFC 7306 adds the
// last.
func (r *Receiver) queueCount() uint32 {
	if r.opts.Atomics {
		return Queues
	}
	return ddp.QNAtomicResponse
}

func (s *Segment) refuse(c Cause, detail string) *Terminate {
	t := c.ForSegment(s.Header, s.Payload)
	t.Detail = detail
	return &t
}

func refuseDDP(e *ddp.Error, payload int) *Terminate {
	t := CauseOf(e).ForSegment(e.Header, payload)
	t.Detail = e.Detail()
	return &t
}

// MSNs numbers the outbound untagged messages of one connection. The zero value
// starts every queue at 1. It is not safe for concurrent use.
type MSNs struct {
	last [Queues]uint32
}

// Next returns the MSN of the next message to queue qn, one of the QN constants
// of package ddp. RFC 5041 section 4.3: from 1, and 0 comes after 2^32-1.
func (m *MSNs) Next(qn uint32) uint32 {
	m.last[qn]++
	return m.last[qn]
}
