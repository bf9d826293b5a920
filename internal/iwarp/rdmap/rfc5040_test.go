package rdmap_test

import (
	"bytes"
	"testing"

	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/rdmap"
)

// One test per rule of RFC 5040 that this package can keep or enforce. The
// index of all rules, with those that the layers around it keep, is in
// ../testdata/rfc5040.index.

// The control octet is the first that DDP reserves for its user; version,
// reserved bits and opcode have the places of figure 3.
func TestRFC5040_4_1_ControlOctet(t *testing.T) {
	for op := range rdmap.Opcode(16) {
		if got, want := rdmap.Control(op), 0x40|byte(op); got != want {
			t.Errorf("opcode %d: got %#02x, want %#02x", op, got, want)
		}
	}
	if got := ddp.AppendHeader(nil, untagged(rdmap.OpSend, 1))[1]; got != 0x43 {
		t.Errorf("second octet of a Send: got %#02x, want 0x43", got)
	}
}

// The Invalidate STag is in the second to fifth of those octets.
func TestRFC5040_4_1_InvalidateSTag(t *testing.T) {
	for _, op := range []rdmap.Opcode{rdmap.OpSendInvalidate, rdmap.OpSendSEInvalidate} {
		if !op.Invalidates() {
			t.Errorf("%v: does not invalidate", op)
		}
		h, _ := ddp.ParseHeader(unhex(t, "414401020304000000000000000100000000"))
		h.ULP = rdmap.Control(op)
		if s := accept(t, newReceiver(rdmap.Options{}), h, 8); s.Header.Rsvd != 0x01020304 {
			t.Errorf("%v: got STag %#x, want 0x01020304", op, s.Header.Rsvd)
		}
	}
}

// Each opcode has the model and the queue of figure 4, and no other is
// accepted.
func TestRFC5040_4_1_ModelAndQueue(t *testing.T) {
	want := map[rdmap.Opcode]string{
		0: "tagged", 1: "queue 1", 2: "tagged", 3: "queue 0", 4: "queue 0", 5: "queue 0", 6: "queue 0", 7: "queue 2",
	}
	for op, place := range want {
		for _, try := range []struct {
			place string
			h     ddp.Header
		}{
			{"tagged", ddp.Header{Tagged: true}},
			{"queue 0", ddp.Header{QN: 0, MSN: 1}},
			{"queue 1", ddp.Header{QN: 1, MSN: 1}},
			{"queue 2", ddp.Header{QN: 2, MSN: 1}},
		} {
			h := try.h
			h.Last, h.Version, h.ULP = true, ddp.Version, rdmap.Control(op)
			if try.place == place {
				accept(t, newReceiver(full), h, validLen(op))
			} else {
				refuse(t, newReceiver(full), h, validLen(op), rdmap.TermUnexpectedOpcode)
			}
		}
	}
}

// The version is 1. (0 is the RDMA Consortium's; meeting its devices is a
// matter of MPA's version, of which none is spoken that they use.)
func TestRFC5040_4_1_Version(t *testing.T) {
	for version := range byte(4) {
		h := untagged(rdmap.OpSend, 1)
		h.ULP = version<<6 | h.ULP&0x3f
		if version == 1 {
			accept(t, newReceiver(full), h, 8)
		} else {
			refuse(t, newReceiver(full), h, 8, rdmap.TermInvalidVersion)
		}
	}
}

// The two reserved bits are zero when sent, ignored when received.
func TestRFC5040_4_1_ReservedBits(t *testing.T) {
	for _, op := range opcodes {
		if got := rdmap.Control(op) & 0x30; got != 0 {
			t.Errorf("%v: sent %#02x", op, got)
		}
	}
	h := untagged(rdmap.OpSend, 1)
	h.ULP |= 0x30
	accept(t, newReceiver(full), h, 8)
}

// Where there is no Invalidate STag its field is ignored.
func TestRFC5040_4_1_InvalidateSTagIgnored(t *testing.T) {
	for _, op := range []rdmap.Opcode{rdmap.OpSend, rdmap.OpSendSE, rdmap.OpReadRequest, rdmap.OpTerminate} {
		h := untagged(op, 1)
		h.Rsvd = 0xffffffff
		accept(t, newReceiver(full), h, validLen(op))
	}
}

// A Read Request has its header and nothing else.
func TestRFC5040_4_2_ReadRequestCarriesNoData(t *testing.T) {
	h := untagged(rdmap.OpReadRequest, 1)
	refuse(t, newReceiver(full), h, rdmap.ReadRequestLen+1, rdmap.TermDDPTooLong)
	refuse(t, newReceiver(full), h, rdmap.ReadRequestLen-1, rdmap.TermCatastrophic)
}

// A Terminate has its header and nothing else.
func TestRFC5040_4_2_TerminateCarriesNoData(t *testing.T) {
	h := untagged(rdmap.OpTerminate, 1)
	refuse(t, newReceiver(full), h, rdmap.MaxTerminateLen+1, rdmap.TermDDPTooLong)
	refuse(t, newReceiver(full), h, rdmap.MinTerminateLen-1, rdmap.TermCatastrophic)
}

// The Read Request header has the layout of figure 6.
func TestRFC5040_4_4_ReadRequestHeader(t *testing.T) {
	r := rdmap.ReadRequest{
		SinkSTag: 0x01020304, SinkTO: 0x1112131415161718, Size: 0x21222324,
		SourceSTag: 0x31323334, SourceTO: 0x4142434445464748,
	}
	want := unhex(t, "01020304 1112131415161718 21222324 31323334 4142434445464748")
	if got := rdmap.AppendReadRequest(nil, r); !bytes.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
}

// A read is of 0 to 2^32-1 octets: every size is one.
func TestRFC5040_4_4_AnySize(t *testing.T) {
	for _, size := range []uint32{0, 1, 1<<32 - 1} {
		want := rdmap.ReadRequest{Size: size}
		if got, n := rdmap.ParseReadRequest(rdmap.AppendReadRequest(nil, want)); got != want || n < 0 {
			t.Errorf("got %+v, %d, want %+v", got, n, want)
		}
	}
}

// The Terminate header has the layout of figure 7 and the control word that of
// figure 8.
func TestRFC5040_4_8_TerminateHeader(t *testing.T) {
	term := rdmap.Terminate{
		Layer: 1, Type: 2, Code: 0x34, HasLength: true, HasDDP: true, HasRDMAP: true,
		SegmentLength: 0x5678, DDPHeader: bytes.Repeat([]byte{0x0d}, ddp.UntaggedHeaderLen),
		ReadRequest: bytes.Repeat([]byte{0x0f}, rdmap.ReadRequestLen),
	}
	want := unhex(t, "1234 e000 5678 0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d"+
		"0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f")
	if got := rdmap.AppendTerminate(nil, term); !bytes.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
	if len(want) != rdmap.MaxTerminateLen {
		t.Errorf("got %d octets, want %d", len(want), rdmap.MaxTerminateLen)
	}
}

// M, D and R are bits 16, 17 and 18.
func TestRFC5040_4_8_HeaderControlBits(t *testing.T) {
	for _, test := range []struct {
		t    rdmap.Terminate
		want byte
	}{
		{rdmap.Terminate{}, 0},
		{rdmap.Terminate{HasLength: true}, 0x80},
		{rdmap.Terminate{HasDDP: true}, 0x40},
		{rdmap.Terminate{HasRDMAP: true}, 0x20},
	} {
		if got := rdmap.AppendTerminate(nil, test.t)[2]; got != test.want {
			t.Errorf("%+v: got %#02x, want %#02x", test.t, got, test.want)
		}
	}
}

// Layer, type and code are those of figure 9, and all of them have a name.
func TestRFC5040_4_8_Values(t *testing.T) {
	rdma := map[uint8][]uint8{
		1: {0x00, 0x01, 0x02, 0x03, 0x04, 0x09, 0xff},
		2: {0x05, 0x06, 0x07, 0x08, 0x09, 0xff},
	}
	for typ := range uint8(16) {
		for code := range 256 {
			want := typ == 0 || bytes.IndexByte(rdma[typ], uint8(code)) >= 0
			if got := (rdmap.Terminate{Type: typ, Code: uint8(code)}).Cause().Known(); got != want {
				t.Errorf("type %d, code %#02x: got %t, want %t", typ, code, got, want)
			}
		}
	}
}

// The reserved bits are zero when sent, ignored when received.
func TestRFC5040_4_8_ReservedBits(t *testing.T) {
	wire := rdmap.AppendTerminate(nil, rdmap.TermDDPNoBuffer.Terminate())
	if wire[2]&0x1f != 0 || wire[3] != 0 {
		t.Errorf("sent %x", wire)
	}
	wire[2] |= 0x1f
	wire[3] = 0xff
	if got, swapped, n := rdmap.ParseTerminate(wire); got.Cause() != rdmap.TermDDPNoBuffer || swapped || n != len(wire) {
		t.Errorf("with all reserved bits: got %v, swapped %t, %d", got, swapped, n)
	}
}

// The segment length is there whenever the DDP header is, and means something
// if M is set.
func TestRFC5040_4_8_SegmentLength(t *testing.T) {
	for _, test := range []struct {
		flags byte
		want  int // octets
	}{
		{0x00, 4}, {0x80, 6}, {0x40, 6 + ddp.TaggedHeaderLen}, {0xc0, 6 + ddp.TaggedHeaderLen},
	} {
		wire := append([]byte{0x11, 0x01, test.flags, 0, 0x12, 0x34}, ddp.AppendHeader(nil, tagged(rdmap.OpWrite))...)
		got, _, n := rdmap.ParseTerminate(wire)
		if n != test.want || got.HasLength != (test.flags&0x80 != 0) {
			t.Errorf("flags %#02x: got %d octets, valid %t, want %d", test.flags, n, got.HasLength, test.want)
		}
		if n > rdmap.MinTerminateLen && got.SegmentLength != 0x1234 {
			t.Errorf("flags %#02x: got %#x, want 0x1234", test.flags, got.SegmentLength)
		}
	}
}

// The terminated DDP header has 14 octets if tagged, else 18, and is there if D
// is set.
func TestRFC5040_4_8_DDPHeader(t *testing.T) {
	for _, h := range []ddp.Header{tagged(rdmap.OpWrite), untagged(rdmap.OpSend, 1)} {
		term := rdmap.TermDDPCatastrophic.Terminate()
		term.HasDDP, term.DDPHeader = true, ddp.AppendHeader(nil, h)
		wire := rdmap.AppendTerminate(nil, term)
		got, _, n := rdmap.ParseTerminate(wire)
		if n != len(wire) || !bytes.Equal(got.DDPHeader, term.DDPHeader) {
			t.Errorf("got %x, %d, want %x, %d", got.DDPHeader, n, term.DDPHeader, len(wire))
		}
		if _, _, n := rdmap.ParseTerminate(wire[:len(wire)-1]); n >= 0 {
			t.Errorf("one octet short: got %d, want less than 0", n)
		}
	}
}

// The terminated Read Request header has 28 octets and is there if R is set.
func TestRFC5040_4_8_RDMAPHeader(t *testing.T) {
	want := rdmap.ReadRequest{SinkSTag: 1, SinkTO: 2, Size: 3, SourceSTag: 4, SourceTO: 5}
	term := rdmap.TermAccess.ForReadRequest(untagged(rdmap.OpReadRequest, 1), rdmap.ReadRequestLen, want)
	wire := rdmap.AppendTerminate(nil, term)
	got, _, n := rdmap.ParseTerminate(wire)
	if n != len(wire) || len(got.ReadRequest) != rdmap.ReadRequestLen {
		t.Fatalf("got %d octets, header of %d, want %d, %d", n, len(got.ReadRequest), len(wire), rdmap.ReadRequestLen)
	}
	if r, _ := rdmap.ParseReadRequest(got.ReadRequest); r != want {
		t.Errorf("got %+v, want %+v", r, want)
	}
	if _, _, n := rdmap.ParseTerminate(wire[:len(wire)-1]); n >= 0 {
		t.Errorf("one octet short: got %d, want less than 0", n)
	}
}

// Which headers are included depends on layer and type as in figure 10.
func TestRFC5040_4_8_IncludedHeaders(t *testing.T) {
	h := untagged(rdmap.OpReadRequest, 1)
	for _, c := range causes {
		local := c.Layer() == rdmap.LayerLLP || c.Type() == rdmap.TypeLocalCatastrophic
		protection := c.Layer() == rdmap.LayerRDMAP && c.Type() == rdmap.TypeRemoteProtection
		got := c.ForReadRequest(h, rdmap.ReadRequestLen, rdmap.ReadRequest{})
		if got.HasDDP == local || got.HasLength == local || got.HasRDMAP != protection {
			t.Errorf("%v: got DDP header %t, length %t, RDMAP header %t", c, got.HasDDP, got.HasLength, got.HasRDMAP)
		}
		if c.ForSegment(h, rdmap.ReadRequestLen).HasRDMAP {
			t.Errorf("%v: RDMAP header without a Read Request", c)
		}
	}
}

// A Write references a tagged buffer.
func TestRFC5040_5_1_WriteIsTagged(t *testing.T) { testTagged(t, rdmap.OpWrite) }

// One Write writes to one tagged buffer.
func TestRFC5040_5_1_WriteHasOneBuffer(t *testing.T) { testOneTaggedBuffer(t, rdmap.OpWrite) }

// testOneTaggedBuffer changes the buffer in the middle of a message.
func testOneTaggedBuffer(t *testing.T, op rdmap.Opcode) {
	t.Helper()
	r, h := newReceiver(full), tagged(op)
	h.Last = false
	accept(t, r, h, 8)
	h = h.Advance(8)
	h.STag++
	refuse(t, r, h, 8, rdmap.TermDDPInvalidSTag)
}

// testTagged checks that messages of a kind reference a tagged buffer.
func testTagged(t *testing.T, op rdmap.Opcode) {
	t.Helper()
	if !op.Tagged() {
		t.Errorf("%v is not tagged", op)
	}
	refuse(t, newReceiver(full), untagged(op, 1), 8, rdmap.TermUnexpectedOpcode)
}

// A Write may be empty.
func TestRFC5040_5_1_EmptyWrite(t *testing.T) {
	s := accept(t, newReceiver(full), tagged(rdmap.OpWrite), 0)
	if !s.First || !s.Last || s.Payload != 0 {
		t.Errorf("got %+v", s)
	}
}

// A Read Request references an untagged buffer.
func TestRFC5040_5_2_1_ReadRequestIsUntagged(t *testing.T) {
	if rdmap.OpReadRequest.Tagged() {
		t.Error("Read Request is tagged")
	}
	refuse(t, newReceiver(full), tagged(rdmap.OpReadRequest), rdmap.ReadRequestLen, rdmap.TermUnexpectedOpcode)
}

// One Read Request takes one untagged buffer: it is one message, in one
// segment.
func TestRFC5040_5_2_1_ReadRequestTakesOneBuffer(t *testing.T) {
	r := newReceiver(full)
	accept(t, r, untagged(rdmap.OpReadRequest, 1), rdmap.ReadRequestLen)
	refuse(t, r, untagged(rdmap.OpReadRequest, 1), rdmap.ReadRequestLen, rdmap.TermDDPMSNRange)
	h := untagged(rdmap.OpReadRequest, 1)
	h.Last = false
	refuse(t, newReceiver(full), h, rdmap.ReadRequestLen, rdmap.TermCatastrophic)
}

// Read Requests go to queue 1.
func TestRFC5040_5_2_1_ReadRequestQueue(t *testing.T) {
	if got := rdmap.OpReadRequest.Queue(); got != 1 {
		t.Errorf("got queue %d, want 1", got)
	}
	h := untagged(rdmap.OpReadRequest, 1)
	h.QN = 0
	refuse(t, newReceiver(full), h, rdmap.ReadRequestLen, rdmap.TermUnexpectedOpcode)
}

// A Read Response references a tagged buffer.
func TestRFC5040_5_2_2_ReadResponseIsTagged(t *testing.T) { testTagged(t, rdmap.OpReadResponse) }

// One Read Response writes to one tagged buffer.
func TestRFC5040_5_2_2_ReadResponseHasOneBuffer(t *testing.T) {
	testOneTaggedBuffer(t, rdmap.OpReadResponse)
}

// Sends of all types reference an untagged buffer.
func TestRFC5040_5_3_SendIsUntagged(t *testing.T) {
	for _, op := range sends {
		if op.Tagged() {
			t.Errorf("%v is tagged", op)
		}
		refuse(t, newReceiver(full), tagged(op), 8, rdmap.TermUnexpectedOpcode)
	}
}

// One Send takes one untagged buffer, whatever its type.
func TestRFC5040_5_3_SendTakesOneBuffer(t *testing.T) {
	r := newReceiver(full)
	for i, op := range sends {
		accept(t, r, untagged(op, uint32(i)+1), 8)
	}
	refuse(t, r, untagged(rdmap.OpSend, uint32(len(sends))), 8, rdmap.TermDDPMSNRange)
}

// Sends arrive in the order in which they were sent.
func TestRFC5040_5_3_SendsInOrder(t *testing.T) {
	r := newReceiver(full)
	accept(t, r, untagged(rdmap.OpSend, 1), 8)
	refuse(t, r, untagged(rdmap.OpSend, 3), 8, rdmap.TermDDPMSNRange)
}

// Sends go to queue 0.
func TestRFC5040_5_3_SendQueue(t *testing.T) {
	for _, op := range sends {
		if got := op.Queue(); got != 0 {
			t.Errorf("%v: got queue %d, want 0", op, got)
		}
		h := untagged(op, 1)
		h.QN = 1
		refuse(t, newReceiver(full), h, 8, rdmap.TermUnexpectedOpcode)
	}
}

// An empty Send takes a buffer like any other.
func TestRFC5040_5_3_EmptySendTakesOneBuffer(t *testing.T) {
	r := newReceiver(full)
	accept(t, r, untagged(rdmap.OpSend, 1), 0)
	accept(t, r, untagged(rdmap.OpSend, 2), 0)
	refuse(t, r, untagged(rdmap.OpSend, 2), 0, rdmap.TermDDPMSNRange)
}

// A Terminate references an untagged buffer.
func TestRFC5040_5_4_TerminateIsUntagged(t *testing.T) {
	if rdmap.OpTerminate.Tagged() {
		t.Error("Terminate is tagged")
	}
	refuse(t, newReceiver(full), tagged(rdmap.OpTerminate), rdmap.MinTerminateLen, rdmap.TermUnexpectedOpcode)
}

// Terminates go to queue 2.
func TestRFC5040_5_4_TerminateQueue(t *testing.T) {
	if got := rdmap.OpTerminate.Queue(); got != 2 {
		t.Errorf("got queue %d, want 2", got)
	}
	h := untagged(rdmap.OpTerminate, 1)
	h.QN = 0
	refuse(t, newReceiver(full), h, rdmap.MinTerminateLen, rdmap.TermUnexpectedOpcode)
}

// A stream has one Terminate, which finds its place whatever else is under way.
func TestRFC5040_5_4_OneTerminate(t *testing.T) {
	r, send, write := newReceiver(full), untagged(rdmap.OpSend, 1), tagged(rdmap.OpWrite)
	send.Last, write.Last = false, false
	accept(t, r, send, 8)
	accept(t, r, write, 8)
	accept(t, r, untagged(rdmap.OpTerminate, 1), rdmap.MaxTerminateLen)
	refuse(t, r, untagged(rdmap.OpTerminate, 2), rdmap.MinTerminateLen, rdmap.TermUnexpectedOpcode)
}

// After a Terminate its sender sends nothing.
func TestRFC5040_5_4_NothingAfterTerminate(t *testing.T) {
	for _, op := range opcodes {
		r, h := newReceiver(full), whole(op)
		accept(t, r, untagged(rdmap.OpTerminate, 1), rdmap.MinTerminateLen)
		refuse(t, r, h, validLen(op), rdmap.TermUnexpectedOpcode)
	}
}

// Rule 1: the Terminate for an error that no incoming message caused has no
// headers.
func TestRFC5040_7_1_LocalErrorHasNoHeaders(t *testing.T) {
	for _, c := range causes {
		wire := rdmap.AppendTerminate(nil, c.Terminate())
		if want := []byte{byte(c >> 8), byte(c), 0, 0}; !bytes.Equal(wire, want) {
			t.Errorf("%v: got %x, want %x", c, wire, want)
		}
	}
}

// Rule 2: that for an incoming message other than a Read Request has the
// segment's length and header.
func TestRFC5040_7_1_MessageErrorHasDDPHeader(t *testing.T) {
	for _, h := range []ddp.Header{tagged(rdmap.OpWrite), tagged(rdmap.OpReadResponse), untagged(rdmap.OpSend, 3)} {
		got := rdmap.TermUnexpectedOpcode.ForSegment(h, 100)
		if want := ddp.AppendHeader(nil, h); !bytes.Equal(got.DDPHeader, want) {
			t.Errorf("got %x, want %x", got.DDPHeader, want)
		}
		if want := h.Len() + 100; !got.HasLength || int(got.SegmentLength) != want || got.HasRDMAP {
			t.Errorf("got length %d, %t, RDMAP header %t, want %d", got.SegmentLength, got.HasLength, got.HasRDMAP, want)
		}
	}
}

// Rule 3: that for a Read Request has its RDMAP header too.
func TestRFC5040_7_1_ReadRequestErrorHasRDMAPHeader(t *testing.T) {
	r := rdmap.ReadRequest{SinkSTag: 1, SinkTO: 2, Size: 3, SourceSTag: 4, SourceTO: 5}
	got := rdmap.TermBaseBounds.ForReadRequest(untagged(rdmap.OpReadRequest, 1), rdmap.ReadRequestLen, r)
	if want := rdmap.AppendReadRequest(nil, r); !got.HasDDP || !bytes.Equal(got.ReadRequest, want) {
		t.Errorf("got %t, %x, want %x", got.HasDDP, got.ReadRequest, want)
	}
}

// Rule 4: of several errors the first is reported.
func TestRFC5040_7_1_FirstErrorIsReported(t *testing.T) {
	r := newReceiver(full)
	first := refusal(t, r, untagged(rdmap.OpSend, 9), 8, rdmap.TermDDPMSNRange)
	if again := refusal(t, r, whole(12), 8, rdmap.TermDDPMSNRange); again != first {
		t.Errorf("got %v, want %v", again, first)
	}
}

// The DDP fields of a segment are checked, for every message.
func TestRFC5040_7_2_DDPFieldsValid(t *testing.T) {
	for _, op := range opcodes {
		h := whole(op)
		h.Version = 2
		want := rdmap.TermDDPUntaggedVersion
		if op.Tagged() {
			want = rdmap.TermDDPTaggedVersion
		}
		refuse(t, newReceiver(full), h, validLen(op), want)
		if op.Tagged() {
			continue
		}
		h = whole(op)
		h.QN = 4
		refuse(t, newReceiver(full), h, validLen(op), rdmap.TermDDPInvalidQN)
		h = whole(op)
		h.MO = 4
		refuse(t, newReceiver(full), h, validLen(op), rdmap.TermDDPInvalidMO)
	}
}

// The opcode is an assigned one.
func TestRFC5040_7_2_OpcodeValid(t *testing.T) {
	for op := rdmap.Opcode(8); op < 16; op++ {
		refuse(t, newReceiver(rdmap.Options{}), whole(op), 8, rdmap.TermUnexpectedOpcode)
	}
}

// The version is the one spoken here, for every message.
func TestRFC5040_7_2_VersionValid(t *testing.T) {
	for _, op := range opcodes {
		h := whole(op)
		h.ULP ^= 0xc0
		refuse(t, newReceiver(full), h, validLen(op), rdmap.TermInvalidVersion)
	}
}

// Rule 4e: source offset and size of a read do not wrap.
func TestRFC5040_7_2_SourceDoesNotWrap(t *testing.T) {
	if r := (rdmap.ReadRequest{SourceTO: 1<<64 - 4, Size: 8}); !r.Wraps() {
		t.Errorf("%+v does not wrap", r)
	}
	if r := (rdmap.ReadRequest{SourceTO: 1<<64 - 4}); r.Wraps() {
		t.Errorf("%+v wraps", r)
	}
}
