package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"cinnabar/internal/capture"
)

// roce decodes RoCEv2: packets of InfiniBand's transport in datagrams of UDP (InfiniBand Architecture Specification, volume 1, chapters 5, 9 and 12).
//
//	0        1                    4            8      9      12
//	+--------+--------------------+------------+------+------+-----------------------------+---------+-----+--------+
//	| opcode | solicited, pad ... | queue pair | ack  | PSN  | further headers, by opcode  | payload | pad | CRC 4  |
//	+--------+--------------------+------------+------+------+-----------------------------+---------+-----+--------+
type roce struct {
	d     *decoder
	pairs *bounded[endKey, *queuePair]
	asked *bounded[askKey, *roceConn] // connections by the requester's address and the number that it has given
	hosts *bounded[[2]netip.Addr, *roceConn]
}

// endKey is a queue pair of a host.
type endKey struct {
	host netip.Addr
	qpn  uint32
}

type askKey struct {
	host netip.Addr
	id   uint32
}

// roceConn is a connection of two queue pairs.
type roceConn struct {
	rdmaConn
	hosts [2]netip.Addr // of the requester, and of the other end
	qpn   uint32        // of the requester
}

// queuePair is the receiving end of a connection.
type queuePair struct {
	conn *roceConn
	dir  int // of the packets that come to it
	// the packets that the peer sends of its own accord, and those that answer reads of this end
	requests, answers flow
}

// flow is a sequence of packets.
type flow struct {
	begun   bool
	psn     uint32 // of the last packet
	open    bool   // a message has begun
	body    body
	address uint64
	key     uint32
	length  uint32
}

func newRoCE(d *decoder) *roce {
	r := &roce{d: d, pairs: newBounded[endKey, *queuePair](maxPairs), asked: newBounded[askKey, *roceConn](maxPairs), hosts: newBounded[[2]netip.Addr, *roceConn](maxPairs)}
	r.pairs.drop = (*queuePair).free
	return r
}

// free gives the bytes of unfinished messages up.
func (q *queuePair) free() {
	q.requests.body.free()
	q.answers.body.free()
}

// Sizes of headers in bytes.
const (
	bthLen    = 12
	crcLen    = 4
	rethLen   = 16 // address, key and length of an access
	aethLen   = 4  // acknowledgement
	immLen    = 4
	atomicLen = 28
	dethLen   = 8 // of datagrams
)

// opcode describes one of the opcodes of reliable connections.
type opcode struct {
	kind        opKind
	first, last bool
	reth, aeth  bool
	imm, inv    bool
}

type opKind uint8

const (
	opNone opKind = iota
	opSend
	opWrite
	opRead
	opReadData
	opAck
	opAtomic
	opAtomicAck
)

// opcodes are those of reliable connections, by number.
var opcodes = [...]opcode{
	0x00: {kind: opSend, first: true},
	0x01: {kind: opSend},
	0x02: {kind: opSend, last: true},
	0x03: {kind: opSend, last: true, imm: true},
	0x04: {kind: opSend, first: true, last: true},
	0x05: {kind: opSend, first: true, last: true, imm: true},
	0x06: {kind: opWrite, first: true, reth: true},
	0x07: {kind: opWrite},
	0x08: {kind: opWrite, last: true},
	0x09: {kind: opWrite, last: true, imm: true},
	0x0a: {kind: opWrite, first: true, last: true, reth: true},
	0x0b: {kind: opWrite, first: true, last: true, reth: true, imm: true},
	0x0c: {kind: opRead, first: true, last: true, reth: true},
	0x0d: {kind: opReadData, first: true, aeth: true},
	0x0e: {kind: opReadData},
	0x0f: {kind: opReadData, last: true, aeth: true},
	0x10: {kind: opReadData, first: true, last: true, aeth: true},
	0x11: {kind: opAck, first: true, last: true, aeth: true},
	0x12: {kind: opAtomicAck, first: true, last: true, aeth: true},
	0x13: {kind: opAtomic, first: true, last: true},
	0x14: {kind: opAtomic, first: true, last: true},
	0x16: {kind: opSend, last: true, inv: true},
	0x17: {kind: opSend, first: true, last: true, inv: true},
}

const (
	opDatagram = 0x64 // SEND only of unreliable datagrams
	qpManager  = 1    // the queue pair of connection management
)

// add decodes a datagram to rocePort.
func (r *roce) add(s *capture.Segment) {
	b := s.Payload
	if len(b) < bthLen+crcLen {
		r.d.count("datagrams that are no packets of RoCE")
		return
	}
	if s.Length > len(b) {
		r.d.count("packets of RoCE that the capture has cut")
		return
	}
	op, pad := b[0], int(b[1]>>4&3)
	qpn, psn := binary.BigEndian.Uint32(b[4:])&0xffffff, binary.BigEndian.Uint32(b[8:])&0xffffff
	if len(b) < bthLen+crcLen+pad {
		r.bad(s, "a packet of RoCE that is shorter than its pad")
		return
	}
	b = b[bthLen : len(b)-crcLen-pad]
	switch {
	case op == opDatagram && qpn == qpManager:
		if len(b) < dethLen {
			r.bad(s, "a datagram of RoCE without its header")
			return
		}
		r.manage(s, b[dethLen:])
	case int(op) < len(opcodes) && opcodes[op].kind != opNone:
		r.packet(s, &opcodes[op], op, qpn, psn, b)
	default:
		r.d.count("packets of RoCE of services other than reliable connections")
	}
}

func (r *roce) message(s *capture.Segment, operation string) *message {
	return r.d.message(s.Src.Addr().String(), s.Dst.Addr().String(), "roce", operation)
}

func (r *roce) bad(s *capture.Segment, problem string) {
	m := r.message(s, "")
	m.malformed(fmt.Errorf("%s", problem))
	r.d.emit(m)
}

// pair returns the queue pair that a packet is for. If the capture does not have the request of its connection, pair cannot find the other end, so it
// puts all such queue pairs of two hosts into one connection.
func (r *roce) pair(s *capture.Segment, qpn uint32) *queuePair {
	k := endKey{s.Dst.Addr(), qpn}
	if q, ok := r.pairs.get(k); ok {
		return q
	}
	hosts := [2]netip.Addr{s.Src.Addr(), s.Dst.Addr()}
	if hosts[1].Less(hosts[0]) {
		hosts[0], hosts[1] = hosts[1], hosts[0]
	}
	c, ok := r.hosts.get(hosts)
	if !ok {
		c = &roceConn{rdmaConn: rdmaConn{ch: r.d.channel()}, hosts: hosts}
		r.hosts.put(hosts, c)
	}
	return r.join(k, c, s.Src.Addr())
}

// join makes a queue pair the end of a connection whose peer is at host.
func (r *roce) join(k endKey, c *roceConn, host netip.Addr) *queuePair {
	q := &queuePair{conn: c}
	if host != c.hosts[0] {
		q.dir = 1
	}
	q.requests.body.d, q.answers.body.d = r.d, r.d
	if old, ok := r.pairs.get(k); ok {
		old.free()
	}
	r.pairs.put(k, q)
	return q
}

// packet decodes a packet of a reliable connection.
func (r *roce) packet(s *capture.Segment, op *opcode, number byte, qpn, psn uint32, b []byte) {
	need := 0
	for _, h := range []struct {
		has bool
		len int
	}{{op.reth, rethLen}, {op.aeth, aethLen}, {op.imm || op.inv, immLen}, {op.kind == opAtomic, atomicLen}} {
		if h.has {
			need += h.len
		}
	}
	if len(b) < need {
		r.bad(s, "a packet of RoCE that ends in its headers")
		return
	}
	q := r.pair(s, qpn)
	switch op.kind {
	case opAck:
		r.acknowledged(s, b[0])
		return
	case opAtomic:
		m := r.message(s, "atomic")
		m.size = 8
		m.add("key", key(binary.BigEndian.Uint32(b[8:])))
		m.add("address", key(binary.BigEndian.Uint64(b)))
		m.add("swap", number == 0x13)
		r.d.emit(m)
		return
	case opAtomicAck:
		m := r.message(s, "atomic-result")
		m.size = 8
		r.d.emit(m)
		return
	default: // a part of a message
	}
	f := &q.requests
	if op.kind == opReadData {
		f = &q.answers
	}
	if !r.follows(s, f, op, psn) {
		return
	}
	if op.first {
		f.body.free()
		f.open = true
	}
	if op.reth {
		f.address, f.key, f.length = binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])
		b = b[rethLen:]
	}
	if op.aeth {
		b = b[aethLen:]
	}
	var word uint32
	if op.imm || op.inv {
		word, b = binary.BigEndian.Uint32(b), b[immLen:]
	}
	if op.kind == opSend {
		f.body.add(b)
	} else {
		f.body.total += uint64(len(b))
	}
	if op.last {
		r.finish(s, q, f, op, word)
	}
}

// follows reports whether a packet is to be decoded: it is no retransmission, and the capture has the beginning of its message. A gap in the sequence
// numbers ends a message.
func (r *roce) follows(s *capture.Segment, f *flow, op *opcode, psn uint32) bool {
	ahead := int32((psn-f.psn)<<8) >> 8 // of 24 bits
	if f.begun && ahead <= 0 {
		r.d.count("packets of RoCE that were sent again")
		return false
	}
	lost := f.begun && ahead > 1 && f.open
	f.begun, f.psn = true, psn
	if f.open && (lost || op.first) {
		m := r.message(s, "unfinished")
		m.size = f.body.total
		r.d.emit(m)
		f.body.free()
		f.open = false
	}
	if !f.open && !op.first {
		return false // the rest of a message without its beginning
	}
	return true
}

// finish reports the message of a flow.
func (r *roce) finish(s *capture.Segment, q *queuePair, f *flow, op *opcode, word uint32) {
	m := r.message(s, "")
	m.size = f.body.total
	switch op.kind {
	case opSend:
		r.d.received(&q.conn.rdmaConn, q.dir, m, f.body.data)
	case opWrite:
		m.operation = "write"
		r.d.accessed(&q.conn.rdmaConn, q.dir, m, uint64(f.key), f.address, m.size)
	case opRead:
		m.operation, m.size = "read", uint64(f.length)
		sent(&q.conn.ch.reads[q.dir], r.d.accessed(&q.conn.rdmaConn, q.dir, m, uint64(f.key), f.address, m.size))
	case opReadData:
		m.operation = "read-data"
		m.add("length", m.size)
		m.belongs(answered(&q.conn.ch.reads[1-q.dir]))
	default: // packet has decoded the others
	}
	if op.imm {
		m.add("immediate", uint64(word))
	}
	if op.inv {
		m.add("invalidate", key(word))
	}
	f.body.free()
	f.open = false
	r.d.emit(m)
}

// acknowledged reports an acknowledgement that is an error. Others belong to the transport.
func (r *roce) acknowledged(s *capture.Segment, syndrome byte) {
	reason := ""
	switch syndrome >> 5 & 3 {
	case 1:
		reason = "receiver not ready"
	case 3:
		reasons := [...]string{"sequence error", "invalid request", "remote access error", "remote operation error", "invalid RD request"}
		reason = fmt.Sprintf("code %d", syndrome&31)
		if n := int(syndrome & 31); n < len(reasons) {
			reason = reasons[n]
		}
	default:
		return
	}
	m := r.message(s, "nak")
	m.add("why", reason)
	r.d.emit(m)
}

// Attributes of management datagrams.
const (
	cmRequest  = 0x10
	cmReceipt  = 0x11
	cmReject   = 0x12
	cmReply    = 0x13
	cmReady    = 0x14
	cmLeave    = 0x15
	cmLeft     = 0x16
	madLen     = 256
	madBody    = 24
	madCM      = 7  // the management class of connections
	cmaLen     = 36 // rdma_cm's header before the private data of a request
	reqPrivate = madBody + 140
	repPrivate = madBody + 36
	rejPrivate = madBody + 84
)

// manage decodes a datagram of connection management.
func (r *roce) manage(s *capture.Segment, b []byte) {
	if len(b) < madLen || b[1] != madCM {
		r.d.count("management datagrams of other classes")
		return
	}
	at, local := binary.BigEndian.Uint16(b[16:]), binary.BigEndian.Uint32(b[madBody:])
	remote := binary.BigEndian.Uint32(b[madBody+4:])
	m := r.message(s, "")
	m.size = madLen
	switch at {
	case cmRequest:
		c := &roceConn{rdmaConn: rdmaConn{ch: r.d.channel()}, hosts: [2]netip.Addr{s.Src.Addr(), s.Dst.Addr()}, qpn: binary.BigEndian.Uint32(b[madBody+32:]) >> 8}
		r.asked.put(askKey{s.Src.Addr(), local}, c)
		m.operation = "connect"
		m.add("service-port", uint64(binary.BigEndian.Uint16(b[madBody+14:])))
		m.add("qp", uint64(c.qpn))
		c.offered(m, b[reqPrivate+cmaLen:reqPrivate+92])
	case cmReply:
		m.operation = "accept"
		qpn := binary.BigEndian.Uint32(b[madBody+12:]) >> 8
		m.add("qp", uint64(qpn))
		c, ok := r.asked.get(askKey{s.Dst.Addr(), remote})
		if !ok {
			c = &roceConn{rdmaConn: rdmaConn{ch: r.d.channel()}, hosts: [2]netip.Addr{s.Dst.Addr(), s.Src.Addr()}}
		}
		if ok {
			r.join(endKey{s.Dst.Addr(), c.qpn}, c, s.Src.Addr())
		}
		r.join(endKey{s.Src.Addr(), qpn}, c, s.Dst.Addr())
		c.accepted(m, b[repPrivate:repPrivate+196])
	case cmReject:
		m.operation = "refuse"
		m.add("reason", uint64(binary.BigEndian.Uint16(b[madBody+10:])))
		var c rdmaConn
		c.refused(m, b[rejPrivate:rejPrivate+148])
	case cmReady:
		m.operation = "ready"
	case cmLeave:
		m.operation = "disconnect"
	case cmLeft:
		m.operation = "disconnected"
	case cmReceipt:
		m.operation = "received"
	default:
		m.operation = "management"
		m.add("attribute", uint64(at))
	}
	r.d.emit(m)
}
