package ddp_test

import (
	"bytes"
	"testing"

	"cinnabar/internal/iwarp/ddp"
)

// One test per rule of RFC 5041 that this package can keep or enforce. The
// index of all rules, with those that the layers around it keep, is in
// ../testdata/rfc5041.index.

const anyLength = ddp.MaxMessage

func wantCode(t *testing.T, err *ddp.Error, typ, code uint8) {
	t.Helper()
	if err == nil {
		t.Fatalf("got no error, want %s: %s", ddp.TypeText(typ), ddp.CodeText(typ, code))
	}
	if err.Type != typ || err.Code != code {
		t.Fatalf("got %v (%d, %d), want type %d, code %d", err, err.Type, err.Code, typ, code)
	}
}

func wantNone(t *testing.T, err *ddp.Error) {
	t.Helper()
	if err != nil {
		t.Fatalf("got %v, want no error", err)
	}
}

// The tagged flag chooses between the two header formats.
func TestRFC5041_4_1_TaggedFlagChoosesModel(t *testing.T) {
	wire := bytes.Repeat([]byte{0x01}, ddp.UntaggedHeaderLen)
	if h, n := ddp.ParseHeader(wire); h.Tagged || n != ddp.UntaggedHeaderLen {
		t.Errorf("T 0: got tagged %t, %d octets", h.Tagged, n)
	}
	wire[0] |= 0x80
	if h, n := ddp.ParseHeader(wire); !h.Tagged || n != ddp.TaggedHeaderLen {
		t.Errorf("T 1: got tagged %t, %d octets", h.Tagged, n)
	}
}

// L is set on the last segment of every message and on no other: it is what
// ends the message, for either model.
func TestRFC5041_4_1_LastEndsMessage(t *testing.T) {
	var q ddp.Queue
	_, err := q.Segment(ddp.Header{MSN: 1}, 8, anyLength)
	wantNone(t, err)
	if !q.Open() {
		t.Error("untagged: L 0 ended the message")
	}
	_, err = q.Segment(ddp.Header{MSN: 1, MO: 8, Last: true}, 8, anyLength)
	wantNone(t, err)
	if q.Open() {
		t.Error("untagged: L 1 did not end the message")
	}
	var m ddp.Tagged
	_, _, err = m.Segment(ddp.Header{Tagged: true}, 8)
	wantNone(t, err)
	if !m.Open() {
		t.Error("tagged: L 0 ended the message")
	}
	_, _, err = m.Segment(ddp.Header{Tagged: true, TO: 8, Last: true}, 8)
	wantNone(t, err)
	if m.Open() {
		t.Error("tagged: L 1 did not end the message")
	}
}

// The segment with L carries the highest MO of its message: nothing of the
// message may follow it.
func TestRFC5041_4_1_LastHasHighestMO(t *testing.T) {
	var q ddp.Queue
	_, err := q.Segment(ddp.Header{MSN: 1, Last: true}, 8, anyLength)
	wantNone(t, err)
	_, err = q.Segment(ddp.Header{MSN: 1, MO: 8, Last: true}, 8, anyLength)
	wantCode(t, err, ddp.TypeUntagged, ddp.CodeMSNRange)
}

// The four reserved bits are zero when sent and not checked when received.
func TestRFC5041_4_1_ReservedBits(t *testing.T) {
	h := ddp.Header{Last: true, Version: 1, ULP: 0x43, MSN: 1}
	wire := ddp.AppendHeader(nil, h)
	if wire[0]&0x3c != 0 {
		t.Errorf("sent %#02x", wire[0])
	}
	wire[0] |= 0x3c
	if got, n := ddp.ParseHeader(wire); n == 0 || got != h {
		t.Errorf("with all reserved bits: got %+v, want %+v", got, h)
	}
}

// DV is 1, in every segment.
func TestRFC5041_4_1_Version(t *testing.T) {
	for version := range uint8(4) {
		tagged := ddp.Header{Tagged: true, Version: version}.CheckVersion()
		untagged := ddp.Header{Version: version}.CheckVersion()
		if version == 1 {
			wantNone(t, tagged)
			wantNone(t, untagged)
			continue
		}
		wantCode(t, tagged, ddp.TypeTagged, ddp.CodeTaggedVersion)
		wantCode(t, untagged, ddp.TypeUntagged, ddp.CodeUntaggedVersion)
	}
}

// The tagged header has the layout of figure 4.
func TestRFC5041_4_2_TaggedHeader(t *testing.T) {
	h := ddp.Header{Tagged: true, Last: true, Version: 1, ULP: 0xaa, STag: 0x01020304, TO: 0x1112131415161718}
	want := unhex(t, "c1aa 01020304 1112131415161718")
	if got := ddp.AppendHeader(nil, h); !bytes.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
}

// RsvdULP goes through unchanged, one octet with tagged segments, five with
// untagged ones.
func TestRFC5041_4_2_RsvdULPUnmodified(t *testing.T) {
	for _, h := range []ddp.Header{
		{Tagged: true, Version: 1, ULP: 0xff, STag: 1},
		{Version: 1, ULP: 0xff, Rsvd: 0xfedcba98, MSN: 1},
	} {
		if got, _ := ddp.ParseHeader(ddp.AppendHeader(nil, h)); got != h {
			t.Errorf("got %+v, want %+v", got, h)
		}
	}
}

// All segments of a tagged message name one STag.
func TestRFC5041_4_2_OneSTagPerMessage(t *testing.T) {
	var m ddp.Tagged
	_, _, err := m.Segment(ddp.Header{Tagged: true, STag: 1}, 8)
	wantNone(t, err)
	_, _, err = m.Segment(ddp.Header{Tagged: true, STag: 2, TO: 8, Last: true}, 8)
	wantCode(t, err, ddp.TypeTagged, ddp.CodeInvalidSTag)
}

// The untagged header has the layout of figure 5.
func TestRFC5041_4_3_UntaggedHeader(t *testing.T) {
	h := ddp.Header{Last: true, Version: 1, ULP: 0xaa, Rsvd: 0x01020304, QN: 0x05060708, MSN: 0x090a0b0c, MO: 0x0d0e0f10}
	want := unhex(t, "41aa 01020304 05060708 090a0b0c 0d0e0f10")
	if got := ddp.AppendHeader(nil, h); !bytes.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
}

// The first message of a queue has MSN 1.
func TestRFC5041_4_3_FirstMSNIsOne(t *testing.T) {
	for _, msn := range []uint32{0, 2} {
		var q ddp.Queue
		_, err := q.Segment(ddp.Header{MSN: msn, Last: true}, 8, anyLength)
		wantCode(t, err, ddp.TypeUntagged, ddp.CodeMSNRange)
	}
	var q ddp.Queue
	_, err := q.Segment(ddp.Header{MSN: 1, Last: true}, 8, anyLength)
	wantNone(t, err)
}

// Each message has an MSN one above its predecessor's. (That 0 follows
// 0xffffffff is in TestQueue.)
func TestRFC5041_4_3_MSNIncreasesByOne(t *testing.T) {
	var q ddp.Queue
	for msn := range uint32(3) {
		_, err := q.Segment(ddp.Header{MSN: msn + 1, Last: true}, 8, anyLength)
		wantNone(t, err)
	}
	_, err := q.Segment(ddp.Header{MSN: 5, Last: true}, 8, anyLength)
	wantCode(t, err, ddp.TypeUntagged, ddp.CodeMSNRange)
}

// All segments of an untagged message have one MSN.
func TestRFC5041_4_3_OneMSNPerMessage(t *testing.T) {
	var q ddp.Queue
	_, err := q.Segment(ddp.Header{MSN: 1}, 8, anyLength)
	wantNone(t, err)
	_, err = q.Segment(ddp.Header{MSN: 2, MO: 8, Last: true}, 8, anyLength)
	wantCode(t, err, ddp.TypeUntagged, ddp.CodeMSNRange)
}

// The first octet of a message has MO 0.
func TestRFC5041_4_3_FirstMOIsZero(t *testing.T) {
	var q ddp.Queue
	_, err := q.Segment(ddp.Header{MSN: 1, MO: 1, Last: true}, 8, anyLength)
	wantCode(t, err, ddp.TypeUntagged, ddp.CodeInvalidMO)
}

// A segment is no larger than the MULPDU; the RFC's two examples, 2048 octets
// at a MULPDU of 1500.
func TestRFC5041_5_2_Segmentation(t *testing.T) {
	const mulpdu, message = 1500, 2048
	tests := []struct {
		h              ddp.Header
		payload, again int
		place          uint64
	}{
		{ddp.Header{Version: 1, MSN: 1}, 1482, 566, 1482},
		{ddp.Header{Version: 1, Tagged: true, TO: 16384}, 1486, 562, 17870},
	}
	for _, test := range tests {
		n := ddp.MaxPayload(mulpdu, test.h.Tagged)
		second := test.h.Advance(n)
		place := uint64(second.MO)
		if test.h.Tagged {
			place = second.TO
		}
		if n != test.payload || message-n != test.again || place != test.place {
			t.Errorf("tagged %t: got %d and %d octets, the second at %d, want %d, %d, %d",
				test.h.Tagged, n, message-n, place, test.payload, test.again, test.place)
		}
		if len(ddp.AppendHeader(nil, test.h))+n != mulpdu {
			t.Errorf("tagged %t: segment of %d octets", test.h.Tagged, len(ddp.AppendHeader(nil, test.h))+n)
		}
	}
}

// A message has fewer than 2^32 octets. (Untagged at the limit is in
// TestQueueLongestMessage, tagged in TestTagged.)
func TestRFC5041_5_2_MessageBelow4GiB(t *testing.T) {
	var q ddp.Queue
	_, err := q.Segment(ddp.Header{MSN: 1, Last: true}, 1<<32, ddp.MaxMessage)
	wantCode(t, err, ddp.TypeUntagged, ddp.CodeTooLong)
	var m ddp.Tagged
	_, _, err = m.Segment(ddp.Header{Tagged: true, Last: true}, 1<<32)
	wantCode(t, err, ddp.TypeTagged, ddp.CodeBaseBounds)
}

// MO is the payload's distance from the start of the message.
func TestRFC5041_5_2_MOIsDistance(t *testing.T) {
	for _, mo := range []uint32{7, 9} {
		var q ddp.Queue
		_, err := q.Segment(ddp.Header{MSN: 1}, 8, anyLength)
		wantNone(t, err)
		_, err = q.Segment(ddp.Header{MSN: 1, MO: mo, Last: true}, 8, anyLength)
		wantCode(t, err, ddp.TypeUntagged, ddp.CodeInvalidMO)
	}
}

// TO is that distance plus the TO of the message's first octet.
func TestRFC5041_5_2_TOIsDistance(t *testing.T) {
	for _, to := range []uint64{0x1007, 0x1009} {
		var m ddp.Tagged
		_, _, err := m.Segment(ddp.Header{Tagged: true, TO: 0x1000}, 8)
		wantNone(t, err)
		_, _, err = m.Segment(ddp.Header{Tagged: true, TO: to, Last: true}, 8)
		wantCode(t, err, ddp.TypeTagged, ddp.CodeBaseBounds)
	}
}

// An empty message is exactly one segment.
func TestRFC5041_5_2_EmptyMessageIsOneSegment(t *testing.T) {
	var q ddp.Queue
	_, err := q.Segment(ddp.Header{MSN: 1}, 0, anyLength)
	wantCode(t, err, ddp.TypeUntagged, ddp.CodeInvalidMO)
	_, err = q.Segment(ddp.Header{MSN: 1, Last: true}, 0, anyLength)
	wantNone(t, err)
	if q.Next() != 2 {
		t.Errorf("got next MSN %d, want 2", q.Next())
	}
	var m ddp.Tagged
	_, _, err = m.Segment(ddp.Header{Tagged: true}, 0)
	wantCode(t, err, ddp.TypeTagged, ddp.CodeBaseBounds)
}

// STag and TO of an empty tagged message are not checked.
func TestRFC5041_5_2_EmptyTaggedUnchecked(t *testing.T) {
	var m ddp.Tagged
	_, first, err := m.Segment(ddp.Header{Tagged: true, Last: true, STag: 0xffffffff, TO: 1<<64 - 1}, 0)
	wantNone(t, err)
	if !first || m.Open() {
		t.Errorf("got first %t, open %t, want true, false", first, m.Open())
	}
}

// Messages are delivered in order, each at most once: a repeated or missing one
// is refused.
func TestRFC5041_5_3_DeliveredOnceInOrder(t *testing.T) {
	for _, msn := range []uint32{1, 3} {
		var q ddp.Queue
		_, err := q.Segment(ddp.Header{MSN: 1, Last: true}, 8, anyLength)
		wantNone(t, err)
		_, err = q.Segment(ddp.Header{MSN: msn, Last: true}, 8, anyLength)
		wantCode(t, err, ddp.TypeUntagged, ddp.CodeMSNRange)
	}
}

// A segment's queue has to exist for the stream.
func TestRFC5041_7_1_QueueNumberValid(t *testing.T) {
	wantNone(t, ddp.Header{QN: 2}.CheckQueue(3))
	wantCode(t, ddp.Header{QN: 3}.CheckQueue(3), ddp.TypeUntagged, ddp.CodeInvalidQN)
	wantCode(t, ddp.Header{QN: 1<<32 - 1}.CheckQueue(3), ddp.TypeUntagged, ddp.CodeInvalidQN)
}

// Payload and MO stay within the buffer.
func TestRFC5041_7_1_LengthWithinBuffer(t *testing.T) {
	const buffer = 28
	var q ddp.Queue
	_, err := q.Segment(ddp.Header{MSN: 1, Last: true}, buffer+1, buffer)
	wantCode(t, err, ddp.TypeUntagged, ddp.CodeTooLong)
	_, err = q.Segment(ddp.Header{MSN: 1}, buffer, buffer)
	wantNone(t, err)
	_, err = q.Segment(ddp.Header{MSN: 1, MO: buffer, Last: true}, 1, buffer)
	wantCode(t, err, ddp.TypeUntagged, ddp.CodeTooLong)
}

// Payload length and TO do not wrap in 64 bits.
func TestRFC5041_7_1_TODoesNotWrap(t *testing.T) {
	var m ddp.Tagged
	_, _, err := m.Segment(ddp.Header{Tagged: true, TO: 1<<64 - 4, Last: true}, 8)
	wantCode(t, err, ddp.TypeTagged, ddp.CodeTOWrap)
}

// The error numbers are those of the table, and no others exist.
func TestRFC5041_7_2_ErrorNumbers(t *testing.T) {
	known := map[uint8][]uint8{
		0x0: {0x00},
		0x1: {0x00, 0x01, 0x02, 0x03, 0x04},
		0x2: {0x01, 0x02, 0x03, 0x04, 0x05, 0x06},
	}
	for typ := range uint8(16) {
		for code := range 256 {
			want := bytes.IndexByte(known[typ], uint8(code)) >= 0
			if got := ddp.KnownCode(typ, uint8(code)); got != want {
				t.Errorf("type %d, code %d: got %t, want %t", typ, code, got, want)
			}
		}
	}
	text := ddp.TypeText(ddp.TypeUntagged) + ", " + ddp.CodeText(ddp.TypeUntagged, ddp.CodeNoBuffer)
	if want := "untagged buffer error, no buffer available for the message"; text != want {
		t.Errorf("got %q, want %q", text, want)
	}
	if got, want := ddp.TypeText(ddp.TypeLLP), "error of the layer below"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
