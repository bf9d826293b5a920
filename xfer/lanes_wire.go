package xfer

import (
	"crypto/subtle"
	"encoding/binary"
)

// A transfer has several lanes if its sender asks for them and its receiver grants them (ADR 0057). A lane is a connection with a transfer of the fast
// protocol of its own, over which the receiver asks for its part of the source by WANT. The first lane is an ordinary transfer, but for two fields:
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
// Its answer is that of a transfer of the fast protocol of which the receiver chooses the ranges. In its OPEN the name is that of the first lane, and the length of the head
// and the wishes are 0. The head, the sums and the list of removals cross on the first lane. A lane that has no further part of the source ends as any transfer
// does, by END and DONE. The receiver sends DONE on the first lane when all others have ended, and the file has its name.
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

// opens reports whether the reference has this secret. The comparison takes the same time wherever they differ.
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
	n     uint8      // of the transfer, as the first lane has agreed; 0: one
	ref   laneRef    // of the transfer and of this lane
	group *laneGroup // of the receiver; nil: the transfer has one lane
}
