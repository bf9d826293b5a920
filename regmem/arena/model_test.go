package arena

import (
	"errors"
	"flag"
	"testing"

	"pgregory.net/rapid"

	"cinnabar/internal/hostmem"
	"cinnabar/regmem"
)

var steps = flag.Int("arena.steps", 20_000, "steps of the random history in all; the long form is 1000000")

// TestModel compares random histories with a model that knows only which bytes are taken: no two blocks overlap, sizes and
// alignments are right, nothing is lost, and a refusal means that no gap was large enough.
// parity: S14
func TestModel(t *testing.T) {
	left := *steps
	for left > 0 {
		rapid.Check(t, func(t *rapid.T) { left -= history(t) })
		if t.Failed() {
			return
		}
	}
}

const modelUnits = 1200 // of the region: bins and tree are both used

// history plays one and returns how many steps it had.
func history(t *rapid.T) int {
	mem := &memory{aligned(modelUnits * unit)}
	a, err := New(Config[*memory]{}, mem)
	if err != nil {
		t.Fatal(err)
	}
	var taken [modelUnits]bool
	var live []regmem.Block[*memory]
	last := 0 // size of the block that was freed last
	n := rapid.IntRange(1, 200).Draw(t, "steps")
	for range n {
		if len(live) > 0 && rapid.IntRange(0, 9).Draw(t, "what") < 4 {
			i := rapid.IntRange(0, len(live)-1).Draw(t, "which")
			b := live[i]
			live[i] = live[len(live)-1]
			live = live[:len(live)-1]
			mark(t, &taken, b, false)
			last = b.Len()
			if err := b.Free(); err != nil {
				t.Fatal(err)
			}
			if rapid.Bool().Draw(t, "twice") {
				if err := b.Free(); !errors.Is(err, regmem.ErrDoubleFree) {
					t.Fatalf("second free: %v", err)
				}
			}
			continue
		}
		size := rapid.OneOf(rapid.IntRange(1, 2000), rapid.IntRange(1, 200*unit)).Draw(t, "size")
		align := 1 << rapid.IntRange(0, 12).Draw(t, "align")
		if again := rapid.IntRange(0, 3).Draw(t, "again"); again == 0 && last > 0 {
			size, align = last, 1
		}
		b, err := allocModel(a, size, align)
		if err != nil {
			if gap := fits(&taken, mem, size, align); gap >= 0 {
				t.Fatalf("%d bytes aligned to %d refused, but there is room at %d: %v", size, align, gap, err)
			}
			continue
		}
		if b.Len() != size || hostmem.Addr(b.Bytes())%uint64(align) != 0 {
			t.Fatalf("asked for %d bytes aligned to %d, got %v at %#x", size, align, b, hostmem.Addr(b.Bytes()))
		}
		mark(t, &taken, b, true)
		live = append(live, b)
	}
	for _, b := range live {
		if err := b.Free(); err != nil {
			t.Fatal(err)
		}
	}
	if s := a.Stats(); s.FreeChunks != 1 || s.InUse != 0 || s.Requested != 0 {
		t.Fatal(s.String())
	}
	return n
}

// allocModel is AllocAligned, or Alloc where no alignment is asked for: that has a short way.
func allocModel(a *Arena[*memory], size, align int) (regmem.Block[*memory], error) {
	if align == 1 {
		return a.Alloc(size)
	}
	return a.AllocAligned(size, align)
}

func mark(t *rapid.T, taken *[modelUnits]bool, b regmem.Block[*memory], to bool) {
	for u := b.Offset() / unit; u*unit < b.Offset()+b.Len(); u++ {
		if taken[u] == to {
			t.Fatalf("unit %d of %v is %v already", u, b, to)
		}
		taken[u] = to
	}
}

// fits looks for a gap, -1 if there is none.
func fits(taken *[modelUnits]bool, mem *memory, size, align int) int {
	base := int(hostmem.Addr(mem.b) % (1 << 30))
	for at := 0; at < modelUnits; at++ {
		if (base+at*unit)%max(align, unit) != 0 {
			continue
		}
		end := at
		for end < modelUnits && !taken[end] && (end-at)*unit < size {
			end++
		}
		if (end-at)*unit >= size {
			return at
		}
	}
	return -1
}

// FuzzHeap drives the chunks with bytes: whatever the history, they stay consistent.
// parity: S14
func FuzzHeap(f *testing.F) {
	f.Add([]byte{10, 20, 200, 130, 5, 255, 0, 1, 2})
	f.Fuzz(func(t *testing.T, script []byte) {
		a := newArena(t, 600*unit)
		var live []regmem.Block[*memory]
		for i := 0; i+1 < len(script); i += 2 {
			if script[i]&1 == 0 && len(live) > 0 {
				k := int(script[i+1]) % len(live)
				freeAll(t, live[k])
				live = append(live[:k], live[k+1:]...)
			} else if b, err := a.AllocAligned(1+int(script[i+1])*150, 1<<(script[i]>>4)); err == nil {
				live = append(live, b)
			}
			checkHeap(t, a)
		}
		freeAll(t, live...)
	})
}
