package regmem

import (
	"context"
	"errors"
	"fmt"
)

// Region is a registration. Bytes returns its memory, always the same slice while it is registered and nil afterwards.
// A *verbs.MR is one.
type Region interface{ Bytes() []byte }

// Errors of allocators, to be tested with errors.Is. The errors themselves say which size and limit are meant.
var (
	ErrFull       = errors.New("no room")                            // for now: AllocContext waits for it
	ErrTooLarge   = errors.New("larger than the allocator's memory") // for ever
	ErrDoubleFree = errors.New("the block is free already")          // and may belong to another caller by now
	ErrForeign    = errors.New("the block is not one of this allocator's")
	ErrClosed     = errors.New("the allocator is closed")
	ErrInUse      = errors.New("blocks are still in use")
)

// Allocator hands out pieces of registered memory. Implementations are safe for concurrent use.
type Allocator[R Region] interface {
	// Alloc returns a block of n bytes, n > 0, which is not cleared. It does not wait: without room the
	// error is ErrFull, or ErrTooLarge if there never will be.
	Alloc(n int) (Block[R], error)

	// AllocContext is Alloc that waits for room, until ctx ends.
	AllocContext(ctx context.Context, n int) (Block[R], error)
}

// Owner takes back the blocks of an allocator.
type Owner interface {
	// FreeBlock is called by Block.Free with the tag, offset and length that were passed to NewBlock.
	FreeBlock(tag uint64, off, n int) error
}

// Source is where the blocks of one region come from. An allocator has one for each of its regions and must not change it.
type Source[R Region] struct {
	Owner  Owner
	Region R
}

// Block is a piece of a region. It is a value: copies stand for the same memory, and only one of them is freed. The zero
// Block is none.
type Block[R Region] struct {
	source *Source[R]
	off, n int
	tag    uint64
}

// NewBlock makes a block for an allocator: n bytes of s.Region from off on, which must lie in it. Free passes tag back to the
// owner; it should differ between a block and the next one at the same place.
func NewBlock[R Region](s *Source[R], off, n int, tag uint64) Block[R] {
	return Block[R]{source: s, off: off, n: n, tag: tag}
}

// Bytes returns the memory, without spare capacity, and nil for the zero Block and when the region is closed.
func (b Block[R]) Bytes() []byte {
	if b.source == nil {
		return nil
	}
	mem := b.source.Region.Bytes()
	if mem == nil {
		return nil
	}
	return mem[b.off : b.off+b.n : b.off+b.n]
}

// Region returns the registration that the block lies in, the zero value for the zero Block.
func (b Block[R]) Region() (r R) {
	if b.source != nil {
		r = b.source.Region
	}
	return r
}

// Offset returns where in the region the block begins, in bytes.
func (b Block[R]) Offset() int { return b.off }

// Len returns how many bytes there are.
func (b Block[R]) Len() int { return b.n }

// IsZero reports whether b is the zero Block.
func (b Block[R]) IsZero() bool { return b.source == nil }

// Free gives the memory back to the allocator. It must not be used any more, by this process, a device, or a peer. A
// second Free of the same block is ErrDoubleFree and does no harm, even if the memory belongs to another block by then.
func (b Block[R]) Free() error {
	if b.source == nil {
		return fmt.Errorf("free the zero block: %w", ErrForeign)
	}
	return b.source.Owner.FreeBlock(b.tag, b.off, b.n)
}

// String describes the block for logs.
func (b Block[R]) String() string {
	if b.source == nil {
		return "no block"
	}
	return fmt.Sprintf("%d bytes at offset %d", b.n, b.off)
}
