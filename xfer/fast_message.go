package xfer

import (
	"encoding/binary"
	"math"
	"strings"
)

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
// WANT and NOTE, and two fields of OPEN, exist only if both sides agree that the receiver chooses (hello.go, below). Then OPEN has the length of the
// head as number and the wishes as word (in a pull other fields, see pull.go), and a chunk may be shorter than a buffer.
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
	maxFastKind = fastAttr             // of pull.go
	maxWantTail = maxMessage - fastLen // bytes of the tail of WANT and NOTE
)

var fastNames = [...]string{fastOpen: "OPEN", fastLayout: "LAYOUT", fastChunk: "CHUNK", fastCredit: "CREDIT",
	fastEnd: "END", fastDone: "DONE", fastFailed: "FAILED", fastWant: "WANT", fastNote: "NOTE", fastRequest: "REQUEST", fastAttr: "ATTR"}

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
	return kind == fastOpen || kind == fastEnd || kind == fastDone || kind == fastFailed || kind == fastRequest || choosingKind(kind)
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

// The tail of WANT has requests. "uvarint" is a number in the form of package encoding/binary.
//
//	distance, uvarint    from the end of the last request of the same kind; of the first, from the end of the head
//	length, uvarint      2 times the length of the range; plus 1 if its sum is wanted
//
// The tail of a NOTE of the receiver has removals. Without a tail it says that the receiver's file is at work.
//
//	kind, 1 byte         1 a directory that stays, 2 no directory, 3 a directory
//	depth, uvarint
//	length, uvarint      of the name
//	name
//
// The NOTE by which the sender answers has the same number and no tail. Bit i of its word is set if removal i of the NOTE may not happen.
const (
	removalStays = 1
	removalOther = 2
	removalDir   = 3

	// mostRemovals is the largest number of removals of one NOTE, which are the bits of a word.
	mostRemovals = 32
	// mostListed is the largest number of removals of one transfer. It bounds the list that a hostile receiver makes a sender print.
	mostListed = 1 << 22
	// mostDepth is the largest depth of a removal.
	mostDepth = 1024
	// mostUnderWay is the largest number of WANT messages of which not all data has come, and of NOTE messages that are not answered.
	mostUnderWay = 8
	// leastRequest is the number of bytes that hold any request.
	leastRequest = 2 * binary.MaxVarintLen64
)

// ranges knows the ends of the last requests.
type ranges struct{ data, sum int64 }

// of returns the end of the last request of a kind.
func (g *ranges) of(sum bool) *int64 {
	if sum {
		return &g.sum
	}
	return &g.data
}

// fits reports whether a request may follow the others, of a source of so many bytes.
func (g *ranges) fits(r Range, size int64) bool {
	return r.Offset >= *g.of(r.Sum) && r.Length > 0 && r.Offset <= size && r.Length <= size-r.Offset && (!r.Sum || r.Length <= MaxSumRange)
}

// append appends the encoding of a request, which must fit.
func (g *ranges) append(b []byte, r Range) []byte {
	end := g.of(r.Sum)
	length := uint64(r.Length) << 1
	if r.Sum {
		length |= 1
	}
	b = binary.AppendUvarint(b, uint64(r.Offset-*end))
	*end = r.Offset + r.Length
	return binary.AppendUvarint(b, length)
}

// parse reads a request of a source of so many bytes, and its length, which is negative if it is malformed or may not follow the others.
func (g *ranges) parse(b []byte, size int64) (r Range, n int) {
	distance, n := binary.Uvarint(b)
	if n <= 0 || distance > math.MaxInt64 {
		return r, -1
	}
	length, k := binary.Uvarint(b[n:])
	if k <= 0 {
		return r, -1
	}
	r = Range{Length: int64(length >> 1), Sum: length&1 != 0}
	end := g.of(r.Sum)
	if int64(distance) > size-*end {
		return r, -1
	}
	r.Offset = *end + int64(distance)
	if !g.fits(r, size) {
		return r, -1
	}
	*end = r.Offset + r.Length
	return r, n + k
}

// appendRemoval appends the encoding of a removal.
func appendRemoval(b []byte, r Removal) []byte {
	kind := byte(removalOther)
	switch {
	case r.Stays:
		kind = removalStays
	case r.Dir:
		kind = removalDir
	}
	b = append(b, kind)
	b = binary.AppendUvarint(b, uint64(r.Depth))
	b = binary.AppendUvarint(b, uint64(len(r.Name)))
	return append(b, r.Name...)
}

// parseRemoval reads a removal and its length, which is negative if it is malformed.
func parseRemoval(b []byte) (r Removal, n int) {
	if len(b) == 0 || b[0] < removalStays || b[0] > removalDir {
		return r, -1
	}
	r.Stays, r.Dir = b[0] == removalStays, b[0] != removalOther
	depth, k := binary.Uvarint(b[1:])
	if k <= 0 || depth > mostDepth {
		return r, -1
	}
	n = 1 + k
	length, k := binary.Uvarint(b[n:])
	if n += k; k <= 0 || length > MaxName || int(length) > len(b)-n {
		return r, -1
	}
	r.Depth, r.Name = int(depth), string(b[n:n+int(length)])
	if !r.proper() {
		return r, -1
	}
	return r, n + int(length)
}

// proper reports whether the message can carry the removal.
func (r *Removal) proper() bool {
	return r.Name != "" && r.Name != "." && r.Name != ".." && len(r.Name) <= MaxName && !strings.ContainsAny(r.Name, "/\x00") && r.Depth >= 0 && r.Depth <= mostDepth &&
		(r.Dir || !r.Stays)
}

// removalPaths makes paths of the removals of one transfer.
type removalPaths struct{ above []string }

// path returns the path of the next removal; "", if it belongs to no directory before it.
func (p *removalPaths) path(r *Removal) string {
	if r.Depth > len(p.above) {
		return ""
	}
	p.above = p.above[:r.Depth]
	path := strings.Join(append(p.above, r.Name), "/")
	if r.Dir {
		p.above = append(p.above, r.Name)
	}
	return path
}
