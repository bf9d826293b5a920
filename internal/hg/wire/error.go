package wire

import (
	"fmt"
	"hash/crc32"

	"cinnabar/codes"
)

// Error describes a malformed message of a peer, or one with a wrong checksum.
type Error struct {
	Code   codes.Code
	Answer bool // the peer waits for a response, and the form of its request is known
	text   string
}

func (e *Error) Error() string { return e.text }

func malformed(format string, args ...any) *Error {
	return &Error{Code: codes.ProtocolError, text: fmt.Sprintf(format, args...)}
}

func corrupt(part string, got, want any) *Error {
	return &Error{Code: codes.ChecksumError, text: fmt.Sprintf("checksum of the %s is %#x, computed %#x", part, got, want)}
}

// mismatch returns the error of a message of form peer in a process of mode own. The text names the field of the root package's Config.
func mismatch(peer Form, own ChecksumMode) *Error {
	remedy := "set Config.Checksums to WithChecksums or ChecksumsAuto"
	if own == Checksums {
		remedy = "set Config.Checksums to NoChecksums or ChecksumsAuto"
	}
	return &Error{
		Code: codes.ProtoNoSupport, Answer: true,
		text: fmt.Sprintf("peer's Mercury is %s, this process speaks the other layout: %s", peer, remedy),
	}
}

// crc16Table is that of T10-DIF: polynomial 0x8BB7, no reflection.
var crc16Table = func() (t [256]uint16) {
	const poly = 0x8bb7
	for i := range t {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ poly
			} else {
				crc <<= 1
			}
		}
		t[i] = crc
	}
	return t
}()

// crc16 continues crc over b; it starts with 0 and nothing is inverted at the end (mchecksum's "crc16").
func crc16(crc uint16, b []byte) uint16 {
	for _, c := range b {
		crc = crc<<8 ^ crc16Table[byte(crc>>8)^c]
	}
	return crc
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CRC32C returns the checksum of a payload (mchecksum's "CRC32C").
func CRC32C(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// VerifyPayload returns an error with the given Answer if crc, the checksum of a header, is not that of the payload. A checksum of 0
// was not written. The checksum of an empty payload was not written either: C leaves stale memory in its place, and does not look at it.
func VerifyPayload(crc uint32, payload []byte, answer bool) *Error {
	if crc == 0 || len(payload) == 0 {
		return nil
	}
	want := CRC32C(payload)
	if crc == want {
		return nil
	}
	bad := corrupt("payload", crc, want)
	bad.Answer = answer
	return bad
}
