package wire

import (
	"bytes"
	"net/netip"

	"cinnabar/internal/capture"
	"cinnabar/internal/na/ofitcp"
)

// tcpConn is a TCP connection. The first bytes show its protocol.
type tcpConn struct {
	d     *decoder
	ends  [2]netip.AddrPort
	start bool
	head  [2][]byte // the bytes that have come before the protocol is known
	proto tcpProtocol
	dead  bool // another protocol
}

// tcpProtocol decodes the two directions of a connection.
type tcpProtocol interface {
	bytes(dir int, b []byte)
	gap(dir int, n uint64)
	// end takes the end of a direction. In the middle of a message it reports the part that has come.
	end(dir int)
}

// message returns a message of a direction.
func (c *tcpConn) message(dir int, protocol, operation string) *message {
	return c.d.message(c.ends[dir].String(), c.ends[1-dir].String(), protocol, operation)
}

// helloMark are the bytes 2 and 3 of a connection message, the length 8 of its data.
var helloMark = []byte{0, 8}

const mpaMark = "MPA ID Re"

// Bytes implements [capture.Handler].
func (c *tcpConn) Bytes(dir int, b []byte) {
	if c.dead {
		return
	}
	if c.proto != nil {
		c.proto.bytes(dir, b)
		return
	}
	if len(c.head[dir]) > 0 {
		b = append(c.head[dir], b...)
	}
	switch n := min(len(b), len(mpaMark)); {
	case n < 4:
		c.head[dir] = bytes.Clone(b)
		return
	case string(b[:n]) == mpaMark[:n]:
		c.proto = &iwarp{c: c, ch: c.d.channel()}
	case isHello(b), !c.start && isFrame(b):
		c.proto = newXnet(c)
	default:
		if b[0] == 0x16 && b[1] == 3 {
			c.d.count("connections in TLS, which cannot be read")
		} else if c.start {
			c.d.count("TCP connections of other protocols")
		} else {
			c.d.count("TCP connections of another protocol, or without their beginning")
		}
		c.dead, c.head = true, [2][]byte{}
		return
	}
	c.head[dir] = nil
	c.proto.bytes(dir, b)
	if other := c.head[1-dir]; len(other) > 0 {
		c.head[1-dir] = nil
		c.proto.bytes(1-dir, other)
	}
}

// Gap implements [capture.Handler].
func (c *tcpConn) Gap(dir int, n uint64) {
	if c.proto != nil {
		c.proto.gap(dir, n)
	}
}

// End implements [capture.Handler].
func (c *tcpConn) End(dir int, why capture.Ending) {
	if c.proto == nil {
		return
	}
	c.proto.end(dir)
	if why == capture.Evicted && dir == 1 {
		m := c.message(0, "tcp", "dropped")
		m.add("problem", "more connections than can be followed at a time")
		c.d.emit(m)
	}
}

// isHello reports whether b begins with a connection message of ofi+tcp.
func isHello(b []byte) bool {
	return len(b) >= 4 && b[0] == 3 && bytes.Equal(b[2:4], helloMark) && (b[1] <= 1 || b[1] == 6)
}

// isFrame reports whether b begins with the header of a data message of ofi+tcp. Fewer values are taken than a peer takes, because any
// bytes of a stream may be compared.
func isFrame(b []byte) bool {
	f, n, err := ofitcp.ParseFrame(b)
	if err != nil || n == 0 || b[0] != 3 || b[2]&^0xd != 0 || b[3] != 0 || f.Payload > 1<<40 {
		return false
	}
	switch f.Kind {
	case ofitcp.FrameMessage, ofitcp.FrameTagged:
		return n == 24 || n == 32
	case ofitcp.FrameRead, ofitcp.FrameWrite:
		return (n-16)%8 == 0
	default:
		return n == 16 || f.Kind == ofitcp.FrameAnnounce
	}
}

// xnet decodes ofi+tcp.
type xnet struct {
	c    *tcpConn
	ch   *channel
	dirs [2]xnetDir
}

type xnetDir struct {
	hello  bool   // the connection message has come, or the capture begins behind it
	lost   bool   // bytes are missing, and no message has been recognized behind them
	failed bool   // a message was malformed
	buf    []byte // bytes of a header
	frame  *ofitcp.Frame
	left   uint64 // bytes of its payload that are to come
	body   body
}

func newXnet(c *tcpConn) *xnet {
	x := &xnet{c: c, ch: c.d.channel()}
	for i := range x.dirs {
		x.dirs[i].body.d = c.d
	}
	return x
}

func (x *xnet) message(dir int, operation string) *message {
	return x.c.message(dir, "ofi+tcp", operation)
}

func (x *xnet) bytes(dir int, b []byte) {
	s := &x.dirs[dir]
	if s.failed {
		return
	}
	if s.lost {
		if !isFrame(b) {
			return
		}
		s.lost = false
	}
	if s.frame == nil && len(s.buf) > 0 {
		b, s.buf = append(s.buf, b...), nil
	}
	for len(b) > 0 && !s.failed {
		if s.frame != nil {
			n := min(uint64(len(b)), s.left)
			s.body.add(b[:n])
			s.left -= n
			b = b[n:]
			x.finish(dir)
			continue
		}
		n := x.head(dir, b)
		if n == 0 {
			if !s.failed {
				s.buf = bytes.Clone(b)
			}
			return
		}
		b = b[n:]
	}
}

// head reads a connection message or the header of a data message, and returns its length, or 0 if more bytes are needed.
func (x *xnet) head(dir int, b []byte) int {
	s := &x.dirs[dir]
	if !s.hello && len(b) < 4 {
		return 0
	}
	if !s.hello && isHello(b) {
		h, n, err := ofitcp.ParseHello(b)
		switch {
		case err != nil:
			x.fail(dir, err)
		case n > 0:
			s.hello = true
			x.greet(dir, h, n)
		}
		return n
	}
	s.hello = true
	f, n, err := ofitcp.ParseFrame(b)
	if err != nil {
		x.fail(dir, err)
		return 0
	}
	if n > 0 {
		s.frame, s.left = &f, f.Payload
		x.finish(dir)
	}
	return n
}

// fail reports malformed bytes and gives the direction up, because the next message cannot be found.
func (x *xnet) fail(dir int, err error) {
	s := &x.dirs[dir]
	s.failed = true
	m := x.message(dir, "")
	m.malformed(err)
	x.c.d.emit(m)
}

func (x *xnet) greet(dir int, h ofitcp.Hello, n int) {
	m := x.message(dir, map[ofitcp.HelloKind]string{ofitcp.HelloRequest: "connect", ofitcp.HelloAccept: "accept", ofitcp.HelloRefusal: "refuse"}[h.Kind])
	m.size = uint64(n)
	m.add("version", uint64(h.Version))
	m.add("port", uint64(h.Port))
	m.add("process", uint64(h.Process))
	if h.Features != 0 {
		m.add("features", uint64(h.Features))
	}
	if h.Foreign {
		m.add("order", "big-endian")
	}
	x.c.d.emit(m)
}

// requestTag marks the tag of a request that travels as a tagged message.
const requestTag = 1 << 32

// finish reports the message of a direction if all of it has come.
func (x *xnet) finish(dir int) {
	s := &x.dirs[dir]
	if s.left > 0 {
		return
	}
	x.report(dir, x.describe(dir))
}

// report emits m and makes the direction ready for the next message.
func (x *xnet) report(dir int, m *message) {
	s := &x.dirs[dir]
	s.body.note(m)
	s.frame = nil
	s.body.free()
	x.c.d.emit(m)
}

// describe returns the message of a direction.
func (x *xnet) describe(dir int) *message {
	s := &x.dirs[dir]
	f := s.frame
	m := x.message(dir, "")
	m.size = uint64(f.Header) + f.Payload
	switch f.Kind {
	case ofitcp.FrameMessage:
		x.c.d.request(x.ch, dir, m, f.Tag, s.body.data, f.Payload)
	case ofitcp.FrameTagged:
		if f.Tag >= requestTag {
			x.c.d.request(x.ch, dir, m, f.Tag&^requestTag, s.body.data, f.Payload)
		} else {
			x.c.d.response(x.ch, dir, m, f.Tag, s.body.data, f.Payload)
		}
	case ofitcp.FrameRead, ofitcp.FrameWrite:
		m.operation = "read"
		list := &x.ch.reads[dir]
		if f.Kind == ofitcp.FrameWrite {
			m.operation = "write"
			list = &x.ch.writes[dir]
		}
		var c *call
		for _, p := range f.Pieces {
			m.add("key", key(p.Key))
			m.add("offset", key(p.Addr))
			m.add("length", p.Length)
			if c == nil {
				c = x.c.d.access(x.ch, dir, p.Key)
			}
		}
		if f.Kind == ofitcp.FrameRead || f.WantAck {
			sent(list, c)
		}
		m.belongs(c)
	case ofitcp.FrameReadData:
		m.operation = "read-data"
		m.add("length", f.Payload)
		m.belongs(answered(&x.ch.reads[1-dir]))
	case ofitcp.FrameAck:
		m.operation = "write-ack"
		m.belongs(answered(&x.ch.writes[1-dir]))
	case ofitcp.FrameAnnounce:
		m.operation = "rendezvous-announce"
	case ofitcp.FrameClear:
		m.operation = "rendezvous-clear"
	case ofitcp.FrameData:
		m.operation = "rendezvous-data"
	}
	return m
}

func (x *xnet) gap(dir int, n uint64) {
	s := &x.dirs[dir]
	if s.failed || s.lost {
		return
	}
	if s.frame != nil && n <= s.left {
		s.body.gap(n)
		s.left -= n
		x.finish(dir)
		return
	}
	x.end(dir)
	s.lost = true
	m := x.message(dir, "gap")
	m.add("missing", n)
	x.c.d.emit(m)
}

func (x *xnet) end(dir int) {
	s := &x.dirs[dir]
	if s.failed || s.lost {
		return
	}
	if s.frame != nil {
		m := x.describe(dir)
		m.add("unfinished", s.left)
		x.report(dir, m)
	} else if len(s.buf) > 0 {
		m := x.message(dir, "unfinished")
		m.size = uint64(len(s.buf))
		x.c.d.emit(m)
	}
	s.buf = nil
}
