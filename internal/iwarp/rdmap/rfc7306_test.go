package rdmap_test

import (
	"bytes"
	"testing"

	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/rdmap"
)

// One test per rule of RFC 7306 that this package can keep or enforce. The
// index of all rules, with those that the layers around it keep, is in
// ../testdata/rfc7306.index.

var extensions = []rdmap.Opcode{rdmap.OpImmediate, rdmap.OpImmediateSE, rdmap.OpAtomicRequest, rdmap.OpAtomicResponse}

// The version is 1, and 0 is none for these messages.
func TestRFC7306_4_1_Version(t *testing.T) {
	for _, op := range extensions {
		accept(t, newReceiver(full), whole(op), validLen(op))
		h := whole(op)
		h.ULP &= 0x3f
		refuse(t, newReceiver(full), h, validLen(op), rdmap.TermInvalidVersion)
	}
}

// Opcodes, model and queues are those of figure 2.
func TestRFC7306_4_1_OpcodesAndQueues(t *testing.T) {
	for op, queue := range map[rdmap.Opcode]uint32{8: 0, 9: 0, 10: 1, 11: 3} {
		for qn := range uint32(rdmap.Queues) {
			h := ddp.Header{Last: true, Version: ddp.Version, ULP: rdmap.Control(op), QN: qn, MSN: 1}
			if qn == queue {
				accept(t, newReceiver(full), h, validLen(op))
			} else {
				refuse(t, newReceiver(full), h, validLen(op), rdmap.TermUnexpectedOpcode)
			}
		}
	}
}

// The Invalidate STag is zero when sent and ignored when received.
func TestRFC7306_4_1_InvalidateSTagIgnored(t *testing.T) {
	for _, op := range extensions {
		h := whole(op)
		h.Rsvd = 0xffffffff
		accept(t, newReceiver(full), h, validLen(op))
		if op.Invalidates() {
			t.Errorf("%v invalidates", op)
		}
	}
}

// FetchAdd adds the fields that the mask delimits, each by itself; a mask of
// zero makes it one 64-bit addition.
func TestRFC7306_5_1_1_FetchAdd(t *testing.T) {
	const high = 1 << 63
	tests := []struct{ original, add, mask, want uint64 }{
		{5, 3, 0, 8},
		{1<<64 - 1, 1, 0, 0},
		{1<<64 - 1, 1, high, 0},
		{0x00ff, 0x0001, 0x80, 0x0000},   // an 8-bit field at the bottom drops its carry
		{0x00ff, 0x0001, 0x8000, 0x0100}, // a 16-bit one does not
		{0xffffffffffffffff, 0x0101010101010101, 0x8080808080808080, 0},
		{0x00000001ffffffff, 0x0000000200000001, 0x8000000080000000, 0x0000000300000000},
		{0b0110, 0b0011, ^uint64(0), 0b0101}, // 64 fields of one bit
	}
	for _, test := range tests {
		a := rdmap.AtomicRequest{Op: rdmap.AtomicFetchAdd, AddSwap: test.add, AddSwapMask: test.mask}
		if got := a.Apply(test.original); got != test.want {
			t.Errorf("%#x + %#x, mask %#x: got %#x, want %#x", test.original, test.add, test.mask, got, test.want)
		}
		if got := applyByRFC(a, test.original); got != test.want {
			t.Errorf("%#x + %#x, mask %#x: bit by bit %#x, want %#x", test.original, test.add, test.mask, got, test.want)
		}
	}
}

// CmpSwap compares the bits of one mask and, if they are equal, swaps those of
// the other.
func TestRFC7306_5_1_2_CmpSwap(t *testing.T) {
	all := ^uint64(0)
	tests := []struct{ original, compare, compareMask, swap, swapMask, want uint64 }{
		{5, 5, all, 9, all, 9},
		{6, 5, all, 9, all, 6},
		{0xab05, 0xff05, 0x00ff, 0x1234, all, 0x1234},
		{0xab05, 0xff05, 0x00ff, 0x1234, 0xff00, 0x1205},
		{0xab05, 0xff06, 0x00ff, 0x1234, 0xff00, 0xab05},
		{7, 9, 0, 1, all, 1},
		{7, 7, all, 1, 0, 7},
	}
	for _, test := range tests {
		a := rdmap.AtomicRequest{Op: rdmap.AtomicCmpSwap, AddSwap: test.swap, AddSwapMask: test.swapMask,
			Compare: test.compare, CompareMask: test.compareMask}
		if got := a.Apply(test.original); got != test.want {
			t.Errorf("%+v on %#x: got %#x, want %#x", a, test.original, got, test.want)
		}
	}
}

// Atomic Requests share queue and numbers with Read Requests.
func TestRFC7306_5_2_RequestSharesReadQueue(t *testing.T) {
	if got, want := rdmap.OpAtomicRequest.Queue(), rdmap.OpReadRequest.Queue(); got != want || got != 1 {
		t.Errorf("got queue %d, want %d", got, want)
	}
	r := newReceiver(full)
	accept(t, r, untagged(rdmap.OpReadRequest, 1), rdmap.ReadRequestLen)
	accept(t, r, untagged(rdmap.OpAtomicRequest, 2), rdmap.AtomicRequestLen)
	refuse(t, r, untagged(rdmap.OpReadRequest, 2), rdmap.ReadRequestLen, rdmap.TermDDPMSNRange)
}

// Atomic Responses go to queue 3.
func TestRFC7306_5_2_ResponseQueue(t *testing.T) {
	if got := rdmap.OpAtomicResponse.Queue(); got != 3 {
		t.Errorf("got queue %d, want 3", got)
	}
	accept(t, newReceiver(full), untagged(rdmap.OpAtomicResponse, 1), rdmap.AtomicResponseLen)
}

// The Atomic Request header has the layout of figure 4.
func TestRFC7306_5_2_1_RequestHeader(t *testing.T) {
	g := goldenAtomics[0]
	if got, want := rdmap.AppendAtomicRequest(nil, g.want), unhex(t, g.hex); !bytes.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
}

// Its 28 reserved bits are zero when sent and ignored when received.
func TestRFC7306_5_2_1_ReservedBits(t *testing.T) {
	wire := rdmap.AppendAtomicRequest(nil, rdmap.CmpSwap(1, 2, 3, 4, 5))
	if !bytes.Equal(wire[:4], []byte{0, 0, 0, 2}) {
		t.Errorf("sent %x", wire[:4])
	}
	copy(wire, []byte{0xff, 0xff, 0xff, 0xf2})
	if got, n := rdmap.ParseAtomicRequest(wire); got != rdmap.CmpSwap(1, 2, 3, 4, 5) || n < 0 {
		t.Errorf("with all reserved bits: got %+v, %d", got, n)
	}
}

// The operations are FetchAdd, 0, and CmpSwap, 2; both exist, any other is an
// error to its receiver.
func TestRFC7306_5_2_1_Operations(t *testing.T) {
	for op := range rdmap.AtomicOp(16) {
		if got, want := op.Valid(), op == 0 || op == 2; got != want {
			t.Errorf("operation %d: got %t, want %t", op, got, want)
		}
		if a := (rdmap.AtomicRequest{Op: op, AddSwap: 1}); !op.Valid() && a.Apply(7) != 7 {
			t.Errorf("operation %d changes memory", op)
		}
	}
}

// Fields that an operation does not use have the values of section 5.2.1.
func TestRFC7306_5_2_1_UnusedFields(t *testing.T) {
	if a := rdmap.FetchAdd(1, 2, 8, 3); a.Compare != 0 || a.CompareMask != ^uint64(0) || a.AddSwapMask != 0 {
		t.Errorf("got %+v", a)
	}
}

// An Atomic Request references an untagged buffer.
func TestRFC7306_5_2_1_RequestIsUntagged(t *testing.T) {
	refuse(t, newReceiver(full), tagged(rdmap.OpAtomicRequest), rdmap.AtomicRequestLen, rdmap.TermUnexpectedOpcode)
}

// One Atomic Request takes one untagged buffer, of its own size.
func TestRFC7306_5_2_1_RequestTakesOneBuffer(t *testing.T) {
	r := newReceiver(full)
	accept(t, r, untagged(rdmap.OpAtomicRequest, 1), rdmap.AtomicRequestLen)
	refuse(t, r, untagged(rdmap.OpAtomicRequest, 1), rdmap.AtomicRequestLen, rdmap.TermDDPMSNRange)
	refuse(t, newReceiver(full), untagged(rdmap.OpAtomicRequest, 1), rdmap.AtomicRequestLen+1, rdmap.TermDDPTooLong)
	refuse(t, newReceiver(full), untagged(rdmap.OpAtomicRequest, 1), rdmap.AtomicRequestLen-1, rdmap.TermCatastrophic)
}

// The Atomic Response header has the layout of figure 6.
func TestRFC7306_5_2_2_ResponseHeader(t *testing.T) {
	got := rdmap.AppendAtomicResponse(nil, rdmap.AtomicResponse{RequestID: 0x01020304, Original: 0x1112131415161718})
	if want := unhex(t, goldenAtomicResponse); !bytes.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
}

// An Atomic Response takes an untagged buffer, of its own size.
func TestRFC7306_5_2_2_ResponseTakesOneBuffer(t *testing.T) {
	refuse(t, newReceiver(full), tagged(rdmap.OpAtomicResponse), rdmap.AtomicResponseLen, rdmap.TermUnexpectedOpcode)
	r := newReceiver(full)
	accept(t, r, untagged(rdmap.OpAtomicResponse, 1), rdmap.AtomicResponseLen)
	refuse(t, r, untagged(rdmap.OpAtomicResponse, 1), rdmap.AtomicResponseLen, rdmap.TermDDPMSNRange)
	refuse(t, newReceiver(full), untagged(rdmap.OpAtomicResponse, 1), rdmap.AtomicResponseLen+1, rdmap.TermDDPTooLong)
}

// Immediate Data references an untagged buffer.
func TestRFC7306_6_3_ImmediateIsUntagged(t *testing.T) {
	for _, op := range []rdmap.Opcode{rdmap.OpImmediate, rdmap.OpImmediateSE} {
		refuse(t, newReceiver(full), tagged(op), rdmap.ImmediateLen, rdmap.TermUnexpectedOpcode)
	}
}

// One Immediate Data takes one untagged buffer.
func TestRFC7306_6_3_ImmediateTakesOneBuffer(t *testing.T) {
	r := newReceiver(full)
	accept(t, r, untagged(rdmap.OpImmediate, 1), rdmap.ImmediateLen)
	refuse(t, r, untagged(rdmap.OpImmediateSE, 1), rdmap.ImmediateLen, rdmap.TermDDPMSNRange)
}

// Immediate Data and Sends arrive in the order in which they were sent: they
// share queue 0 and its numbers.
func TestRFC7306_6_3_ImmediateInOrderOnQueue0(t *testing.T) {
	r := newReceiver(full)
	accept(t, r, untagged(rdmap.OpSend, 1), 8)
	accept(t, r, untagged(rdmap.OpImmediate, 2), rdmap.ImmediateLen)
	accept(t, r, untagged(rdmap.OpSend, 3), 8)
	h := untagged(rdmap.OpImmediateSE, 4)
	if h.QN != 0 {
		t.Errorf("got queue %d, want 0", h.QN)
	}
	h.QN = 1
	refuse(t, r, h, rdmap.ImmediateLen, rdmap.TermUnexpectedOpcode)
}

// Immediate Data is exactly 8 octets.
func TestRFC7306_6_3_ImmediateIs8Octets(t *testing.T) {
	for _, op := range []rdmap.Opcode{rdmap.OpImmediate, rdmap.OpImmediateSE} {
		accept(t, newReceiver(full), untagged(op, 1), 8)
		refuse(t, newReceiver(full), untagged(op, 1), 7, rdmap.TermCatastrophic)
		refuse(t, newReceiver(full), untagged(op, 1), 0, rdmap.TermCatastrophic)
		refuse(t, newReceiver(full), untagged(op, 1), 9, rdmap.TermDDPTooLong)
	}
}

// The Terminate for an incoming message of these kinds has the DDP header but
// no RDMAP header, even for a protection error.
func TestRFC7306_8_1_TerminateHasDDPHeaderOnly(t *testing.T) {
	for _, op := range extensions {
		h := whole(op)
		got := rdmap.TermAccess.ForSegment(h, validLen(op))
		if want := ddp.AppendHeader(nil, h); !bytes.Equal(got.DDPHeader, want) || got.HasRDMAP {
			t.Errorf("%v: got %x, RDMAP header %t, want %x", op, got.DDPHeader, got.HasRDMAP, want)
		}
	}
}

// DDP fields and versions are checked for these messages too; the opcodes are
// valid only where the connection has them switched on.
func TestRFC7306_8_2_OpcodeValid(t *testing.T) {
	for _, op := range extensions {
		refuse(t, newReceiver(rdmap.Options{}), whole(op), validLen(op), rdmap.TermUnexpectedOpcode)
	}
	immediates, atomics := rdmap.Options{Immediates: true}, rdmap.Options{Atomics: true}
	accept(t, newReceiver(immediates), whole(rdmap.OpImmediate), rdmap.ImmediateLen)
	accept(t, newReceiver(atomics), whole(rdmap.OpAtomicRequest), rdmap.AtomicRequestLen)
	refuse(t, newReceiver(atomics), whole(rdmap.OpImmediate), rdmap.ImmediateLen, rdmap.TermUnexpectedOpcode)
	refuse(t, newReceiver(immediates), whole(rdmap.OpAtomicRequest), rdmap.AtomicRequestLen, rdmap.TermUnexpectedOpcode)
}

// An address that is not aligned ends the stream with the RDMA layer's remote
// operation error "catastrophic, localized to the stream".
func TestRFC7306_8_2_MisalignedCause(t *testing.T) {
	if c := rdmap.TermCatastrophic; c.Layer() != 0 || c.Type() != 2 || c.Code() != 7 || rdmap.AtomicLen != 8 {
		t.Errorf("got layer %d, type %d, code %d, alignment %d", c.Layer(), c.Type(), c.Code(), rdmap.AtomicLen)
	}
}
