package arena

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"cinnabar/internal/waitlist"
	"cinnabar/regmem"
)

// core is the part of an arena that does not depend on the type of its regions.
type core struct {
	hot hot

	mu sync.Mutex
	// +checklocks:mu
	closed bool
	// +checklocks:mu
	heap heap
	// +checklocks:mu
	regions []region
	// +checklocks:mu
	waiters waitlist.List[int, int32]

	// +checklocks:mu
	requested int64 // bytes asked for in blocks that are in use
	// +checklocks:mu
	peak int64 // most units in use
	// +checklocks:mu
	allocs uint64
	// +checklocks:mu
	frees uint64
	// +checklocks:mu
	failed uint64
}

// region is a registration of the arena's.
type region struct {
	first uint64 // address of the first unit, in units
	skip  int    // bytes before it
	size  int    // bytes in all; 0: released
	grown bool   // made by Config.Grow
}

// addLocked makes size bytes of memory at an address available, and returns the region's number: the first that stands for
// none.
//
// +checklocks:c.mu
func (c *core) addLocked(addr uint64, size int, grown bool) (number int, err error) {
	skip := int(-addr & (unit - 1))
	if size > maxRegion {
		return 0, fmt.Errorf("%d bytes are over the limit of %d for one region; use several", size, maxRegion)
	}
	if size-skip < unit {
		return 0, fmt.Errorf("%d bytes hold no unit of %d bytes at a multiple of that size; the least that always does is %d", size, unit, 2*unit-1)
	}
	r := region{first: (addr + uint64(skip)) >> unitShift, skip: skip, size: size, grown: grown}
	number = slices.IndexFunc(c.regions, func(r region) bool { return r.size == 0 })
	if number < 0 {
		number = len(c.regions)
		c.regions = append(c.regions, r)
	} else {
		c.regions[number] = r
	}
	c.heap.addRegion(int32(number), int32((size-skip)>>unitShift))
	return number, nil
}

// takeLocked takes a chunk for a block that is no waiter's, or none.
//
// +checklocks:c.mu
func (c *core) takeLocked(n, align int) int32 {
	if c.waiters.Waiting() || c.closed {
		return none
	}
	return c.claimLocked(n, align)
}

// claimLocked takes a chunk for n bytes, or none.
//
// +checklocks:c.mu
func (c *core) claimLocked(n, align int) int32 {
	c.coolLocked()
	i := c.heap.take(units(n), int32(align>>unitShift), c)
	if i == none {
		return none
	}
	c.heap.chunks[i].asked = n
	c.requested += int64(n)
	c.allocs++
	c.peak = max(c.peak, c.heap.used)
	return i
}

// claimWaiting is claimLocked for the waiters in AllocContext. A waiter gets none if no region is large enough, because it
// would wait for ever.
//
// +checklocksignore: the list calls it while the lock is held
func (c *core) claimWaiting(n int) (int32, bool) {
	i := c.claimLocked(n, unit)
	return i, i != none || !c.fitsLocked(n, unit)
}

// wait takes a chunk for n bytes when it is there, or none if that will never be.
//
// +checklocksignore: the list takes the lock
func (c *core) wait(ctx context.Context, n int) (int32, error) {
	i, err := c.waiters.Wait(ctx, &c.mu, n, c.claimWaiting)
	if err == waitlist.ErrEnded { //nolint:errorlint // it is never wrapped
		err = regmem.ErrClosed
	}
	return i, err
}

// units is how many units hold n bytes.
func units(n int) int32 { return int32((n + unit - 1) >> unitShift) }

// padding returns the number of units between unit at of a region and the next multiple of align units in memory. It
// implements aligner.
//
// +checklocksignore: heap calls it while the lock is held
func (c *core) padding(number, at, align int32) int32 {
	return int32(-(int64(c.regions[number].first) + int64(at)) & int64(align-1))
}

// FreeBlock implements [regmem.Owner]; programs call Free of the block.
func (c *core) FreeBlock(t uint64, off, n int) error {
	if c.hot.give(t) {
		if c.wanted() {
			c.serve()
		}
		return nil
	}
	c.mu.Lock()
	err := c.freeLocked(int32(uint32(t)), uint32(t>>32))
	c.mu.Unlock()
	if err != nil {
		return fmt.Errorf("arena: free of %d bytes at offset %d: %w", n, off, err)
	}
	return nil
}

// freeLocked frees the chunk of entry i, if its owner is the one of that generation.
//
// +checklocks:c.mu
func (c *core) freeLocked(i int32, gen uint32) error {
	c.coolLocked()
	if i < 0 || int(i) >= len(c.heap.chunks) {
		return regmem.ErrForeign
	}
	k := &c.heap.chunks[i]
	if k.gen != gen || k.state != inUse {
		return regmem.ErrDoubleFree
	}
	c.requested -= int64(k.asked)
	c.frees++
	c.heap.give(i)
	if c.waiters.Waiting() {
		c.waiters.Serve(c.claimWaiting)
	}
	return nil
}

// wanted reports whether a goroutine waits for memory.
//
// +checklocksignore: Wanted may be called without the lock
func (c *core) wanted() bool { return c.waiters.Wanted() }

// serve gives free chunks to the waiters.
func (c *core) serve() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiters.Serve(c.claimWaiting)
}
