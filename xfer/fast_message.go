package xfer

import "encoding/binary"

// The messages of the fast protocol. All numbers are little-endian.
//
//	 0  kind, uint16
//	 2  0
//	 4  length, uint32
//	 8  number, uint64
//	16  word, uint32
//	20  count, uint32
//	24  tail
//
//	kind     from      length        number        word     count    tail
//	OPEN     sender    of the name                                   name
//	LAYOUT   receiver  of a buffer   address       rkey     buffers
//	CHUNK    sender    of the chunk  index         CRC32C
//	CREDIT   receiver                buffers freed
//	END      sender    of the tail   size                            digest
//	DONE     receiver  of the tail   size                            digest
//	FAILED   both      of the tail                                   error message
//	WANT     receiver  of the tail                 1: last  requests requests
//	NOTE     both      of the tail   1, 2, 3, ...  spared            removals
//
// WANT and NOTE, and two fields of OPEN, exist only if both sides agree that the receiver chooses (hello.go, choose_message.go). Then OPEN has the length of the
// head as number and the wishes as word, and a chunk may be shorter than a buffer.
//
// CHUNK follows its RDMA write on the same queue pair, so the data is there when
// it is. A device with immediate data would save nothing by it: 32 bits
// do not hold index, length and checksum.
const (
	fastLen     = 24
	maxFastLen  = fastLen + 256
	fastOpen    = 1
	fastLayout  = 2
	fastChunk   = 3
	fastCredit  = 4
	fastEnd     = 5
	fastDone    = 6
	fastFailed  = 7
	fastWant    = 16
	fastNote    = 17
	maxFastKind = fastNote
	maxWantTail = maxMessage - fastLen // bytes of the tail of WANT and NOTE
)

var fastNames = [...]string{fastOpen: "OPEN", fastLayout: "LAYOUT", fastChunk: "CHUNK", fastCredit: "CREDIT",
	fastEnd: "END", fastDone: "DONE", fastFailed: "FAILED", fastWant: "WANT", fastNote: "NOTE"}

// fastMessage is a message of the fast protocol.
type fastMessage struct {
	kind   uint16
	length uint32 // LAYOUT, CHUNK; elsewhere it follows from the tail
	number uint64
	word   uint32
	count  uint32
	tail   []byte // at most 256 bytes; of WANT and NOTE, maxWantTail
}

// tailed reports whether messages of a kind have a tail. Its length is then in the
// length field.
func tailed(kind uint16) bool {
	return kind == fastOpen || kind == fastEnd || kind == fastDone || kind == fastFailed || choosingKind(kind)
}

// choosingKind reports whether messages of a kind exist only if the receiver chooses.
func choosingKind(kind uint16) bool { return kind == fastWant || kind == fastNote }

// maxTail returns the length of the longest tail of a kind, in bytes.
func maxTail(kind uint16) uint32 {
	if choosingKind(kind) {
		return maxWantTail
	}
	return maxFastLen - fastLen
}

// appendFast appends the encoding of m to b.
func appendFast(b []byte, m fastMessage) []byte {
	if tailed(m.kind) {
		m.length = uint32(len(m.tail))
	}
	b = binary.LittleEndian.AppendUint16(b, m.kind)
	b = append(b, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, m.length)
	b = binary.LittleEndian.AppendUint64(b, m.number)
	b = binary.LittleEndian.AppendUint32(b, m.word)
	b = binary.LittleEndian.AppendUint32(b, m.count)
	return append(b, m.tail...)
}

// parseFast reads a message and its length, which is negative if it is
// malformed. The tail is a part of b.
func parseFast(b []byte) (m fastMessage, n int) {
	if len(b) < fastLen {
		return m, -1
	}
	m = fastMessage{
		kind:   binary.LittleEndian.Uint16(b),
		length: binary.LittleEndian.Uint32(b[4:]),
		number: binary.LittleEndian.Uint64(b[8:]),
		word:   binary.LittleEndian.Uint32(b[16:]),
		count:  binary.LittleEndian.Uint32(b[20:]),
	}
	if m.kind > maxFastKind || fastNames[m.kind] == "" {
		return m, -1
	}
	if !tailed(m.kind) {
		return m, fastLen
	}
	if m.length > maxTail(m.kind) || int(m.length) > len(b)-fastLen {
		return m, -1
	}
	m.tail = b[fastLen : fastLen+int(m.length)]
	return m, fastLen + len(m.tail)
}
