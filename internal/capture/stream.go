package capture

import (
	"container/list"
	"net/netip"
	"slices"
)

// Limits of an Assembler.
type Limits struct {
	Connections int // connections that are followed at a time; a further one ends the one that has been silent for longest
	Waiting     int // bytes of out-of-order segments of one direction; each segment counts as 64 more
	Segments    int // out-of-order segments of one direction
	Total       int // bytes of the out-of-order segments of all directions
}

// DefaultLimits admit 32 MiB of out-of-order segments, and some megabytes for connections.
var DefaultLimits = Limits{Connections: 1 << 13, Waiting: 1 << 20, Segments: 1 << 10, Total: 1 << 25}

// Handler takes the bytes of one connection, in the order in which its sides have sent them. The direction is 0 for the side that the first
// packet came from, which is the side that connects if the file has the beginning of the connection, and 1 for the other.
type Handler interface {
	// Bytes takes the next bytes of a direction. They are valid during the call only.
	Bytes(dir int, b []byte)
	// Gap takes the number of bytes of a direction that the file does not have, or that the limits do not permit to wait for.
	Gap(dir int, n uint64)
	// End says that a direction has ended, once.
	End(dir int, why Ending)
}

// Ending is the reason for the end of a direction.
type Ending uint8

// The reasons.
const (
	Finished Ending = iota // its side has closed it
	Reset                  // one of the sides has reset the connection
	Evicted                // there were more connections than the limit
	Stopped                // the file ends
)

// Assembler follows TCP connections.
type Assembler struct {
	limits  Limits
	open    func(src, dst netip.AddrPort, start bool) Handler
	conns   map[pair]*conn
	used    list.List // of *conn, the most recently used one in front
	waiting int
}

// pair is a connection: its addresses, the smaller one first.
type pair struct{ a, b netip.AddrPort }

type conn struct {
	key     pair
	first   netip.AddrPort // the side of direction 0
	handler Handler
	at      *list.Element
	halves  [2]half
}

// half is one direction of a connection.
type half struct {
	begun, ended bool
	syn          bool // it began with a SYN, of number isn
	isn          uint32
	next         uint32 // sequence number of the next byte
	fin          bool
	end          uint32 // sequence number of the end, if fin
	early        []early
	bytes        int // of early
}

// earlyCost is the memory in bytes that an out-of-order segment takes beside its payload.
const earlyCost = 64

// early is an out-of-order segment: bytes that come before it in the stream are still missing.
type early struct {
	seq    uint32
	data   []byte
	length int
}

// NewAssembler returns an Assembler that calls open for each connection. start is true if the file has the beginning of the connection.
func NewAssembler(l Limits, open func(src, dst netip.AddrPort, start bool) Handler) *Assembler {
	return &Assembler{limits: l, open: open, conns: make(map[pair]*conn)}
}

// Add takes the next segment of TCP. It keeps nothing of its payload.
func (a *Assembler) Add(s *Segment) {
	c := a.conn(s)
	if c == nil {
		return
	}
	dir := 0
	if s.Src != c.first {
		dir = 1
	}
	h := &c.halves[dir]
	if s.RST {
		for d := range c.halves {
			a.end(c, d, Reset)
		}
		return
	}
	if h.ended {
		return
	}
	seq := s.Seq
	if s.SYN {
		seq++
	}
	if !h.begun {
		if !s.SYN && s.Length == 0 && !s.FIN {
			return
		}
		h.begun, h.next = true, seq
		h.syn, h.isn = s.SYN, s.Seq
	}
	if s.FIN && !h.fin {
		h.fin, h.end = true, seq+uint32(s.Length)
	}
	a.insert(c, dir, seq, s.Payload, s.Length)
	a.drain(c, dir)
}

// conn returns the connection of a segment. It is nil if the segment begins none: it has no bytes and no flags.
func (a *Assembler) conn(s *Segment) *conn {
	key := pair{s.Src, s.Dst}
	if s.Dst.Compare(s.Src) < 0 {
		key = pair{s.Dst, s.Src}
	}
	c := a.conns[key]
	if c != nil && s.SYN && c.begunAnew(s) {
		a.remove(c, Reset)
		c = nil
	}
	if c == nil {
		if !s.SYN && s.Length == 0 || s.RST {
			return nil
		}
		if len(a.conns) >= a.limits.Connections {
			a.remove(a.used.Back().Value.(*conn), Evicted)
		}
		c = &conn{key: key, first: s.Src}
		c.handler = a.open(s.Src, s.Dst, s.SYN)
		c.at = a.used.PushFront(c)
		a.conns[key] = c
	}
	a.used.MoveToFront(c.at)
	return c
}

// begunAnew reports whether a SYN belongs to a later connection between the same addresses.
func (c *conn) begunAnew(s *Segment) bool {
	h := &c.halves[0]
	if s.Src != c.first {
		h = &c.halves[1]
	}
	return h.ended || h.begun && !(h.syn && h.isn == s.Seq)
}

// insert delivers the bytes of a segment, or keeps them because bytes before them are missing.
func (a *Assembler) insert(c *conn, dir int, seq uint32, data []byte, length int) {
	h := &c.halves[dir]
	if length == 0 {
		return
	}
	cost := len(data) + earlyCost
	for int32(seq-h.next) > 0 && (a.waiting+cost > a.limits.Total || h.bytes+cost > a.limits.Waiting || len(h.early) >= a.limits.Segments) {
		// The limits permit no more bytes to wait, so the missing ones are reported as a gap.
		if len(h.early) > 0 && int32(seq-h.early[0].seq) > 0 {
			a.give(c, dir, h.early[0].seq)
			a.drain(c, dir)
		} else {
			a.give(c, dir, seq)
		}
	}
	switch ahead := int32(seq - h.next); {
	case h.ended:
	case ahead > 0:
		e := early{seq, slices.Clone(data), length}
		at, _ := slices.BinarySearchFunc(h.early, e, func(x, y early) int { return int(int32(x.seq - y.seq)) })
		h.early = slices.Insert(h.early, at, e)
		h.bytes += cost
		a.waiting += cost
	default:
		old := int(-int64(ahead)) // bytes that were delivered already
		if old >= length {
			return
		}
		a.deliver(c, dir, data[min(old, len(data)):], length-old)
	}
}

// deliver passes the next bytes of a direction on, and a gap for those that the file does not have.
func (a *Assembler) deliver(c *conn, dir int, data []byte, length int) {
	c.halves[dir].next += uint32(length)
	if len(data) > 0 {
		c.handler.Bytes(dir, data)
	}
	if length > len(data) {
		c.handler.Gap(dir, uint64(length-len(data)))
	}
}

// give reports the missing bytes before seq as a gap, and goes on at seq.
func (a *Assembler) give(c *conn, dir int, seq uint32) {
	h := &c.halves[dir]
	if n := int32(seq - h.next); n > 0 {
		h.next = seq
		c.handler.Gap(dir, uint64(n))
	}
}

// drain delivers the out-of-order segments that now follow without a gap, and the end of the direction if it follows too.
func (a *Assembler) drain(c *conn, dir int) {
	h := &c.halves[dir]
	for len(h.early) > 0 && int32(h.early[0].seq-h.next) <= 0 {
		e := a.pop(h)
		a.insert(c, dir, e.seq, e.data, e.length)
	}
	if len(h.early) == 0 {
		h.early = nil
	}
	if h.fin && int32(h.end-h.next) <= 0 {
		a.end(c, dir, Finished)
	}
}

// pop removes and returns the first of the out-of-order segments.
func (a *Assembler) pop(h *half) early {
	e := h.early[0]
	h.early[0] = early{}
	h.early = h.early[1:]
	h.bytes -= len(e.data) + earlyCost
	a.waiting -= len(e.data) + earlyCost
	return e
}

// end ends a direction, and delivers the bytes that wait with the gaps between them.
func (a *Assembler) end(c *conn, dir int, why Ending) {
	h := &c.halves[dir]
	if h.ended {
		return
	}
	for len(h.early) > 0 {
		e := a.pop(h)
		a.give(c, dir, e.seq)
		a.insert(c, dir, e.seq, e.data, e.length)
	}
	h.ended, h.early = true, nil
	c.handler.End(dir, why)
}

// remove ends a connection and forgets it.
func (a *Assembler) remove(c *conn, why Ending) {
	for d := range c.halves {
		a.end(c, d, why)
	}
	a.used.Remove(c.at)
	delete(a.conns, c.key)
}

// Close ends all connections, because the file ends, the least recently used one first.
func (a *Assembler) Close() {
	for a.used.Len() > 0 {
		a.remove(a.used.Back().Value.(*conn), Stopped)
	}
}
