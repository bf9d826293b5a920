package rdmap_test

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cinnabar/internal/iwarp/rdmap"
)

// Requests as siw of Linux 6.1 sent them; the conversations are in ../testdata.
var goldenReads = []struct {
	name, hex string
	want      rdmap.ReadRequest
}{
	{
		"siw-rping",
		"115abe00 000056025e00d940 00000bb8 6d51b500 000055ac42099010",
		rdmap.ReadRequest{SinkSTag: 0x115abe00, SinkTO: 0x56025e00d940, Size: 3000, SourceSTag: 0x6d51b500, SourceTO: 0x55ac42099010},
	},
	{
		"siw-read-crc",
		"351ad200 0000563ab3275ce0 00000040 aabbccdd 0000000012345000",
		rdmap.ReadRequest{SinkSTag: 0x351ad200, SinkTO: 0x563ab3275ce0, Size: 64, SourceSTag: 0xaabbccdd, SourceTO: 0x12345000},
	},
}

// No recording has atomics (siw knows none): these are laid out by hand after
// RFC 7306 figures 4 and 6.
var goldenAtomics = []struct {
	name, hex string
	want      rdmap.AtomicRequest
}{
	{
		"every field",
		"00000002 01020304 05060708 1112131415161718 2122232425262728 3132333435363738 4142434445464748 5152535455565758",
		rdmap.AtomicRequest{
			Op: rdmap.AtomicCmpSwap, RequestID: 0x01020304, STag: 0x05060708, TO: 0x1112131415161718,
			AddSwap: 0x2122232425262728, AddSwapMask: 0x3132333435363738, Compare: 0x4142434445464748, CompareMask: 0x5152535455565758,
		},
	},
	{
		"fetch and add",
		"00000000 00000007 00000100 0000000000001000 0000000000000003 0000000000000000 0000000000000000 ffffffffffffffff",
		rdmap.FetchAdd(7, 0x100, 0x1000, 3),
	},
	{
		"compare and swap",
		"00000002 00000007 00000100 0000000000001000 0000000000000009 ffffffffffffffff 0000000000000003 ffffffffffffffff",
		rdmap.CmpSwap(7, 0x100, 0x1000, 3, 9),
	},
}

const goldenAtomicResponse = "01020304 1112131415161718"

func TestReadRequestGolden(t *testing.T) {
	for _, g := range goldenReads {
		t.Run(g.name, func(t *testing.T) { testGolden(t, g.hex, g.want, rdmap.ParseReadRequest, rdmap.AppendReadRequest) })
	}
}

func TestAtomicRequestGolden(t *testing.T) {
	for _, g := range goldenAtomics {
		t.Run(g.name, func(t *testing.T) { testGolden(t, g.hex, g.want, rdmap.ParseAtomicRequest, rdmap.AppendAtomicRequest) })
	}
}

func TestAtomicResponseGolden(t *testing.T) {
	want := rdmap.AtomicResponse{RequestID: 0x01020304, Original: 0x1112131415161718}
	testGolden(t, goldenAtomicResponse, want, rdmap.ParseAtomicResponse, rdmap.AppendAtomicResponse)
}

// testGolden parses and appends a header, which another octet follows and precedes, and refuses it where it is cut.
func testGolden[H any](t *testing.T, hex string, want H, parse func([]byte) (H, int), encode func([]byte, H) []byte) {
	t.Helper()
	wire := unhex(t, hex)
	got, n := parse(append(wire, 0xee))
	if diff := cmp.Diff(got, want); diff != "" || n != len(wire) {
		t.Errorf("got %d octets, want %d; got (-) want (+):\n%s", n, len(wire), diff)
	}
	if got := encode([]byte("x"), want); !bytes.Equal(got[1:], wire) {
		t.Errorf("got %x, want 78%x", got, wire)
	}
	for n := range wire {
		if _, got := parse(wire[:n]); got >= 0 {
			t.Errorf("%d of %d octets: got %d, want less than 0", n, len(wire), got)
		}
	}
}

func TestReadRequestWraps(t *testing.T) {
	tests := []struct {
		to   uint64
		size uint32
		want bool
	}{
		{0, 0, false},
		{0, 1<<32 - 1, false},
		{1<<64 - 8, 7, false},
		{1<<64 - 8, 8, true},
		{1<<64 - 8, 1<<32 - 1, true},
		{1<<64 - 1, 0, false},
	}
	for _, test := range tests {
		r := rdmap.ReadRequest{SourceTO: test.to, Size: test.size}
		if got := r.Wraps(); got != test.want {
			t.Errorf("%d octets from %#x: got %t, want %t", test.size, test.to, got, test.want)
		}
	}
}

func TestMSNs(t *testing.T) {
	var m rdmap.MSNs
	for want := uint32(1); want <= 3; want++ {
		for qn := range uint32(rdmap.Queues) {
			if got := m.Next(qn); got != want {
				t.Errorf("queue %d: got %d, want %d", qn, got, want)
			}
		}
	}
}

func TestNames(t *testing.T) {
	seen := make(map[string]bool)
	for op := range rdmap.Opcode(16) {
		name := op.String()
		if name == "" || seen[name] {
			t.Errorf("opcode %d: name %q is empty or taken", uint8(op), name)
		}
		seen[name] = true
	}
	if got, want := rdmap.Opcode(13).String(), "opcode 13"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for op, want := range map[rdmap.AtomicOp]string{0: "FetchAdd", 1: "atomic operation 1", 2: "CmpSwap"} {
		if got := op.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func FuzzReadRequest(f *testing.F) {
	for _, g := range goldenReads {
		f.Add(unhex(f, g.hex))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, n := rdmap.ParseReadRequest(b)
		if n < 0 {
			return
		}
		if got := rdmap.AppendReadRequest(nil, r); !bytes.Equal(got, b[:n]) {
			t.Fatalf("%x encodes again as %x", b[:n], got)
		}
	})
}

func FuzzAtomicRequest(f *testing.F) {
	for _, g := range goldenAtomics {
		f.Add(unhex(f, g.hex), uint64(3))
	}
	f.Fuzz(func(t *testing.T, b []byte, original uint64) {
		a, n := rdmap.ParseAtomicRequest(b)
		if n < 0 {
			return
		}
		want := bytes.Clone(b[:n])
		want[0], want[1], want[2], want[3] = 0, 0, 0, want[3]&0x0f // ignored here, zero when sent
		if got := rdmap.AppendAtomicRequest(nil, a); !bytes.Equal(got, want) {
			t.Fatalf("%x encodes again as %x", want, got)
		}
		if got, want := a.Apply(original), applyByRFC(a, original); got != want {
			t.Fatalf("%+v on %#x: got %#x, want %#x", a, original, got, want)
		}
	})
}

func FuzzAtomicResponse(f *testing.F) {
	f.Add(unhex(f, goldenAtomicResponse))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, n := rdmap.ParseAtomicResponse(b)
		if n < 0 {
			return
		}
		if got := rdmap.AppendAtomicResponse(nil, a); !bytes.Equal(got, b[:n]) {
			t.Fatalf("%x encodes again as %x", b[:n], got)
		}
	})
}

func FuzzControl(f *testing.F) {
	f.Add(byte(0x43))
	f.Fuzz(func(t *testing.T, b byte) {
		version, op := rdmap.ParseControl(b)
		if version != rdmap.Version {
			return
		}
		if got := rdmap.Control(op); got != b&^0x30 {
			t.Fatalf("%#02x encodes again as %#02x", b, got)
		}
	})
}

// applyByRFC works bit by bit, as sections 5.1.1 and 5.1.2 of RFC 7306 describe
// the two operations.
func applyByRFC(a rdmap.AtomicRequest, original uint64) uint64 {
	switch a.Op {
	case rdmap.AtomicFetchAdd:
		var sum, carry uint64
		for bit := range 64 {
			s := carry + original>>bit&1 + a.AddSwap>>bit&1
			sum |= s & 1 << bit
			carry = s >> 1
			if a.AddSwapMask>>bit&1 == 1 {
				carry = 0 // the most significant bit of a field
			}
		}
		return sum
	case rdmap.AtomicCmpSwap:
		for bit := range 64 {
			if a.CompareMask>>bit&1 == 1 && (a.Compare^original)>>bit&1 == 1 {
				return original
			}
		}
		for bit := range 64 {
			if a.AddSwapMask>>bit&1 == 1 {
				original = original&^(1<<bit) | a.AddSwap&(1<<bit)
			}
		}
		return original
	default:
		return original
	}
}
