package arena

import "math/bits"

// none stands for no chunk.
const none int32 = -1

// state of a chunk's entry in the table.
type state uint8

const (
	unused state = iota // the entry stands for no chunk
	free
	warm // free, but not joined with its neighbours and in no index
	inUse
)

// chunk is a piece of a region: units [at, at+size). Entries of the table are reused; gen distinguishes a block from later
// ones of the same entry.
type chunk struct {
	at, size   int32 // in units
	region     int32
	prev, next int32 // neighbours in memory
	gen        uint32
	state      state
	asked      int // bytes that the owner asked for

	// Of free chunks: the list of the bin, or the children in the tree of large ones. Of unused entries: lower is the next.
	lower, upper int32
}

// heap is the chunks of all regions and the index of the free ones. It knows neither memory nor locks.
type heap struct {
	chunks []chunk
	spare  int32 // list of unused entries

	bins   [smallBins]int32 // first free chunk of bin i+1 units
	filled [smallBins / 64]uint64
	root   int32 // tree of the larger free chunks
	last   int32 // the warm chunk, or none: programs often free a block and want one of the same size next

	used  int64 // units in use
	total int64 // units
}

// smallBins is the number of bins of one size: free chunks up to 32 KiB.
const smallBins = 128

func (h *heap) init() {
	h.spare, h.root, h.last = none, none, none
	for i := range h.bins {
		h.bins[i] = none
	}
}

// addRegion adds a region of that many units as one free chunk.
func (h *heap) addRegion(number, size int32) {
	i := h.entry()
	c := &h.chunks[i]
	c.region, c.at, c.size, c.prev, c.next = number, 0, size, none, none
	h.total += int64(size)
	h.insert(i)
}

// dropRegion takes a region away that is the free chunk i.
func (h *heap) dropRegion(i int32) {
	h.total -= int64(h.chunks[i].size)
	h.remove(i)
	h.retire(i)
}

// aligner computes the number of units to leave out at the start of a chunk.
type aligner interface {
	padding(region, at, align int32) int32
}

// take takes the smallest chunk that has size units at a multiple of align units, and returns it, or none.
func (h *heap) take(size, align int32, in aligner) int32 {
	if i := h.last; i != none && align <= 1 && h.chunks[i].size == size {
		h.last = none
		h.use(i)
		return i
	}
	h.settle()
	if align <= 1 {
		i := h.best(size)
		if i != none {
			h.remove(i)
			h.cut(i, size)
		}
		return i
	}
	i := h.bestAligned(size, align, in)
	if i == none {
		return none
	}
	h.remove(i)
	if pad := in.padding(h.chunks[i].region, h.chunks[i].at, align); pad > 0 {
		front := i
		i = h.split(front, pad)
		h.insert(front)
	}
	h.cut(i, size)
	return i
}

// bestAligned looks for the chunk: first one that has room at any address; smaller ones only if there is none.
func (h *heap) bestAligned(size, align int32, in aligner) int32 {
	if size <= 1<<31-1-align {
		if i := h.best(size + align - 1); i != none {
			return i
		}
	}
	for i := h.best(size); i != none; i = h.after(i) {
		c := &h.chunks[i]
		if pad := in.padding(c.region, c.at, align); pad <= c.size-size {
			return i
		}
	}
	return none
}

// cut marks the first size units of chunk i, which is in no index, as a chunk in use and frees the rest of it.
func (h *heap) cut(i, size int32) {
	if h.chunks[i].size > size {
		h.insert(h.split(i, size))
	}
	h.use(i)
}

// use makes chunk i, which is in no index, one in use.
func (h *heap) use(i int32) {
	c := &h.chunks[i]
	c.state = inUse
	h.used += int64(c.size)
}

// give frees chunk i. It stays warm until another is freed, or any other chunk is wanted.
func (h *heap) give(i int32) {
	h.settle()
	c := &h.chunks[i]
	c.state = warm
	c.gen = (c.gen + 1) & genMask
	h.used -= int64(c.size)
	h.last = i
}

// settle joins the warm chunk with its free neighbours.
func (h *heap) settle() {
	i := h.last
	if i == none {
		return
	}
	h.last = none
	if n := h.chunks[i].next; n != none && h.chunks[n].state == free {
		h.remove(n)
		h.join(i, n)
	}
	if p := h.chunks[i].prev; p != none && h.chunks[p].state == free {
		h.remove(p)
		h.join(p, i)
		i = p
	}
	h.insert(i)
}

// split cuts chunk i after size units and returns the second part. Neither is in an index.
func (h *heap) split(i, size int32) int32 {
	j := h.entry()
	c, d := &h.chunks[i], &h.chunks[j]
	d.region, d.at, d.size = c.region, c.at+size, c.size-size
	d.prev, d.next = i, c.next
	if c.next != none {
		h.chunks[c.next].prev = j
	}
	c.next, c.size = j, size
	return j
}

// join adds chunk j to chunk i before it. Neither is in an index.
func (h *heap) join(i, j int32) {
	c, d := &h.chunks[i], &h.chunks[j]
	c.size += d.size
	c.next = d.next
	if d.next != none {
		h.chunks[d.next].prev = i
	}
	h.retire(j)
}

// entry returns an entry of the table for a new chunk. It may move the table.
func (h *heap) entry() int32 {
	if i := h.spare; i != none {
		h.spare = h.chunks[i].lower
		return i
	}
	h.chunks = append(h.chunks, chunk{})
	return int32(len(h.chunks) - 1)
}

// retire gives an entry back.
func (h *heap) retire(i int32) {
	c := &h.chunks[i]
	c.state, c.lower = unused, h.spare
	h.spare = i
}

// insert makes i a free chunk that is found.
func (h *heap) insert(i int32) {
	c := &h.chunks[i]
	c.state = free
	if c.size > smallBins {
		h.root = h.grow(h.root, i)
		return
	}
	b := c.size - 1
	first := h.bins[b]
	c.lower, c.upper = none, first
	if first != none {
		h.chunks[first].lower = i
	}
	h.bins[b] = i
	h.filled[b>>6] |= 1 << (b & 63)
}

// remove takes a free chunk out of the index.
func (h *heap) remove(i int32) {
	c := &h.chunks[i]
	if c.size > smallBins {
		h.root = h.shrink(h.root, i)
		return
	}
	b := c.size - 1
	if c.upper != none {
		h.chunks[c.upper].lower = c.lower
	}
	if c.lower != none {
		h.chunks[c.lower].upper = c.upper
		return
	}
	h.bins[b] = c.upper
	if c.upper == none {
		h.filled[b>>6] &^= 1 << (b & 63)
	}
}

// best returns the smallest free chunk of at least size units, or none.
func (h *heap) best(size int32) int32 {
	for b := size - 1; b < smallBins; b = (b | 63) + 1 {
		if word := h.filled[b>>6] >> (b & 63); word != 0 {
			return h.bins[b+int32(bits.TrailingZeros64(word))]
		}
	}
	return h.least(size)
}

// after returns the free chunk that follows i in the order of sizes, or none.
func (h *heap) after(i int32) int32 {
	c := &h.chunks[i]
	switch {
	case c.size > smallBins:
		return h.successor(i)
	case c.upper != none:
		return c.upper
	}
	return h.best(c.size + 1)
}
