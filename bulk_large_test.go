package cinnabar

import (
	"bytes"
	"os"
	"testing"
)

// One pull of more than 4 GiB, and a push back, with data where 32 bits of length or offset would go wrong. It needs
// 10 GiB of memory and some seconds.
// parity(slow): H88 D25
func TestLargerThan4GiB(t *testing.T) {
	if os.Getenv("CINNABAR_LARGE") == "" {
		t.Skip("moves 5 GiB in one call between 10 GiB of memory; set CINNABAR_LARGE=1 to run it")
	}
	const size = 5<<30 + 3
	p := newBulkPair(t)
	theirs, mine := alloc(t, p.there, ReadWrite, size), alloc(t, p.here, ReadWrite, size)
	mark := noise(1 << 20)
	places := []int64{0, 1<<30 - 5, 1 << 31, 1<<32 - 1<<19, 1<<32 + 1<<29 + 1, size - 1<<20}
	for i, off := range places {
		copy(theirs.Bytes()[off:], mark[i:])
	}
	r := p.remote(t, theirs)
	if n, err := r.Pull(t.Context(), mine); n != size || err != nil {
		t.Fatalf("pull: %d, %v", n, err)
	}
	if !bytes.Equal(mine.Bytes(), theirs.Bytes()) {
		t.Error("pulled other bytes")
	}
	clear(theirs.Bytes())
	if n, err := r.Push(t.Context(), mine); n != size || err != nil {
		t.Fatalf("push: %d, %v", n, err)
	}
	if !bytes.Equal(mine.Bytes(), theirs.Bytes()) {
		t.Error("pushed other bytes")
	}
	buf := make([]byte, 1000)
	if _, err := r.ReadAt(t.Context(), buf, places[4]); err != nil || !bytes.Equal(buf, mark[4:][:1000]) {
		t.Errorf("reading beyond 4 GiB: %v", err)
	}
}
