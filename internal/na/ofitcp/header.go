package ofitcp

import "encoding/binary"

// Operations of a message (enum xnet_op, libfabric prov/tcp/src/xnet_proto.h).
const (
	opMsg     = 0 // XNET_OP_MSG; also acknowledgements
	opTag     = 1 // XNET_OP_TAG
	opReadReq = 2 // XNET_OP_READ_REQ
	opReadRsp = 3 // XNET_OP_READ_RSP
	opWrite   = 4 // XNET_OP_WRITE
	opTagRTS  = 5 // XNET_OP_TAG_RTS: rendezvous, which version 0 of the protocol does not have
	opCTS     = 6 // XNET_OP_CTS
	opData    = 7 // XNET_OP_DATA
)

const (
	flagCQData   = 0x1 // XNET_REMOTE_CQ_DATA: the header has a word of completion data
	flagDelivery = 0x4 // XNET_DELIVERY_COMPLETE: acknowledge when placed
	flagCommit   = 0x8 // XNET_COMMIT_COMPLETE: acknowledge when durable; memory is as durable as it gets
	flagsAck     = flagDelivery | flagCommit

	opDataAck = 2 // XNET_OP_ACK: makes a msg an acknowledgement

	headerVersion = 3 // XNET_HDR_VERSION
)

// Sizes in bytes, and counts.
const (
	baseLen   = 16
	wordLen   = 8
	iovLen    = 24
	maxHeader = 120
	maxIOV    = 4

	requestHeader  = baseLen + wordLen // msg with completion data
	expectedHeader = baseLen + wordLen // tag
	writeHeader    = baseLen + iovLen
)

// Offsets in the base header, see the package documentation.
const (
	offVersion = 0
	offOp      = 1
	offFlags   = 2
	offOpData  = 4
	offIOVs    = 5
	offHdrSize = 6
	offSeq     = 7
	offSize    = 8
)

// header is the start of a message: at least baseLen bytes, and all of it for the words behind them. All integers are
// little endian, which is the byte order of the only peers that we talk to.
type header []byte

func (h header) op() byte      { return h[offOp] }
func (h header) flags() uint16 { return binary.LittleEndian.Uint16(h[offFlags:]) }
func (h header) opData() byte  { return h[offOpData] }
func (h header) iovs() int     { return int(h[offIOVs]) }
func (h header) hdrSize() int  { return int(h[offHdrSize]) }
func (h header) size() uint64  { return binary.LittleEndian.Uint64(h[offSize:]) }
func (h header) setSeq(n byte) { h[offSeq] = n }

// word returns the integer in the 8 bytes that begin at byte off of the header.
func (h header) word(off int) uint64 { return binary.LittleEndian.Uint64(h[off:]) }

// iov reads a description of remote memory: its address, length and key are three words that begin at byte off of the header.
func (h header) iov(off int) iov {
	return iov{addr: h.word(off), len: h.word(off + wordLen), key: h.word(off + 2*wordLen)}
}

// base fills in the base header of a message of size bytes in all.
func (h header) base(op byte, flags uint16, hdrSize int, size uint64) {
	h[offVersion], h[offOp] = headerVersion, op
	binary.LittleEndian.PutUint16(h[offFlags:], flags)
	h[offOpData], h[offIOVs], h[offHdrSize], h[offSeq] = 0, 0, byte(hdrSize), 0
	binary.LittleEndian.PutUint64(h[offSize:], size)
}

// putRequest makes the first requestHeader bytes of h the header of a request of size bytes in all.
func (h header) putRequest(tag uint32, size int) {
	h.base(opMsg, flagCQData, requestHeader, uint64(size))
	binary.LittleEndian.PutUint64(h[baseLen:], uint64(tag))
}

// putExpected makes the first expectedHeader bytes of h the header of an expected message of size bytes in all.
func (h header) putExpected(tag uint32, size int) {
	h.base(opTag, 0, expectedHeader, uint64(size))
	binary.LittleEndian.PutUint64(h[baseLen:], uint64(tag))
}

// appendBase appends a header that is only the base, with payload bytes to follow.
func appendBase(b []byte, op, opData byte, payload uint64) []byte {
	n := len(b)
	b = append(b, make([]byte, baseLen)...)
	h := header(b[n:])
	h.base(op, 0, baseLen, baseLen+payload)
	h[offOpData] = opData
	return b
}

// appendAck appends an acknowledgement.
func appendAck(b []byte) []byte { return appendBase(b, opMsg, opDataAck, 0) }

// appendReadRsp appends the header of the answer to a read of n bytes.
func appendReadRsp(b []byte, n uint64) []byte { return appendBase(b, opReadRsp, 0, n) }

// appendReadReq appends a read of at most maxIOV pieces.
func appendReadReq(b []byte, iovs []iov) []byte { return appendRMA(b, opReadReq, 0, iovs, 0) }

// appendWrite appends the header of a write of payload bytes to at most maxIOV pieces, to be acknowledged.
func appendWrite(b []byte, iovs []iov, payload uint64) []byte {
	return appendRMA(b, opWrite, flagDelivery, iovs, payload)
}

func appendRMA(b []byte, op byte, flags uint16, iovs []iov, payload uint64) []byte {
	n := len(b)
	size := baseLen + iovLen*len(iovs)
	b = append(b, make([]byte, baseLen)...)
	h := header(b[n:])
	h.base(op, flags, size, uint64(size)+payload)
	h[offIOVs] = byte(len(iovs))
	for _, v := range iovs {
		b = binary.LittleEndian.AppendUint64(b, v.addr)
		b = binary.LittleEndian.AppendUint64(b, v.len)
		b = binary.LittleEndian.AppendUint64(b, v.key)
	}
	return b
}

// iov is a piece of registered memory (struct ofi_rma_iov): addr is an offset from the start of the memory with that key.
type iov struct{ addr, len, key uint64 }

// message is a parsed header.
type message struct {
	op      byte
	ack     bool // an acknowledgement
	wantAck bool // to be acknowledged when placed
	hdr     int
	payload uint64
	cqData  uint64
	tag     uint64
	niov    int
	iov     [maxIOV]iov
}

// parseHeader reads the header at the start of b, which is hostile, into m. It returns the header's length, 0 if more
// bytes are needed, or a negative number for a malformed one, which malformed names.
//
// Fields that upstream leaves undefined are ignored: the version, the byte that may be a sequence number, and the count of
// pieces of messages that have none.
func parseHeader(m *message, b []byte) int {
	if len(b) < baseLen {
		return 0
	}
	h := header(b)
	*m = message{op: h.op(), hdr: h.hdrSize()}
	switch {
	case m.op > opData || m.hdr < baseLen || m.hdr > maxHeader:
		return badOp
	case m.op >= opTagRTS:
		return badRendezvous
	}
	size := h.size()
	if size < uint64(m.hdr) {
		return badSize
	}
	m.payload = size - uint64(m.hdr)
	if len(b) < m.hdr {
		return 0
	}
	return m.parseWords(h[:m.hdr])
}

// Faults that parseHeader finds.
const (
	badOp         = -1 - iota // an operation that does not exist
	badSize                   // sizes that contradict each other
	badIOV                    // pieces of remote memory
	badRendezvous             // an operation that version 0, on which both sides have agreed, does not have
)

// malformed describes a negative result of parseHeader.
func malformed(n int) string {
	switch n {
	case badSize:
		return "a message with sizes that contradict each other"
	case badIOV:
		return "a read or write without pieces, with more than 4, or with a length that is not that of its pieces"
	case badRendezvous:
		return "a message of a rendezvous, which version 0 of the protocol does not have, and no other was agreed on"
	}
	return "a header with an unknown operation or length"
}

// parseWords reads the words behind the base header: completion data first, then tag or pieces.
func (m *message) parseWords(h header) int {
	flags := h.flags()
	m.wantAck = flags&flagsAck != 0
	off := baseLen
	if flags&flagCQData != 0 && m.op != opReadRsp {
		if off+wordLen > len(h) {
			return badSize
		}
		m.cqData = h.word(off)
		off += wordLen
	}
	switch m.op {
	case opMsg:
		m.ack = h.opData() == opDataAck
		if m.ack && m.payload != 0 {
			return badSize
		}
	case opTag:
		if off+wordLen > len(h) {
			return badSize
		}
		m.tag = h.word(off)
	case opReadReq, opWrite:
		return m.parseIOV(h, off)
	}
	return m.hdr
}

// parseIOV reads the pieces of a read or a write.
func (m *message) parseIOV(h header, off int) int {
	m.niov = h.iovs()
	if m.niov < 1 || m.niov > maxIOV || off+m.niov*iovLen > len(h) {
		return badIOV
	}
	var total uint64
	for i := range m.niov {
		v := h.iov(off + i*iovLen)
		if total+v.len < total {
			return badIOV
		}
		total += v.len
		m.iov[i] = v
	}
	if m.op == opReadReq && m.payload != 0 || m.op == opWrite && m.payload != total {
		return badIOV
	}
	if m.op == opReadReq && total > 1<<63 { // the answer's size must not wrap
		return badIOV
	}
	return m.hdr
}

// total returns the number of bytes of all pieces of a message together.
func (m *message) total() uint64 {
	var n uint64
	for _, v := range m.iov[:m.niov] {
		n += v.len
	}
	return n
}
