package xfer

import (
	"crypto/subtle"
	"encoding/binary"
	"io/fs"
	"time"
)

// The private data of the connection, in both directions. All numbers are little-endian. A
// peer without the magic counts as the paper's program. Bytes behind these are ignored:
// InfiniBand pads private data with zeros, and later versions may add to it. The
// request fits into the 56 bytes that rdma_cm leaves to InfiniBand, with the name of a digest too.
//
//	request, 40 bytes            answer, 16 bytes            refusal
//	 0  "cnxf"                    0  "cnxf"                   0  "cnxf"
//	 4  version, 1                4  version, 1               4  version, 1
//	 5  offered protocols, bits   5  protocol                 5  0
//	 6  abilities, bits           6  form, bits               6  error message
//	 7  digest                    7  digest
//	 8  chunk, uint32             8  chunk, uint32
//	12  buffers, uint16          12  buffers, uint16
//	14  known fields, bits       14  length of the name
//	                             15  lanes
//	16  size, uint64             16  name of the digest
//	24  time, int64, ns since 1970
//	32  permission bits, uint32
//	36  length of the name
//	37  lanes
//	40  name of the digest
//
// Bit 0 of the abilities is write with immediate data, bit 1 is set for no transfer; bit 2 says that the receiver may choose the ranges that cross (ADR 0053). Bit 0 of the form is set for chunks with immediate data, bit 2
// if the receiver chooses. The digest is 0 for SHA-256 and 1 for none. It is 2 for a digest with a name, and the name follows; otherwise its length is 0
// and is not looked at. A receiver without this form refuses the number 2.
//
// The numbers of lanes are 0 in transfers of one lane. The request for a further lane, and the answer to a request for lanes, have other fields (below).
//
// A request for no transfer, which Ping makes, offers no protocol, so that every receiver refuses it.
const (
	helloMagic   = "cnxf"
	helloVersion = 1
	helloLen     = 40
	answerLen    = 16
	refusalLen   = 6 // and the error message

	offerBasic  = 1 << 0
	offerFast   = 1 << 1
	offerStream = 1 << 2 // the fast protocol for a file of unknown length; no other bit is set then, and the size is 0
	offerPull   = 1 << 3 // the fast protocol the other way round (pull.go); no other bit is set then, and the size is 0
	offerLane   = 1 << 4 // a further lane of a transfer (below); no other bit is set then

	capImm    = 1 << 0
	capPing   = 1 << 1
	capChoice = 1 << 2

	knowsMode = 1 << 0
	knowsTime = 1 << 1

	digestSHA256 = 0
	digestNone   = 1
	digestNamed  = 2
)

// hello is the sender's request: its abilities, its wishes, and the file's metadata.
type hello struct {
	basic, fast bool     // protocols that it offers
	stream      bool     // a file of unknown length by the fast protocol; not with basic or fast, so that receivers without it refuse
	pull        bool     // the requesting side receives; in the same way
	imm         bool     // it can write with immediate data
	ping        bool     // it asks for no transfer
	choice      bool     // the receiver may choose the ranges that cross, by the fast protocol
	lanes       uint8    // number of lanes that the sender would use; 0: one
	join        *laneRef // the request is for a further lane of this transfer, and has no size and meta; nil: it is for a transfer
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
	choice   bool // the receiver chooses the ranges that cross
	digest   Digest
	chunk    uint32
	buffers  uint16
	lanes    uint8   // number of lanes that the sender may use; 0: one
	transfer laneRef // for the requests for further lanes; not used with one lane
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
	if h.stream {
		offers |= offerStream
	}
	if h.pull {
		offers |= offerPull
	}
	lanes := h.lanes
	if h.join != nil {
		offers, lanes = offers|offerLane, h.join.lane
	}
	if h.imm {
		caps |= capImm
	}
	if h.ping {
		caps |= capPing
	}
	if h.choice {
		caps |= capChoice
	}
	b = append(b, helloMagic...)
	kind, name := digestFields(h.digest)
	b = append(b, helloVersion, offers, caps, kind)
	b = binary.LittleEndian.AppendUint32(b, h.chunk)
	b = binary.LittleEndian.AppendUint16(b, h.buffers)
	known, nanos := metaFields(h.meta)
	if h.join != nil {
		known = 0
	}
	b = binary.LittleEndian.AppendUint16(b, known)
	if h.join != nil {
		b = appendLaneRef(b, h.join)
	} else {
		b = binary.LittleEndian.AppendUint64(b, h.size)
		b = binary.LittleEndian.AppendUint64(b, uint64(nanos))
		b = binary.LittleEndian.AppendUint32(b, uint32(h.meta.Mode.Perm()))
	}
	b = append(b, byte(len(name)), lanes, 0, 0)
	return append(b, name...)
}

// metaFields returns the bits of the fields of m that are known, and its time in ns since 1970. A time before 1678 or after 2262 does not cross.
func metaFields(m Meta) (known uint16, nanos int64) {
	if m.Mode != 0 {
		known |= knowsMode
	}
	if t := m.ModTime; !t.IsZero() && time.Unix(0, t.UnixNano()).Equal(t) {
		known |= knowsTime
		nanos = t.UnixNano()
	}
	return known, nanos
}

// metaOf returns the metadata with these fields.
func metaOf(known uint16, nanos int64, mode uint32) (m Meta) {
	if known&knowsMode != 0 {
		m.Mode = fs.FileMode(mode).Perm()
	}
	if known&knowsTime != 0 {
		m.ModTime = time.Unix(0, nanos)
	}
	return m
}

// digestFields returns the number of a digest, and its name if that crosses.
func digestFields(d Digest) (kind byte, name string) {
	switch d {
	case SHA256, "":
		return digestSHA256, ""
	case NoDigest:
		return digestNone, ""
	default:
		return digestNamed, string(d)
	}
}

// parseDigest reads a digest from private data b with its number at byte 7, the length of its name at lengthAt and its name at nameAt.
func parseDigest(b []byte, lengthAt, nameAt int) (Digest, error) {
	switch b[7] {
	case digestSHA256:
		return SHA256, nil
	case digestNone:
		return NoDigest, nil
	case digestNamed:
		n := int(b[lengthAt])
		if n > MaxDigestLen || n > len(b)-nameAt {
			return "", failf(CodeProtocol, "the name of the digest is said to have %d bytes; %d are there, and %d are possible", n, len(b)-nameAt, MaxDigestLen)
		}
		d := Digest(b[nameAt : nameAt+n])
		if err := checkDigestName(d); err != nil {
			return "", failf(CodeProtocol, "the private data is wrong: %w", err)
		}
		return d, nil
	default:
		return "", failf(CodeUnsupported, "digest %d is not known here", b[7])
	}
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
		basic: b[5]&offerBasic != 0, fast: b[5]&offerFast != 0, imm: b[6]&capImm != 0, ping: b[6]&capPing != 0, choice: b[6]&capChoice != 0,
		stream: b[5]&offerStream != 0, pull: b[5]&offerPull != 0,
		chunk:   binary.LittleEndian.Uint32(b[8:]),
		buffers: binary.LittleEndian.Uint16(b[12:]),
	}
	lane := b[5]&offerLane != 0
	if (h.stream || h.pull || lane) && b[5]&(b[5]-1) != 0 {
		return hello{}, failf(CodeProtocol, "the request offers a stream, a pull or a lane beside another protocol (%#x)", b[5])
	}
	var err error
	if h.digest, err = parseDigest(b, 36, helloLen); err != nil {
		return hello{}, err
	}
	if lane {
		ref := parseLaneRef(b[16:36])
		ref.lane = b[37]
		h.join = &ref
		return h, nil
	}
	h.lanes, h.size = b[37], binary.LittleEndian.Uint64(b[16:])
	if h.size > 1<<63-1 {
		return hello{}, failf(CodeProtocol, "the file is said to have %d bytes", h.size)
	}
	h.meta = metaOf(binary.LittleEndian.Uint16(b[14:]), int64(binary.LittleEndian.Uint64(b[24:])), binary.LittleEndian.Uint32(b[32:]))
	return h, nil
}

// appendAnswer appends the encoding of a to b.
func appendAnswer(b []byte, a answer) []byte {
	var form byte
	if a.imm {
		form = capImm
	}
	if a.choice {
		form |= capChoice
	}
	b = append(b, helloMagic...)
	kind, name := digestFields(a.digest)
	b = append(b, helloVersion, byte(a.protocol), form, kind)
	b = binary.LittleEndian.AppendUint32(b, a.chunk)
	b = binary.LittleEndian.AppendUint16(b, a.buffers)
	b = append(b, byte(len(name)), a.lanes)
	b = append(b, name...)
	if a.lanes > 1 {
		b = appendLaneRef(b, &a.transfer)
	}
	return b
}

// parseAnswer reads an answer. It is only asked about data that isOurs.
func parseAnswer(b []byte) (answer, error) {
	if len(b) < answerLen {
		return answer{}, failf(CodeProtocol, "the answer's private data has %d bytes, %d are needed", len(b), answerLen)
	}
	a := answer{
		protocol: Protocol(b[5]), imm: b[6]&capImm != 0, choice: b[6]&capChoice != 0,
		chunk:   binary.LittleEndian.Uint32(b[8:]),
		buffers: binary.LittleEndian.Uint16(b[12:]),
	}
	if b[4] != helloVersion || a.protocol != Basic && a.protocol != Fast {
		return answer{}, failf(CodeProtocol, "the answer's private data is of version %d and chooses %v", b[4], a.protocol)
	}
	var err error
	if a.digest, err = parseDigest(b, 14, answerLen); err != nil {
		return answer{}, err
	}
	if b[15] > 1 {
		rest := b[answerLen:]
		if a.digest.named() {
			rest = rest[len(a.digest):]
		}
		if len(rest) < laneRefLen {
			return answer{}, failf(CodeProtocol, "the answer grants %d lanes, and has %d bytes about them; %d are needed", b[15], len(rest), laneRefLen)
		}
		a.lanes, a.transfer = b[15], parseLaneRef(rest)
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

// A transfer has several lanes if its sender asks for them and its receiver grants them (ADR 0057). A lane is a connection that carries a part of the source as a
// transfer of the fast protocol. The receiver asks for the part by WANT. The first lane is an ordinary transfer, but for two fields:
//
//   - Byte 37 of the request has the number of lanes that the sender would use, 2 to 64; 0 stands for one lane.
//
//   - Byte 15 of the answer has the number that the receiver grants, 2 to that of the request; 0 stands for one lane. If it is not 0, 20 bytes follow behind the
//     name of the digest, or behind the 16 bytes of an answer without a name. They are the reference of the transfer:
//
//     0   secret, 16 random bytes
//     16  number of the transfer at the receiver, uint32
//
// The request for a further lane offers protocol bit 4 only, and has these fields in the place of size, time, permission bits and lanes:
//
//	16  the reference of the transfer, 20 bytes
//	36  length of the name of the digest, as in any request
//	37  number of the lane, from 1 to one less than the lanes that were granted; each is used once
//
// In a pull the puller asks for lanes and makes these requests. A further lane of a pull begins with the REQUEST of the first one, to which the server answers as on the first, but
// for the length of the head, which is 0.
//
// The answer to it is that of a transfer of the fast protocol of which the receiver chooses the ranges. OPEN of a further lane has the name of the first lane's, and
// 0 for the length of the head and the wishes. The head, the sums and the list of removals cross on the first lane. A lane that gets no further range ends as any
// transfer does, by END and DONE. The receiver sends DONE on the first lane when all other lanes have ended and the file has its name.
const (
	laneSecretLen = 16
	laneRefLen    = laneSecretLen + 4

	// MaxLanes is the largest number of lanes of a transfer.
	MaxLanes = 64
)

// laneRef is the reference of a transfer of several lanes, with the number of one of its lanes.
type laneRef struct {
	secret [laneSecretLen]byte
	number uint32 // of the transfer at the receiver
	lane   uint8  // not part of the 20 bytes of the reference
}

// appendLaneRef appends the 20 bytes of a reference.
func appendLaneRef(b []byte, r *laneRef) []byte {
	return binary.LittleEndian.AppendUint32(append(b, r.secret[:]...), r.number)
}

// parseLaneRef reads a reference. b has laneRefLen bytes at least.
func parseLaneRef(b []byte) laneRef {
	return laneRef{secret: [laneSecretLen]byte(b), number: binary.LittleEndian.Uint32(b[laneSecretLen:])}
}

// opens reports whether the reference has this secret. The comparison takes the same time wherever the two secrets differ.
func (r *laneRef) opens(secret *[laneSecretLen]byte) bool {
	return subtle.ConstantTimeCompare(r.secret[:], secret[:]) == 1
}

// isLane reports whether private data is a request for a further lane.
func isLane(private []byte) bool {
	if !isOurs(private) {
		return false
	}
	h, err := parseHello(private)
	return err == nil && h.join != nil
}

// lanesAgreed is the part of an agreement about lanes.
type lanesAgreed struct {
	n     uint8      // number of lanes that was granted, in the agreement of the first lane; 0: one lane
	ref   laneRef    // reference of the transfer, with the number of this lane
	group *laneGroup // at the receiver, the lanes of the transfer; nil: it has one lane
}
