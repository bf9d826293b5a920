package ddp

import "encoding/binary"

const (
	// Version is the value of the DV field of this protocol (RFC 5041
	// section 4.1).
	Version = 1
	// TaggedHeaderLen is the length of a tagged segment's header in octets.
	TaggedHeaderLen = 14
	// UntaggedHeaderLen is the length of an untagged segment's header in octets.
	UntaggedHeaderLen = 18
	// MaxMessage is the length in octets of the longest message: a message is
	// shorter than 2^32 octets (RFC 5041 section 5.2).
	MaxMessage = 1<<32 - 1
)

// Untagged queue numbers in the use that RDMAP makes of them (RFC 5040 section
// 3.1, RFC 7306 section 10.2).
const (
	QNSend           = 0 // Send of every type, and Immediate Data
	QNReadRequest    = 1 // RDMA Read Request and Atomic Request
	QNTerminate      = 2 // Terminate
	QNAtomicResponse = 3 // Atomic Response
)

// Fields of the first octet, and offsets of the others.
const (
	flagTagged  = 0x80
	flagLast    = 0x40
	maskVersion = 0x03

	offULP = 1

	offSTag = 2
	offTO   = 6

	offRsvd = 2
	offQN   = 6
	offMSN  = 10
	offMO   = 14
)

// Header is the header of one DDP segment, as a value. STag and TO belong to
// the tagged model; Rsvd, QN, MSN and MO to the untagged one; the fields of the
// other model are zero.
type Header struct {
	Tagged  bool   // which of the two models
	Last    bool   // the segment ends its message
	Version uint8  // DV, 2 bits
	ULP     byte   // RsvdULP[0:7]: RDMAP's control octet
	STag    uint32 // the data sink's buffer
	TO      uint64 // octets from the start of that buffer
	Rsvd    uint32 // RsvdULP[8:39]: the STag that a Send with Invalidate names
	QN      uint32 // queue of the data sink
	MSN     uint32 // number of the message in that queue, from 1
	MO      uint32 // octets from the start of the message
}

// HeaderLen returns the length in octets of the header that starts with the
// octet ctrl.
func HeaderLen(ctrl byte) int {
	if ctrl&flagTagged != 0 {
		return TaggedHeaderLen
	}
	return UntaggedHeaderLen
}

// Len returns the length of h on the wire in octets.
func (h Header) Len() int {
	if h.Tagged {
		return TaggedHeaderLen
	}
	return UntaggedHeaderLen
}

// ParseHeader reads the header at the start of b and returns it with its
// length; n is 0 if b ends before the header does. It refuses nothing else: an
// unknown version is in h.Version for the receiver to report (see
// [Header.CheckVersion]), and the four reserved bits are not looked at, as RFC
// 5041 section 4.1 demands. h keeps no reference to b.
func ParseHeader(b []byte) (h Header, n int) {
	if len(b) == 0 || len(b) < HeaderLen(b[0]) {
		return Header{}, 0
	}
	h = Header{
		Tagged:  b[0]&flagTagged != 0,
		Last:    b[0]&flagLast != 0,
		Version: b[0] & maskVersion,
		ULP:     b[offULP],
	}
	if h.Tagged {
		h.STag = binary.BigEndian.Uint32(b[offSTag:])
		h.TO = binary.BigEndian.Uint64(b[offTO:])
		return h, TaggedHeaderLen
	}
	h.Rsvd = binary.BigEndian.Uint32(b[offRsvd:])
	h.QN = binary.BigEndian.Uint32(b[offQN:])
	h.MSN = binary.BigEndian.Uint32(b[offMSN:])
	h.MO = binary.BigEndian.Uint32(b[offMO:])
	return h, UntaggedHeaderLen
}

// AppendHeader appends h in wire form to b. The reserved bits are sent as zero
// (RFC 5041 section 4.1).
func AppendHeader(b []byte, h Header) []byte {
	ctrl := h.Version & maskVersion
	if h.Last {
		ctrl |= flagLast
	}
	if h.Tagged {
		b = append(b, ctrl|flagTagged, h.ULP)
		b = binary.BigEndian.AppendUint32(b, h.STag)
		return binary.BigEndian.AppendUint64(b, h.TO)
	}
	b = append(b, ctrl, h.ULP)
	b = binary.BigEndian.AppendUint32(b, h.Rsvd)
	b = binary.BigEndian.AppendUint32(b, h.QN)
	b = binary.BigEndian.AppendUint32(b, h.MSN)
	return binary.BigEndian.AppendUint32(b, h.MO)
}

// Advance returns the header of the segment that follows a segment of n octets
// of payload in the same message: TO or MO has moved by n (RFC 5041 section
// 5.2), all else is equal. The caller sets Last.
func (h Header) Advance(n int) Header {
	if h.Tagged {
		h.TO += uint64(n)
	} else {
		h.MO += uint32(n)
	}
	return h
}

// MaxPayload returns how many octets of payload fit in a segment of at most
// mulpdu octets (RFC 5041 section 5.2); it is 0 or less if not even the header
// fits.
func MaxPayload(mulpdu int, tagged bool) int {
	if tagged {
		return mulpdu - TaggedHeaderLen
	}
	return mulpdu - UntaggedHeaderLen
}
