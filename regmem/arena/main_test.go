package arena

import (
	"testing"

	"go.uber.org/goleak"

	"cinnabar/regmem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is a region of the Go heap.
type memory struct{ b []byte }

func (m *memory) Bytes() []byte { return m.b }

func newArena(t testing.TB, sizes ...int) *Arena[*memory] {
	t.Helper()
	var regions []*memory
	for _, n := range sizes {
		regions = append(regions, &memory{aligned(n)})
	}
	a, err := New(Config[*memory]{}, regions...)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// aligned is n bytes that begin at a multiple of the page size.
func aligned(n int) []byte {
	b := make([]byte, n+4096)
	return b[pad(b, 4096):][:n:n]
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func freeAll(t testing.TB, blocks ...regmem.Block[*memory]) {
	t.Helper()
	for _, b := range blocks {
		if err := b.Free(); err != nil {
			t.Fatal(err)
		}
	}
}

// checkHeap verifies what is always true of the chunks: they tile the regions, free ones do not touch and are in the index,
// which holds nothing else.
func checkHeap(t testing.TB, a *Arena[*memory]) {
	t.Helper()
	a.core.mu.Lock()
	defer a.core.mu.Unlock()
	a.core.coolLocked()
	h := &a.core.heap
	h.settle()
	var used, total int64
	indexed := map[int32]bool{}
	for b, first := range h.bins {
		prev := none
		for i := first; i != none; i = h.chunks[i].upper {
			if c := &h.chunks[i]; c.state != free || int(c.size) != b+1 || c.lower != prev {
				t.Fatalf("chunk %d in bin %d: %+v", i, b+1, *c)
			}
			indexed[i], prev = true, i
		}
		if got := h.filled[b>>6]>>(b&63)&1 == 1; got != (first != none) {
			t.Fatalf("bitmap of bin %d is %v", b+1, got)
		}
	}
	checkTree(t, h, h.root, indexed)
	for i := range h.chunks {
		c := &h.chunks[i]
		if c.state == unused {
			continue
		}
		total += int64(c.size)
		if c.state == inUse {
			used += int64(c.size)
		}
		if (c.state == free) != indexed[int32(i)] {
			t.Fatalf("chunk %d: state %d, in the index: %v", i, c.state, indexed[int32(i)])
		}
		if c.next == none {
			continue
		}
		n := &h.chunks[c.next]
		if n.prev != int32(i) || n.region != c.region || n.at != c.at+c.size || n.state == unused {
			t.Fatalf("chunk %d %+v is followed by %+v", i, *c, *n)
		}
		if n.state == free && c.state == free {
			t.Fatalf("free chunks %d and %d touch", i, c.next)
		}
	}
	if used != h.used || total != h.total {
		t.Fatalf("used %d, total %d; counted %d and %d", used, total, h.used, h.total)
	}
}

func checkTree(t testing.TB, h *heap, n int32, indexed map[int32]bool) {
	t.Helper()
	if n == none {
		return
	}
	c := &h.chunks[n]
	if c.state != free || c.size <= smallBins || indexed[n] {
		t.Fatalf("chunk %d in the tree: %+v", n, *c)
	}
	indexed[n] = true
	if c.lower != none && (!h.before(c.lower, n) || rank(c.lower) > rank(n)) || c.upper != none && (!h.before(n, c.upper) || rank(c.upper) > rank(n)) {
		t.Fatalf("order of the tree at chunk %d", n)
	}
	checkTree(t, h, c.lower, indexed)
	checkTree(t, h, c.upper, indexed)
}
