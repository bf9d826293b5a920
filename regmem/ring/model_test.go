package ring

import (
	"errors"
	"flag"
	"testing"

	"pgregory.net/rapid"

	"cinnabar/regmem"
)

var steps = flag.Int("ring.steps", 20_000, "steps of the random history in all; the long form is 1000000")

// TestModel compares random histories with a model that knows which lines are taken and in which order blocks were made:
// blocks do not overlap, each follows the one before or begins at the start, and a refusal means that there was no room.
// parity: S13
func TestModel(t *testing.T) {
	for left := *steps; left > 0 && !t.Failed(); {
		rapid.Check(t, func(t *rapid.T) { left -= history(t) })
	}
}

// model is a ring in its simplest form: all blocks from the oldest that is not freed.
type model struct {
	lines  int
	skip   int // bytes before the first line
	blocks []held
}

type held struct {
	b     block
	freed bool
}

// room tells where a block of n lines has to lie, -1 if there is no room.
func (m *model) room(n int) int {
	if len(m.blocks) == 0 {
		return 0
	}
	first, last := m.blocks[0].b, m.blocks[len(m.blocks)-1].b
	tail, head := (first.Offset()-m.skip)/line, (last.Offset()-m.skip+last.Len()+line-1)/line
	switch wrapped := last.Offset() < first.Offset(); {
	case wrapped && head+n <= tail, !wrapped && head+n <= m.lines:
		return head
	case !wrapped && n <= tail:
		return 0
	}
	return -1
}

func (m *model) free(t *rapid.T, i int) {
	if err := m.blocks[i].b.Free(); err != nil {
		t.Fatal(err)
	}
	if err := m.blocks[i].b.Free(); !errors.Is(err, regmem.ErrDoubleFree) {
		t.Fatalf("second free: %v", err)
	}
	m.blocks[i].freed = true
	for len(m.blocks) > 0 && m.blocks[0].freed {
		m.blocks = m.blocks[1:]
	}
}

func history(t *rapid.T) int {
	m := &model{lines: rapid.IntRange(1, 40).Draw(t, "lines")}
	r, err := New(&memory{make([]byte, (m.lines+1)*line)})
	if err != nil {
		t.Fatal(err)
	}
	m.lines, m.skip = r.Size()/line, r.core.skip
	n := rapid.IntRange(1, 200).Draw(t, "steps")
	for range n {
		if i := rapid.IntRange(0, 20).Draw(t, "which"); i < len(m.blocks) && !m.blocks[i].freed {
			m.free(t, i)
			continue
		}
		size := rapid.IntRange(1, r.Size()).Draw(t, "size")
		want := m.room((size + line - 1) / line)
		b, err := r.Alloc(size)
		switch {
		case err == nil && want < 0:
			t.Fatalf("%d bytes at %d, where there is no room", size, b.Offset())
		case err != nil && (want >= 0 || !errors.Is(err, regmem.ErrFull)):
			t.Fatalf("%d bytes refused, there is room at %d: %v", size, want*line, err)
		case err != nil:
			continue
		}
		if b.Offset() != m.skip+want*line || b.Len() != size {
			t.Fatalf("%d bytes: %v, want offset %d", size, b, want*line)
		}
		m.blocks = append(m.blocks, held{b: b})
	}
	return n
}
