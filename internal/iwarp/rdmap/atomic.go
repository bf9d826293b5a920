package rdmap

import (
	"encoding/binary"
	"fmt"
)

const (
	// AtomicRequestLen is the length in octets of an Atomic Request's header,
	// which is all of its payload.
	AtomicRequestLen = 52
	// AtomicResponseLen is the length in octets of an Atomic Response's
	// header as RFC 7306 figure 6 and appendix A.2 draw it: 4 and 8 octets.
	// (Section 4 speaks of 32 bytes, which no figure bears out.)
	AtomicResponseLen = 12
	// AtomicLen is the size in octets of the value that an atomic operation
	// works on, and the alignment that its address must have (RFC 7306
	// section 5.1).
	AtomicLen = 8
	// ImmediateLen is the length in octets of an Immediate Data message (RFC
	// 7306 section 6.2).
	ImmediateLen = 8
)

// AtomicOp is the operation of an Atomic Request (RFC 7306 figure 5), 4 bits.
type AtomicOp uint8

// The operations; all others are unassigned.
const (
	AtomicFetchAdd AtomicOp = 0
	AtomicCmpSwap  AtomicOp = 2
)

// Valid reports whether the operation is one that exists. A responder refuses
// any other with an error (RFC 7306 section 5.2.1, rule 4).
func (op AtomicOp) Valid() bool { return op == AtomicFetchAdd || op == AtomicCmpSwap }

// String returns the operation's name in the words of RFC 7306.
func (op AtomicOp) String() string {
	switch op {
	case AtomicFetchAdd:
		return "FetchAdd"
	case AtomicCmpSwap:
		return "CmpSwap"
	default:
		return fmt.Sprintf("atomic operation %d", uint8(op))
	}
}

// Offsets in the Atomic Request header; the operation is in the low half of the
// octet at atOp, the 28 bits before it are reserved.
const (
	atOp          = 3
	atRequestID   = 4
	atSTag        = 8
	atTO          = 12
	atAddSwap     = 20
	atAddSwapMask = 28
	atCompare     = 36
	atCompareMask = 44

	maskAtomicOp = 0x0f
)

// AtomicRequest asks for an operation on the 8 octets at TO of the peer's
// buffer STag (RFC 7306 section 5.2.1):
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                     Reserved (not used)               |AOpCode|
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                      Request Identifier                       |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                         Remote STag                           |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                     Remote Tagged Offset                      |
//	|                                                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                      Add or Swap Data                         |
//	|                                                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                      Add or Swap Mask                         |
//	|                                                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                        Compare Data                           |
//	|                                                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                        Compare Mask                           |
//	|                                                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
// The values are integers; the responder applies them to its memory in its own
// byte order.
type AtomicRequest struct {
	Op          AtomicOp
	RequestID   uint32 // chosen by the requester, returned with the answer
	STag        uint32
	TO          uint64
	AddSwap     uint64
	AddSwapMask uint64
	Compare     uint64
	CompareMask uint64
}

// FetchAdd returns the request for a plain 64-bit addition. Its add mask is
// zero (no field boundaries), and the two compare fields have the values that
// RFC 7306 section 5.2.1 prescribes where they are not used.
func FetchAdd(id, stag uint32, to, add uint64) AtomicRequest {
	return AtomicRequest{Op: AtomicFetchAdd, RequestID: id, STag: stag, TO: to, AddSwap: add, CompareMask: ^uint64(0)}
}

// CmpSwap returns the request for a plain 64-bit compare-and-swap: both masks
// are all ones.
func CmpSwap(id, stag uint32, to, compare, swap uint64) AtomicRequest {
	return AtomicRequest{Op: AtomicCmpSwap, RequestID: id, STag: stag, TO: to,
		AddSwap: swap, AddSwapMask: ^uint64(0), Compare: compare, CompareMask: ^uint64(0)}
}

// ParseAtomicRequest reads the header at the start of b and returns it with its
// length, or n < 0 if b is too short. An unassigned operation is returned like
// any other, for the responder to refuse (see [AtomicOp.Valid]).
func ParseAtomicRequest(b []byte) (a AtomicRequest, n int) {
	if len(b) < AtomicRequestLen {
		return AtomicRequest{}, -1
	}
	return AtomicRequest{
		Op:          AtomicOp(b[atOp] & maskAtomicOp),
		RequestID:   binary.BigEndian.Uint32(b[atRequestID:]),
		STag:        binary.BigEndian.Uint32(b[atSTag:]),
		TO:          binary.BigEndian.Uint64(b[atTO:]),
		AddSwap:     binary.BigEndian.Uint64(b[atAddSwap:]),
		AddSwapMask: binary.BigEndian.Uint64(b[atAddSwapMask:]),
		Compare:     binary.BigEndian.Uint64(b[atCompare:]),
		CompareMask: binary.BigEndian.Uint64(b[atCompareMask:]),
	}, AtomicRequestLen
}

// AppendAtomicRequest appends a in wire form to b.
func AppendAtomicRequest(b []byte, a AtomicRequest) []byte {
	b = append(b, 0, 0, 0, byte(a.Op)&maskAtomicOp)
	b = binary.BigEndian.AppendUint32(b, a.RequestID)
	b = binary.BigEndian.AppendUint32(b, a.STag)
	b = binary.BigEndian.AppendUint64(b, a.TO)
	b = binary.BigEndian.AppendUint64(b, a.AddSwap)
	b = binary.BigEndian.AppendUint64(b, a.AddSwapMask)
	b = binary.BigEndian.AppendUint64(b, a.Compare)
	return binary.BigEndian.AppendUint64(b, a.CompareMask)
}

// Apply returns the value of the memory after the operation, where original is the value
// before. It returns original for an operation that is not [AtomicOp.Valid].
func (a AtomicRequest) Apply(original uint64) uint64 {
	switch a.Op {
	case AtomicFetchAdd:
		return maskedAdd(original, a.AddSwap, a.AddSwapMask)
	case AtomicCmpSwap:
		if (a.Compare^original)&a.CompareMask != 0 {
			return original
		}
		return original&^a.AddSwapMask | a.AddSwap&a.AddSwapMask
	default:
		return original
	}
}

// maskedAdd adds the fields of x and y independently; each bit of mask is the
// most significant bit of a field, and the carry of a field is dropped (RFC 7306 section
// 5.1.1). The top bits are left out of the addition, so that nothing can carry
// over a boundary, and then added without carry.
func maskedAdd(x, y, mask uint64) uint64 {
	return (x&^mask + y&^mask) ^ (x^y)&mask
}

// Offset of the value in the Atomic Response header.
const arOriginal = 4

// AtomicResponse answers an AtomicRequest with the value that the memory held
// before (RFC 7306 section 5.2.2):
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                  Original Request Identifier                  |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                  Original Remote Data Value                   |
//	|                                                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
type AtomicResponse struct {
	RequestID uint32 // that of the request
	Original  uint64
}

// ParseAtomicResponse reads the header at the start of b and returns it with
// its length, or n < 0 if b is too short. Every content is well-formed.
func ParseAtomicResponse(b []byte) (a AtomicResponse, n int) {
	if len(b) < AtomicResponseLen {
		return AtomicResponse{}, -1
	}
	return AtomicResponse{
		RequestID: binary.BigEndian.Uint32(b),
		Original:  binary.BigEndian.Uint64(b[arOriginal:]),
	}, AtomicResponseLen
}

// AppendAtomicResponse appends a in wire form to b.
func AppendAtomicResponse(b []byte, a AtomicResponse) []byte {
	b = binary.BigEndian.AppendUint32(b, a.RequestID)
	return binary.BigEndian.AppendUint64(b, a.Original)
}
