package ring

import (
	"context"
	"fmt"
	"sync"

	"cinnabar/internal/hostmem"
	"cinnabar/internal/waitlist"
	"cinnabar/regmem"
)

// line is the granularity of blocks in bytes.
const line = 64

// Ring is an allocator over one registered region. It implements [regmem.Allocator].
type Ring[R regmem.Region] struct {
	source regmem.Source[R]
	core   core
}

// New makes a ring over all of region but what lies before the first multiple of 64 in memory and behind the last. The
// memory is the ring's until Close; the region stays the caller's.
func New[R regmem.Region](region R) (*Ring[R], error) {
	mem := region.Bytes()
	skip := int(-hostmem.Addr(mem) & (line - 1))
	if len(mem)-skip < line {
		return nil, fmt.Errorf("ring: a region of %d bytes: %d bytes that begin at a multiple of %d are the least", len(mem), line, line)
	}
	r := &Ring[R]{core: core{skip: skip, size: (len(mem) - skip) &^ (line - 1)}}
	r.source = regmem.Source[R]{Owner: &r.core, Region: region}
	return r, nil
}

// Alloc returns a block of n bytes, n > 0, with what the memory happens to hold. Without room, or if others wait for it,
// the error is regmem.ErrFull; regmem.ErrTooLarge if n is more than the ring has.
func (r *Ring[R]) Alloc(n int) (regmem.Block[R], error) {
	c := &r.core
	if err := c.check(n); err != nil {
		return regmem.Block[R]{}, err
	}
	c.mu.Lock()
	if c.waiters.Waiting() || !c.fitsLocked(n) {
		defer c.mu.Unlock()
		return regmem.Block[R]{}, c.fullLocked(n)
	}
	p := c.placeLocked(n)
	c.mu.Unlock()
	return regmem.NewBlock(&r.source, p.off, n, p.seq), nil
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

// Region returns what New was given.
func (r *Ring[R]) Region() R { return r.source.Region }

// Close ends the ring: those who wait, and all later requests, get regmem.ErrClosed. Blocks in use are an error of class
// regmem.ErrInUse that says how many there are, and the ring goes on.
func (r *Ring[R]) Close() error { return r.core.close() }

// Stats returns the ring's counters.
func (r *Ring[R]) Stats() Stats { return r.core.stats() }

// Stats tells how a ring's memory is used. Sizes are in bytes.
type Stats struct {
	Size    int    // of the ring
	InUse   int    // not to be had: blocks, what was skipped before them, and freed ones behind the oldest in use
	Held    int    // of these, in blocks that are freed already but behind one in use
	Peak    int    // the most that InUse was
	Blocks  int    // blocks in use
	Waiting int    // goroutines in AllocContext
	Allocs  uint64 // blocks handed out
	Frees   uint64 // blocks taken back
	Wraps   uint64 // times that a block began at the start again
	Failed  uint64 // requests refused for want of room
}

// place is where a block lies. seq counts blocks.
type place struct {
	off int
	seq uint64
}

// span is a block in the list of those whose memory has not come back.
type span struct {
	size  int // bytes
	skip  int // bytes at the end of the region that were skipped before it, until they come back with the block before
	freed bool
}

// core is what a ring is without the type of its region.
type core struct {
	skip int // bytes of the region before the ring
	size int // bytes of the ring

	mu sync.Mutex
	// +checklocks:mu
	closed bool
	// +checklocks:mu
	head int // where the next block begins, if it fits there
	// +checklocks:mu
	used int // bytes from tail to head, around the end
	// +checklocks:mu
	spans []span // of blocks first to next-1, at their numbers modulo the length, a power of two
	// +checklocks:mu
	first uint64
	// +checklocks:mu
	next uint64
	// +checklocks:mu
	waiters waitlist.List[int, place]
	// +checklocks:mu
	stat Stats
}
