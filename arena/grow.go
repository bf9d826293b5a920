package arena

import (
	"errors"
	"fmt"

	"cinnabar/regmem"
)

// allocGrowing is what AllocAligned does when no free chunk is large enough: it grows the arena, if it may, and tells why
// there is no memory otherwise.
func (a *Arena[R]) allocGrowing(n, align int) (regmem.Block[R], error) {
	if a.cfg.Grow == nil {
		return regmem.Block[R]{}, a.short(n, align, nil)
	}
	a.growing.Lock()
	defer a.growing.Unlock()
	if b, ok := a.tryAligned(n, align); ok { // somebody else has grown the arena meanwhile
		return b, nil
	}
	size := a.growSize(n, align)
	if size == 0 {
		return regmem.Block[R]{}, a.short(n, align, nil)
	}
	handle, err := a.cfg.Grow(size)
	if err != nil {
		return regmem.Block[R]{}, a.short(n, align, err)
	}
	return a.adopt(handle, n, align)
}

// growSize is how large the next region is for a request, 0 if there may be none.
func (a *Arena[R]) growSize(n, align int) int {
	a.core.mu.Lock()
	defer a.core.mu.Unlock()
	least := n + align + 2*unit // whatever the memory's address
	size := min(max(least, a.nextBy), maxRegion)
	left := int64(size)
	if a.cfg.Limit > 0 {
		left = a.cfg.Limit - a.core.sizeLocked()
	}
	if int64(least) > left || a.core.closed {
		return 0
	}
	return int(min(int64(size), left))
}

// sizeLocked is how many bytes the regions have.
//
// +checklocks:c.mu
func (c *core) sizeLocked() (size int64) {
	for i := range c.regions {
		size += int64(c.regions[i].size)
	}
	return size
}

// adopt adds a region that was made for a request, and serves that first, since it has paid for it.
func (a *Arena[R]) adopt(handle R, n, align int) (regmem.Block[R], error) {
	c := &a.core
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return regmem.Block[R]{}, errors.Join(fmt.Errorf("arena: %w", regmem.ErrClosed), a.release(handle))
	}
	if err := a.addLocked(handle, true); err != nil {
		return regmem.Block[R]{}, errors.Join(fmt.Errorf("arena: the region that Config.Grow made: %w", err), a.release(handle))
	}
	a.nextBy = min(2*a.nextBy, a.cfg.GrowMost)
	i := c.claimLocked(n, align)
	c.waiters.Serve(c.claimWaiting)
	if i == none {
		return regmem.Block[R]{}, fmt.Errorf("arena: Config.Grow made a region that does not hold %d bytes: %w", n, regmem.ErrFull)
	}
	return a.blockLocked(i, n), nil
}

func (a *Arena[R]) release(handle R) error {
	if a.cfg.Release == nil {
		return nil
	}
	return a.cfg.Release(handle)
}

// short is the error for a request without memory.
func (a *Arena[R]) short(n, align int, cause error) error {
	c := &a.core
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed++
	switch {
	case c.closed:
		return fmt.Errorf("arena: %w", regmem.ErrClosed)
	case cause != nil:
		return fmt.Errorf("arena: %d bytes: %w, and registering more fails: %w", n, regmem.ErrFull, cause)
	case a.cfg.Grow == nil && !c.fitsLocked(n, align):
		return fmt.Errorf("arena: %d bytes at a multiple of %d: %w: the largest of its regions has room for %d", n, align, regmem.ErrTooLarge, c.largestLocked())
	case a.cfg.Grow != nil && a.cfg.Limit > 0 && int64(n) > a.cfg.Limit:
		return fmt.Errorf("arena: %d bytes: %w: Config.Limit is %d", n, regmem.ErrTooLarge, a.cfg.Limit)
	}
	return fmt.Errorf("arena: %d bytes: %w: %d of %d bytes are free, in pieces or wanted already", n, regmem.ErrFull,
		(c.heap.total-c.heap.used)<<unitShift, c.heap.total<<unitShift)
}

// fitsLocked tells whether an empty region could hold the block.
//
// +checklocks:c.mu
func (c *core) fitsLocked(n, align int) bool {
	for i := range c.regions {
		r := &c.regions[i]
		pad := int32(0)
		if align > unit {
			pad = c.padding(int32(i), 0, int32(align>>unitShift))
		}
		if int64(pad)+int64(units(n)) <= int64((r.size-r.skip)>>unitShift) {
			return true
		}
	}
	return false
}

// largestLocked is how many bytes the largest region can hold.
//
// +checklocks:c.mu
func (c *core) largestLocked() (size int) {
	for i := range c.regions {
		size = max(size, (c.regions[i].size-c.regions[i].skip)>>unitShift<<unitShift)
	}
	return size
}

// Trim releases regions that Config.Grow made and that hold no block, and returns how many bytes that were.
func (a *Arena[R]) Trim() (int64, error) {
	if a.cfg.Release == nil {
		return 0, nil
	}
	handles, size := a.detach()
	var err error
	for _, r := range handles {
		err = errors.Join(err, a.cfg.Release(r))
	}
	return size, err
}

// detach takes grown regions without blocks out of the arena.
func (a *Arena[R]) detach() (handles []R, size int64) {
	c := &a.core
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heap.settle()
	for i := range c.heap.chunks {
		k := &c.heap.chunks[i]
		if k.state != free || k.prev != none || k.next != none || !c.regions[k.region].grown {
			continue
		}
		handles, size = append(handles, a.sources[k.region].Region), size+int64(c.regions[k.region].size)
		c.regions[k.region] = region{}
		c.heap.dropRegion(int32(i))
	}
	return handles, size
}

// Close ends the arena: those who wait, and all later requests, get regmem.ErrClosed. Blocks in use are an error of class
// regmem.ErrInUse that says how many there are; the arena is then as it was, since their memory may be somebody's to write.
// Regions that Config.Grow made are released.
func (a *Arena[R]) Close() error {
	c := &a.core
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	if n := c.allocs - c.frees; n > 0 {
		return fmt.Errorf("arena: close: %w: %d of %d bytes in all", regmem.ErrInUse, n, c.requested)
	}
	c.closed = true
	c.waiters.End()
	var err error
	for i := range c.regions {
		if r := &c.regions[i]; r.grown && r.size > 0 {
			err = errors.Join(err, a.release(a.sources[i].Region))
		}
	}
	c.regions, a.sources, c.heap = nil, nil, heap{}
	c.heap.init()
	return err
}
