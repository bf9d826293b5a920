package credit

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// parity: B32
func TestRoundRobin(t *testing.T) {
	w := New(3)
	var got []int
	for range 7 {
		slot, ok := w.Take()
		if !ok {
			if err := w.Grant(w.Granted() + 1); err != nil {
				t.Fatal(err)
			}
			slot, _ = w.Take()
		}
		got = append(got, slot)
	}
	if want := []int{0, 1, 2, 0, 1, 2, 0}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if w.Taken() != 7 || w.Granted() != 4 || w.Free() != 0 || w.Size() != 3 {
		t.Errorf("got %+v", w)
	}
}

// With one buffer each chunk waits for the one before: the basic protocol.
// parity: B32
func TestOneBufferIsLockStep(t *testing.T) {
	w, l := New(1), NewLedger(1)
	for i := range uint64(5) {
		slot, ok := w.Take()
		if slot != 0 || !ok {
			t.Fatalf("chunk %d: got buffer %d, %v", i, slot, ok)
		}
		if _, ok := w.Take(); ok {
			t.Fatalf("chunk %d: a second buffer was lent", i)
		}
		if _, err := l.Arrive(i); err != nil {
			t.Fatal(err)
		}
		if err := w.Grant(l.Release(0)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestGrantOfTheFuture(t *testing.T) {
	w := New(2)
	w.Take()
	before := w
	if err := w.Grant(2); err == nil || !strings.Contains(err.Error(), "2 buffers in all, of which 1") {
		t.Errorf("got %v", err)
	}
	if w != before {
		t.Errorf("the refused grant changed %+v to %+v", before, w)
	}
	for _, total := range []uint64{1, 0, 1} { // a stale one does no harm
		if err := w.Grant(total); err != nil || total == 1 && w.Free() != 2 {
			t.Errorf("grant %d: %v, %+v", total, err, w)
		}
	}
}

func TestLedgerRefuses(t *testing.T) {
	l := NewLedger(2)
	for index, want := range map[uint64]string{1: "chunk 0 is next", 1 << 63: "chunk 0 is next"} {
		if _, err := l.Arrive(index); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("chunk %d: got %v, want %q", index, err, want)
		}
	}
	for i := range uint64(2) {
		if _, err := l.Arrive(i); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Arrive(2); err == nil || !strings.Contains(err.Error(), "all 2 buffers are in use") {
		t.Errorf("got %v", err)
	}
	// The second buffer alone does not count: the first is older.
	if total := l.Release(1); total != 0 || l.Free() != 0 || l.Idle() {
		t.Errorf("got %d, %+v", total, l)
	}
	if total := l.Release(0); total != 2 || l.Free() != 2 || !l.Idle() || l.Arrived() != 2 {
		t.Errorf("got %d, %+v", total, l)
	}
}

func TestPanics(t *testing.T) {
	for name, f := range map[string]func(){
		"no window": func() { New(0) },
		"no ledger": func() { NewLedger(-1) },
		"not held":  func() { l := NewLedger(1); l.Release(0) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

// Whatever the order in which a receiver frees buffers and its grants arrive,
// no buffer is lent while it is held, and nothing gets stuck.
// parity: S17 B34
func TestHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 9).Draw(t, "size")
		chunks := rapid.Uint64Range(0, 60).Draw(t, "chunks")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		w, l := New(size), NewLedger(size)
		var wire, held []int // buffers written and not announced; announced and in use
		var grants []uint64
		for done := uint64(0); done < chunks; {
			switch rng.IntN(4) {
			case 0:
				if slot, ok := w.Take(); ok && w.Taken() <= chunks {
					if slices.Contains(wire, slot) || slices.Contains(held, slot) {
						t.Fatalf("buffer %d is lent while it is in use", slot)
					}
					wire = append(wire, slot)
				} else if ok {
					w.taken-- // the file is over
				}
			case 1:
				if len(wire) > 0 {
					slot, err := l.Arrive(l.Arrived())
					if err != nil || slot != wire[0] {
						t.Fatalf("got buffer %d, %v, want %d", slot, err, wire[0])
					}
					held, wire = append(held, slot), wire[1:]
				}
			case 2:
				if len(held) > 0 {
					i := rng.IntN(len(held))
					grants = append(grants, l.Release(held[i]))
					held = slices.Delete(held, i, i+1)
				}
			case 3:
				if len(grants) > 0 {
					i := rng.IntN(len(grants)) // overtaken ones stay behind
					if err := w.Grant(grants[i]); err != nil {
						t.Fatal(err)
					}
					grants = slices.Delete(grants, i, i+1)
					done = w.Granted()
				}
			}
		}
		if w.Taken() != chunks || !l.Idle() || w.Free() != size {
			t.Fatalf("in the end %+v, %+v", w, l)
		}
	})
}

func TestNoAllocations(t *testing.T) {
	w, l := New(4), NewLedger(4)
	n := testing.AllocsPerRun(100, func() {
		slot, _ := w.Take()
		if _, err := l.Arrive(l.Arrived()); err != nil {
			t.Fatal(err)
		}
		if err := w.Grant(l.Release(slot)); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations per chunk", n)
	}
}
