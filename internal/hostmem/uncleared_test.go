package hostmem

import (
	"bytes"
	"runtime"
	"testing"
)

// TestUncleared checks the size of memory without content, and that each call returns other memory, which keeps what is written to it.
func TestUncleared(t *testing.T) {
	for _, n := range []int{-1, 0} {
		if b := Uncleared(n); b != nil {
			t.Errorf("Uncleared(%d) has %d bytes", n, len(b))
		}
	}
	var all [][]byte
	for i, n := range []int{1, 7, 8, 100, 4096, 100_000, 1 << 20, 1<<20 + 1} {
		b := Uncleared(n)
		if len(b) != n || cap(b) != n {
			t.Fatalf("%d bytes with room for %d, want %d", len(b), cap(b), n)
		}
		for j := range b {
			b[j] = byte(i + 1)
		}
		all = append(all, b)
	}
	runtime.GC()
	for i, b := range all {
		if !bytes.Equal(b, bytes.Repeat([]byte{byte(i + 1)}, len(b))) {
			t.Errorf("%d bytes have changed", len(b))
		}
	}
}
