package native

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"cinnabar/codes"
)

// The frames of a stream. Each request carries one, and so does its response. They begin as envelopes do, and have one header:
//
//	0       4         5       6        8           16         24      28      32
//	+-------+---------+-------+--------+-----------+----------+-------+-------+---------
//	| magic | version | flags | length | stream id | sequence | count | bytes | elements
//	+-------+---------+-------+--------+-----------+----------+-------+-------+---------
//
// A put carries elements from the client to the server, and the answer to it is a credit. A get is a credit for the server, and the answer to it
// carries elements to the client.
const (
	magicPut      = "cnsp"
	magicCredit   = "cnsc"
	magicGet      = "cnsg"
	magicElements = "cnse"
)

// Flags of frames.
const (
	flagEnd  byte = 1 << iota // no element follows; in puts and elements
	flagOver                  // the server does not have the stream; in credits and elements
)

const (
	frameSize   = 32 // bytes of a frame before its elements
	elementSize = 4  // bytes of the length before each element

	// streamCredits is the number of credits in each direction. A credit is the right to send one frame.
	streamCredits = 2
	// creditCount and creditBytes are the largest frame of each credit that this package grants. The first credits of a client are of this
	// size too. A frame with one element may be longer.
	creditCount = 1024
	creditBytes = 256 << 10

	maxElement = math.MaxUint32 - frameSize // bytes of an encoded element, of which Config.MaxOverflow of the receiver allows less
)

// credit is the largest frame that its receiver accepts.
type credit struct {
	count uint32 // elements
	bytes uint32 // of all elements, with their lengths
}

// fullCredit is the credit that this package grants.
var fullCredit = credit{creditCount, creditBytes}

// admits reports whether a frame of that size is within the credit.
func (c credit) admits(size credit) bool {
	return size.count <= c.count && (size.bytes <= c.bytes || size.count == 1)
}

// frame is a frame of a stream.
type frame struct {
	magic string
	flags byte
	id    uint64 // of the stream: the id of the call that has opened it
	seq   uint64 // of the put or the get, from 0
	size  credit // of the elements, or granted
	body  []byte // the elements

	memory *frameMemory // of body; nil: it is not pooled
}

func (f *frame) end() bool  { return f.flags&flagEnd != 0 }
func (f *frame) over() bool { return f.flags&flagOver != 0 }

// appendFrame appends the frame f, which is valid.
func appendFrame(b []byte, f *frame) []byte {
	b = slices.Grow(b, frameSize+len(f.body))
	b = append(b, f.magic...)
	b = append(b, version, f.flags, frameSize, 0)
	b = binary.LittleEndian.AppendUint64(b, f.id)
	b = binary.LittleEndian.AppendUint64(b, f.seq)
	b = binary.LittleEndian.AppendUint32(b, f.size.count)
	b = binary.LittleEndian.AppendUint32(b, f.size.bytes)
	return append(b, f.body...)
}

// encode appends the frame f. It returns errSent if f was sent before, because its memory may then belong to another frame.
func (f *frame) encode(b []byte) ([]byte, error) {
	if !f.memory.enter() {
		return b, errSent
	}
	defer f.memory.exit()
	return appendFrame(b, f), nil
}

var errSent = errors.New("native: the frame was sent before; an interceptor must not call next again afterwards")

// frameFlags are the flags that a frame of each kind may have.
var frameFlags = map[string]byte{magicPut: flagEnd, magicCredit: flagOver, magicGet: 0, magicElements: flagEnd | flagOver}

// parseFrame reads a frame of one of the kinds. The body refers to the memory of b. If b has a whole header of such a kind, the result has the stream
// id even with an error, because the error then ends the stream.
func parseFrame(b []byte, kinds ...string) (f frame, err error) {
	if len(b) < frameSize || !slices.Contains(kinds, string(b[:offVersion])) {
		return frame{}, badFrame("%d bytes that begin with %q, want one of %q with %d bytes at least", len(b), b[:min(len(b), offVersion)], kinds, frameSize)
	}
	f = frame{
		magic: string(b[:offVersion]), flags: b[offFlags], id: binary.LittleEndian.Uint64(b[prefixSize:]), seq: binary.LittleEndian.Uint64(b[16:]),
		size: credit{binary.LittleEndian.Uint32(b[24:]), binary.LittleEndian.Uint32(b[28:])}, body: b[frameSize:],
	}
	known := frameFlags[f.magic]
	switch length := binary.LittleEndian.Uint16(b[offLength:]); {
	case b[offVersion] != version:
		return f, &wireError{codes.ProtoNoSupport, fmt.Sprintf("the peer speaks version %d of the frames of streams, this program version %d; update the older one", b[offVersion], version)}
	case f.flags&^known != 0:
		return f, badFrame("flags %#02x of %q, of which %#02x are known", f.flags, f.magic, known)
	case length != frameSize:
		return f, badFrame("a header of %d bytes, want %d", length, frameSize)
	case f.id == 0:
		return f, badFrame("the stream id is 0")
	case f.over():
		return f, f.checkEmpty(f.flags == flagOver && f.size == credit{})
	case f.magic == magicGet || f.magic == magicCredit:
		return f, f.checkEmpty(f.size.count > 0)
	}
	return f, f.checkElements()
}

// checkEmpty checks a frame without elements. rest is false if other fields are wrong.
func (f *frame) checkEmpty(rest bool) error {
	if len(f.body) > 0 || !rest {
		return badFrame("%q with %d bytes behind it, count %d, bytes %d, flags %#02x", f.magic, len(f.body), f.size.count, f.size.bytes, f.flags)
	}
	return nil
}

// checkElements checks that the elements fill the frame.
func (f *frame) checkElements() error {
	if uint64(len(f.body)) != uint64(f.size.bytes) {
		return badFrame("%d bytes of elements, want %d", len(f.body), f.size.bytes)
	}
	if f.size.count == 0 && !f.end() && f.magic == magicPut {
		return badFrame("a put without elements that is not the end")
	}
	rest := f.body
	for n := range f.size.count {
		if _, more, ok := cutElement(rest); ok {
			rest = more
			continue
		}
		return badFrame("element %d of %d runs past the end of the frame", n+1, f.size.count)
	}
	if len(rest) > 0 {
		return badFrame("%d bytes behind the last element", len(rest))
	}
	return nil
}

// cutElement returns the first element of b, and the bytes behind it.
func cutElement(b []byte) (element, rest []byte, ok bool) {
	if len(b) < elementSize {
		return nil, nil, false
	}
	n := uint64(binary.LittleEndian.Uint32(b))
	if n > uint64(len(b)-elementSize) {
		return nil, nil, false
	}
	return b[elementSize : elementSize+n : elementSize+n], b[elementSize+n:], true
}

// badFrame is the error of a frame that no program of this package sends.
func badFrame(format string, args ...any) error {
	return &wireError{codes.ProtocolError, "protocol error of a native stream: " + fmt.Sprintf(format, args...)}
}
