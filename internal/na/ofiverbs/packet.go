package ofiverbs

import (
	"encoding/binary"
	"fmt"
	"math"
)

// packet is a message of a queue pair. It begins with a header of 64 bytes, all integers little endian (struct rxm_pkt: ofi_ctrl_hdr and
// ofi_op_hdr of libfabric's include/ofi_proto.h):
//
//	 0               1               2               3
//	+---------------+---------------+-------------------------------+
//	| ctrl version 4| type          | segment size                  |
//	+---------------+---------------+-------------------------------+
//	| segment number                                                |
//	+---------------------------------------------------------------+
//	| connection: the index that the receiver has given, 8 bytes    |    8
//	+---------------------------------------------------------------+
//	| message number, 8 bytes                                       |   16
//	+---------------------------------------------------------------+
//	| control data: the number of credits, 8 bytes; 0 in a question |   24
//	+---------------+---------------+---------------+---------------+
//	| op version 2  | 0             | op            | 0             |   32
//	+---------------+---------------+---------------+---------------+
//	| flags: bit 17 says that data is valid                         |   36
//	+---------------------------------------------------------------+
//	| size of the message, 8 bytes                                  |   40
//	+---------------------------------------------------------------+
//	| data: Mercury's tag of a request, or a question, 8 bytes      |   48
//	+---------------------------------------------------------------+
//	| tag: Mercury's tag of a response, 8 bytes                     |   56
//	+---------------------------------------------------------------+
//	| message                                                       |   64
//
// Segment size and number, message number and control data of an eager packet are left over from earlier uses of the sender's buffer,
// so they are written as zero and never read.
type packet []byte

const (
	headerLen = 64
	// eagerLimit is the length of the longest message that one packet carries, in bytes. Both sides of a connection must have the same.
	eagerLimit = 16384
)

// Offsets in a packet.
const (
	offVersion  = 0
	offType     = 1
	offConnID   = 8
	offCtrlData = 24
	offOpVer    = 32
	offOp       = 34
	offFlags    = 36
	offSize     = 40
	offData     = 48
	offTag      = 56
)

// packetType is the type of a packet (enum in ofi_proto.h and rxm.h).
type packetType uint8

const (
	typeEager      packetType = 0 // a whole message
	typeSegment    packetType = 1 // a part of a message above the eager limit
	typeRendezvous packetType = 2 // the memory of a message that the receiver reads
	typeReadDone   packetType = 3
	typeAtomic     packetType = 4
	typeAtomicResp packetType = 5
	typeCredit     packetType = 6
	typeWriteData  packetType = 7
	typeWriteDone  packetType = 8
)

var packetTypes = [...]string{
	"eager", "segment", "rendezvous request", "rendezvous read done", "atomic", "atomic response", "credit", "rendezvous write data",
	"rendezvous write done",
}

func (t packetType) String() string {
	if int(t) < len(packetTypes) {
		return packetTypes[t]
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// Operations of an eager packet, and the one that credit packets have in its place.
const (
	packetOpVersion = 2

	opMsg    = 0
	opTagged = 1
	opCredit = 6

	flagData = 1 << 17 // FI_REMOTE_CQ_DATA

	// requestTag marks the tag of a request that was sent as a tagged message (NA_OFI_UNEXPECTED_TAG_MSG=1 of Mercury).
	requestTag = 1 << 32
)

// message is a parsed packet.
type message struct {
	conn    uint64 // the receiver's index
	credits uint64 // of a credit packet
	asks    uint64 // askEnd or askNot in a credit packet without credits
	kind    messageKind
	tag     uint32
	payload []byte // a part of the packet
}

// messageKind is the use that Mercury makes of a packet.
type messageKind uint8

const (
	kindCredit messageKind = iota
	kindRequest
	kindExpected
)

// parsePacket reads a packet, which is hostile, from all of b.
func parsePacket(b []byte) (message, error) {
	if len(b) < headerLen {
		return message{}, fmt.Errorf("a packet of %d bytes; its header has %d", len(b), headerLen)
	}
	if v := b[offVersion]; v != ctrlVersion {
		return message{}, fmt.Errorf("a packet of version %d instead of %d", v, ctrlVersion)
	}
	m := message{conn: binary.LittleEndian.Uint64(b[offConnID:])}
	switch t := packetType(b[offType]); t {
	case typeCredit:
		m.credits = binary.LittleEndian.Uint64(b[offCtrlData:])
		if len(b) != headerLen {
			return message{}, fmt.Errorf("a credit packet of %d bytes; it has %d", len(b), headerLen)
		}
		if m.credits == 0 {
			m.asks = binary.LittleEndian.Uint64(b[offData:])
		}
		return m, nil
	case typeEager:
		err := m.parseEager(b)
		return m, err
	case typeSegment, typeRendezvous:
		return message{}, fmt.Errorf("a packet of type %v, for a message above %d bytes: configure Mercury's message sizes and this side's alike, and not above that", t, eagerLimit)
	case typeReadDone, typeAtomic, typeAtomicResp, typeWriteData, typeWriteDone:
		return message{}, fmt.Errorf("a packet of type %v, which answers nothing that was sent", t)
	default:
		return message{}, fmt.Errorf("a packet of unknown %v", t)
	}
}

// parseEager reads the part of an eager packet that stands behind the connection index.
func (m *message) parseEager(b []byte) error {
	if size := binary.LittleEndian.Uint64(b[offSize:]); size != uint64(len(b)-headerLen) {
		return fmt.Errorf("a message of %d bytes in a packet that has %d", size, len(b)-headerLen)
	}
	if v := b[offOpVer]; v != packetOpVersion {
		return fmt.Errorf("an operation of version %d instead of %d", v, packetOpVersion)
	}
	m.payload = b[headerLen:]
	var tag uint64
	switch op := b[offOp]; op {
	case opMsg:
		if binary.LittleEndian.Uint32(b[offFlags:])&flagData == 0 {
			return fmt.Errorf("a request without a tag")
		}
		m.kind, tag = kindRequest, binary.LittleEndian.Uint64(b[offData:])
	case opTagged:
		m.kind, tag = kindExpected, binary.LittleEndian.Uint64(b[offTag:])
		if tag&requestTag != 0 {
			m.kind, tag = kindRequest, tag&^requestTag
		}
	default:
		return fmt.Errorf("operation %d; Mercury uses %d and %d", op, opMsg, opTagged)
	}
	if tag > math.MaxUint32 {
		return fmt.Errorf("tag %#x; it has 32 bits", tag)
	}
	m.tag = uint32(tag)
	return nil
}

// begin clears the header and fills in the fields that all packets have.
func (p packet) begin(t packetType, conn uint32, op byte) {
	clear(p[:headerLen])
	p[offVersion], p[offType] = ctrlVersion, byte(t)
	binary.LittleEndian.PutUint64(p[offConnID:], uint64(conn))
	p[offOpVer], p[offOp] = packetOpVersion, op
}

// putRequest fills in the header of a request of n bytes.
func (p packet) putRequest(conn, tag uint32, n int) {
	p.begin(typeEager, conn, opMsg)
	binary.LittleEndian.PutUint32(p[offFlags:], flagData)
	binary.LittleEndian.PutUint64(p[offSize:], uint64(n))
	binary.LittleEndian.PutUint64(p[offData:], uint64(tag))
}

// putExpected fills in the header of an expected message of n bytes.
func (p packet) putExpected(conn, tag uint32, n int) {
	p.begin(typeEager, conn, opTagged)
	binary.LittleEndian.PutUint64(p[offSize:], uint64(n))
	binary.LittleEndian.PutUint64(p[offTag:], uint64(tag))
}

// Values of data in a credit packet without credits. Only programs of this package send such packets, and only to each other (see conn.ask).
const (
	askEnd = 1 // the receiver should end the connection if nothing is under way on it
	askNot = 2 // the answer if something is
)

// putAsk makes a credit packet without credits.
func (p packet) putAsk(conn uint32, asks uint64) {
	p.putCredit(conn, 0)
	binary.LittleEndian.PutUint64(p[offData:], asks)
}

// putCredit makes a credit packet.
func (p packet) putCredit(conn uint32, credits int) {
	p.begin(typeCredit, conn, opCredit)
	binary.LittleEndian.PutUint64(p[offCtrlData:], uint64(credits))
}
