package rdmap

import (
	"fmt"

	"cinnabar/internal/iwarp/ddp"
)

const (
	// Version is the value of the RV field. RFC 5040 section 4.1 also knows
	// 0, for devices of the RDMA Consortium's older specification, but leaves
	// meeting those to the choice of the MPA version; only revisions 1 and 2
	// of MPA are spoken here, so 0 is refused.
	Version = 1
	// MaxMessage is the length in octets of the longest Send that is
	// accepted: 2 GiB, the greatest length that verbs' 32-bit lengths and
	// max_msg_sz use.
	MaxMessage = 1 << 31
	// Queues is the number of untagged queues, QNSend to QNAtomicResponse.
	Queues = 4
)

// Opcode is the kind of an RDMA message (RFC 5040 figure 4, RFC 7306 figure 2),
// 4 bits.
type Opcode uint8

// The opcodes; 12 to 15 are unassigned.
const (
	OpWrite            Opcode = 0
	OpReadRequest      Opcode = 1
	OpReadResponse     Opcode = 2
	OpSend             Opcode = 3
	OpSendInvalidate   Opcode = 4
	OpSendSE           Opcode = 5
	OpSendSEInvalidate Opcode = 6
	OpTerminate        Opcode = 7
	OpImmediate        Opcode = 8
	OpImmediateSE      Opcode = 9
	OpAtomicRequest    Opcode = 10
	OpAtomicResponse   Opcode = 11
)

// Fields of the control octet; the two bits between are reserved.
const (
	shiftVersion = 6
	maskOpcode   = 0x0f
)

// Control returns the octet that RDMAP puts into the first octet that DDP
// reserves for it: version, two zero bits, opcode (RFC 5040 section 4.1).
func Control(op Opcode) byte { return Version<<shiftVersion | byte(op)&maskOpcode }

// ParseControl splits a control octet. The reserved bits are ignored, as RFC
// 5040 section 4.1 demands.
func ParseControl(b byte) (version uint8, op Opcode) {
	return b >> shiftVersion, Opcode(b & maskOpcode)
}

// Tagged reports whether messages of this kind use the tagged model.
func (op Opcode) Tagged() bool { return op == OpWrite || op == OpReadResponse }

// Queue returns the untagged queue that messages of this kind go to; it has no
// meaning for tagged ones.
func (op Opcode) Queue() uint32 {
	switch op {
	case OpReadRequest, OpAtomicRequest:
		return ddp.QNReadRequest
	case OpTerminate:
		return ddp.QNTerminate
	case OpAtomicResponse:
		return ddp.QNAtomicResponse
	default:
		return ddp.QNSend
	}
}

// Solicited reports whether the message asks for an event at its receiver.
func (op Opcode) Solicited() bool {
	return op == OpSendSE || op == OpSendSEInvalidate || op == OpImmediateSE
}

// Invalidates reports whether the message names an STag to invalidate (in
// [ddp.Header.Rsvd]).
func (op Opcode) Invalidates() bool { return op == OpSendInvalidate || op == OpSendSEInvalidate }

// fixedLen returns the length in octets of messages that have only one (RFC
// 5040 section 4.4, RFC 7306 sections 5.2 and 6.3), else 0.
func (op Opcode) fixedLen() int {
	switch op {
	case OpReadRequest:
		return ReadRequestLen
	case OpAtomicRequest:
		return AtomicRequestLen
	case OpAtomicResponse:
		return AtomicResponseLen
	case OpImmediate, OpImmediateSE:
		return ImmediateLen
	default:
		return 0
	}
}

// maxLen returns the length in octets that an untagged message of this kind
// must not exceed: the size of the buffer it consumes.
func (op Opcode) maxLen() uint32 {
	if n := op.fixedLen(); n > 0 {
		return uint32(n)
	}
	if op == OpTerminate {
		return MaxTerminateLen
	}
	return MaxMessage
}

// String returns the message's name in the words of the RFCs.
func (op Opcode) String() string {
	switch op {
	case OpWrite:
		return "RDMA Write"
	case OpReadRequest:
		return "RDMA Read Request"
	case OpReadResponse:
		return "RDMA Read Response"
	case OpSend:
		return "Send"
	case OpSendInvalidate:
		return "Send with Invalidate"
	case OpSendSE:
		return "Send with SE"
	case OpSendSEInvalidate:
		return "Send with SE and Invalidate"
	case OpTerminate:
		return "Terminate"
	case OpImmediate:
		return "Immediate Data"
	case OpImmediateSE:
		return "Immediate Data with SE"
	case OpAtomicRequest:
		return "Atomic Request"
	case OpAtomicResponse:
		return "Atomic Response"
	default:
		return fmt.Sprintf("opcode %d", uint8(op))
	}
}
