package sm

import (
	"encoding/binary"
	"fmt"
	"math"

	"cinnabar/internal/na"
)

// Where the kernel lets no process access another's memory, endpoints of this package move it through a socket: the relay of
// the owner copies it on behalf of the peer. C's endpoints have no such socket.
//
// A peer sends requests over a connection, one after the other. All integers are little endian.
//
//	request                           answer
//	 0  magic     4                    0  magic    4
//	 4  access    1   1 get, 2 put     4  status   1   0 done, 1 refused
//	 5  zero      3                    5  zero     3
//	 8  segments  4   k                8  length   4   of the rest
//	12  length    4   of all           12 the bytes of a get, or the cause of a refusal
//	16  k times: address 8, length 8
//	then the bytes of a put
//
// The access 4 asks for an arena, with its id in the place of the one segment's address and 1 as its length. From then on that
// connection carries such requests in one direction, and in the other a grant for each, and one for each granted arena that is freed:
//
//	 0  magic     4
//	 4  kind      1   0 granted, with the file as SCM_RIGHTS; 1 refused; 2 freed
//	 5  zero      3
//	 8  id        8
//	16  base      8   the arena's address in the owner's process
//	24  size      8
const (
	relayMagic   = 0x31724e43 // "CNr1"; the last byte is the version
	relayRequest = 16
	relaySegment = 16
	relayAnswer  = 12
	grantLen     = 32
)

// relayMap is the access of a request for an arena.
const relayMap na.Access = 4

// Limits of one request. A larger transfer takes several.
const (
	relayBytes = 1 << 20
	relayText  = 512 // bytes of the cause of a refusal
)

// Status of an answer.
const (
	relayDone byte = iota
	relayRefused
)

// relayHead is the head of a request.
type relayHead struct {
	access   na.Access // ReadOnly for a get, WriteOnly for a put, relayMap
	segments int
	bytes    int
}

func appendRelayHead(b []byte, h relayHead) []byte {
	b = binary.LittleEndian.AppendUint32(b, relayMagic)
	b = append(b, byte(h.access), 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(h.segments))
	return binary.LittleEndian.AppendUint32(b, uint32(h.bytes))
}

// parseRelayHead parses the head of a request, the relayRequest bytes of b, which come from a peer.
func parseRelayHead(b []byte) (relayHead, error) {
	k, n := binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:])
	h := relayHead{access: na.Access(b[4])}
	switch {
	case binary.LittleEndian.Uint32(b) != relayMagic:
		return h, fmt.Errorf("request begins with %x", b[:4])
	case h.access != na.ReadOnly && h.access != na.WriteOnly && h.access != relayMap:
		return h, fmt.Errorf("request for access %d; it is 1, 2 or 4", h.access)
	case h.access == relayMap && (k != 1 || n != 1):
		return h, fmt.Errorf("request for an arena with %d segments of %d bytes; it is 1 of 1", k, n)
	case k == 0 || k > maxSegments:
		return h, fmt.Errorf("request for %d segments; there are 1 to %d", k, maxSegments)
	case n == 0 || n > relayBytes:
		return h, fmt.Errorf("request for %d bytes; there are 1 to %d", n, relayBytes)
	}
	h.segments, h.bytes = int(k), int(n)
	return h, nil
}

// parseRelaySegments reads the segments of a request, which b consists of, and appends them to segs.
func parseRelaySegments(segs []segment, b []byte, h relayHead) ([]segment, error) {
	left := uint64(h.bytes)
	for ; len(b) >= relaySegment; b = b[relaySegment:] {
		s := segment{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])}
		if s.len == 0 || s.len > left {
			return nil, fmt.Errorf("a segment of %d bytes where %d are left of the request", s.len, left)
		}
		left -= s.len
		segs = append(segs, s)
	}
	if left > 0 {
		return nil, fmt.Errorf("segments lack %d of the request's %d bytes", left, h.bytes)
	}
	return segs, nil
}

func appendRelayAnswer(b []byte, status byte, n int) []byte {
	b = binary.LittleEndian.AppendUint32(b, relayMagic)
	b = append(b, status, 0, 0, 0)
	return binary.LittleEndian.AppendUint32(b, uint32(n))
}

// parseRelayAnswer parses the head of an answer, the relayAnswer bytes of b, which come from a peer. An answer that is not a refusal
// must have want bytes.
func parseRelayAnswer(b []byte, want int) (status byte, n int, err error) {
	size := binary.LittleEndian.Uint32(b[8:])
	status = b[4]
	switch {
	case binary.LittleEndian.Uint32(b) != relayMagic:
		return 0, 0, fmt.Errorf("answer begins with %x", b[:4])
	case status == relayDone && size != uint32(want):
		return 0, 0, fmt.Errorf("answer of %d bytes; it should have %d", size, want)
	case status == relayRefused && size > relayText:
		return 0, 0, fmt.Errorf("refusal of %d bytes; the limit is %d", size, relayText)
	case status > relayRefused:
		return 0, 0, fmt.Errorf("answer with status %d; it is 0 or 1", status)
	}
	return status, int(size), nil
}

// Kinds of grants.
const (
	grantGiven byte = iota
	grantRefused
	grantGone
)

// grant is a message of an owner about an arena.
type grant struct {
	kind           byte
	id, base, size uint64
}

func appendGrant(b []byte, g grant) []byte {
	b = binary.LittleEndian.AppendUint32(b, relayMagic)
	b = append(b, g.kind, 0, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, g.id)
	b = binary.LittleEndian.AppendUint64(b, g.base)
	return binary.LittleEndian.AppendUint64(b, g.size)
}

// maxArena is the largest arena of a peer, because addresses have 47 bits.
const maxArena = 1 << 46

// parseGrant parses a grant, the grantLen bytes of b, which come from a peer.
func parseGrant(b []byte) (grant, error) {
	g := grant{kind: b[4], id: binary.LittleEndian.Uint64(b[8:]), base: binary.LittleEndian.Uint64(b[16:]), size: binary.LittleEndian.Uint64(b[24:])}
	switch {
	case binary.LittleEndian.Uint32(b) != relayMagic:
		return g, fmt.Errorf("grant begins with %x", b[:4])
	case g.kind > grantGone:
		return g, fmt.Errorf("grant says %d; it is 0, 1 or 2", g.kind)
	case g.kind == grantGiven && (g.size == 0 || g.size > maxArena || g.base > math.MaxUint64-g.size):
		return g, fmt.Errorf("arena of %d bytes at %#x", g.size, g.base)
	}
	return g, nil
}
