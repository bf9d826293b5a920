package sglist

import (
	"bytes"
	"slices"
	"testing"
)

// list cuts one array of distinct bytes, as far as they can be, into segments of the given lengths. Every third segment has an
// array of its own, so that it is no neighbour of the next.
func list(lengths []byte) (segs [][]byte, flat []byte) {
	for _, n := range lengths {
		for range n {
			flat = append(flat, byte(len(flat)*7+1))
		}
	}
	at := 0
	for i, n := range lengths {
		s := flat[at : at+int(n)]
		if i%3 == 2 {
			s = slices.Clone(s)
		}
		segs = append(segs, s)
		at += int(n)
	}
	return segs, flat
}

// FuzzLists compares every function with the same on one run of bytes.
func FuzzLists(f *testing.F) {
	f.Add([]byte{}, []byte{}, uint16(0), uint16(0), byte(1))
	f.Add([]byte{3, 0, 4, 5, 1}, []byte{2, 2, 0, 9}, uint16(2), uint16(7), byte(3))
	f.Add([]byte{0, 0, 255, 1}, []byte{255}, uint16(0), uint16(256), byte(255))
	f.Add([]byte{1, 1, 1, 1, 1, 1, 1}, []byte{0, 7}, uint16(3), uint16(4), byte(1))
	f.Fuzz(func(t *testing.T, lengths, others []byte, first, count uint16, step byte) {
		if len(lengths) > 100 || len(others) > 100 {
			t.Skip("lists of more than 100 segments take the same paths as shorter ones, and more time")
		}
		segs, flat := list(lengths)
		before := slices.Clone(segs)
		off := int64(first) % int64(len(flat)+1)
		n := int64(count) % (int64(len(flat)) - off + 1)

		cut := Slice([][]byte{{42}}, segs, off, n)
		if want := flat[off : off+n]; !bytes.Equal(cut[0], []byte{42}) || !bytes.Equal(bytes.Join(cut[1:], nil), want) {
			t.Errorf("Slice %d, %d is % x, want % x", off, n, bytes.Join(cut[1:], nil), want)
		}
		if slices.ContainsFunc(cut, func(s []byte) bool { return len(s) == 0 }) {
			t.Error("Slice has an empty piece")
		}
		pieces := len(cut)
		if merged := Merge(cut[1:]); len(merged) > pieces-1 || !bytes.Equal(bytes.Join(merged, nil), flat[off:off+n]) {
			t.Errorf("Merge is % x in %d pieces, want % x in at most %d", bytes.Join(merged, nil), len(merged), flat[off:off+n], pieces-1)
		}

		most := uint64(step%8) + 1
		c, walked := NewCursor(segs), []byte(nil)
		for piece := c.Next(most); piece != nil; piece = c.Next(most) {
			if len(piece) == 0 || uint64(len(piece)) > most {
				t.Fatalf("Next of %d is a piece of %d bytes", most, len(piece))
			}
			walked = append(walked, piece...)
		}
		if !bytes.Equal(walked, flat) || c.Next(1) != nil {
			t.Errorf("the cursor walks through % x, want % x", walked, flat)
		}

		to, room := list(others)
		into := bytes.Join(to, nil)
		copied := Copy(to, segs)
		if want := int64(min(len(room), len(flat))); copied != want {
			t.Errorf("Copy copies %d bytes, want %d", copied, want)
		}
		if got := bytes.Join(to, nil); !bytes.Equal(got[:copied], flat[:copied]) || !bytes.Equal(got[copied:], into[copied:]) {
			t.Errorf("Copy leaves % x", got)
		}
		if !slices.EqualFunc(segs, before, func(a, b []byte) bool { return len(a) == len(b) && cap(a) == cap(b) }) {
			t.Error("a list is changed")
		}
	})
}

// Neighbours in memory become one segment; others stay as they are.
// parity: D24
func TestMerge(t *testing.T) {
	array, other := []byte("0123456789"), []byte("abc")
	for _, c := range []struct {
		name string
		segs [][]byte
		want []string
	}{
		{"none", nil, nil},
		{"one", [][]byte{array[:4]}, []string{"0123"}},
		{"all", [][]byte{array[:4], array[4:6], array[6:]}, []string{"0123456789"}},
		{"a gap", [][]byte{array[:4], array[5:]}, []string{"0123", "56789"}},
		{"another order", [][]byte{array[4:], array[:4]}, []string{"456789", "0123"}},
		{"a limited capacity", [][]byte{array[:4:4], array[4:]}, []string{"0123", "456789"}},
		{"equal bytes of another array", [][]byte{array[:4], bytes.Clone(array[4:])}, []string{"0123", "456789"}},
		{"another array between", [][]byte{array[:3], other, array[3:6], array[6:7]}, []string{"012", "abc", "3456"}},
		{"the same twice", [][]byte{array[:3], array[:3]}, []string{"012", "012"}},
		{"an overlap", [][]byte{array[:3], array[1:4]}, []string{"012", "123"}},
		{"an empty one", [][]byte{array[:4], {}, array[4:]}, []string{"0123", "", "456789"}},
	} {
		var got []string
		for _, s := range Merge(c.segs) {
			got = append(got, string(s))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestAllocs(t *testing.T) {
	segs, flat := list([]byte{10, 0, 20, 30})
	dst, into := make([][]byte, 0, 8), [][]byte{make([]byte, 7), make([]byte, 53)}
	if n := testing.AllocsPerRun(100, func() {
		Merge(Slice(dst, segs, 5, 40))
		if Copy(into, segs) != int64(len(flat)) {
			t.Error("not all is copied")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkSlice(b *testing.B) {
	segs, _ := list(bytes.Repeat([]byte{100}, 16))
	dst := make([][]byte, 0, 16)
	for b.Loop() {
		dst = Slice(dst[:0], segs, 150, 1200)
	}
}

func BenchmarkCursor(b *testing.B) {
	segs, _ := list(bytes.Repeat([]byte{100}, 16))
	for b.Loop() {
		c := NewCursor(segs)
		for c.Next(64) != nil {
		}
	}
}
