package arena

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"cinnabar/internal/hostmem"
	"cinnabar/regmem"
)

const (
	unitShift = 8
	unit      = 1 << unitShift // least size and granularity of chunks, in bytes

	// maxRegion is the largest region in bytes: units are counted in 31 bits.
	maxRegion = (1<<31 - 1) << unitShift

	// maxAlign is the largest alignment that can be asked for, in bytes.
	maxAlign = 1 << 30
)

// Config is how an arena behaves. The zero value is an arena of fixed size.
type Config[R regmem.Region] struct {
	// Grow registers another region of at least size bytes, when there is no room. It is called by the goroutine that needs
	// memory, one at a time and without locks; it may take long. nil: the arena does not grow.
	Grow func(size int) (R, error)

	// GrowBy is the least size in bytes of a region that Grow is asked for; 0: 1 MiB. Each one is twice as large as the one
	// before, up to GrowMost, unless a single request needs more.
	GrowBy   int
	GrowMost int // 0: 1 GiB

	// Limit bounds all regions together, in bytes; beyond it there is no growing. 0: none.
	Limit int64

	// Release gives up a region that Grow has made: Trim calls it for those without blocks, Close for all. nil: they stay
	// registered.
	Release func(R) error
}

// Arena is an allocator over registered regions. It implements [regmem.Allocator].
type Arena[R regmem.Region] struct {
	cfg     Config[R]
	growing chan struct{} // capacity 1: full while a region is made; before the core's lock
	core    core

	sources []*regmem.Source[R] // by the number that chunks have; guarded by core.mu
	nextBy  int                 // size of the next region; guarded by core.mu

	hotSource atomic.Pointer[regmem.Source[R]] // where the hot chunk lies
}

const (
	defaultGrowBy   = 1 << 20
	defaultGrowMost = 1 << 30
)

// New makes an arena over regions, which may be none if cfg.Grow makes them. The memory of a region is the arena's until
// Close; the regions themselves stay the caller's.
func New[R regmem.Region](cfg Config[R], regions ...R) (*Arena[R], error) {
	if cfg.GrowBy < 0 || cfg.GrowMost < 0 || cfg.Limit < 0 {
		return nil, fmt.Errorf("arena: a negative size in the configuration: GrowBy %d, GrowMost %d, Limit %d", cfg.GrowBy, cfg.GrowMost, cfg.Limit)
	}
	if len(regions) == 0 && cfg.Grow == nil {
		return nil, errors.New("arena: no region and no Config.Grow to make one: there is no memory to hand out")
	}
	if cfg.GrowBy == 0 {
		cfg.GrowBy = defaultGrowBy
	}
	if cfg.GrowMost == 0 {
		cfg.GrowMost = max(defaultGrowMost, cfg.GrowBy)
	}
	a := &Arena[R]{cfg: cfg, growing: make(chan struct{}, 1), nextBy: cfg.GrowBy}
	a.core.heap.init()
	a.core.mu.Lock()
	defer a.core.mu.Unlock()
	for i, r := range regions {
		if err := a.addLocked(r, false); err != nil {
			return nil, fmt.Errorf("arena: region %d: %w", i, err)
		}
	}
	return a, nil
}

// addLocked makes a region's memory available.
//
// +checklocks:a.core.mu
func (a *Arena[R]) addLocked(r R, grown bool) error {
	mem := r.Bytes()
	number, err := a.core.addLocked(hostmem.Addr(mem), len(mem), grown)
	if err != nil {
		return err
	}
	if number == len(a.sources) {
		a.sources = append(a.sources, nil)
	}
	a.sources[number] = &regmem.Source[R]{Owner: &a.core, Region: r}
	return nil
}

// Alloc returns a block of n bytes that begins at a multiple of 256 in memory. The block is not cleared: it may hold the data
// of an earlier block. Alloc does not wait for memory, but calls Config.Grow if need be. The error is regmem.ErrFull if
// memory is short at the moment or goroutines in AllocContext wait for it, and regmem.ErrTooLarge if no region can ever hold n bytes.
func (a *Arena[R]) Alloc(n int) (regmem.Block[R], error) {
	if n <= 0 || n > maxRegion-unit {
		return regmem.Block[R]{}, check(n, unit)
	}
	if b, ok := a.allocHot(n); ok {
		return b, nil
	}
	if b, ok := a.tryAligned(n, unit); ok {
		return b, nil
	}
	return a.allocGrowing(context.Background(), n, unit)
}

// AllocAligned is Alloc for a block that begins at a multiple of align, a power of two up to 1 GiB, in memory.
func (a *Arena[R]) AllocAligned(n, align int) (regmem.Block[R], error) {
	if err := check(n, align); err != nil {
		return regmem.Block[R]{}, err
	}
	if b, ok := a.tryAligned(n, align); ok {
		return b, nil
	}
	return a.allocGrowing(context.Background(), n, align)
}

func (a *Arena[R]) tryAligned(n, align int) (b regmem.Block[R], ok bool) {
	c := &a.core
	c.mu.Lock()
	defer c.mu.Unlock()
	c.coolLocked()
	warm := c.heap.last
	i := c.takeLocked(n, align)
	if i == none {
		return b, false
	}
	b = a.blockLocked(i, n)
	if i == warm {
		a.heatLocked(i, b)
	}
	return b, true
}

// AllocContext is Alloc that waits until enough blocks have been freed. It returns the cause of ctx if that ends before. A
// request that is larger than every region of the arena fails at once if the arena cannot grow, because no Free could serve it.
func (a *Arena[R]) AllocContext(ctx context.Context, n int) (regmem.Block[R], error) {
	if err := check(n, unit); err != nil {
		return regmem.Block[R]{}, err
	}
	if b, ok := a.tryAligned(n, unit); ok {
		return b, nil
	}
	b, err := a.allocGrowing(ctx, n, unit)
	if err == nil || !errors.Is(err, regmem.ErrFull) {
		return b, err
	}
	i, waitErr := a.core.wait(ctx, n)
	switch {
	case waitErr != nil:
		return regmem.Block[R]{}, fmt.Errorf("arena: waiting for %d bytes: %w", n, waitErr)
	case i == none:
		return regmem.Block[R]{}, err
	}
	a.core.mu.Lock()
	defer a.core.mu.Unlock()
	return a.blockLocked(i, n), nil
}

// blockLocked returns the block of n bytes in chunk i, which is in use.
//
// +checklocks:a.core.mu
func (a *Arena[R]) blockLocked(i int32, n int) regmem.Block[R] {
	c := &a.core.heap.chunks[i]
	off := a.core.regions[c.region].skip + int(c.at)<<unitShift
	return regmem.NewBlock(a.sources[c.region], off, n, tag(i, c.gen))
}

func check(n, align int) error {
	switch {
	case n <= 0:
		return fmt.Errorf("arena: a block of %d bytes; the least is 1", n)
	case align <= 0 || align&(align-1) != 0 || align > maxAlign:
		return fmt.Errorf("arena: alignment to %d bytes; it is a power of two up to %d", align, maxAlign)
	case n > maxRegion-align:
		return fmt.Errorf("arena: a block of %d bytes: %w: the limit is %d", n, regmem.ErrTooLarge, maxRegion-align)
	}
	return nil
}
