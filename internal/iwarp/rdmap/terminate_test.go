package rdmap_test

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/rdmap"
)

type goldenTerminate struct {
	name, hex string
	swapped   bool
	want      rdmap.Terminate
}

// The swapped ones are recordings of siw of Linux 6.1 (the conversations are in
// ../testdata); the others are laid out by hand after RFC 5040 figures 7 and 8.
var goldenTerminates = []goldenTerminate{
	{
		"siw-bad-crc", "02020000", true,
		rdmap.Terminate{Layer: 2, Code: 2},
	},
	{
		"siw-bad-version", "21060000", true,
		rdmap.Terminate{Layer: 1, Type: 2, Code: 6},
	},
	{
		"siw-bad-queue", "21010300 0008 414300000000000000050000000100000000", true,
		rdmap.Terminate{Layer: 1, Type: 2, Code: 1, HasLength: true, HasDDP: true, SegmentLength: 8,
			DDPHeader: []byte("\x41\x43\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x01\x00\x00\x00\x00")},
	},
	{
		"siw-bad-stag", "11000300 0008 c140deadbeef0000000000000001", true,
		rdmap.Terminate{Layer: 1, Type: 1, HasLength: true, HasDDP: true, SegmentLength: 8,
			DDPHeader: []byte("\xc1\x40\xde\xad\xbe\xef\x00\x00\x00\x00\x00\x00\x00\x01")},
	},
	{
		"no headers", "20020000", false,
		rdmap.Terminate{Layer: 2, Code: 2},
	},
	{
		"tagged header", "1101c000 0016 c140deadbeef0000000000000001", false,
		rdmap.Terminate{Layer: 1, Type: 1, Code: 1, HasLength: true, HasDDP: true, SegmentLength: 22,
			DDPHeader: []byte("\xc1\x40\xde\xad\xbe\xef\x00\x00\x00\x00\x00\x00\x00\x01")},
	},
	{
		"read request", "0102e000 002e 414100000000000000010000000100000000" +
			"115abe00000056025e00d94000000bb86d51b500000055ac42099010", false,
		rdmap.Terminate{Layer: 0, Type: 1, Code: 2, HasLength: true, HasDDP: true, HasRDMAP: true, SegmentLength: 46,
			DDPHeader: []byte("\x41\x41\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x00"),
			ReadRequest: []byte("\x11\x5a\xbe\x00\x00\x00\x56\x02\x5e\x00\xd9\x40\x00\x00\x0b\xb8\x6d\x51\xb5\x00" +
				"\x00\x00\x55\xac\x42\x09\x90\x10")},
	},
	{
		"length alone", "12058000 0064", false,
		rdmap.Terminate{Layer: 1, Type: 2, Code: 5, HasLength: true, SegmentLength: 100},
	},
	{
		"length there but not valid", "11014000 0007 c140deadbeef0000000000000001", false,
		rdmap.Terminate{Layer: 1, Type: 1, Code: 1, HasDDP: true, SegmentLength: 7,
			DDPHeader: []byte("\xc1\x40\xde\xad\xbe\xef\x00\x00\x00\x00\x00\x00\x00\x01")},
	},
	{
		"unassigned", "f3ee0000", false,
		rdmap.Terminate{Layer: 15, Type: 3, Code: 0xee},
	},
}

// appendSwapped is AppendTerminate with the control word as siw sends it.
func appendSwapped(b []byte, t rdmap.Terminate) []byte {
	at := len(b)
	b = rdmap.AppendTerminate(b, t)
	b[at] = b[at]<<4 | b[at]>>4
	b[at+2] = b[at+2]>>7 | b[at+2]>>5&2 | b[at+2]>>3&4
	return b
}

func TestTerminateGolden(t *testing.T) {
	for _, g := range goldenTerminates {
		t.Run(g.name, func(t *testing.T) {
			wire := unhex(t, g.hex)
			got, swapped, n := rdmap.ParseTerminate(append(wire, 0))
			if diff := cmp.Diff(got, g.want, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("got (-) want (+):\n%s", diff)
			}
			if swapped != g.swapped || n != len(wire) {
				t.Errorf("got swapped %t, %d octets, want %t, %d", swapped, n, g.swapped, len(wire))
			}
			encode := rdmap.AppendTerminate
			if swapped {
				encode = appendSwapped
			}
			if got := encode([]byte("x"), g.want); !bytes.Equal(got[1:], wire) {
				t.Errorf("got %x, want 78%x", got, wire)
			}
			for n := range wire {
				if _, _, got := rdmap.ParseTerminate(wire[:n]); got >= 0 {
					t.Errorf("%d of %d octets: got %d, want less than 0", n, len(wire), got)
				}
			}
		})
	}
}

// What a truncated Terminate still says.
func TestTerminateTruncated(t *testing.T) {
	for _, g := range goldenTerminates {
		wire := unhex(t, g.hex)
		if len(wire) == rdmap.MinTerminateLen {
			continue // nothing left to cut
		}
		got, swapped, n := rdmap.ParseTerminate(wire[:rdmap.MinTerminateLen])
		if n >= 0 || swapped != g.swapped || got.Cause() != g.want.Cause() || got.HasDDP || got.HasRDMAP {
			t.Errorf("%s: got %+v, swapped %t, %d, want cause %v and nothing more", g.name, got, swapped, n, g.want.Cause())
		}
	}
}

// The bit order, where the message leaves a choice.
func TestTerminateBitOrder(t *testing.T) {
	const untaggedHeader = "4143 00000000 00000000 00000001 00000000"
	tests := []struct {
		name, hex string
		swapped   bool
		want      rdmap.Cause
	}{
		{"DDP untagged without headers", "12020000", false, rdmap.TermDDPNoBuffer},
		{"the same from siw", "21020000", true, rdmap.TermDDPNoBuffer},
		{"DDP untagged with headers", "1202c000 0016" + untaggedHeader, false, rdmap.TermDDPNoBuffer},
		{"the same from siw", "21020300 0004" + untaggedHeader, true, rdmap.TermDDPNoBuffer},
		{"RDMAP access with headers", "0102c000 0016" + untaggedHeader, false, rdmap.TermAccess},
		{"the same from siw", "10020300 0004" + untaggedHeader, true, rdmap.TermAccess},
		{"RDMAP access without headers", "01020000", false, rdmap.TermAccess},
		{"the same from siw", "10020000", true, rdmap.TermAccess},
		{"CRC", "20020000", false, rdmap.TermMPACRC},
		{"the same from siw", "02020000", true, rdmap.TermMPACRC},
		{"layer and type alike, no flags", "11040000", false, rdmap.TermDDPTaggedVersion},
		{"RDMAP global, both orders alike", "00080000", false, rdmap.TermLocalCatastrophic | 8},

		{"opcode without headers", "02060000", false, rdmap.TermUnexpectedOpcode},
		{"the same from siw, which never adds them", "20060000", true, rdmap.TermUnexpectedOpcode},
		{"version without headers", "02050000", false, rdmap.TermInvalidVersion},
		{"the same from siw, which never adds them", "20050000", true, rdmap.TermInvalidVersion},
		{"ambiguous: the RFC's order wins", "01000000", false, rdmap.TermInvalidSTag},
		{"ambiguous: the RFC's order wins", "10000000", false, rdmap.TermDDPCatastrophic},
		{"flags resolve it", "20060300 0004" + untaggedHeader, true, rdmap.TermUnexpectedOpcode},
		{"flags resolve it", "10000300 0004" + untaggedHeader, true, rdmap.TermInvalidSTag},

		{"flags of both orders", "1202c300 0016" + untaggedHeader, false, rdmap.TermDDPNoBuffer},
		{"siw's flags without their headers", "12020300", false, rdmap.TermDDPNoBuffer},
		{"nothing known either way", "34770777", false, 0x3477},
	}
	for _, test := range tests {
		got, swapped, n := rdmap.ParseTerminate(unhex(t, test.hex))
		if got.Cause() != test.want || swapped != test.swapped || n < 0 {
			t.Errorf("%s (%s): got %v, swapped %t, %d, want %v, %t",
				test.name, test.hex, got, swapped, n, test.want, test.swapped)
		}
	}
}

// A Terminate that is the first message from the active side is about the
// set-up; from the passive side, or later, it is not.
func TestTerminateInSetup(t *testing.T) {
	for _, test := range []struct {
		hex            string
		setup, inUse   rdmap.Cause
		setupSw, useSw bool
	}{
		{"20060000", rdmap.TermMPAInsufficientIRD, rdmap.TermUnexpectedOpcode, false, true},
		{"02060000", rdmap.TermMPAInsufficientIRD, rdmap.TermUnexpectedOpcode, true, false},
		{"20070000", rdmap.TermMPANoRTR, rdmap.TermCatastrophic, false, true},
		{"02070000", rdmap.TermMPANoRTR, rdmap.TermCatastrophic, true, false},
		{"20050000", rdmap.TermMPACatastrophic, rdmap.TermInvalidVersion, false, true},
		{"20040000", rdmap.TermMPARequest, rdmap.TermMPARequest, false, false},
		{"02040000", rdmap.TermMPARequest, rdmap.TermMPARequest, true, true},
		{"00ff0000", 0x00ff, 0x00ff, false, false},
	} {
		wire := unhex(t, test.hex)
		for _, at := range []struct {
			name          string
			passive, used bool
			want          rdmap.Cause
			swapped       bool
		}{
			{"passive, at once", true, false, test.setup, test.setupSw},
			{"passive, later", true, true, test.inUse, test.useSw},
			{"active, at once", false, false, test.inUse, test.useSw},
		} {
			r := newReceiver(rdmap.Options{Passive: at.passive})
			if at.used {
				accept(t, r, untagged(rdmap.OpSend, 1), 8)
			}
			accept(t, r, untagged(rdmap.OpTerminate, 1), len(wire))
			got, swapped, n := r.ParseTerminate(wire)
			if got.Cause() != at.want || swapped != at.swapped || n != len(wire) {
				t.Errorf("%s, %s: got %v, swapped %t, %d, want %v, %t",
					test.hex, at.name, got, swapped, n, at.want, at.swapped)
			}
		}
	}
}

// Whatever this side sends comes back as it was sent: nothing of it looks like
// siw's order.
func TestTerminateOursIsUnambiguous(t *testing.T) {
	request := rdmap.ReadRequest{SinkSTag: 1, SinkTO: 2, Size: 3, SourceSTag: 4, SourceTO: 5}
	for _, c := range causes {
		for _, want := range []rdmap.Terminate{
			c.Terminate(),
			c.ForSegment(untagged(rdmap.OpSend, 7), 100),
			c.ForSegment(tagged(rdmap.OpWrite), 100),
			c.ForSegment(tagged(rdmap.OpWrite), 1<<20),
			c.ForReadRequest(untagged(rdmap.OpReadRequest, 7), rdmap.ReadRequestLen, request),
		} {
			wire := rdmap.AppendTerminate(nil, want)
			if len(wire) > rdmap.MaxTerminateLen {
				t.Errorf("%v: %d octets", c, len(wire))
			}
			r := newReceiver(rdmap.Options{Passive: true})
			if c < rdmap.TermMPACatastrophic { // those come before anything else
				accept(t, r, untagged(rdmap.OpSend, 1), 8)
			}
			got, swapped, n := r.ParseTerminate(wire)
			if diff := cmp.Diff(got, want, cmpopts.EquateEmpty()); diff != "" || swapped || n != len(wire) {
				t.Errorf("%v: swapped %t, %d of %d octets; got (-) want (+):\n%s", c, swapped, n, len(wire), diff)
			}
		}
	}
}

func TestCauses(t *testing.T) {
	seen := make(map[string]rdmap.Cause)
	for _, c := range causes {
		if !c.Known() {
			t.Errorf("%04x is not known", uint16(c))
		}
		if back := rdmap.Cause(c.Layer())<<12 | rdmap.Cause(c.Type())<<8 | rdmap.Cause(c.Code()); back != c {
			t.Errorf("%04x splits into %04x", uint16(c), uint16(back))
		}
		if other, ok := seen[c.String()]; ok {
			t.Errorf("%04x and %04x are both %q", uint16(c), uint16(other), c)
		}
		seen[c.String()] = c
	}
	known := 0
	for c := range 1 << 16 {
		if rdmap.Cause(c).Known() {
			known++
		}
		if rdmap.Cause(c).String() == "" {
			t.Errorf("%04x has no text", c)
		}
	}
	// RDMAP's local catastrophic error has any of 256 codes.
	if want := len(causes) - 1 + 256; known != want {
		t.Errorf("got %d known causes, want %d", known, want)
	}
}

func TestTerminateText(t *testing.T) {
	tests := []struct {
		t    rdmap.Terminate
		want string
	}{
		{rdmap.TermDDPNoBuffer.Terminate(), "DDP layer: untagged buffer error: no buffer available for the message (layer 1, type 2, code 2)"},
		{rdmap.TermDDPCatastrophic.Terminate(), "DDP layer: local catastrophic error (layer 1, type 0, code 0)"},
		{rdmap.TermLocalCatastrophic.Terminate(), "RDMAP layer: local catastrophic error (layer 0, type 0, code 0)"},
		{rdmap.TermAccess.Terminate(), "RDMAP layer: remote protection error: access rights violation (layer 0, type 1, code 2)"},
		{rdmap.TermMPACRC.Terminate(), "MPA layer: CRC mismatch (layer 2, type 0, code 2)"},
		{rdmap.Terminate{Type: 2, Code: 6, Detail: "opcode 12 is not assigned"},
			"RDMAP layer: remote operation error: unexpected opcode (layer 0, type 2, code 6): opcode 12 is not assigned"},
		{rdmap.Terminate{Type: 1, Code: 77}, "RDMAP layer: remote protection error: code 0x4d (layer 0, type 1, code 77)"},
		{rdmap.Terminate{Type: 5, Code: 1}, "RDMAP layer: error type 0x5: code 0x01 (layer 0, type 5, code 1)"},
		{rdmap.Terminate{Layer: 2, Type: 1, Code: 1}, "MPA layer: error type 0x1, code 0x01 (layer 2, type 1, code 1)"},
		{rdmap.Terminate{Layer: 9, Type: 1, Code: 1}, "layer 9: error type 0x1, code 0x01 (layer 9, type 1, code 1)"},
	}
	for _, test := range tests {
		if got := test.t.String(); got != test.want {
			t.Errorf("got  %s\nwant %s", got, test.want)
		}
		if got, want := error(test.t).Error(), "rdmap: terminate: "+test.want; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func FuzzTerminate(f *testing.F) {
	for _, g := range goldenTerminates {
		f.Add(unhex(f, g.hex))
	}
	f.Add([]byte{0x12, 0x02, 0xc3, 0x01, 0, 0, 0xc1})
	f.Fuzz(func(t *testing.T, b []byte) {
		term, swapped, n := rdmap.ParseTerminate(b)
		if n < 0 {
			return
		}
		if term.String() == "" || n > rdmap.MaxTerminateLen {
			t.Fatalf("%x: %d octets, text %q", b, n, term)
		}
		want := bytes.Clone(b[:n])
		encode := appendSwapped
		if !swapped {
			encode = rdmap.AppendTerminate
			want[2] &= 0xe0 // ignored here, zero when sent
			want[3] = 0
		}
		if got := encode(nil, term); !bytes.Equal(got, want) {
			t.Fatalf("%x (swapped %t) encodes again as %x", want, swapped, got)
		}
		if term.HasDDP {
			if _, n := ddp.ParseHeader(term.DDPHeader); n != len(term.DDPHeader) {
				t.Fatalf("%x: DDP header %x", b, term.DDPHeader)
			}
		}
	})
}
