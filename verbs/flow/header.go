package flow

import (
	"encoding/binary"
	"fmt"

	"cinnabar/verbs"
)

// headerLen is the size of a header in bytes.
const headerLen = 24

// kind is the kind of a message.
type kind uint8

const (
	kindRecord  kind = 1 + iota // with payload behind the header, or in the ring
	kindControl                 // carries flags and grants only
	kindFin                     // no record follows
)

// flags of a header.
type flags uint8

const (
	askSoon    flags = 1 << iota // request: grant when half the window is free, or all
	askNow                       // request: grant as soon as a record is released
	answerSoon                   // answers askSoon
	answerNow                    // answers askNow
	inRing                       // the payload is in the ring, at offset
	allFlags   = 1<<iota - 1
)

// header is the start of every message.
type header struct {
	kind    kind
	flags   flags
	length  uint32 // of the payload, in bytes
	offset  uint32 // of the payload in the ring, in bytes
	granted uint32 // records of the peer's released in all, modulo 2^32
	known   uint32 // grants of the peer's that the sender knows of, modulo 2^32
	seq     uint32 // number of the record, modulo 2^32
}

func (h *header) put(b []byte) {
	b[0], b[1], b[2], b[3] = byte(h.kind), byte(h.flags), 0, 0
	be := binary.BigEndian
	be.PutUint32(b[4:], h.length)
	be.PutUint32(b[8:], h.offset)
	be.PutUint32(b[12:], h.granted)
	be.PutUint32(b[16:], h.known)
	be.PutUint32(b[20:], h.seq)
}

// parseHeader reads the header of a message.
func parseHeader(b []byte) (h header, err error) {
	if len(b) < headerLen {
		return h, fmt.Errorf("a message of %d bytes, a header has %d", len(b), headerLen)
	}
	be := binary.BigEndian
	h = header{
		kind: kind(b[0]), flags: flags(b[1]), length: be.Uint32(b[4:]), offset: be.Uint32(b[8:]),
		granted: be.Uint32(b[12:]), known: be.Uint32(b[16:]), seq: be.Uint32(b[20:]),
	}
	switch {
	case h.kind < kindRecord || h.kind > kindFin:
		return h, fmt.Errorf("a message of kind %d, which there is not", b[0])
	case h.flags&^allFlags != 0 || b[2] != 0 || b[3] != 0:
		return h, fmt.Errorf("a message with unknown flags %#x", b[1:4])
	case h.kind != kindRecord && (h.length != 0 || h.flags&inRing != 0):
		return h, fmt.Errorf("a message of kind %d with %d bytes of payload", h.kind, h.length)
	}
	return h, nil
}

// helloLen is the size of a hello in bytes.
const helloLen = 28

const (
	helloMagic   = 0x63666C77 // "cflw"
	helloVersion = 1
)

// hello has the limits of one end, in the private data of the connection.
type hello struct {
	records uint16 // that may be under way to it
	inline  uint32 // bytes of payload that its receives have room for
	bytes   uint32 // of its ring, and that may be under way to it
	ring    verbs.RemoteAddr
}

func (h *hello) append(b []byte) []byte {
	be := binary.BigEndian
	b = be.AppendUint32(b, helloMagic)
	b = append(b, helloVersion, 0)
	b = be.AppendUint16(b, h.records)
	b = be.AppendUint32(b, h.inline)
	b = be.AppendUint32(b, h.bytes)
	b = be.AppendUint32(b, h.ring.RKey)
	return be.AppendUint64(b, h.ring.Addr)
}

// parseHello reads a peer's. Devices may pad private data with zeros.
func parseHello(b []byte) (h hello, err error) {
	be := binary.BigEndian
	switch {
	case len(b) < helloLen || be.Uint32(b) != helloMagic:
		return h, fmt.Errorf("the peer does not speak this protocol: its private data are %d other bytes", len(b))
	case b[4] != helloVersion || b[5] != 0:
		return h, fmt.Errorf("the peer speaks version %d.%d of the protocol, this is %d.0", b[4], b[5], helloVersion)
	}
	h = hello{records: be.Uint16(b[6:]), inline: be.Uint32(b[8:]), bytes: be.Uint32(b[12:])}
	h.ring = verbs.RemoteAddr{RKey: be.Uint32(b[16:]), Addr: be.Uint64(b[20:])}
	if h.records == 0 || h.bytes < leastBytes || h.bytes > mostBytes || h.inline > h.bytes {
		return h, fmt.Errorf("the peer has room for %d records and %d bytes, %d of them inline: there must be a record, and %d to %d bytes", h.records, h.bytes, h.inline, leastBytes, mostBytes)
	}
	return h, nil
}
