package ring

import (
	"context"
	"fmt"
	"sync"

	"cinnabar/internal/hostmem"
	"cinnabar/internal/waitlist"
	"cinnabar/regmem"
)

// Ring is an allocator over one registered region. It implements [regmem.Allocator].
type Ring[R regmem.Region] struct {
	source regmem.Source[R]
	core   core
}

// New makes a ring over region, without the bytes before its first multiple of 64 in memory and those after its last. The
// memory is the ring's until Close; the region stays the caller's.
func New[R regmem.Region](region R) (*Ring[R], error) {
	mem := region.Bytes()
	skip := int(-hostmem.Addr(mem) & (line - 1))
	if len(mem)-skip < line {
		return nil, fmt.Errorf("ring: a region of %d bytes: %d bytes that begin at a multiple of %d are the least", len(mem), line, line)
	}
	r := &Ring[R]{core: core{skip: skip, layout: NewLayout(len(mem) - skip)}}
	r.core.size = r.core.layout.Size()
	r.source = regmem.Source[R]{Owner: &r.core, Region: region}
	return r, nil
}

// Alloc returns a block of n bytes, n > 0, which is not cleared. The error is regmem.ErrFull without room or if goroutines
// wait for memory, and regmem.ErrTooLarge if n is more than the ring has.
func (r *Ring[R]) Alloc(n int) (regmem.Block[R], error) {
	c := &r.core
	if n <= 0 || n > c.size {
		return regmem.Block[R]{}, c.check(n)
	}
	c.mu.Lock()
	if !c.waiters.Waiting() {
		if p, ok := c.takeLocked(n); ok {
			c.mu.Unlock()
			return regmem.NewBlock(&r.source, p.off, n, p.seq), nil
		}
	}
	defer c.mu.Unlock()
	return regmem.Block[R]{}, c.fullLocked(n)
}

// AllocContext is Alloc that waits for room. If ctx ends before, the error is its cause.
func (r *Ring[R]) AllocContext(ctx context.Context, n int) (regmem.Block[R], error) {
	if b, err := r.Alloc(n); err == nil {
		return b, nil
	}
	if err := r.core.check(n); err != nil {
		return regmem.Block[R]{}, err
	}
	p, err := r.core.wait(ctx, n)
	if err != nil {
		return regmem.Block[R]{}, fmt.Errorf("ring: waiting for %d bytes: %w", n, err)
	}
	return regmem.NewBlock(&r.source, p.off, n, p.seq), nil
}

// Size returns how many bytes there are, which is the size of the largest block.
func (r *Ring[R]) Size() int { return r.core.size }

// Region returns the region that New was called with.
func (r *Ring[R]) Region() R { return r.source.Region }

// Close ends the ring: waiters in AllocContext and all later requests get regmem.ErrClosed. While blocks are in use it fails
// with their number, an error of class regmem.ErrInUse, and the ring goes on.
func (r *Ring[R]) Close() error { return r.core.close() }

// End is Close while blocks are in use: it keeps others from waiting for memory that never comes back. Blocks can still be
// freed, and Close then says whether all were.
func (r *Ring[R]) End() { r.core.end() }

// Stats returns the ring's counters. It looks at all blocks.
func (r *Ring[R]) Stats() Stats { return r.core.stats() }

// Stats describes the use of a ring's memory. Sizes are in bytes.
type Stats struct {
	Size    int    // of the ring
	InUse   int    // not free: blocks, bytes skipped before them, and freed blocks behind the oldest in use
	Held    int    // of these, in blocks that are freed already but behind one in use
	Peak    int    // the most that InUse was
	Blocks  int    // blocks in use
	Waiting int    // goroutines in AllocContext
	Allocs  uint64 // blocks handed out
	Frees   uint64 // blocks taken back
	Wraps   uint64 // times that a block began at the start again
	Failed  uint64 // requests refused for want of room
}

// place is where a block lies in the region, and its number.
type place struct {
	off int
	seq uint64
}

// core is the part of a ring that does not depend on the type of its region.
type core struct {
	skip int // bytes of the region before the ring
	size int // bytes of the ring

	mu sync.Mutex
	// +checklocks:mu
	closed bool
	// +checklocks:mu
	layout Layout
	// +checklocks:mu
	waiters waitlist.List[int, place]
	// +checklocks:mu
	peak int
	// +checklocks:mu
	failed uint64
}

func (c *core) check(n int) error {
	switch {
	case n <= 0:
		return fmt.Errorf("ring: a block of %d bytes; the least is 1", n)
	case n > c.size:
		return fmt.Errorf("ring: a block of %d bytes: %w: the ring has %d", n, regmem.ErrTooLarge, c.size)
	}
	return nil
}

// takeLocked makes a block of n bytes, if there is room.
//
// +checklocks:c.mu
func (c *core) takeLocked(n int) (place, bool) {
	if c.closed {
		return place{}, false
	}
	off, seq, ok := c.layout.take(n)
	c.peak = max(c.peak, c.layout.used)
	return place{c.skip + off, seq}, ok
}

// takeWaiting is takeLocked for the waiters in AllocContext.
//
// +checklocksignore: the list calls it while the lock is held
func (c *core) takeWaiting(n int) (place, bool) { return c.takeLocked(n) }

// wait makes a block when there is room.
//
// +checklocksignore: the list takes the lock
func (c *core) wait(ctx context.Context, n int) (place, error) {
	p, err := c.waiters.Wait(ctx, &c.mu, n, c.takeWaiting)
	if err == waitlist.ErrEnded { //nolint:errorlint // it is never wrapped
		err = regmem.ErrClosed
	}
	return p, err
}

// FreeBlock implements [regmem.Owner]; programs call Free of the block. It takes the lock only to serve waiters and to
// find the cause of an error.
//
// +checklocksignore: Layout.end may be called without the lock
func (c *core) FreeBlock(seq uint64, off, n int) error {
	if c.layout.end(seq) {
		if c.waiters.Wanted() {
			c.serve()
		}
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.layout.Free(seq); err != nil {
		return fmt.Errorf("ring: free of %d bytes at offset %d: %w", n, off, err)
	}
	c.waiters.Serve(c.takeWaiting)
	return nil
}

// serve gives free room to the waiters.
func (c *core) serve() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiters.Serve(c.takeWaiting)
}

// fullLocked is the error for a request without room.
//
// +checklocks:c.mu
func (c *core) fullLocked(n int) error {
	if c.closed {
		return fmt.Errorf("ring: %w", regmem.ErrClosed)
	}
	c.failed++
	return fmt.Errorf("ring: %d bytes: %w: %d of %d bytes are in use", n, regmem.ErrFull, c.layout.used, c.size)
}

func (c *core) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.layout.Blocks(); n > 0 {
		return fmt.Errorf("ring: close: %w: %d", regmem.ErrInUse, n)
	}
	c.closed = true
	c.waiters.End()
	return nil
}

func (c *core) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.waiters.End()
}

func (c *core) stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := &c.layout
	blocks, held := l.count()
	return Stats{
		Size: c.size, InUse: l.used, Held: held, Peak: c.peak, Blocks: blocks, Waiting: c.waiters.Len(),
		Allocs: l.next, Frees: l.next - uint64(blocks), Wraps: l.wraps, Failed: c.failed,
	}
}
