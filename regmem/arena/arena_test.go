package arena

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"cinnabar/internal/hostmem"
	"cinnabar/regmem"
)

func pad(b []byte, align uint64) int { return int(-hostmem.Addr(b) & (align - 1)) }

// TestSplitAndJoin frees neighbours in all orders: what is left is one chunk.
// parity: S14
func TestSplitAndJoin(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		a := newArena(t, 1<<20)
		blocks := make([]regmem.Block[*memory], 3)
		for i := range blocks {
			blocks[i] = must(a.Alloc(1000))(t)
		}
		if s := a.Stats(); s.InUse != 3*1024 || s.Requested != 3000 || s.Blocks != 3 || s.FreeChunks != 1 {
			t.Errorf("%v", s.String())
		}
		for _, i := range order {
			freeAll(t, blocks[i])
			checkHeap(t, a)
		}
		if s := a.Stats(); s.FreeChunks != 1 || s.LargestFree != 1<<20 || s.InUse != 0 || s.Fragmentation() != 0 {
			t.Errorf("order %v: %v", order, s.String())
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestBestFit leaves holes of several sizes and asks for one that fits the middle one best.
// parity: S14
func TestBestFit(t *testing.T) {
	for _, scale := range []int{1, 300} { // in bins, and in the tree
		a := newArena(t, 4<<20)
		var holes, walls []regmem.Block[*memory]
		for _, n := range []int{10, 4, 7, 4} {
			holes = append(holes, must(a.Alloc(n*unit*scale))(t))
			walls = append(walls, must(a.Alloc(unit))(t))
		}
		want := holes[2].Offset()
		freeAll(t, holes...)
		if b := must(a.Alloc(5 * unit * scale))(t); b.Offset() != want {
			t.Errorf("at %d, want the hole at %d", b.Offset(), want)
		}
		checkHeap(t, a)
		freeAll(t, walls...)
	}
}

// TestNamedMisuse frees blocks twice, late, or that were never ours.
// parity: S14
func TestNamedMisuse(t *testing.T) {
	a, other := newArena(t, 1<<16), newArena(t, 1<<16)
	b := must(a.Alloc(100))(t)
	freeAll(t, b)
	again := must(a.Alloc(100))(t) // the same place
	if again.Offset() != b.Offset() {
		t.Fatalf("offset %d", again.Offset())
	}
	strange := regmem.NewBlock(&regmem.Source[*memory]{Owner: &a.core, Region: &memory{make([]byte, 10)}}, 0, 10, 1<<40|77)
	for name, c := range map[string]struct {
		err  error
		want error
	}{
		"twice":   {b.Free(), regmem.ErrDoubleFree},
		"foreign": {strange.Free(), regmem.ErrForeign},
		"zero":    {regmem.Block[*memory]{}.Free(), regmem.ErrForeign},
		"close":   {a.Close(), regmem.ErrInUse},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v", name, c.err)
		}
	}
	freeAll(t, again, must(other.Alloc(5))(t))
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if _, err := a.Alloc(1); !errors.Is(err, regmem.ErrClosed) {
		t.Errorf("%v", err)
	}
}

// TestRefused asks for what cannot be had.
func TestRefused(t *testing.T) {
	a := newArena(t, 1<<16)
	for name, c := range map[string]struct {
		n, align int
		is       error
		text     string
	}{
		"zero":      {0, unit, nil, "the least is 1"},
		"negative":  {-5, unit, nil, "the least is 1"},
		"alignment": {5, 3, nil, "power of two"},
		"far":       {5, 1 << 31, nil, "power of two"},
		"huge":      {maxRegion, unit, regmem.ErrTooLarge, "limit"},
		"too large": {1<<16 + 1, unit, regmem.ErrTooLarge, "65536"},
	} {
		_, err := a.AllocAligned(c.n, c.align)
		if err == nil || !strings.Contains(err.Error(), c.text) || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: %v", name, err)
		}
	}
	b := must(a.Alloc(1 << 15))(t)
	if _, err := a.Alloc(1<<15 + 1); !errors.Is(err, regmem.ErrFull) || errors.Is(err, regmem.ErrTooLarge) {
		t.Errorf("full: %v", err)
	}
	freeAll(t, b)
	if _, err := New(Config[*memory]{}); err == nil {
		t.Error("an arena without memory")
	}
	if _, err := New(Config[*memory]{}, &memory{make([]byte, 100)}); err == nil {
		t.Error("a region without a unit")
	}
}

// TestAlignment checks addresses, in regions that begin anywhere.
// parity: S14
func TestAlignment(t *testing.T) {
	mem := aligned(1 << 20)
	a, err := New(Config[*memory]{}, &memory{mem[100:]}, &memory{aligned(1 << 18)[1:]})
	if err != nil {
		t.Fatal(err)
	}
	var blocks []regmem.Block[*memory]
	for align := 1; align <= 1<<16; align *= 2 {
		for _, n := range []int{1, 255, 5000} {
			b := must(a.AllocAligned(n, align))(t)
			if got := hostmem.Addr(b.Bytes()); got%uint64(max(align, unit)) != 0 || len(b.Bytes()) != n || cap(b.Bytes()) != n {
				t.Errorf("%d bytes aligned to %d: %#x, cap %d", n, align, got, cap(b.Bytes()))
			}
			blocks = append(blocks, b)
			checkHeap(t, a)
		}
	}
	freeAll(t, blocks...)
	checkHeap(t, a)
	if s := a.Stats(); s.FreeChunks != 2 {
		t.Error(s.String())
	}
}

// TestAlignedTight needs the very place that is left, though no chunk has room for the worst case.
func TestAlignedTight(t *testing.T) {
	a := newArena(t, 8192)
	b := must(a.Alloc(4096))(t)
	c := must(a.AllocAligned(4096, 4096))(t)
	freeAll(t, b, c)
}

// TestGrow has the arena register more, up to its limit, and give it back.
// parity: S14
func TestGrow(t *testing.T) {
	var live int
	a, err := New(Config[*memory]{
		Grow:    func(n int) (*memory, error) { live++; return &memory{make([]byte, n)}, nil },
		Release: func(*memory) error { live--; return nil },
		GrowBy:  4096, Limit: 1 << 16,
	})
	if err != nil {
		t.Fatal(err)
	}
	var blocks []regmem.Block[*memory]
	for {
		b, err := a.Alloc(1000)
		if err != nil {
			if !errors.Is(err, regmem.ErrFull) {
				t.Fatal(err)
			}
			break
		}
		blocks = append(blocks, b)
	}
	s := a.Stats()
	if len(blocks) < 50 || s.Size > 1<<16 || s.Regions != live || live < 3 {
		t.Errorf("%d blocks, %d regions: %v", len(blocks), live, s.String())
	}
	if _, err := a.Alloc(1 << 17); !errors.Is(err, regmem.ErrTooLarge) {
		t.Errorf("%v", err)
	}
	freeAll(t, blocks[1:]...)
	if n, err := a.Trim(); err != nil || n == 0 || live != 1 {
		t.Errorf("trimmed %d, %v; %d regions", n, err, live)
	}
	checkHeap(t, a)
	freeAll(t, blocks[0])
	if err := a.Close(); err != nil || live != 0 {
		t.Errorf("%v; %d regions", err, live)
	}
}

// TestGrowFails passes on why.
func TestGrowFails(t *testing.T) {
	cause := errors.New("locked memory is used up")
	a, err := New(Config[*memory]{Grow: func(int) (*memory, error) { return nil, cause }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Alloc(1); !errors.Is(err, cause) || !errors.Is(err, regmem.ErrFull) {
		t.Error(err)
	}
}

// TestWait serves those who wait in their order, and nobody before them.
func TestWait(t *testing.T) { synctest.Test(t, testWait) }

func testWait(t *testing.T) {
	a := newArena(t, 4*unit)
	all := must(a.Alloc(4 * unit))(t)
	type got struct {
		b   regmem.Block[*memory]
		err error
	}
	results := make([]chan got, 3)
	for i, n := range []int{3 * unit, unit, 2 * unit} {
		results[i] = make(chan got, 1)
		go func() {
			b, err := a.AllocContext(t.Context(), n)
			results[i] <- got{b, err}
		}()
		synctest.Wait()
		if n := a.Stats().Waiting; n != i+1 {
			t.Fatalf("%d wait", n)
		}
	}
	freeAll(t, all)
	first, second := <-results[0], <-results[1]
	if first.err != nil || second.err != nil {
		t.Fatal(first.err, second.err)
	}
	if _, err := a.Alloc(1); !errors.Is(err, regmem.ErrFull) {
		t.Errorf("pushed in: %v", err)
	}
	freeAll(t, first.b)
	third := <-results[2]
	freeAll(t, second.b, third.b)
}

// TestWaitEnds ends waiting by context and by Close.
func TestWaitEnds(t *testing.T) { synctest.Test(t, testWaitEnds) }

func testWaitEnds(t *testing.T) {
	a := newArena(t, unit)
	b := must(a.Alloc(1))(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("patience")
	done := make(chan error)
	go func() {
		_, err := a.AllocContext(ctx, 1)
		done <- err
	}()
	synctest.Wait()
	cancel(cause)
	if err := <-done; !errors.Is(err, cause) {
		t.Error(err)
	}
	freeAll(t, b)
	if b, err := a.AllocContext(ctx, 1); err != nil {
		t.Errorf("a context that has ended, and room: %v", err)
	} else {
		freeAll(t, b)
	}
	if _, err := a.AllocContext(t.Context(), 1000); !errors.Is(err, regmem.ErrTooLarge) {
		t.Errorf("waited for what never comes: %v", err)
	}
}

// TestConcurrent has goroutines write in their blocks and find what they wrote.
// parity: S14
func TestConcurrent(t *testing.T) {
	a := newArena(t, 1<<16, 1<<15)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 300 {
				n := 1 + (i*7919+g*104729)%9000
				b, err := a.AllocContext(t.Context(), n)
				if err != nil {
					t.Error(err)
					return
				}
				mem := b.Bytes()
				for i := range mem {
					mem[i] = byte(g)
				}
				if bytes.Count(mem, []byte{byte(g)}) != n {
					t.Error("somebody else wrote here")
				}
				if err := b.Free(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	checkHeap(t, a)
	if s := a.Stats(); s.FreeChunks != 2 || s.Allocs != 2400 {
		t.Error(s.String())
	}
}

// TestDump reads like the memory is.
// parity: S14
func TestDump(t *testing.T) {
	a := newArena(t, 1024)
	b := must(a.Alloc(300))(t)
	var out strings.Builder
	if err := a.Dump(&out); err != nil {
		t.Fatal(err)
	}
	want := "1 regions, 1024 bytes, 512 in use in 1 blocks (300 asked for), 512 free in 1 pieces, the largest 512, fragmentation 0.00\n" +
		"chunks from 512 bytes: 1 in use (512 bytes), 1 free (512 bytes)\n" +
		"region 0 at 0: 512 bytes in use, 300 asked for\n" +
		"region 0 at 512: 512 bytes free\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	freeAll(t, b)
}

// TestNoGarbage allocates nothing on the Go heap.
// parity: S14
func TestNoGarbage(t *testing.T) {
	a := newArena(t, 1<<20)
	warm := must(a.Alloc(1))(t)
	freeAll(t, warm)
	if n := testing.AllocsPerRun(1000, func() {
		b, err := a.Alloc(5000)
		if err != nil || b.Free() != nil {
			t.Error("no block")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
