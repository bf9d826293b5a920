package ddp

// CheckVersion returns an error unless the segment speaks this version of DDP.
// RFC 5041 section 4.1: DV is 1 in every segment of a stream.
func (h Header) CheckVersion() *Error {
	if h.Version == Version {
		return nil
	}
	if h.Tagged {
		return h.fail(TypeTagged, CodeTaggedVersion, "version", uint64(h.Version), Version)
	}
	return h.fail(TypeUntagged, CodeUntaggedVersion, "version", uint64(h.Version), Version)
}

// CheckQueue returns an error unless the untagged segment names one of the
// queues 0 to queues-1 (RFC 5041 section 7.1, untagged rule 1).
func (h Header) CheckQueue(queues uint32) *Error {
	if h.QN < queues {
		return nil
	}
	return h.exceed(TypeUntagged, CodeInvalidQN, "queue number", uint64(h.QN), uint64(queues-1))
}

func (h Header) fail(typ, code uint8, field string, got, want uint64) *Error {
	return &Error{Type: typ, Code: code, Header: h, Field: field, Got: got, Want: want}
}

func (h Header) exceed(typ, code uint8, field string, got, limit uint64) *Error {
	return &Error{Type: typ, Code: code, Header: h, Field: field, Got: got, Want: limit, Limit: true}
}

// Queue follows the messages that arrive on one untagged queue. The zero value
// awaits MSN 1 at offset 0. The stream below is in order, so the rules of RFC
// 5041 become equalities: the next segment has the MSN that is due and starts
// where the last one ended.
//
//	         first segment, not Last
//	┌──────┐ ───────────────────────▶ ┌──────┐ ──┐ further segment,
//	│ idle │                          │ open │   │ not Last
//	└──────┘ ◀─────────────────────── └──────┘ ◀─┘
//	│      ▲        Last: MSN + 1
//	└──────┘
//	only segment: MSN + 1
type Queue struct {
	delivered uint32 // MSN of the last whole message, modulo 2^32; 0: none yet
	offset    uint32 // octets of the open message so far
	open      bool   // a message has begun and not ended
}

// Next returns the MSN that the next segment must carry: that of the open
// message, else that of the message after the last.
func (q *Queue) Next() uint32 { return q.delivered + 1 }

// Open reports whether a message has begun and not ended.
func (q *Queue) Open() bool { return q.open }

// Segment takes the next segment of the queue, with payload octets, into
// account; first reports that it begins a message. A message that grows beyond
// limit octets is refused. After an error the queue is unchanged and the stream
// has to end.
func (q *Queue) Segment(h Header, payload int, limit uint32) (first bool, err *Error) {
	if h.MSN != q.Next() {
		// 4.3: one more for each message, modulo 2^32, from 1, and the same
		// in all segments of a message.
		return false, h.fail(TypeUntagged, CodeMSNRange, "MSN", uint64(h.MSN), uint64(q.Next()))
	}
	if h.MO != q.offset {
		// 4.3 and 5.2: offset of the payload in the message, 0 in the first.
		return false, h.fail(TypeUntagged, CodeInvalidMO, "MO", uint64(h.MO), uint64(q.offset))
	}
	if payload < 0 || payload == 0 && !h.Last {
		// 5.2: a message without payload is exactly one segment; anywhere
		// else an empty segment would repeat its successor's offset for ever.
		return false, h.fail(TypeUntagged, CodeInvalidMO, "payload of an intermediate segment", 0, 1)
	}
	end := uint64(q.offset) + uint64(payload)
	if end > uint64(limit) {
		return false, h.exceed(TypeUntagged, CodeTooLong, "message length", end, uint64(limit))
	}
	first = !q.open
	if h.Last {
		q.delivered++
		q.offset, q.open = 0, false
	} else {
		q.offset, q.open = uint32(end), true
	}
	return first, nil
}

// Tagged follows the tagged messages of one kind (for RDMAP: writes, or read
// responses), which do not interleave among themselves. The zero value awaits
// the first segment of a message. It knows nothing of buffers: whether STag and
// TO lead anywhere is for the device to check.
type Tagged struct {
	to     uint64 // where the open message goes on
	stag   uint32 // its buffer
	length uint32 // its octets so far
	open   bool   // a message has begun and not ended
}

// Open reports whether a message has begun and not ended.
func (m *Tagged) Open() bool { return m.open }

// Segment takes the next segment, with payload octets, into account. It returns
// how many octets of the same message came before and whether the segment
// begins the message. After an error m is unchanged and the stream has to end.
func (m *Tagged) Segment(h Header, payload int) (offset uint32, first bool, err *Error) {
	if err := m.check(h, payload); err != nil {
		return 0, false, err
	}
	offset, first = m.length, !m.open
	if h.Last {
		*m = Tagged{}
	} else {
		*m = Tagged{to: h.TO + uint64(payload), stag: h.STag, length: m.length + uint32(payload), open: true}
	}
	return offset, first, nil
}

// check applies the rules that need no knowledge of buffers.
func (m *Tagged) check(h Header, payload int) *Error {
	if payload < 0 || payload == 0 && !h.Last {
		// 5.2: as for untagged messages, empty segments only end a message.
		return h.fail(TypeTagged, CodeBaseBounds, "payload of an intermediate segment", 0, 1)
	}
	if payload == 0 {
		return nil // 5.2: STag and TO of an empty segment mean nothing
	}
	if end := h.TO + uint64(payload); end < h.TO {
		return h.exceed(TypeTagged, CodeTOWrap, "payload", uint64(payload), ^h.TO) // 7.1, tagged rule 5
	}
	if end := uint64(m.length) + uint64(payload); end > MaxMessage {
		return h.exceed(TypeTagged, CodeBaseBounds, "message length", end, MaxMessage) // 5.2
	}
	if !m.open {
		return nil
	}
	if h.STag != m.stag { // 4.2: one buffer per message
		return h.fail(TypeTagged, CodeInvalidSTag, "STag", uint64(h.STag), uint64(m.stag))
	}
	if h.TO != m.to { // 5.2: the payload's place in the message plus the first TO
		return h.fail(TypeTagged, CodeBaseBounds, "TO", h.TO, m.to)
	}
	return nil
}
