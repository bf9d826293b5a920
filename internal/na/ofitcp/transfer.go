package ofitcp

import (
	"sync"

	"cinnabar/internal/na"
)

// Transfers are cut into pieces so that other traffic of the connection gets its turn, and several pieces are under way
// so that the peer is never idle.
const (
	chunkBytes   = 1 << 20 // of one read or write
	windowBytes  = 4 << 20 // of one transfer under way
	windowChunks = 64      // and how many reads or writes that may be
)

// transfer is a Get or Put. All but busy memory is guarded by the connection's mu.
type transfer struct {
	op    *na.Op
	put   bool
	frags []na.Fragment
	total uint64

	frag   int    // the next byte to ask for or send is in frags[frag],
	off    uint64 // there
	issued uint64 // bytes asked for or sent
	done   uint64 // bytes that came or were acknowledged
	chunks int    // reads or writes under way

	queued  bool  // in the connection's queue
	inBatch int   // writes of the sender's batch that refer to local memory
	reading bool  // the reader is in a system call that fills local memory
	err     error // why it is over, before its memory could be let go
	ended   bool  // completed or about to be: no other goroutine does it
}

var transfers = sync.Pool{New: func() any { return new(transfer) }}

// start puts the transfer at the beginning of its first fragment that is not empty.
func (t *transfer) start() { t.frag, t.off = t.settle(0, 0) }

// settle returns frag and off, or the start of the next fragment that is not empty if off is the end of fragment frag.
func (t *transfer) settle(frag int, off uint64) (int, uint64) {
	for frag < len(t.frags) && off == uint64(len(t.frags[frag].Local)) {
		frag, off = frag+1, 0
	}
	return frag, off
}

// more reports whether the transfer has bytes to issue, and its window has room for them.
func (t *transfer) more() bool {
	return t.err == nil && t.issued < t.total && t.chunks < windowChunks && t.issued-t.done < windowBytes
}

// over reports whether the transfer has a result, and neither the reader nor the sender uses its memory.
func (t *transfer) over() bool {
	return !t.ended && t.inBatch == 0 && !t.reading && (t.err != nil || t.done == t.total)
}

// chunk is a read or write of a transfer: a range of its bytes, which are in no more than maxIOV pieces of remote memory.
type chunk struct {
	frag int
	off  uint64
	n    uint64
	iovs [maxIOV]iov
	niov int
}

// maxPieces is the largest number of pieces of local memory that one write gathers: some of those that one system call takes.
const maxPieces = 32

// next returns the next chunk, at most chunkBytes from the place t.frag and t.off on, moves that place behind the chunk, and counts the
// chunk as issued.
func (t *transfer) next() chunk {
	c := chunk{frag: t.frag, off: t.off}
	for pieces := 0; t.frag < len(t.frags) && c.n < chunkBytes && !(t.put && pieces == maxPieces); pieces++ {
		f := &t.frags[t.frag]
		r, _ := f.Remote.(*remote) // checked when the transfer started
		n := min(uint64(len(f.Local))-t.off, chunkBytes-c.n)
		if !c.add(iov{addr: f.Offset + t.off, len: n, key: r.key}) {
			break
		}
		c.n += n
		t.frag, t.off = t.settle(t.frag, t.off+n)
	}
	t.issued += c.n
	t.chunks++
	return c
}

// add adds v to the chunk, as a part of the last piece if v continues that piece. It returns false if the chunk has no room for another
// piece.
func (c *chunk) add(v iov) bool {
	if c.niov > 0 {
		if last := &c.iovs[c.niov-1]; last.key == v.key && last.addr+last.len == v.addr {
			last.len += v.len
			return true
		}
	}
	if c.niov == maxIOV {
		return false
	}
	c.iovs[c.niov] = v
	c.niov++
	return true
}

// local appends the pieces of local memory that hold n bytes from off in fragment frag, at most room pieces.
func (t *transfer) local(pieces [][]byte, frag int, off, n uint64, room int) [][]byte {
	for n > 0 && room > 0 {
		b := t.frags[frag].Local[off:]
		b = b[:min(n, uint64(len(b)))]
		if len(b) > 0 {
			pieces = append(pieces, b)
			room--
		}
		n -= uint64(len(b))
		frag, off = frag+1, 0
	}
	return pieces
}

// advance returns the place n bytes behind off in fragment frag.
func (t *transfer) advance(frag int, off, n uint64) (int, uint64) {
	for n > 0 {
		left := uint64(len(t.frags[frag].Local)) - off
		if n < left {
			return frag, off + n
		}
		n -= left
		frag, off = frag+1, 0
	}
	return frag, off
}

// pendingRead is a read without an answer so far. The order of the reads alone matches answers to them.
type pendingRead struct {
	t    *transfer // nil if the transfer was given up: the answer's bytes are discarded
	frag int
	off  uint64
	n    uint64
}

// pendingAck is a write that has not been acknowledged, in the order of sending.
type pendingAck struct {
	t *transfer // nil if it was given up
	n uint64
}
