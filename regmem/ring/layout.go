package ring

import (
	"sync/atomic"

	"cinnabar/regmem"
)

// line is the granularity of blocks in bytes.
const line = 64

// Layout computes where blocks lie in a ring, without the ring's memory and without a lock. It serves allocators, and programs
// that write into the ring of a peer. The zero Layout has no room. It is not safe for concurrent use.
type Layout struct {
	size  int // bytes, a multiple of line
	head  int // where the next block begins, if it fits there
	used  int // bytes from tail to head, around the end
	first uint64
	next  uint64 // of the next block: blocks first to next-1 are known
	wraps uint64
	spans atomic.Pointer[spans] // of the known blocks, replaced by a longer one
}

// spans is a list of blocks, at their numbers modulo its length, which is a power of two.
type spans []span

// span describes a block that still has its memory, in use or freed.
type span struct {
	size int // bytes
	skip int // bytes at the end of the ring that were skipped before it, until they come back with the block before

	// ended is 1 more than the number of the last block here that was freed. While a block is in use it stands for the
	// block before in the same place, so making a block writes nothing here, and freeing one needs no lock: a block is freed
	// once, by the caller that replaces the number before by the block's own.
	ended atomic.Uint64
}

// moved is in a span of a list that was replaced.
const moved = 1 << 62

// NewLayout returns the layout of a ring of size bytes, of which only whole multiples of 64 are used.
func NewLayout(size int) Layout { return Layout{size: size &^ (line - 1)} }

// rounded is n in whole lines.
func rounded(n int) int { return (n + line - 1) &^ (line - 1) }

// Size returns how many bytes there are, which is the size of the largest block.
func (l *Layout) Size() int { return l.size }

// Used returns how many bytes are not to be had.
func (l *Layout) Used() int {
	l.collect()
	return l.used
}

// Blocks returns how many blocks are in use. It looks at all that are known.
func (l *Layout) Blocks() int {
	blocks, _ := l.count()
	return blocks
}

// count counts the blocks in use, and the bytes of those that are freed behind one in use.
func (l *Layout) count() (blocks, held int) {
	l.collect()
	for seq := l.first; seq != l.next; seq++ {
		if s := l.span(seq); s.ended.Load() == seq+1 {
			held += s.size
		} else {
			blocks++
		}
	}
	return blocks, held
}

// Fits reports whether there is room for a block of n bytes, 0 < n <= Size.
func (l *Layout) Fits(n int) bool {
	l.collect()
	n = rounded(n)
	if rest := l.size - l.head; n > rest {
		n += rest
	}
	return n <= l.size-l.used
}

// Place makes a block of n bytes, for which Fits has just reported room, and returns where it begins and its
// number: blocks are numbered from 0.
func (l *Layout) Place(n int) (off int, seq uint64) {
	off, seq, _ = l.take(n)
	return off, seq
}

// take is Place that also reports whether there was room.
func (l *Layout) take(n int) (off int, seq uint64, ok bool) {
	l.collect()
	n = rounded(n)
	off, skip := l.head, 0
	if rest := l.size - l.head; n > rest {
		off, skip = 0, rest
	}
	if n+skip > l.size-l.used {
		return 0, 0, false
	}
	if off < l.head {
		l.wraps++
	}
	seq = l.next
	l.head = off + n
	l.used += n + skip
	list := l.spans.Load()
	if list == nil || l.next-l.first == uint64(len(*list)) {
		list = l.grow(list)
	}
	s := list.at(seq)
	s.size, s.skip = n, skip
	l.next++
	return off, seq, true
}

// Free frees block seq. The error is regmem.ErrForeign if there was no such block, and regmem.ErrDoubleFree.
func (l *Layout) Free(seq uint64) error {
	switch {
	case seq >= l.next:
		return regmem.ErrForeign
	case seq < l.first || !l.end(seq):
		return regmem.ErrDoubleFree
	}
	return nil
}

// end frees block seq, which was made at some time, and reports whether it did: not if it is free already, or if the list
// is being replaced. It is safe for concurrent use; the memory comes back with the next call that looks for room.
func (l *Layout) end(seq uint64) bool {
	list := l.spans.Load()
	return list != nil && list.at(seq).ended.CompareAndSwap(seq+1-uint64(len(*list)), seq+1)
}

// collect gives back the memory of the oldest blocks, as far as they are freed.
func (l *Layout) collect() {
	if l.first == l.next {
		return
	}
	list := l.spans.Load()
	s := list.at(l.first)
	if s.ended.Load() != l.first+1 {
		return
	}
	for {
		l.used -= s.size + s.skip
		if l.first++; l.first == l.next {
			l.head = 0
			return
		}
		if s = list.at(l.first); s.ended.Load() != l.first+1 {
			break
		}
	}
	l.used -= s.skip
	s.skip = 0
}

func (l *Layout) span(seq uint64) *span { return l.spans.Load().at(seq) }

func (list *spans) at(seq uint64) *span { return &(*list)[seq&uint64(len(*list)-1)] }

// leastSpans is the length of the first list.
const leastSpans = 64

// grow makes room for more blocks in the list. Blocks that are freed meanwhile are freed in the list before, until it is
// marked as replaced.
func (l *Layout) grow(before *spans) *spans {
	n := uint64(leastSpans)
	if before != nil {
		n = 2 * uint64(len(*before))
	}
	list := make(spans, n)
	for i := range n {
		seq := l.first + i
		s := list.at(seq)
		s.ended.Store(seq + 1 - n)
		if seq >= l.next {
			continue
		}
		old := before.at(seq)
		s.size, s.skip = old.size, old.skip
		if old.ended.Swap(moved) == seq+1 {
			s.ended.Store(seq + 1)
		}
	}
	l.spans.Store(&list)
	return &list
}
