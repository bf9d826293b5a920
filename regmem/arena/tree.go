package arena

// The tree of large free chunks: a treap, ordered by size and then by place, so that the leftmost chunk of at least a
// size is the best fit. A chunk's rank, which orders parents above children, is a hash of its entry: no state is needed, and
// a program's pattern of sizes cannot make the tree deep.

// before is the order of the tree.
func (h *heap) before(i, j int32) bool {
	c, d := &h.chunks[i], &h.chunks[j]
	switch {
	case c.size != d.size:
		return c.size < d.size
	case c.region != d.region:
		return c.region < d.region
	}
	return c.at < d.at
}

// rank is the priority of entry i (the finalizer of MurmurHash3, a permutation of 32 bits).
func rank(i int32) uint32 {
	x := uint32(i) + 0x9E3779B9
	x ^= x >> 16
	x *= 0x85EBCA6B
	x ^= x >> 13
	x *= 0xC2B2AE35
	return x ^ x>>16
}

// grow adds i to the tree at root and returns the new root.
func (h *heap) grow(root, i int32) int32 {
	link := &root
	r := rank(i)
	for *link != none && rank(*link) > r {
		link = h.towards(*link, i)
	}
	rest := *link
	*link = i
	// The nodes below become i's children: those before it and those after it.
	lower, upper := &h.chunks[i].lower, &h.chunks[i].upper
	for rest != none {
		if h.before(rest, i) {
			*lower = rest
			lower = &h.chunks[rest].upper
			rest = *lower
		} else {
			*upper = rest
			upper = &h.chunks[rest].lower
			rest = *upper
		}
	}
	*lower, *upper = none, none
	return root
}

// towards is the link of node n that leads to i.
func (h *heap) towards(n, i int32) *int32 {
	if h.before(i, n) {
		return &h.chunks[n].lower
	}
	return &h.chunks[n].upper
}

// shrink takes i out of the tree at root and returns the new root.
func (h *heap) shrink(root, i int32) int32 {
	link := &root
	for *link != i {
		link = h.towards(*link, i)
	}
	lower, upper := h.chunks[i].lower, h.chunks[i].upper
	for lower != none && upper != none {
		if rank(lower) > rank(upper) {
			*link = lower
			link = &h.chunks[lower].upper
			lower = *link
		} else {
			*link = upper
			link = &h.chunks[upper].lower
			upper = *link
		}
	}
	*link = lower
	if lower == none {
		*link = upper
	}
	return root
}

// least returns the first chunk of at least size units, or none.
func (h *heap) least(size int32) int32 {
	found := none
	for n := h.root; n != none; {
		if c := &h.chunks[n]; c.size >= size {
			found, n = n, c.lower
		} else {
			n = c.upper
		}
	}
	return found
}

// successor returns the chunk after i, or none.
func (h *heap) successor(i int32) int32 {
	found := none
	for n := h.root; n != none; {
		if h.before(i, n) {
			found, n = n, h.chunks[n].lower
		} else {
			n = h.chunks[n].upper
		}
	}
	return found
}
