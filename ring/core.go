package ring

import (
	"context"
	"fmt"

	"cinnabar/internal/waitlist"
	"cinnabar/regmem"
)

// rounded is n in whole lines.
func rounded(n int) int { return (n + line - 1) &^ (line - 1) }

func (c *core) check(n int) error {
	switch {
	case n <= 0:
		return fmt.Errorf("ring: a block of %d bytes; the least is 1", n)
	case n > c.size:
		return fmt.Errorf("ring: a block of %d bytes: %w: the ring has %d", n, regmem.ErrTooLarge, c.size)
	}
	return nil
}

// restLocked is how many bytes there are between head and the end of the region.
//
// +checklocks:c.mu
func (c *core) restLocked() int { return c.size - c.head }

// fitsLocked tells whether there is room for a block of n bytes.
//
// +checklocks:c.mu
func (c *core) fitsLocked(n int) bool {
	if c.closed {
		return false
	}
	n = rounded(n)
	if rest := c.restLocked(); n > rest {
		n += rest
	}
	return n <= c.size-c.used
}

// placeLocked makes a block of n bytes, for which there is room.
//
// +checklocks:c.mu
func (c *core) placeLocked(n int) place {
	s := span{size: rounded(n)}
	if rest := c.restLocked(); s.size > rest { // and the ring is not empty, since head is 0 then
		s.skip = rest
		c.head = 0
		c.stat.Wraps++
	}
	p := place{off: c.skip + c.head, seq: c.next}
	c.head += s.size
	c.used += s.size + s.skip
	c.stat.Peak = max(c.stat.Peak, c.used)
	if c.next-c.first == uint64(len(c.spans)) {
		c.growLocked()
	}
	c.spans[c.next&uint64(len(c.spans)-1)] = s
	c.next++
	return p
}

// growLocked makes room for more blocks in the list.
//
// +checklocks:c.mu
func (c *core) growLocked() {
	grown := make([]span, max(64, 2*len(c.spans)))
	for seq := c.first; seq != c.next; seq++ {
		grown[seq&uint64(len(grown)-1)] = c.spans[seq&uint64(len(c.spans)-1)]
	}
	c.spans = grown
}

// FreeBlock implements [regmem.Owner]; programs call Free of the block.
func (c *core) FreeBlock(seq uint64, off, n int) error {
	c.mu.Lock()
	if seq >= c.next {
		c.mu.Unlock()
		return fmt.Errorf("ring: free of %d bytes at offset %d: %w", n, off, regmem.ErrForeign)
	}
	if seq < c.first || c.spans[seq&uint64(len(c.spans)-1)].freed {
		c.mu.Unlock()
		return fmt.Errorf("ring: free of %d bytes at offset %d: %w", n, off, regmem.ErrDoubleFree)
	}
	s := &c.spans[seq&uint64(len(c.spans)-1)]
	s.freed = true
	c.stat.Frees++
	c.stat.Held += s.size
	if seq == c.first {
		c.advanceLocked()
	}
	c.mu.Unlock()
	return nil
}

// advanceLocked gives back the memory of the oldest blocks, as far as they are freed.
//
// +checklocks:c.mu
func (c *core) advanceLocked() {
	for c.first != c.next {
		s := &c.spans[c.first&uint64(len(c.spans)-1)]
		if !s.freed {
			break
		}
		c.used -= s.size + s.skip
		c.stat.Held -= s.size
		c.first++
	}
	if c.first == c.next {
		c.head = 0
	} else {
		s := &c.spans[c.first&uint64(len(c.spans)-1)]
		c.used -= s.skip
		s.skip = 0
	}
	if c.waiters.Waiting() {
		c.waiters.Serve(c.placeWaiting)
	}
}

// placeWaiting is placeLocked for who waits in AllocContext, if there is room.
//
// +checklocksignore: the list calls it while the lock is held
func (c *core) placeWaiting(n int) (place, bool) {
	if !c.fitsLocked(n) {
		return place{}, false
	}
	return c.placeLocked(n), true
}

// wait makes a block when there is room.
//
// +checklocksignore: the list takes the lock
func (c *core) wait(ctx context.Context, n int) (place, error) {
	p, err := c.waiters.Wait(ctx, &c.mu, n, c.placeWaiting)
	if err == waitlist.ErrEnded { //nolint:errorlint // it is never wrapped
		err = regmem.ErrClosed
	}
	return p, err
}

// fullLocked is the error for a request without room.
//
// +checklocks:c.mu
func (c *core) fullLocked(n int) error {
	if c.closed {
		return fmt.Errorf("ring: %w", regmem.ErrClosed)
	}
	c.stat.Failed++
	return fmt.Errorf("ring: %d bytes: %w: %d of %d bytes are in use", n, regmem.ErrFull, c.used, c.size)
}

func (c *core) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.next - c.stat.Frees; n > 0 && !c.closed {
		return fmt.Errorf("ring: close: %w: %d", regmem.ErrInUse, n)
	}
	c.closed = true
	c.waiters.End()
	return nil
}

func (c *core) stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stat
	s.Size, s.InUse, s.Waiting = c.size, c.used, c.waiters.Len()
	s.Allocs = c.next
	s.Blocks = int(c.next - s.Frees)
	return s
}
