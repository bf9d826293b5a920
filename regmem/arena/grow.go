package arena

import (
	"context"
	"errors"
	"fmt"

	"cinnabar/regmem"
)

// allocGrowing serves AllocAligned when no free chunk is large enough: it grows the arena, if it may, and returns an error with
// the reason otherwise. Regions without blocks are given up for one that is large enough.
func (a *Arena[R]) allocGrowing(ctx context.Context, n, align int) (regmem.Block[R], error) {
	if a.cfg.Grow == nil {
		return regmem.Block[R]{}, a.short(n, align, nil)
	}
	if err := a.beginGrowing(ctx); err != nil {
		return regmem.Block[R]{}, fmt.Errorf("arena: %d bytes: waiting for another goroutine that registers memory: %w", n, err)
	}
	defer func() { <-a.growing }()
	if b, ok := a.tryAligned(n, align); ok { // another goroutine has grown the arena meanwhile
		return b, nil
	}
	size := a.growSize(n, align)
	if size == 0 {
		if _, err := a.Trim(); err != nil {
			return regmem.Block[R]{}, a.short(n, align, err)
		}
		if size = a.growSize(n, align); size == 0 {
			return regmem.Block[R]{}, a.short(n, align, nil)
		}
	}
	handle, err := a.cfg.Grow(size)
	if err != nil {
		return regmem.Block[R]{}, a.short(n, align, err)
	}
	return a.adopt(handle, n, align)
}

// beginGrowing waits until no other goroutine registers memory.
func (a *Arena[R]) beginGrowing(ctx context.Context) error {
	select {
	case a.growing <- struct{}{}:
		return nil
	default:
	}
	select {
	case a.growing <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// growSize is how large the next region is for a request, 0 if there may be none.
func (a *Arena[R]) growSize(n, align int) int {
	a.core.mu.Lock()
	defer a.core.mu.Unlock()
	least, left := leastRegion(n, align), a.roomLocked(true)
	if least > left || a.core.closed {
		return 0
	}
	return int(min(max(least, int64(a.nextBy)), left))
}

// leastRegion returns the size in bytes of a region that holds a block at any address of the region.
func leastRegion(n, align int) int64 { return int64(n) + int64(align) + 2*unit }

// roomLocked is how large another region may be, beside all others or only those that the arena cannot release.
//
// +checklocks:a.core.mu
func (a *Arena[R]) roomLocked(all bool) int64 {
	room := int64(maxRegion)
	if a.cfg.Limit > 0 {
		room = min(room, a.cfg.Limit-a.core.sizeLocked(all || a.cfg.Release == nil))
	}
	return room
}

// sizeLocked is how many bytes the regions have: all, or those that Config.Grow did not make.
//
// +checklocks:c.mu
func (c *core) sizeLocked(all bool) (size int64) {
	for i := range c.regions {
		if r := &c.regions[i]; all || !r.grown {
			size += int64(r.size)
		}
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
	c.coolLocked()
	switch {
	case c.closed:
		return fmt.Errorf("arena: %w", regmem.ErrClosed)
	case cause != nil:
		return fmt.Errorf("arena: %d bytes: %w, and giving up or registering memory fails: %w", n, regmem.ErrFull, cause)
	case c.fitsLocked(n, align):
	case a.cfg.Grow == nil:
		return fmt.Errorf("arena: %d bytes at a multiple of %d: %w: the largest of its regions has room for %d", n, align, regmem.ErrTooLarge, c.largestLocked())
	case leastRegion(n, align) > a.roomLocked(false):
		return fmt.Errorf("arena: %d bytes at a multiple of %d: %w: another region may have %d bytes at most (Config.Limit is %d), of which %d are lost to its place",
			n, align, regmem.ErrTooLarge, max(a.roomLocked(false), 0), a.cfg.Limit, align+2*unit)
	}
	return fmt.Errorf("arena: %d bytes: %w: %d of %d bytes are free, in pieces or wanted already", n, regmem.ErrFull,
		(c.heap.total-c.heap.used)<<unitShift, c.heap.total<<unitShift)
}

// fitsLocked reports whether an empty region could hold the block.
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

// Trim releases regions that Config.Grow made and that hold no block, and returns how many bytes that were. It releases none
// while a goroutine waits for memory.
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
	if c.waiters.Waiting() {
		return nil, 0
	}
	c.coolLocked()
	c.heap.settle()
	a.hotSource.Store(nil)
	for i := range c.heap.chunks {
		k := &c.heap.chunks[i]
		if k.state != free || k.prev != none || k.next != none || !c.regions[k.region].grown {
			continue
		}
		handles, size = append(handles, a.sources[k.region].Region), size+int64(c.regions[k.region].size)
		c.regions[k.region], a.sources[k.region] = region{}, nil
		c.heap.dropRegion(int32(i))
	}
	return handles, size
}

// Close ends the arena: waiters in AllocContext and all later requests get regmem.ErrClosed. While blocks are in use it fails
// with their number, an error of class regmem.ErrInUse, and leaves the arena as it was, because their owners may still write.
// Regions that Config.Grow made are released.
func (a *Arena[R]) Close() error {
	c := &a.core
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.coolLocked()
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
	a.hotSource.Store(nil)
	c.heap.init()
	return err
}
