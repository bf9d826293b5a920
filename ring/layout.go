package ring

import "cinnabar/regmem"

// line is the granularity of blocks in bytes.
const line = 64

// Layout is where blocks lie in a ring, without its memory and without a lock: for allocators, and for who writes into
// the ring of a peer. The zero Layout has no room. It is not safe for concurrent use.
type Layout struct {
	size  int    // bytes, a multiple of line
	head  int    // where the next block begins, if it fits there
	used  int    // bytes from tail to head, around the end
	held  int    // bytes of blocks that are freed behind one in use
	spans []span // of blocks first to next-1, at their numbers modulo the length, a power of two
	first uint64
	next  uint64
	freed uint64 // blocks
	wraps uint64
}

// span is a block whose memory has not come back.
type span struct {
	size  int // bytes
	skip  int // bytes at the end of the ring that were skipped before it, until they come back with the block before
	freed bool
}

// NewLayout returns the layout of a ring of size bytes, of which only whole multiples of 64 are used.
func NewLayout(size int) Layout { return Layout{size: size &^ (line - 1)} }

// rounded is n in whole lines.
func rounded(n int) int { return (n + line - 1) &^ (line - 1) }

// Size returns how many bytes there are, which is the size of the largest block.
func (l *Layout) Size() int { return l.size }

// Used returns how many bytes are not to be had.
func (l *Layout) Used() int { return l.used }

// Blocks returns how many blocks are in use.
func (l *Layout) Blocks() int { return int(l.next - l.freed) }

// Fits tells whether there is room for a block of n bytes, 0 < n <= Size.
func (l *Layout) Fits(n int) bool {
	n = rounded(n)
	if rest := l.size - l.head; n > rest {
		n += rest
	}
	return n <= l.size-l.used
}

// Place makes a block of n bytes, which must fit, and returns where it begins and its number: blocks are numbered from 0.
func (l *Layout) Place(n int) (off int, seq uint64) {
	s := span{size: rounded(n)}
	if rest := l.size - l.head; s.size > rest { // and the ring is not empty, since head is 0 then
		s.skip = rest
		l.head = 0
		l.wraps++
	}
	off, seq = l.head, l.next
	l.head += s.size
	l.used += s.size + s.skip
	if l.next-l.first == uint64(len(l.spans)) {
		l.grow()
	}
	*l.span(l.next) = s
	l.next++
	return off, seq
}

// Free frees block seq. The error is regmem.ErrForeign if there was no such block, and regmem.ErrDoubleFree.
func (l *Layout) Free(seq uint64) error {
	if seq >= l.next {
		return regmem.ErrForeign
	}
	if seq < l.first || l.span(seq).freed {
		return regmem.ErrDoubleFree
	}
	s := l.span(seq)
	s.freed = true
	l.freed++
	l.held += s.size
	if seq == l.first {
		l.advance()
	}
	return nil
}

// advance gives back the memory of the oldest blocks, as far as they are freed.
func (l *Layout) advance() {
	for ; l.first != l.next && l.span(l.first).freed; l.first++ {
		s := l.span(l.first)
		l.used -= s.size + s.skip
		l.held -= s.size
	}
	if l.first == l.next {
		l.head = 0
		return
	}
	s := l.span(l.first)
	l.used -= s.skip
	s.skip = 0
}

func (l *Layout) span(seq uint64) *span { return &l.spans[seq&uint64(len(l.spans)-1)] }

// grow makes room for more blocks in the list.
func (l *Layout) grow() {
	larger := Layout{spans: make([]span, max(64, 2*len(l.spans)))}
	for seq := l.first; seq != l.next; seq++ {
		*larger.span(seq) = *l.span(seq)
	}
	l.spans = larger.spans
}
