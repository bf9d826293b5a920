package sm

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cinnabar/internal/na"
)

// rawHandle writes a handle as C does, whether it makes sense or not.
func rawHandle(count, size uint64, access byte, segs ...uint64) []byte {
	b := binary.LittleEndian.AppendUint64(nil, count)
	b = binary.LittleEndian.AppendUint64(b, size)
	b = append(b, access, 0, 0, 0, 0, 0, 0, 0)
	for _, w := range segs {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

func TestHandle(t *testing.T) {
	// One segment of 4096 bytes at 0x7f0012345000, for reading, as NA_Mem_handle_serialize writes it.
	golden, err := hex.DecodeString("0100000000000000" + "0010000000000000" + "0100000000000000" + "0050341200" + "7f0000" + "0010000000000000")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(golden, appendHandle(nil, []segment{{0x7f0012345000, 4096}}, na.ReadOnly, 0)); diff != "" {
		t.Errorf("written (-want +got):\n%s", diff)
	}
	r, err := parseHandle(golden)
	if err != nil {
		t.Fatal(err)
	}
	if r.Len() != 4096 || r.access != na.ReadOnly || len(r.segs) != 1 || r.segs[0] != (segment{0x7f0012345000, 4096}) {
		t.Errorf("read: %+v", r)
	}
	for n := range len(golden) {
		if _, err := parseHandle(golden[:n]); err == nil {
			t.Errorf("%d bytes are accepted", n)
		}
	}
}

func TestHandleFind(t *testing.T) {
	r, err := parseHandle(rawHandle(4, 60, 3, 0x1000, 10, 0x2000, 0, 0x3000, 20, 0x4000, 30))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ off, addr uint64 }{{0, 0x1000}, {9, 0x1009}, {10, 0x3000}, {29, 0x3013}, {30, 0x4000}, {59, 0x401d}} {
		seg, skip := r.find(tc.off)
		if got := r.segs[seg].addr + skip; got != tc.addr {
			t.Errorf("byte %d is at %#x, want %#x", tc.off, got, tc.addr)
		}
	}
}

func TestHandleMalformed(t *testing.T) {
	for _, tc := range []struct {
		name, want string
		b          []byte
	}{
		{"empty", "at least", nil},
		{"no segments", "0 segments", append(rawHandle(0, 0, 1), make([]byte, 16)...)},
		{"more segments than bytes", "2 segments", rawHandle(2, 16, 1, 0x1000, 16)},
		{"fewer segments than bytes", "1 segments", rawHandle(1, 16, 1, 0x1000, 16, 0x2000, 16)},
		{"count that wraps around", "segments", rawHandle(1<<60+1, 16, 1, 0x1000, 16)},
		{"too many segments", "1025 segments", rawHandle(1025, 0, 1, make([]uint64, 2*1025)...)},
		{"access 0", "access 0", rawHandle(1, 16, 0, 0x1000, 16)},
		{"access 4", "access 4", rawHandle(1, 16, 4, 0x1000, 16)},
		{"size too small", "in memory of 15", rawHandle(1, 15, 1, 0x1000, 16)},
		{"size too large", "in memory of 17", rawHandle(1, 17, 1, 0x1000, 16)},
		{"length that is no int", "longer than memory", rawHandle(1, 1<<63, 1, 0x1000, 1<<63)},
		{"lengths that wrap around", "longer than memory", rawHandle(2, 0, 1, 0, 1<<63, 0, 1<<63)},
		{"address that wraps around", "longer than memory", rawHandle(1, 16, 1, math.MaxUint64-8, 16)},
	} {
		if _, err := parseHandle(tc.b); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v; want one with %q", tc.name, err, tc.want)
		}
	}
}

// TestHandleMaximum: 1,024 segments are what C allows.
func TestHandleMaximum(t *testing.T) {
	var words []uint64
	for i := range uint64(maxSegments) {
		words = append(words, 0x10000*i+0x10000, i+1)
	}
	r, err := parseHandle(rawHandle(maxSegments, maxSegments*(maxSegments+1)/2, 2, words...))
	if err != nil || len(r.segs) != maxSegments {
		t.Fatalf("%v", err)
	}
}

func FuzzParseHandle(f *testing.F) {
	f.Add(rawHandle(1, 16, 1, 0x1000, 16))
	f.Add(rawHandle(2, 20, 3, 0x1000, 16, 0x3000, 4))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseHandle(b)
		if err != nil {
			return
		}
		var end uint64
		for i, s := range r.segs {
			if end += s.len; r.ends[i] != end || s.len == 0 {
				t.Fatalf("segment %d of %+v", i, r)
			}
		}
		if end != r.size {
			t.Fatalf("%+v", r)
		}
		if uint64(len(r.segs)) == binary.LittleEndian.Uint64(b) { // none is empty
			if got := appendHandle(nil, r.segs, r.access, r.arena); !bytes.Equal(got, b) {
				t.Fatalf("% x became % x", b, got)
			}
		}
	})
}
