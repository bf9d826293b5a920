package sglist

// Slice appends the n bytes of segs at offset off to dst, as pieces of its segments, and returns dst. The caller has checked that
// segs has these bytes. Slice appends no empty piece. The capacity of a piece reaches to the capacity of its segment, because Merge
// recognizes neighbours by it.
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

// Merge joins segments that are neighbours in memory and returns the shorter list, which overwrites segs, because fewer segments need
// fewer operations of the network. It recognizes two neighbours only if the capacity of the first one includes the second.
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

// Copy copies the bytes of from to the memory of to, until one of the lists ends, and returns the number of bytes.
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

// Cursor is a position in a list, from which Next reads. It does not change the list. A Cursor is not safe for concurrent use.
type Cursor struct {
	segs [][]byte
	at   int // offset of the position in segs[0]
}

// NewCursor returns a Cursor at the beginning of a list.
func NewCursor(segs [][]byte) Cursor { return Cursor{segs: segs} }

// Next returns the bytes at the position as a piece of one segment, at least 1 and at most n, and moves the position behind them.
// It returns nil at the end of the list. n is not 0.
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
