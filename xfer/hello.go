package xfer

import (
	"encoding/binary"
	"io/fs"
	"time"
)

// The private data of the connection, in both directions. All numbers are little-endian. A
// peer without the magic counts as the paper's program. Bytes behind these are ignored:
// InfiniBand pads private data with zeros, and later versions may add to it. The
// request fits into the 56 bytes that rdma_cm leaves to InfiniBand.
//
//	request, 40 bytes            answer, 16 bytes            refusal
//	 0  "cnxf"                    0  "cnxf"                   0  "cnxf"
//	 4  version, 1                4  version, 1               4  version, 1
//	 5  offered protocols, bits   5  protocol                 5  0
//	 6  bit 0: write-immediate    6  1: write-immediate       6  error message
//	 7  digest                    7  digest
//	 8  chunk, uint32             8  chunk, uint32
//	12  buffers, uint16          12  buffers, uint16
//	14  known fields, bits       14  0
//	16  size, uint64
//	24  time, int64, ns since 1970
//	32  permission bits, uint32
//	36  0
const (
	helloMagic   = "cnxf"
	helloVersion = 1
	helloLen     = 40
	answerLen    = 16
	refusalLen   = 6 // and the error message

	offerBasic = 1 << 0
	offerFast  = 1 << 1

	knowsMode = 1 << 0
	knowsTime = 1 << 1
)

// hello is the sender's request: its abilities, its wishes, and the file's metadata.
type hello struct {
	basic, fast bool // protocols that it offers
	imm         bool // it can write with immediate data
	digest      Digest
	chunk       uint32 // bytes per buffer; 0: the receiver chooses
	buffers     uint16 // 0: the receiver chooses
	size        uint64
	meta        Meta
}

// answer is the receiver's decision.
type answer struct {
	protocol Protocol
	imm      bool // basic: chunks are announced by immediate data
	digest   Digest
	chunk    uint32
	buffers  uint16
}

// appendHello appends the encoding of h to b.
func appendHello(b []byte, h hello) []byte {
	var offers, caps byte
	if h.basic {
		offers |= offerBasic
	}
	if h.fast {
		offers |= offerFast
	}
	if h.imm {
		caps = 1
	}
	b = append(b, helloMagic...)
	b = append(b, helloVersion, offers, caps, byte(h.digest))
	b = binary.LittleEndian.AppendUint32(b, h.chunk)
	b = binary.LittleEndian.AppendUint16(b, h.buffers)
	var known uint16
	var nanos int64
	if h.meta.Mode != 0 {
		known |= knowsMode
	}
	if t := h.meta.ModTime; !t.IsZero() && time.Unix(0, t.UnixNano()).Equal(t) { // a time before 1678 or after 2262 does not cross
		known |= knowsTime
		nanos = t.UnixNano()
	}
	b = binary.LittleEndian.AppendUint16(b, known)
	b = binary.LittleEndian.AppendUint64(b, h.size)
	b = binary.LittleEndian.AppendUint64(b, uint64(nanos))
	b = binary.LittleEndian.AppendUint32(b, uint32(h.meta.Mode.Perm()))
	return append(b, 0, 0, 0, 0)
}

// isOurs reports whether private data is of this protocol at all.
func isOurs(b []byte) bool {
	return len(b) >= len(helloMagic) && string(b[:len(helloMagic)]) == helloMagic
}

// parseHello reads a request. It is only asked about data that isOurs.
func parseHello(b []byte) (hello, error) {
	if len(b) < helloLen {
		return hello{}, failf(CodeProtocol, "the request's private data has %d bytes, %d are needed", len(b), helloLen)
	}
	if b[4] < helloVersion {
		return hello{}, failf(CodeProtocol, "the request's private data has version %d", b[4])
	}
	h := hello{
		basic: b[5]&offerBasic != 0, fast: b[5]&offerFast != 0, imm: b[6]&1 != 0, digest: Digest(b[7]),
		chunk:   binary.LittleEndian.Uint32(b[8:]),
		buffers: binary.LittleEndian.Uint16(b[12:]),
		size:    binary.LittleEndian.Uint64(b[16:]),
	}
	if h.size > 1<<63-1 {
		return hello{}, failf(CodeProtocol, "the file is said to have %d bytes", h.size)
	}
	known := binary.LittleEndian.Uint16(b[14:])
	if known&knowsMode != 0 {
		h.meta.Mode = fs.FileMode(binary.LittleEndian.Uint32(b[32:])).Perm()
	}
	if known&knowsTime != 0 {
		h.meta.ModTime = time.Unix(0, int64(binary.LittleEndian.Uint64(b[24:])))
	}
	return h, nil
}

// appendAnswer appends the encoding of a to b.
func appendAnswer(b []byte, a answer) []byte {
	var form byte
	if a.imm {
		form = 1
	}
	b = append(b, helloMagic...)
	b = append(b, helloVersion, byte(a.protocol), form, byte(a.digest))
	b = binary.LittleEndian.AppendUint32(b, a.chunk)
	b = binary.LittleEndian.AppendUint16(b, a.buffers)
	return append(b, 0, 0)
}

// parseAnswer reads an answer. It is only asked about data that isOurs.
func parseAnswer(b []byte) (answer, error) {
	if len(b) < answerLen {
		return answer{}, failf(CodeProtocol, "the answer's private data has %d bytes, %d are needed", len(b), answerLen)
	}
	a := answer{
		protocol: Protocol(b[5]), imm: b[6]&1 != 0, digest: Digest(b[7]),
		chunk:   binary.LittleEndian.Uint32(b[8:]),
		buffers: binary.LittleEndian.Uint16(b[12:]),
	}
	if b[4] != helloVersion || a.protocol != Basic && a.protocol != Fast {
		return answer{}, failf(CodeProtocol, "the answer's private data is of version %d and chooses %v", b[4], a.protocol)
	}
	return a, nil
}

// appendRefusal appends the private data of a refused connection, at most limit
// bytes; nothing if not even the code fits.
func appendRefusal(b []byte, v errorMessage, limit int) []byte {
	if limit < refusalLen+errorMessageLen {
		return b
	}
	b = append(b, helloMagic...)
	b = append(b, helloVersion, 0)
	return appendErrorMessage(b, v, limit-refusalLen)
}

// parseRefusal reads the private data of a refused connection.
func parseRefusal(b []byte) (errorMessage, bool) {
	if !isOurs(b) || len(b) < refusalLen {
		return errorMessage{}, false
	}
	v, n := parseErrorMessage(b[refusalLen:])
	return v, n >= 0
}
