package rdmap_test

import (
	"encoding/hex"
	"strings"
	"testing"

	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/rdmap"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// full switches RFC 7306 on.
var full = rdmap.Options{Immediates: true, Atomics: true}

func newReceiver(o rdmap.Options) *rdmap.Receiver {
	r := new(rdmap.Receiver)
	r.Init(o)
	return r
}

// untagged is the header of a whole message of its kind on its queue.
func untagged(op rdmap.Opcode, msn uint32) ddp.Header {
	return ddp.Header{Last: true, Version: ddp.Version, ULP: rdmap.Control(op), QN: op.Queue(), MSN: msn}
}

// tagged is the header of a whole message of its kind to STag 5, offset 0.
func tagged(op rdmap.Opcode) ddp.Header {
	return ddp.Header{Tagged: true, Last: true, Version: ddp.Version, ULP: rdmap.Control(op), STag: 5}
}

// whole is the header of a whole message of its kind, the first of its queue.
func whole(op rdmap.Opcode) ddp.Header {
	if op.Tagged() {
		return tagged(op)
	}
	return untagged(op, 1)
}

// validLen is a length in octets that messages of the kind may have.
func validLen(op rdmap.Opcode) int {
	switch op {
	case rdmap.OpReadRequest:
		return rdmap.ReadRequestLen
	case rdmap.OpTerminate:
		return rdmap.MinTerminateLen
	case rdmap.OpAtomicRequest:
		return rdmap.AtomicRequestLen
	case rdmap.OpAtomicResponse:
		return rdmap.AtomicResponseLen
	case rdmap.OpImmediate, rdmap.OpImmediateSE:
		return rdmap.ImmediateLen
	default:
		return 100
	}
}

func accept(t *testing.T, r *rdmap.Receiver, h ddp.Header, payload int) rdmap.Segment {
	t.Helper()
	s, term := r.Segment(h, payload)
	if term != nil {
		t.Fatalf("%+v with %d octets: refused: %v", h, payload, *term)
	}
	return s
}

func refuse(t *testing.T, r *rdmap.Receiver, h ddp.Header, payload int, want rdmap.Cause) {
	t.Helper()
	_ = refusal(t, r, h, payload, want) // it has checked the answer
}

// refusal is refuse with the answer.
func refusal(t *testing.T, r *rdmap.Receiver, h ddp.Header, payload int, want rdmap.Cause) *rdmap.Terminate {
	t.Helper()
	s, term := r.Segment(h, payload)
	if term == nil {
		t.Fatalf("%+v with %d octets: accepted as %+v, want %v", h, payload, s, want)
	}
	if term.Cause() != want {
		t.Fatalf("%+v with %d octets: got %v, want %v", h, payload, *term, want)
	}
	return term
}

// opcodes are all that are assigned.
var opcodes = []rdmap.Opcode{
	rdmap.OpWrite, rdmap.OpReadRequest, rdmap.OpReadResponse, rdmap.OpSend, rdmap.OpSendInvalidate,
	rdmap.OpSendSE, rdmap.OpSendSEInvalidate, rdmap.OpTerminate, rdmap.OpImmediate, rdmap.OpImmediateSE,
	rdmap.OpAtomicRequest, rdmap.OpAtomicResponse,
}

var sends = []rdmap.Opcode{rdmap.OpSend, rdmap.OpSendInvalidate, rdmap.OpSendSE, rdmap.OpSendSEInvalidate}

// causes are all that are assigned.
var causes = []rdmap.Cause{
	rdmap.TermLocalCatastrophic, rdmap.TermInvalidSTag, rdmap.TermBaseBounds, rdmap.TermAccess,
	rdmap.TermSTagNotAssociated, rdmap.TermTOWrap, rdmap.TermCannotInvalidate, rdmap.TermProtectionUnspecified,
	rdmap.TermInvalidVersion, rdmap.TermUnexpectedOpcode, rdmap.TermCatastrophic, rdmap.TermCatastrophicGlobal,
	rdmap.TermOpCannotInvalidate, rdmap.TermOperationUnspecified,
	rdmap.TermDDPCatastrophic, rdmap.TermDDPInvalidSTag, rdmap.TermDDPBaseBounds, rdmap.TermDDPSTagNotAssociated,
	rdmap.TermDDPTOWrap, rdmap.TermDDPTaggedVersion, rdmap.TermDDPInvalidQN, rdmap.TermDDPNoBuffer,
	rdmap.TermDDPMSNRange, rdmap.TermDDPInvalidMO, rdmap.TermDDPTooLong, rdmap.TermDDPUntaggedVersion,
	rdmap.TermMPAClosed, rdmap.TermMPACRC, rdmap.TermMPAMarker, rdmap.TermMPARequest,
	rdmap.TermMPACatastrophic, rdmap.TermMPAInsufficientIRD, rdmap.TermMPANoRTR,
}
