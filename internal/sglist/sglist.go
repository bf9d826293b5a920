package sglist

// Slice appends to dst the n bytes of segs from off on, which the caller knows to exist, and returns dst. It appends no empty
// slice. The capacity of a piece is that of its segment from there on, so that Merge can see neighbours.
func Slice(dst, segs [][]byte, off, n int64) [][]byte {
	for _, s := range segs {
		if n == 0 {
			break
		}
		if off >= int64(len(s)) {
			off -= int64(len(s))
			continue
		}
		piece := s[off:min(int64(len(s)), off+n)]
		off, n = 0, n-int64(len(piece))
		dst = append(dst, piece)
	}
	return dst
}

// Merge joins segments that are neighbours in memory, in place, and returns the shorter list, because fewer segments are fewer
// operations of the network. That two slices are neighbours shows only where the first one's array goes on into the second.
func Merge(segs [][]byte) [][]byte {
	if len(segs) < 2 {
		return segs
	}
	out := segs[:1]
	for _, s := range segs[1:] {
		last := &out[len(out)-1]
		if whole, ok := extend(*last, s); ok {
			*last = whole
			continue
		}
		out = append(out, s)
	}
	return out
}

// extend returns a and b as one slice if b lies right behind a in a's array.
func extend(a, b []byte) ([]byte, bool) {
	if len(b) == 0 || cap(a)-len(a) < len(b) {
		return nil, false
	}
	whole := a[:len(a)+len(b)]
	return whole, &whole[len(a)] == &b[0]
}

// Copy copies from one list to another until one of them ends, and returns the number of bytes.
func Copy(to, from [][]byte) (n int64) {
	c := NewCursor(from)
	for _, dst := range to {
		for len(dst) > 0 {
			piece := c.Next(uint64(len(dst)))
			if piece == nil {
				return n
			}
			copy(dst, piece)
			dst = dst[len(piece):]
			n += int64(len(piece))
		}
	}
	return n
}

// Cursor is a place in a list. It does not change the list. A Cursor is not safe for concurrent use.
type Cursor struct {
	segs [][]byte
	at   int // in the first of segs
}

// NewCursor returns a Cursor at the beginning of a list.
func NewCursor(segs [][]byte) Cursor { return Cursor{segs: segs} }

// Next returns the next piece, of at least one byte and at most n > 0, and goes on behind it. At the end of the list it
// returns nil.
func (c *Cursor) Next(n uint64) []byte {
	for {
		if len(c.segs) == 0 {
			return nil
		}
		if c.at < len(c.segs[0]) {
			break
		}
		c.segs, c.at = c.segs[1:], 0
	}
	piece := c.segs[0][c.at:]
	if uint64(len(piece)) > n {
		piece = piece[:n:n]
	}
	c.at += len(piece)
	return piece
}
