package ofitcp

import (
	"fmt"
	"sync"
	"sync/atomic"

	"cinnabar/internal/hostmem"
	"cinnabar/internal/na"
)

// lentPieces are the pieces of lent memory. The program may change and use them for something else after Keep, so Keep replaces them by a copy
// everywhere: in the memory for replies that are not in a batch yet, and in the batches of connections.
type lentPieces struct {
	all  [na.MaxLent][]byte
	n    int
	copy atomic.Pointer[[]byte] // set by Keep
	keep sync.Once
}

// Lend implements [na.Lender].
func (e *Endpoint) Lend(pieces ...[]byte) (na.LentMemory, error) {
	if len(pieces) == 0 || len(pieces) > na.MaxLent {
		return nil, &na.Error{Kind: na.Invalid, Op: "lend memory", Err: fmt.Errorf("%d pieces; there must be 1 to %d", len(pieces), na.MaxLent)}
	}
	m := &memory{ep: e, access: na.ReadOnly, lent: &lentPieces{n: len(pieces)}}
	for i, b := range pieces {
		if len(b) == 0 {
			return nil, &na.Error{Kind: na.Invalid, Op: "lend memory", Err: fmt.Errorf("piece %d has 0 bytes; there must be 1 at least", i)}
		}
		m.lent.all[i] = b
		m.size += uint64(len(b))
	}
	if !e.mem.add(m) {
		return nil, &na.Error{Kind: na.Closed, Op: "lend memory"}
	}
	return m, nil
}

// Keep implements [na.LentMemory].
func (m *memory) Keep() []byte {
	l := m.lent
	l.keep.Do(func() {
		b := hostmem.Uncleared(int(m.size))
		n := 0
		for _, p := range l.all[:l.n] {
			n += copy(b[n:], p)
		}
		l.copy.Store(&b)
		for _, c := range m.ep.connections() {
			c.useCopy(m, b)
		}
		clear(l.all[:]) // nothing reads the pieces any more: fill, which holds conn.mu as usesMemory does, finds the copy from now on
	})
	return *l.copy.Load()
}

// useCopy makes the batch refer to b, a copy of lent memory m, in place of the memory. Replies that are not in a batch find the copy themselves.
func (c *conn) useCopy(m *memory, b []byte) {
	if !c.usesMemory(m) {
		return
	}
	c.claims.Add(1) // so that transmit returns after one more call of the socket, because a peer may read as fast as transmit writes
	c.wmu.Lock()
	c.claims.Add(-1)
	for i := c.tx.at; i < len(c.tx.iov); i++ {
		c.tx.iov[i] = m.lent.replaced(c.tx.iov[i], b)
	}
	c.wmu.Unlock()
	c.kick()
}

// replaced returns the part of the copy b that stands for v, or v if it is no part of the pieces.
func (l *lentPieces) replaced(v, b []byte) []byte {
	if len(v) == 0 {
		return v
	}
	at := hostmem.Addr(v)
	for _, p := range l.all[:l.n] {
		if from := hostmem.Addr(p); from <= at && at-from <= uint64(len(p)) && uint64(len(v)) <= uint64(len(p))-(at-from) {
			return b[at-from:][:len(v):len(v)]
		}
		b = b[len(p):]
	}
	return v
}

// pieces returns the largest number of vectors that the reply takes.
func (r *reply) pieces() (n int) {
	for _, a := range r.from[:r.n] {
		if n++; a.m.lent != nil {
			n += a.m.lent.n - 1
		}
	}
	return n
}

// vectors appends the bytes of the access to v, in one vector or, if the memory is lent, one for each piece.
func (a access) vectors(v [][]byte) [][]byte {
	l := a.m.lent
	if l == nil {
		return append(v, a.bytes())
	}
	if b := l.copy.Load(); b != nil {
		return append(v, (*b)[a.off:a.off+a.n:a.off+a.n])
	}
	off, left := a.off, a.n
	for _, p := range l.all[:l.n] {
		size := uint64(len(p))
		if off >= size {
			off -= size
			continue
		}
		k := min(left, size-off)
		if k == 0 {
			break
		}
		v = append(v, p[off:off+k:off+k])
		off, left = 0, left-k
	}
	return v
}
