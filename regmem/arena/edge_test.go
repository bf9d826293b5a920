package arena

import (
	"context"
	"errors"
	"sync"
	"testing"

	"cinnabar/regmem"
)

// growing is an arena that registers more, up to a limit.
func growing(t *testing.T, limit int64, regions ...*memory) *Arena[*memory] {
	t.Helper()
	a, err := New(Config[*memory]{
		Grow:    func(n int) (*memory, error) { return &memory{make([]byte, n)}, nil },
		Release: func(*memory) error { return nil },
		GrowBy:  4096, GrowMost: 1 << 16, Limit: limit,
	}, regions...)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestNeverFits tells a request that no growing will ever serve from one that has to wait: AllocContext would wait for ever.
// parity: S14
func TestNeverFits(t *testing.T) {
	const limit = 64 << 10
	a := growing(t, limit)
	for _, n := range []int{limit, limit - 100, limit + 1} {
		if _, err := a.AllocContext(t.Context(), n); !errors.Is(err, regmem.ErrTooLarge) {
			t.Errorf("%d of %d bytes: %v", n, limit, err)
		}
	}
	if _, err := a.AllocAligned(1000, limit); !errors.Is(err, regmem.ErrTooLarge) {
		t.Error(err)
	}
	b := must(a.Alloc(limit / 2))(t)
	if _, err := a.Alloc(limit - 4096); !errors.Is(err, regmem.ErrFull) {
		t.Errorf("what fits when others have freed: %v", err)
	}
	freeAll(t, b)

	// Half of the limit is a region that is never released.
	fixed := growing(t, limit, &memory{aligned(limit / 2)})
	if _, err := fixed.AllocContext(t.Context(), limit/2+1); !errors.Is(err, regmem.ErrTooLarge) {
		t.Error(err)
	}
	all := must(fixed.Alloc(limit / 2))(t)
	if _, err := fixed.Alloc(limit / 2); !errors.Is(err, regmem.ErrFull) {
		t.Errorf("what fits into the region that is there: %v", err)
	}
	freeAll(t, all)
}

// TestGivesUpEmptyRegions has small regions take all of the limit: they make room for a large one when they are empty, and
// AllocContext does not wait before, since nobody's Free can serve it.
func TestGivesUpEmptyRegions(t *testing.T) {
	a := growing(t, 64<<10)
	var blocks []regmem.Block[*memory]
	for {
		b, err := a.Alloc(2000)
		if err != nil {
			break
		}
		blocks = append(blocks, b)
	}
	const large = 50_000
	if _, err := a.AllocContext(t.Context(), large); !errors.Is(err, regmem.ErrFull) {
		t.Error(err)
	}
	freeAll(t, blocks...)
	b := must(a.AllocContext(t.Context(), large))(t)
	checkHeap(t, a)
	freeAll(t, b)
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

// TestGrowHonoursContext ends the wait for somebody who takes long to register.
func TestGrowHonoursContext(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	a, err := New(Config[*memory]{Grow: func(n int) (*memory, error) {
		close(begun)
		<-end
		return &memory{make([]byte, n)}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	var slow sync.WaitGroup
	slow.Go(func() { freeAll(t, must(a.Alloc(1000))(t)) })
	<-begun
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.AllocContext(ctx, 1000); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	close(end)
	slow.Wait()
	b := must(a.AllocContext(ctx, 1000))(t) // need not wait
	freeAll(t, b)
}

// TestTrimAndGrow does both again and again: numbers of regions are used again, and old blocks are not mistaken for new ones.
// parity: S14
func TestTrimAndGrow(t *testing.T) {
	a := growing(t, 0)
	old := must(a.Alloc(1000))(t)
	freeAll(t, old)
	for range 100 {
		if n, err := a.Trim(); err != nil || n == 0 {
			t.Fatal(n, err)
		}
		b, c := must(a.Alloc(1000))(t), must(a.Alloc(100_000))(t)
		if len(b.Bytes()) != 1000 || &b.Region().Bytes()[b.Offset()] != &b.Bytes()[0] {
			t.Fatal("another region")
		}
		if err := old.Free(); !errors.Is(err, regmem.ErrDoubleFree) {
			t.Fatal(err)
		}
		checkHeap(t, a)
		freeAll(t, b, c)
		old = b
	}
	a.core.mu.Lock()
	if len(a.sources) > 3 || len(a.core.regions) > 3 {
		t.Errorf("%d regions were noted", len(a.sources))
	}
	a.core.mu.Unlock()
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}
