package arena

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	"cinnabar/regmem"
)

type testBlock = regmem.Block[*memory]

// heated is an arena whose chunk of three units is handed out without the lock, and a block of it.
func heated(t testing.TB, sizes ...int) (*Arena[*memory], testBlock) {
	t.Helper()
	a := newArena(t, sizes...)
	freeAll(t, must(a.Alloc(3*unit))(t))
	b := must(a.Alloc(3 * unit))(t)
	if !isHot(a, b) {
		t.Fatal("a chunk of the size that was freed last does not become hot")
	}
	return a, b
}

func isHot(a *Arena[*memory], b testBlock) bool {
	word := a.core.hot.word.Load()
	return word&hotUsed != 0 && int(a.core.hot.off.Load()) == b.Offset()
}

// TestHot counts what goes without the lock as all else, whenever somebody looks.
// parity: S14
func TestHot(t *testing.T) {
	a, b := heated(t, 10*unit)
	freeAll(t, b)
	for _, n := range []int{2*unit + 1, 3 * unit, 3*unit - 7} {
		b := must(a.Alloc(n))(t)
		if !isHot(a, b) || b.Len() != n || len(b.Bytes()) != n {
			t.Fatalf("%d bytes: %v", n, b)
		}
		freeAll(t, b)
	}
	if s := a.Stats(); s.Allocs != 5 || s.Frees != 5 || s.Blocks != 0 || s.InUse != 0 || s.Requested != 0 || s.FreeChunks != 1 || s.Peak != 3*unit {
		t.Errorf("free: %s, %+v", s.String(), s)
	}
	checkHeap(t, a)
	freeAll(t, must(a.Alloc(600))(t))
	must(a.Alloc(700))(t)
	b = must(a.Alloc(5))(t)
	if s := a.Stats(); s.Allocs != 8 || s.Frees != 6 || s.Blocks != 2 || s.InUse != 4*unit || s.Requested != 705 {
		t.Errorf("in use: %s, %+v", s.String(), s)
	}
	freeAll(t, b)
	checkHeap(t, a)
}

// TestHotOtherSize gives no other size the hot chunk, and joins it with its neighbours when they need it.
// parity: S14
func TestHotOtherSize(t *testing.T) {
	a, b := heated(t, 10*unit)
	freeAll(t, b)
	for _, n := range []int{2 * unit, 3*unit + 1, 10 * unit} {
		b := must(a.Alloc(n))(t)
		if b.Len() != n || b.Offset() != 0 {
			t.Errorf("%d bytes: %v", n, b)
		}
		freeAll(t, b)
	}
	for _, n := range []int{0, -1, -3 * unit, maxRegion} {
		if b, err := a.Alloc(n); err == nil {
			t.Errorf("%d bytes: %v", n, b)
		}
	}
	checkHeap(t, a)
}

// TestHotDoubleFree frees again at every time, which is named and harms nobody.
// parity: S14
func TestHotDoubleFree(t *testing.T) {
	a, first := heated(t, 10*unit)
	again := func(when string) {
		t.Helper()
		if err := first.Free(); !errors.Is(err, regmem.ErrDoubleFree) {
			t.Errorf("%s: %v", when, err)
		}
	}
	freeAll(t, first)
	again("while it is free")
	freeAll(t, must(a.Alloc(3*unit))(t))
	next := must(a.Alloc(3 * unit))(t)
	if !isHot(a, next) || next.Offset() != first.Offset() {
		t.Fatal("not the same chunk")
	}
	again("when it is somebody else's")
	if err := regmem.NewBlock(a.sources[0], 0, 5, tag(99, 1)).Free(); !errors.Is(err, regmem.ErrForeign) {
		t.Error(err)
	}
	if s := a.Stats(); s.Blocks != 1 {
		t.Error(s.String())
	}
	freeAll(t, next)
	again("at the end")
	if s := a.Stats(); s.Blocks != 0 || s.FreeChunks != 1 {
		t.Error(s.String())
	}
}

// TestHotWaiter is served with the hot chunk when that is freed, before those who come later.
// parity: S14
func TestHotWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := heated(t, 3*unit)
		got := make(chan error)
		go func() {
			b, err := a.AllocContext(t.Context(), 3*unit)
			got <- errors.Join(err, b.Free())
		}()
		synctest.Wait()
		if _, err := a.Alloc(3 * unit); !errors.Is(err, regmem.ErrFull) {
			t.Error(err)
		}
		freeAll(t, b)
		if err := <-got; err != nil {
			t.Error(err)
		}
	})
}

// TestHotClose finds a hot block in use, and hands out none afterwards.
// parity: S14
func TestHotClose(t *testing.T) {
	a, b := heated(t, 3*unit)
	if err := a.Close(); !errors.Is(err, regmem.ErrInUse) {
		t.Error(err)
	}
	freeAll(t, b)
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if _, err := a.Alloc(3 * unit); !errors.Is(err, regmem.ErrClosed) {
		t.Error(err)
	}
}

// TestHotTrim releases a region whose only chunk was hot.
// parity: S14
func TestHotTrim(t *testing.T) {
	a := growing(t, 0)
	for range 5 {
		freeAll(t, must(a.Alloc(3*unit))(t))
	}
	if n, err := a.Trim(); n == 0 || err != nil {
		t.Error(n, err)
	}
	freeAll(t, must(a.Alloc(3*unit))(t))
}

// TestHotCounts goes without the lock until the counters have to be brought up to date.
// parity: S14
func TestHotCounts(t *testing.T) {
	a, b := heated(t, 3*unit)
	freeAll(t, b)
	const n = hotCount + hotCount/2
	for range n {
		b, err := a.Alloc(3 * unit)
		if err != nil || b.Free() != nil {
			t.Fatal("no block")
		}
	}
	if s := a.Stats(); s.Allocs != n+2 || s.Frees != n+2 {
		t.Errorf("%d and %d, want %d", s.Allocs, s.Frees, n+2)
	}
}

// TestHotConcurrent has goroutines want the same size at the same time, some of them wait, some free twice, and some want
// another size: each block has one owner at a time.
// parity: S14
func TestHotConcurrent(t *testing.T) {
	a := newArena(t, 4*unit)
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() {
			for i := range 2000 {
				n := unit
				if i%50 == g {
					n = 2 * unit
				}
				b := takeEither(t, a, n, i%7 == 0)
				if b.IsZero() {
					runtime.Gosched()
					continue
				}
				mem := b.Bytes()
				mem[0], mem[n-1] = byte(g), byte(g)
				runtime.Gosched()
				if mem[0] != byte(g) || mem[n-1] != byte(g) {
					t.Error("somebody else wrote here")
				}
				if err := b.Free(); err != nil {
					t.Error(err)
				}
				if i%5 == 0 && !errors.Is(b.Free(), regmem.ErrDoubleFree) {
					t.Error("freed twice")
				}
			}
		})
	}
	wg.Wait()
	if s := a.Stats(); s.FreeChunks != 1 || s.Blocks != 0 || s.Allocs != s.Frees || s.Requested != 0 {
		t.Error(s.String())
	}
	checkHeap(t, a)
}

// takeEither allocates, or waits; the zero block stands for no room.
func takeEither(t *testing.T, a *Arena[*memory], n int, wait bool) testBlock {
	var b testBlock
	var err error
	if wait {
		b, err = a.AllocContext(context.Background(), n)
	} else if b, err = a.Alloc(n); errors.Is(err, regmem.ErrFull) {
		return testBlock{}
	}
	if err != nil {
		t.Error(err)
	}
	return b
}
