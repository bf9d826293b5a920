package mpa

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// rfc5044 indexes the MUSTs of RFC 5044, in its order.
var rfc5044 = []rule{
	{"3", "exactly one ULPDU in one FPDU", "TestRFC5044_3_OneULPDUInOneFPDU"},
	{"3", "DDP is told the MULPDU, which lies between 128 and 64768 octets", "TestRFC5044_3_MULPDURange"},
	{"3", "DDP posts no ULPDU above 64768 octets", "device: segments to MULPDU, which is below"},
	{"3", "a validated ULPDU is passed up with its length", "TestRFC5044_4_3_BoundariesKept"},
	{"3", "DDP is told the negotiated version", "TestRFC5044_3_VersionReported"},
	{"4.1", "all FPDUs have the form of figure 2", "TestRFC5044_4_1_Format"},
	{"4.1", "the pad is sent as zero and ignored on receipt but for the CRC", "TestRFC5044_4_1_Pad"},
	{"4.1", "with CRCs off the CRC field is there and not checked", "TestRFC5044_4_1_CRCOff"},
	{"4.2", "form of a marker", "not done: markers are refused in set-up, see 7.1.1"},
	{"4.3", "every sender can generate markers; place and value of markers", "not done: markers are refused in set-up, see 7.1.1"},
	{"4.3", "ULPDU boundaries are preserved; DDP gets the ULPDU without header and CRC", "TestRFC5044_4_3_BoundariesKept"},
	{"4.4", "CRCs are implemented; the polynomial and octet order of iSCSI", "TestRFC5044_4_4_CRC32C"},
	{"4.4", "CRCs are the default", "device: its configuration says \"no CRC\", not \"CRC\""},
	{"4.4", "the process is invisible to the user", "kept by construction: private data and ULPDUs are the same either way"},
	{"4.4", "a peer that requires CRCs gets them until the connection ends", "TestRFC5044_4_4_EitherRequires"},
	{"4.4", "if neither end requires CRCs, checking is turned off", "TestRFC5044_4_4_EitherRequires"},
	{"4.4", "the CRC covers ULPDU_Length to the last octet of the pad", "TestRFC5044_4_4_Coverage"},
	{"4.4", "the receiver computes the CRC likewise; a mismatch makes the FPDU invalid", "TestRFC5044_4_4_Mismatch"},
	{"4.5", "MULPDU = EMSS - (6 + EMSS mod 4) without markers", "TestRFC5044_4_5_MULPDU"},
	{"4.5", "MULPDU with markers", "not done: markers are refused in set-up, see 7.1.1"},
	{"4.5", "MULPDU never shrinks below 128", "TestRFC5044_3_MULPDURange"},
	{"5.2", "FPDU boundaries are found by ULPDU_Length", "TestRFC5044_5_2_BoundariesByLength"},
	{"6", "an FPDU is located and its CRC verified before its ULPDU is passed on", "TestRFC5044_6_VerifiedBeforePassed"},
	{"6", "ULPDU_Length tells whether the FPDU is all there", "TestRFC5044_6_WholeBeforePassed"},
	{"7.1", "both directions enter full operation at the same place of the stream", "device: right behind the two frames"},
	{"7.1", "a DDP endpoint is bound when full operation begins", "device: the queue pair is bound before"},
	{"7.1.1", "initiator and responder send their own key", "TestRFC5044_7_1_1_KeySent"},
	{"7.1.1", "initiator and responder check the other's key", "TestRFC5044_7_1_1_KeyChecked"},
	{"7.1.1", "M=0: no markers towards that end; M=1: markers", "TestRFC5044_7_1_1_Markers"},
	{"7.1.1", "C=0 in both frames: no checking; C=1 in either: generated and checked by both", "TestRFC5044_4_4_EitherRequires"},
	{"7.1.1", "R is zero and not checked in a request, rejects in a reply", "TestRFC5044_7_1_1_Reject"},
	{"7.1.1", "reserved bits are sent as zero and not checked", "TestRFC5044_7_1_1_Reserved"},
	{"7.1.1", "the revision is checked; one that cannot be worked with closes the connection", "TestRFC5044_7_1_1_Revision"},
	{"7.1.1", "PD_Length is the length of the private data, which has 0 to 512 octets", "TestRFC5044_7_1_1_PDLength"},
	{"7.1.2 rule 1", "the initiator sends a valid request", "TestRFC5044_7_1_2_ValidRequest"},
	{"7.1.2 rule 2", "the responder waits for a valid request; it closes on a malformed one", "TestRFC5044_7_1_2_ResponderValidates"},
	{"7.1.2 rule 2", "after a rejection MPA is left and TCP stays open", "device: it closes, as its user would have to"},
	{"7.1.2 rule 3", "the initiator waits for a valid reply; it closes on a malformed one", "TestRFC5044_7_1_2_InitiatorValidates"},
	{"7.1.2 rule 3", "after a rejection MPA is left and TCP stays open", "device: it closes, as its user would have to"},
	{"7.1.2 rule 4", "the responder receives an FPDU before it sends one", "device: sends are queued until the first FPDU"},
	{"7.1.2 rule 5", "a wrong key closes the connection with an error", "TestRFC5044_7_1_1_KeyChecked"},
	{"7.1.2 rule 8", "two initiators are told from each other by the key", "TestRFC5044_7_1_2_TwoInitiators"},
	{"7.1.2 rule 9", "PD_Length is validated, the buffer is large enough", "TestRFC5044_7_1_1_PDLength"},
	{"7.1.5", "TCP's own rules are followed when stacks are switched", "not applicable: there is one stack"},
	{"8", "errors 1 to 4 are detected", "TestRFC5044_8_Codes"},
	{"8", "after error 4 TCP is closed at once", "device: when the code does not Terminate"},
	{"8", "after an error no FPDU is passed on", "TestRFC5044_8_NothingAfterAnError"},
	{"8", "after errors 2 and 3 it is not MPA that closes TCP", "kept by construction: there is no socket here"},
	{"9.3, 9.4", "IPsec is implemented", "not applicable: it is the host's, below its TCP"},
	{"A.4", "a receiver does not rely on FPDUs beginning with TCP segments", "TestRFC5044_5_2_BoundariesByLength"},
}

func TestRFC5044_Index(t *testing.T) { checkIndex(t, "rfc5044_test.go", "TestRFC5044_", rfc5044) }

// Section 3: each FPDU carries exactly one ULPDU, so each ULPDU given is one FPDU, and comes out as one.
func TestRFC5044_3_OneULPDUInOneFPDU(t *testing.T) {
	want := [][]byte{{1}, {2, 2}, bytes.Repeat([]byte{3}, 1442)}
	var stream []byte
	for _, u := range want {
		before := len(stream)
		stream = appendFPDU(stream, u, true)
		if got := len(stream) - before; got != FPDULen(len(u)) {
			t.Errorf("%d octets for a ULPDU of %d, want one FPDU of %d", got, len(u), FPDULen(len(u)))
		}
	}
	f := Framer{CRC: true}
	deliver, got := collect()
	if err := f.Feed(stream, deliver); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(*got, want); diff != "" {
		t.Errorf("ULPDUs (-got +want):\n%s", diff)
	}
}

// Section 3 and 4.5: MULPDU is never below 128 nor above 64768, whatever the segment size.
func TestRFC5044_3_MULPDURange(t *testing.T) {
	for mss := -10; mss < 70000; mss++ {
		if got := MULPDU(mss); got < 128 || got > 64768 {
			t.Fatalf("MULPDU(%d) = %d, want 128 to 64768", mss, got)
		}
	}
}

// Section 3: DDP learns which version was negotiated.
func TestRFC5044_3_VersionReported(t *testing.T) {
	for _, revision := range []uint8{Revision1, Revision2} {
		l := Local{Revision: revision}
		req, err := Request(l)
		if err != nil {
			t.Fatal(err)
		}
		reply, passive, err := Respond(req, Local{Revision: Revision2})
		if err != nil {
			t.Fatal(err)
		}
		active, err := Finish(req, reply, l)
		if err != nil || active.Revision != revision || passive.Revision != revision {
			t.Errorf("revisions %d and %d, err %v, want %d", active.Revision, passive.Revision, err, revision)
		}
	}
}

// Section 4.1: length in network order, ULPDU, 0 to 3 octets of pad up to a multiple of four, CRC.
func TestRFC5044_4_1_Format(t *testing.T) {
	for n := 1; n < 300; n++ {
		ulpdu := bytes.Repeat([]byte{0xee}, n)
		fpdu := appendFPDU(nil, ulpdu, true)
		if len(fpdu)%4 != 0 || len(fpdu)-n < 6 || len(fpdu)-n > 9 {
			t.Errorf("FPDU of %d octets for a ULPDU of %d", len(fpdu), n)
		}
		if got := int(binary.BigEndian.Uint16(fpdu)); got != n || !bytes.Equal(fpdu[2:2+n], ulpdu) {
			t.Errorf("length field %d, want %d with the ULPDU behind it", got, n)
		}
	}
}

// Section 4.1: the pad is zero as sent; as received it only counts for the CRC.
func TestRFC5044_4_1_Pad(t *testing.T) {
	fpdu := appendFPDU(nil, []byte("x"), true)
	if fpdu[3] != 0 {
		t.Errorf("pad = %#x, want 0", fpdu[3])
	}
	fpdu[3] = 0x77
	binary.LittleEndian.PutUint32(fpdu[4:], Update(0, fpdu[:4]))
	f := Framer{CRC: true}
	deliver, got := collect()
	if err := f.Feed(fpdu, deliver); err != nil || len(*got) != 1 {
		t.Errorf("a pad that is not zero, with its CRC: %d ULPDUs, %v, want it taken", len(*got), err)
	}
}

// Section 4.1: without CRCs the field is still there and may hold anything.
func TestRFC5044_4_1_CRCOff(t *testing.T) {
	fpdu := appendFPDU(nil, []byte("abcdef"), false)
	if got := fpdu[8:]; !bytes.Equal(got, make([]byte, 4)) {
		t.Errorf("CRC field = %x, want four zero octets", got)
	}
	copy(fpdu[8:], "junk")
	var f Framer
	deliver, got := collect()
	if err := f.Feed(fpdu, deliver); err != nil || len(*got) != 1 {
		t.Errorf("%d ULPDUs, %v, want the CRC field ignored", len(*got), err)
	}
}

// Section 4.3 and 3: what DDP gets is each ULPDU with its length, without header, pad and CRC.
func TestRFC5044_4_3_BoundariesKept(t *testing.T) {
	want := [][]byte{[]byte("a"), []byte("bc"), []byte("def"), []byte("ghij")}
	var stream []byte
	for _, u := range want {
		stream = appendFPDU(stream, u, true)
	}
	f := Framer{CRC: true}
	deliver, got := collect()
	for _, b := range stream {
		if err := f.Feed([]byte{b}, deliver); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(*got, want); diff != "" {
		t.Errorf("ULPDUs (-got +want):\n%s", diff)
	}
}

// Section 4.4: CRC32C as in iSCSI, by the RFC's own two examples.
func TestRFC5044_4_4_CRC32C(t *testing.T) {
	for _, c := range loadGolden(t, "rfc5044.hex") {
		covered, field := c.segments[0].data, c.segments[1].data
		got := binary.LittleEndian.AppendUint32(nil, Update(0, covered))
		if !bytes.Equal(got, field) {
			t.Errorf("%s: CRC %x, want %x", c.name, got, field)
		}
		if n := len(covered) - HeaderLen; !bytes.Equal(AppendTrailer(nil, n, Update(0, covered), true), field) ||
			!CheckTrailer(field, n, Update(0, covered)) {
			t.Errorf("%s: the trailer functions disagree with %x", c.name, field)
		}
	}
}

// Section 4.4 and 7.1.1: C in either frame turns CRCs on at both ends; without it both turn them off.
func TestRFC5044_4_4_EitherRequires(t *testing.T) {
	for _, tc := range []struct{ active, passive, want bool }{
		{false, false, false}, {false, true, true}, {true, false, true}, {true, true, true},
	} {
		l := Local{Revision: 1, CRC: tc.active}
		req, err := Request(l)
		if err != nil {
			t.Fatal(err)
		}
		reply, passive, err := Respond(req, Local{Revision: 1, CRC: tc.passive})
		if err != nil {
			t.Fatal(err)
		}
		if passive.CRC != tc.want {
			t.Errorf("%+v: passive side has %t", tc, passive.CRC)
		}
		for _, c := range []bool{reply.CRC, tc.passive} { // ours, and a responder that states only its own wish
			reply.CRC = c
			if active, err := Finish(req, reply, l); err != nil || active.CRC != tc.want {
				t.Errorf("%+v with C=%t: active side has %t, err %v", tc, c, active.CRC, err)
			}
		}
	}
}

// Section 4.4: every octet from ULPDU_Length to the last of the pad is covered.
func TestRFC5044_4_4_Coverage(t *testing.T) {
	fpdu := appendFPDU(nil, []byte("12345"), true)
	end := len(fpdu) - CRCLen
	want := Update(0, fpdu[:end])
	if got := binary.LittleEndian.Uint32(fpdu[end:]); got != want {
		t.Errorf("CRC %08x, want %08x over the first %d octets", got, want, end)
	}
	for i := range end {
		bad := bytes.Clone(fpdu)
		bad[i] ^= 1
		if Update(0, bad[:end]) == want {
			t.Errorf("octet %d is not covered", i)
		}
	}
}

// Section 4.4: a CRC that is not that of the contents makes the FPDU invalid, each single bit of it.
func TestRFC5044_4_4_Mismatch(t *testing.T) {
	fpdu := appendFPDU(nil, []byte("payload"), true)
	for bit := range 8 * (len(fpdu) - HeaderLen) {
		bad := bytes.Clone(fpdu)
		bad[HeaderLen+bit/8] ^= 1 << (bit % 8)
		f := Framer{CRC: true}
		deliver, got := collect()
		wantError(t, f.Feed(bad, deliver), CodeCRC)
		if len(*got) != 0 {
			t.Errorf("bit %d: the ULPDU was delivered", bit)
		}
	}
}

// Section 4.5: the formula without markers, and that it is right: the FPDU of a MULPDU fits the segment, and
// of an aligned segment it fills all.
func TestRFC5044_4_5_MULPDU(t *testing.T) {
	for mss := 140; mss < 64774; mss++ {
		got, want := MULPDU(mss), mss-(6+mss%4)
		if got != want {
			t.Fatalf("MULPDU(%d) = %d, want %d", mss, got, want)
		}
		if n := FPDULen(got); n != mss-mss%4 {
			t.Fatalf("FPDU of %d octets in a segment of %d", n, mss)
		}
	}
}

// Section 5.2 and A.4: only ULPDU_Length finds the next FPDU; where TCP cut its segments does not matter.
func TestRFC5044_5_2_BoundariesByLength(t *testing.T) {
	want := [][]byte{[]byte("first one"), []byte("second"), []byte("the third one")}
	var stream []byte
	for _, u := range want {
		stream = appendFPDU(stream, u, true)
	}
	for i := range stream {
		for j := i; j < len(stream); j++ {
			f := Framer{CRC: true}
			deliver, got := collect()
			for _, piece := range [][]byte{stream[:i], stream[i:j], stream[j:]} {
				if err := f.Feed(piece, deliver); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(*got, want); diff != "" {
				t.Fatalf("cut at %d and %d (-got +want):\n%s", i, j, diff)
			}
		}
	}
}

// Section 6: the ULPDU of an FPDU with a wrong CRC is not passed on, nor any behind it.
func TestRFC5044_6_VerifiedBeforePassed(t *testing.T) {
	stream := appendFPDU(nil, []byte("good"), true)
	stream = appendFPDU(stream, []byte("bad"), true)
	stream[len(stream)-1] ^= 0x80
	stream = appendFPDU(stream, []byte("good"), true)
	f := Framer{CRC: true}
	deliver, got := collect()
	wantError(t, f.Feed(stream, deliver), CodeCRC)
	if diff := cmp.Diff(*got, [][]byte{[]byte("good")}); diff != "" {
		t.Errorf("ULPDUs (-got +want):\n%s", diff)
	}
}

// Section 6: nothing is passed on before the last octet has come, CRC or not.
func TestRFC5044_6_WholeBeforePassed(t *testing.T) {
	for _, crc := range []bool{false, true} {
		fpdu := appendFPDU(nil, []byte("ulpdu"), crc)
		f := Framer{CRC: crc}
		deliver, got := collect()
		for i, b := range fpdu {
			if err := f.Feed([]byte{b}, deliver); err != nil {
				t.Fatal(err)
			}
			if want := i == len(fpdu)-1; (len(*got) == 1) != want {
				t.Errorf("CRC %t: %d ULPDUs after octet %d of %d", crc, len(*got), i+1, len(fpdu))
			}
		}
	}
}

// Section 7.1.1: the sixteen octets of each key.
func TestRFC5044_7_1_1_KeySent(t *testing.T) {
	l := Local{Revision: 1}
	req, err := Request(l)
	if err != nil {
		t.Fatal(err)
	}
	reply, _, err := Respond(req, l)
	if err != nil {
		t.Fatal(err)
	}
	for want, f := range map[string]Frame{
		"4d504120494420526571204672616d65": req,
		"4d504120494420526570204672616d65": reply,
	} {
		b, err := AppendFrame(nil, f)
		if err != nil {
			t.Fatal(err)
		}
		if got := hex.EncodeToString(b[:16]); got != want {
			t.Errorf("key %s, want %s", got, want)
		}
	}
}

// Section 7.1.1 and 7.1.2 rule 5: any other key ends it, and so does the right key in the wrong direction.
func TestRFC5044_7_1_1_KeyChecked(t *testing.T) {
	for i := range keyLen {
		for _, key := range []string{keyRequest, keyReply} {
			b := wire(t, key, "00010000")
			b[i] ^= 0x20
			_, _, err := ParseFrame(b)
			wantError(t, err, CodeInvalidFrame)
		}
	}
	l := Local{Revision: 1}
	_, _, err := Respond(Frame{Reply: true, Revision: 1}, l)
	wantError(t, err, CodeInvalidFrame)
	_, err = Finish(Frame{Revision: 1}, Frame{Revision: 1}, l)
	wantError(t, err, CodeInvalidFrame)
}

// Section 7.1.1: M=1 obliges the other end to send markers. We cannot, so nothing is established: a request
// gets a rejection, a reply is refused. We never ask for markers ourselves.
func TestRFC5044_7_1_1_Markers(t *testing.T) {
	l := Local{Revision: 1}
	req, err := Request(l)
	if err != nil || req.Markers {
		t.Errorf("request with M=%t, err %v, want none", req.Markers, err)
	}
	if reply, _, err := Respond(req, l); err != nil || reply.Markers {
		t.Errorf("reply with M=%t, err %v, want none", reply.Markers, err)
	}
	reply, _, err := Respond(Frame{Markers: true, Revision: 1}, l)
	wantError(t, err, CodeInvalidFrame)
	if want := (Frame{Reply: true, Reject: true, Revision: 1}); !cmp.Equal(reply, want) {
		t.Errorf("reply %+v, want %+v", reply, want)
	}
	_, err = Finish(req, Frame{Reply: true, Markers: true, Revision: 1}, l)
	wantError(t, err, CodeInvalidFrame)
}

// Section 7.1.1: R means nothing in a request; in a reply it rejects, with the responder's private data.
func TestRFC5044_7_1_1_Reject(t *testing.T) {
	l := Local{Revision: 1}
	req, _, err := ParseFrame(wire(t, keyRequest, "60010000"))
	if err != nil {
		t.Fatal(err)
	}
	if reply, _, err := Respond(req, l); err != nil || reply.Reject {
		t.Errorf("request with R=1: reply %+v, err %v, want it accepted", reply, err)
	}
	reply, _, err := ParseFrame(wire(t, keyReply, "20010004", []byte("full")...))
	if err != nil {
		t.Fatal(err)
	}
	_, err = Finish(req, reply, l)
	if r, ok := errors.AsType[*RejectedError](err); !ok || string(r.PrivateData) != "full" {
		t.Errorf("reply with R=1: %v, want a rejection with its private data", err)
	}
}

// Section 7.1.1: reserved bits go out as zero and are not looked at.
func TestRFC5044_7_1_1_Reserved(t *testing.T) {
	for _, flags := range []string{"01", "02", "04", "08", "10", "1f"} {
		f, n, err := ParseFrame(wire(t, keyRequest, flags+"010000"))
		if err != nil || n != FrameLen || !cmp.Equal(f, Frame{Revision: 1}) {
			t.Errorf("flags %s: %+v, n %d, err %v, want them ignored", flags, f, n, err)
		}
		b, err := AppendFrame(nil, f)
		if err != nil || b[offFlags] != 0 {
			t.Errorf("flags %s sent as %02x, err %v, want 00", flags, b[offFlags], err)
		}
	}
}

// Section 7.1.1: the revision is checked at both ends; what we cannot work with is never accepted.
func TestRFC5044_7_1_1_Revision(t *testing.T) {
	for revision := range 256 {
		r := uint8(revision)
		_, _, err := Respond(Frame{Revision: r}, Local{Revision: 2})
		if known := r == 1 || r == 2; known != (err == nil) {
			t.Errorf("request of revision %d: %v", r, err)
		}
		_, err = Finish(Frame{Revision: 1}, Frame{Reply: true, Revision: r}, Local{Revision: 1})
		if (r == 1) != (err == nil) {
			t.Errorf("reply of revision %d to one of 1: %v", r, err)
		}
	}
}

// Section 7.1.1 and 7.1.2 rule 9: PD_Length is the length of what follows; above 512 the frame is malformed.
func TestRFC5044_7_1_1_PDLength(t *testing.T) {
	for n := range MaxPrivateData + 1 {
		b, err := AppendFrame(nil, Frame{Revision: 1, PrivateData: make([]byte, n)})
		if err != nil || int(binary.BigEndian.Uint16(b[offPDLength:])) != n || len(b) != FrameLen+n {
			t.Fatalf("%d octets: %x..., err %v", n, b[:FrameLen], err)
		}
		if _, got, err := ParseFrame(b); err != nil || got != len(b) {
			t.Fatalf("%d octets: n %d, err %v", n, got, err)
		}
	}
	_, err := AppendFrame(nil, Frame{Revision: 1, PrivateData: make([]byte, MaxPrivateData+1)})
	if err == nil {
		t.Error("513 octets of private data were accepted for sending")
	}
	_, _, err = ParseFrame(wire(t, keyRequest, "00010201"))
	wantError(t, err, CodeInvalidFrame)
}

// Section 7.1.2 rule 1: what Request makes of any valid Local is a frame that a responder accepts.
func TestRFC5044_7_1_2_ValidRequest(t *testing.T) {
	for _, l := range []Local{
		{Revision: 1},
		{Revision: 1, CRC: true, PrivateData: make([]byte, 512)},
		{Revision: 2, CRC: true, IRD: NoNegotiation, ORD: MaxDepth, PrivateData: make([]byte, 508)},
		{Revision: 2, PeerToPeer: true, RTRSend: true},
	} {
		req, err := Request(l)
		if err != nil {
			t.Errorf("%+v: %v", l, err)
			continue
		}
		b, err := AppendFrame(nil, req)
		if err != nil {
			t.Fatal(err)
		}
		got, n, err := ParseFrame(b)
		if err != nil || n != len(b) {
			t.Fatalf("n %d of %d, err %v", n, len(b), err)
		}
		if _, _, err := Respond(got, Local{Revision: 2, RTRWrite: true}); err != nil {
			t.Errorf("%+v: %v", l, err)
		}
	}
	for _, l := range []Local{
		{}, {Revision: 3},
		{Revision: 1, PrivateData: make([]byte, 513)},
		{Revision: 2, PrivateData: make([]byte, 509)},
	} {
		_, err := Request(l)
		if e, ok := errors.AsType[*Error](err); !ok || e.Code != CodeNone {
			t.Errorf("%+v: %v, want an *Error without a code", l, err)
		}
	}
}

// Section 7.1.2 rule 2: a malformed request is no request; one that is not acceptable gets a rejection.
func TestRFC5044_7_1_2_ResponderValidates(t *testing.T) {
	_, n, err := ParseFrame(wire(t, keyRequest, "0001ffff"))
	if n != 0 {
		t.Errorf("n = %d of a malformed request", n)
	}
	wantError(t, err, CodeInvalidFrame)
	reply, err := Rejection(Frame{Revision: 1}, []byte("not you"))
	want := Frame{Reply: true, Reject: true, Revision: 1, PrivateData: []byte("not you")}
	if diff := cmp.Diff(reply, want); err != nil || diff != "" {
		t.Errorf("Rejection: %v (-got +want):\n%s", err, diff)
	}
	if _, err := Rejection(Frame{Revision: 1}, make([]byte, 513)); err == nil {
		t.Error("a rejection with 513 octets of private data was accepted for sending")
	}
}

// Section 7.1.2 rule 3: a malformed reply is none; one with R=0 establishes the connection.
func TestRFC5044_7_1_2_InitiatorValidates(t *testing.T) {
	_, n, err := ParseFrame(wire(t, keyReply, "0001ffff"))
	if n != 0 {
		t.Errorf("n = %d of a malformed reply", n)
	}
	wantError(t, err, CodeInvalidFrame)
	reply, _, err := ParseFrame(wire(t, keyReply, "00010002", []byte("ok")...))
	if err != nil {
		t.Fatal(err)
	}
	a, err := Finish(Frame{Revision: 1}, reply, Local{Revision: 1})
	if err != nil || string(a.PeerData) != "ok" {
		t.Errorf("agreed %+v, err %v", a, err)
	}
}

// Section 7.1.2 rule 8: an initiator that meets another one sees it by the key.
func TestRFC5044_7_1_2_TwoInitiators(t *testing.T) {
	l := Local{Revision: 2, IRD: 1, ORD: 1}
	req, err := Request(l)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Finish(req, req, l)
	wantError(t, err, CodeInvalidFrame)
}

// Section 8: the codes of the four errors.
func TestRFC5044_8_Codes(t *testing.T) {
	good := appendFPDU(nil, []byte("ulpdu"), true)
	bad := bytes.Clone(good)
	bad[3] ^= 1
	for _, tc := range []struct {
		number Code
		stream []byte
	}{{1, good[:5]}, {2, bad}, {3, make([]byte, 8)}} {
		f := Framer{CRC: true}
		deliver, _ := collect()
		_ = f.Feed(tc.stream, deliver) // End says it too
		wantError(t, f.End(), tc.number)
	}
	_, _, err := ParseFrame([]byte("SSH-2.0-"))
	wantError(t, err, 4)
}

// Section 8: once an error has been reported, nothing of that half of the connection is passed on.
func TestRFC5044_8_NothingAfterAnError(t *testing.T) {
	good := appendFPDU(nil, []byte("ulpdu"), true)
	f := Framer{CRC: true}
	deliver, got := collect()
	wantError(t, f.Feed(make([]byte, 8), deliver), CodeFPDUStart)
	wantError(t, f.Feed(good, deliver), CodeFPDUStart)
	if len(*got) != 0 {
		t.Errorf("%d ULPDUs delivered after the error, want 0", len(*got))
	}
}
