package mpa

import (
	"encoding/binary"
	"hash/crc32"
	"math"
)

// Sizes of FPDUs, in octets (RFC 5044 sections 3 and 4.1).
const (
	// HeaderLen is the ULPDU_Length field.
	HeaderLen = 2
	// CRCLen is the CRC field. It is there whether CRCs are in use or not.
	CRCLen = 4
	// MaxULPDU is the largest ULPDU that may be sent. The length field could name more; the limit leaves
	// room for every header of an IP datagram (RFC 5044 section 3).
	MaxULPDU = 64768
	// MaxLength is the largest ULPDU that a length field can announce. A receiver takes it: the lower
	// limit binds senders.
	MaxLength = math.MaxUint16
	// MinMULPDU is the least that MULPDU returns, however small the segments (RFC 5044 section 4.5).
	MinMULPDU = 128
)

// castagnoli is the polynomial of iSCSI, which RFC 5044 section 4.4 adopts.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Pad returns how many zero octets, 0 to 3, follow a ULPDU of the given length, so that the FPDU is a
// multiple of four (RFC 5044 section 4.1).
func Pad(ulpdu int) int { return -(HeaderLen + ulpdu) & 3 }

// TrailerLen returns the length of the trailer of a ULPDU of the given length: its pad and its CRC.
func TrailerLen(ulpdu int) int { return Pad(ulpdu) + CRCLen }

// FPDULen returns the length of the FPDU around a ULPDU of the given length.
func FPDULen(ulpdu int) int { return HeaderLen + ulpdu + TrailerLen(ulpdu) }

// AppendHeader appends the ULPDU_Length field for a ULPDU of the given length, 1 to MaxULPDU octets, and
// returns the extended slice.
func AppendHeader(b []byte, ulpdu int) []byte {
	return binary.BigEndian.AppendUint16(b, uint16(ulpdu))
}

// AppendTrailer appends the trailer of a ULPDU of ulpduLen octets: the pad, and the CRC or, with on false,
// four zero octets. crc is the running CRC of the length field and the ULPDU. The CRC goes out least
// significant octet first, as iSCSI sends it (RFC 5044 section 4.4).
func AppendTrailer(b []byte, ulpduLen int, crc uint32, on bool) []byte {
	pad := zeros[:Pad(ulpduLen)]
	b = append(b, pad...)
	if !on {
		return append(b, zeros[:CRCLen]...)
	}
	return binary.LittleEndian.AppendUint32(b, Update(crc, pad))
}

// zeros is never written to.
var zeros [CRCLen]byte

// Update adds b to a running CRC32C, which starts at 0.
func Update(crc uint32, b []byte) uint32 { return crc32.Update(crc, castagnoli, b) }

// CheckTrailer reports whether trailer, the pad and CRC that followed a ULPDU of ulpduLen octets, has the
// right length and CRC. crc is the running CRC of the length field and the ULPDU; the pad is added here,
// as it came: its value is not checked otherwise (RFC 5044 section 4.1). Do not call it when CRCs are off,
// as the CRC field may then hold anything.
func CheckTrailer(trailer []byte, ulpduLen int, crc uint32) bool {
	pad := Pad(ulpduLen)
	if len(trailer) != pad+CRCLen {
		return false
	}
	return binary.LittleEndian.Uint32(trailer[pad:]) == Update(crc, trailer[:pad])
}

// MULPDU returns the length of the largest ULPDU that fits, as an FPDU without markers, into a TCP segment of mss
// octets (RFC 5044 section 4.5), never less than MinMULPDU nor more than MaxULPDU (section 3).
func MULPDU(mss int) int {
	if mss < MinMULPDU {
		return MinMULPDU
	}
	return min(max(mss-(HeaderLen+CRCLen+mss%4), MinMULPDU), MaxULPDU)
}
