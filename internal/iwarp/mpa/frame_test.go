package mpa

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// wire returns the octets of a request or reply: the key, then hex digits, then data.
func wire(t testing.TB, key, digits string, data ...byte) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return append(append([]byte(key), b...), data...)
}

// TestParseMalformed has one field wrong each. Each is refused with the octets that show it, whatever else is
// still to come.
func TestParseMalformed(t *testing.T) {
	for _, tc := range []struct {
		name  string
		wire  []byte
		at    int // octets after which it is refused
		field string
	}{
		{"first octet", wire(t, "GET / HTTP/1.0\r\n", "40010000"), 1, "Key"},
		{"neither q nor p", wire(t, "MPA ID Res Frame", "40010000"), 10, "Key"},
		{"last octet of the key", wire(t, "MPA ID Req Frama", "40010000"), 16, "Key"},
		{"lower case", wire(t, "mpa id req frame", "40010000"), 1, "Key"},
		{"zeros", make([]byte, FrameLen), 1, "Key"},
		{"one octet too much", wire(t, keyRequest, "40010201", make([]byte, 513)...), FrameLen, "PD_Length"},
		{"all ones", wire(t, keyReply, "4001ffff", make([]byte, 65535)...), FrameLen, "PD_Length"},
		{"enhanced, none", wire(t, keyRequest, "50020000"), FrameLen, "PD_Length"},
		{"enhanced, three octets", wire(t, keyReply, "50020003 000000"), FrameLen, "PD_Length"},
		{"enhanced, one too much", wire(t, keyRequest, "50020201", make([]byte, 513)...), FrameLen, "PD_Length"},
		{"enhanced, later revision", wire(t, keyRequest, "50ff0003 000000"), FrameLen, "PD_Length"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for i := range len(tc.wire) + 1 {
				f, n, err := ParseFrame(tc.wire[:i])
				if n != 0 || !cmp.Equal(f, Frame{}) {
					t.Fatalf("%d octets: n %d, %+v", i, n, f)
				}
				if (err != nil) != (i >= tc.at) {
					t.Fatalf("%d octets: error %v, want one from %d octets on", i, err, tc.at)
				}
				if e, ok := errors.AsType[*Error](err); err != nil && (!ok || e.Field != tc.field || e.Code != CodeInvalidFrame) {
					t.Fatalf("%d octets: %#v, want field %s", i, err, tc.field)
				}
			}
		})
	}
}

// TestParseIgnored changes what a receiver is not to look at.
func TestParseIgnored(t *testing.T) {
	for _, tc := range []struct {
		name string
		wire []byte
		want Frame
	}{
		{"reserved bits", wire(t, keyRequest, "4f010000"), Frame{CRC: true, Revision: 1}},
		{"S in revision 1", wire(t, keyRequest, "50010002 abcd"),
			Frame{CRC: true, Revision: 1, PrivateData: []byte{0xab, 0xcd}}},
		{"S in revision 0", wire(t, keyReply, "50000000"), Frame{Reply: true, CRC: true}},
		{"R in a request", wire(t, keyRequest, "60010000"), Frame{CRC: true, Revision: 1}},
		{"B, C, D without A", wire(t, keyRequest, "50020004 4001c002"),
			Frame{CRC: true, Enhanced: true, Revision: 2, Setup: Setup{IRD: 1, ORD: 2}}},
	} {
		got, n, err := ParseFrame(tc.wire)
		if err != nil || n != len(tc.wire) {
			t.Errorf("%s: n %d, err %v", tc.name, n, err)
		}
		if diff := cmp.Diff(got, tc.want); diff != "" {
			t.Errorf("%s (-got +want):\n%s", tc.name, diff)
		}
	}
}

// TestParseAliases pins the ownership of PrivateData: the input's octets, with no room to grow into what
// follows them.
func TestParseAliases(t *testing.T) {
	b := wire(t, keyRequest, "50020006 00010002 4142 4344")
	f, _, err := ParseFrame(b)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(f.PrivateData), "AB"; got != want {
		t.Fatalf("PrivateData = %q, want %q", got, want)
	}
	_ = append(f.PrivateData, 'x')
	if !bytes.HasSuffix(b, []byte("CD")) {
		t.Errorf("appending to PrivateData overwrote what follows the frame: %q", b)
	}
	b[24] = 'Z'
	if got, want := string(f.PrivateData), "ZB"; got != want {
		t.Errorf("PrivateData = %q after the input changed, want %q", got, want)
	}
}

func TestFrameRoundTrip(t *testing.T) {
	setup := Setup{IRD: 0x1234, ORD: 0x2fed, PeerToPeer: true, RTRSend: true, RTRWrite: true, RTRRead: true}
	for _, f := range []Frame{
		{Revision: 1},
		{Reply: true, Markers: true, CRC: true, Reject: true, Revision: 1, PrivateData: []byte("no")},
		{Revision: 1, PrivateData: make([]byte, 512)},
		{Enhanced: true, Revision: 2},
		{Reply: true, Enhanced: true, Revision: 2, Setup: setup, PrivateData: make([]byte, 508)},
		{Enhanced: true, Revision: 2, Setup: Setup{IRD: NoNegotiation, ORD: NoNegotiation}},
	} {
		b, err := AppendFrame(nil, f)
		if err != nil {
			t.Errorf("%+v: %v", f, err)
			continue
		}
		got, n, err := ParseFrame(b)
		if err != nil || n != len(b) {
			t.Errorf("%+v: n %d of %d, err %v", f, n, len(b), err)
		}
		if diff := cmp.Diff(got, f); diff != "" {
			t.Errorf("round trip (-got +want):\n%s", diff)
		}
		checkTruncations(t, b)
	}
}

// TestSetupBits pins the place of each field in the four octets.
func TestSetupBits(t *testing.T) {
	for want, s := range map[string]Setup{
		"80000000": {PeerToPeer: true},
		"c0000000": {PeerToPeer: true, RTRSend: true},
		"80008000": {PeerToPeer: true, RTRWrite: true},
		"80004000": {PeerToPeer: true, RTRRead: true},
		"3fff0000": {IRD: NoNegotiation},
		"00003ffe": {ORD: MaxDepth},
	} {
		b, err := AppendFrame(nil, Frame{Enhanced: true, Revision: 2, Setup: s})
		if err != nil {
			t.Fatal(err)
		}
		if got := hex.EncodeToString(b[FrameLen:]); got != want {
			t.Errorf("%+v = %s, want %s", s, got, want)
		}
	}
}

func TestAppendFrameRefuses(t *testing.T) {
	for _, tc := range []struct {
		name, field string
		f           Frame
	}{
		{"private data", "PrivateData", Frame{Revision: 1, PrivateData: make([]byte, 513)}},
		{"private data, enhanced", "PrivateData", Frame{Enhanced: true, Revision: 2, PrivateData: make([]byte, 509)}},
		{"enhanced revision 1", "Revision", Frame{Enhanced: true, Revision: 1}},
		{"rejecting request", "Reject", Frame{Reject: true, Revision: 1}},
		{"IRD", "IRD", Frame{Enhanced: true, Revision: 2, Setup: Setup{IRD: 0x4000}}},
		{"ORD", "ORD", Frame{Enhanced: true, Revision: 2, Setup: Setup{ORD: 0xffff}}},
		{"RTR alone", "Setup", Frame{Enhanced: true, Revision: 2, Setup: Setup{RTRRead: true}}},
	} {
		b, err := AppendFrame([]byte("kept"), tc.f)
		if e, ok := errors.AsType[*Error](err); !ok || e.Field != tc.field || e.Code != CodeNone {
			t.Errorf("%s: %#v, want an *Error naming %s", tc.name, err, tc.field)
		}
		if string(b) != "kept" {
			t.Errorf("%s: b = %q", tc.name, b)
		}
	}
}

func TestMaxUserData(t *testing.T) {
	if got, want := MaxUserData(false), 512; got != want {
		t.Errorf("MaxUserData(false) = %d, want %d", got, want)
	}
	if got, want := MaxUserData(true), 508; got != want {
		t.Errorf("MaxUserData(true) = %d, want %d", got, want)
	}
}

func TestFrameAllocs(t *testing.T) {
	req := wire(t, keyRequest, "50020009 00100010", []byte("hello")...)
	out := make([]byte, 0, 64)
	if n := testing.AllocsPerRun(100, func() {
		f, _, _ := ParseFrame(req)
		out, _ = AppendFrame(out[:0], f)
	}); n != 0 {
		t.Errorf("%v allocations to parse and append a frame, want 0", n)
	}
}
