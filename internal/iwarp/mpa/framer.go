package mpa

import (
	"encoding/binary"
	"fmt"
)

// Framer finds the ULPDUs in a stream of FPDUs without markers. It is a pure state machine: it keeps at
// most one incomplete FPDU, 65544 octets, and grows only by octets that have come. The zero value reads
// with CRCs off. It is not safe for concurrent use.
//
//	            octets           ULPDU_Length ok       FPDU whole, CRC ok
//	boundary ───────────▶ header ───────────────▶ body ────────────────▶ boundary
//	                        │ too short            │ CRC mismatch, deliver failed
//	                        └──────────▶ failed ◀──┘
type Framer struct {
	// CRC says that CRCs were negotiated: each FPDU is verified before its ULPDU is delivered.
	CRC bool
	// MinULPDU is the shortest ULPDU_Length that is taken, for instance the shortest DDP header. Below 1
	// it counts as 1: an FPDU always has a ULPDU (RFC 5044 section 3).
	MinULPDU int

	partial []byte // the incomplete FPDU between two calls of Feed
	offset  uint64 // octets of whole FPDUs so far, for error texts
	err     error  // set once, for good
}

// Feed takes the next octets of the stream, cut anywhere, and calls deliver for each ULPDU that they
// complete, in order. The ULPDU is valid during the call only and may alias b. Feed keeps nothing of b.
//
// A malformed stream is an *Error with the code for the Terminate message. After it, or after an error from
// deliver, which is returned as it is, nothing is delivered any more and each call returns the same error
// (RFC 5044 section 8).
func (f *Framer) Feed(b []byte, deliver func(ulpdu []byte) error) error {
	for len(b) > 0 && f.err == nil {
		b = f.step(b, deliver)
	}
	return f.err
}

// End reports how the stream ended: nil between two FPDUs, otherwise the error that stopped it or, with
// CodeConnectionLost, the FPDU that was cut off.
func (f *Framer) End() error {
	if f.err != nil || len(f.partial) == 0 {
		return f.err
	}
	return &Error{
		Op:      opRead,
		Field:   "FPDU",
		Problem: fmt.Sprintf("the stream ended %d octets into the FPDU at octet %d", len(f.partial), f.offset),
		Remedy:  "the peer died or closed too early: look for its error",
		Code:    CodeConnectionLost,
	}
}

// step consumes octets of b up to the next boundary or its end, and returns the rest.
func (f *Framer) step(b []byte, deliver func([]byte) error) []byte {
	if len(f.partial) > 0 || len(b) < HeaderLen {
		return f.stepPartial(b, deliver)
	}
	n := f.need(b)
	if f.err != nil {
		return nil
	}
	if len(b) < n {
		f.partial = append(f.partial, b...)
		return nil
	}
	f.take(b[:n], deliver)
	return b[n:]
}

// stepPartial adds to the incomplete FPDU: first its header, then the rest, because the header has its length.
func (f *Framer) stepPartial(b []byte, deliver func([]byte) error) []byte {
	n := HeaderLen
	if len(f.partial) >= HeaderLen {
		n = f.need(f.partial)
	}
	more := min(n-len(f.partial), len(b))
	f.partial = append(f.partial, b[:more]...)
	switch {
	case len(f.partial) < n:
	case n == HeaderLen:
		f.need(f.partial) // refuse a bad length before waiting for its octets
	default:
		f.take(f.partial, deliver)
		f.partial = f.partial[:0]
	}
	return b[more:]
}

// need returns the length of the FPDU at the start of b, from its header. The start of the next FPDU follows from
// ULPDU_Length alone (RFC 5044 sections 5.2 and 6).
func (f *Framer) need(b []byte) int {
	ulpdu := int(binary.BigEndian.Uint16(b))
	if least := max(f.MinULPDU, 1); ulpdu < least {
		f.err = &Error{
			Op:      opRead,
			Field:   "ULPDU_Length",
			Problem: fmt.Sprintf("%d octets at octet %d of the stream, the least is %d", ulpdu, f.offset, least),
			Remedy:  "terminate the connection: the peer is out of step or does not speak DDP",
			Code:    CodeFPDUStart,
		}
	}
	return FPDULen(ulpdu)
}

// take verifies one whole FPDU and delivers its ULPDU, but never one with a wrong CRC (RFC 5044 section 6).
func (f *Framer) take(fpdu []byte, deliver func([]byte) error) {
	n := int(binary.BigEndian.Uint16(fpdu))
	end := HeaderLen + n
	if f.CRC && !CheckTrailer(fpdu[end:], n, Update(0, fpdu[:end])) {
		f.err = &Error{
			Op:      opRead,
			Field:   "CRC",
			Problem: fmt.Sprintf("mismatch in the FPDU of %d octets at octet %d of the stream", len(fpdu), f.offset),
			Remedy:  "terminate the connection: the data was damaged on the way, or the peer does not send CRCs",
			Code:    CodeCRC,
		}
		return
	}
	f.offset += uint64(len(fpdu))
	f.err = deliver(fpdu[HeaderLen:end:end])
}
