package wire

import (
	"encoding/binary"
	"strconv"
	"strings"

	"cinnabar/codes"
)

// ResponseHeader is the core header of a response:
//
//	 0      1       2                    4        6                12      16
//	+------+-------+--------------------+--------+----------------+-------+
//	| code | flags | cookie, big endian | CRC16  |                |       |
//	+------+-------+--------------------+--------+----------------+-------+
//	 struct hg_core_header_response       FormLong                 FormLong
//
// The bytes without a name are never written by C and never read.
type ResponseHeader []byte

// Code and the methods below it return the fields of the header, which has at least 4 bytes, and at least 6 for CRC16.
func (h ResponseHeader) Code() codes.Code { return codes.Code(h[0]) }
func (h ResponseHeader) Flags() uint8     { return h[1] }
func (h ResponseHeader) Cookie() uint16   { return binary.BigEndian.Uint16(h[2:]) }
func (h ResponseHeader) CRC16() uint16    { return binary.BigEndian.Uint16(h[4:]) } // FormLong only

// Checksum returns the value that CRC16 should have. C computes it over its structure in memory, so the cookie counts in little endian.
func (h ResponseHeader) Checksum() uint16 {
	return crc16(0, []byte{h[0], h[1], h[3], h[2]})
}

// Success is the code of a response without an error (HG_SUCCESS).
const Success codes.Code = 0

// Response has the contents of both headers of a response.
type Response struct {
	Form   Form
	Code   codes.Code // one byte in the header
	Flags  uint8      // without FlagHasChecksums, which belongs to Form
	Cookie uint16
	CRC    uint32 // CRC32C of the whole payload; FormLong only
}

// PutResponse writes both headers to the first f.Form.Size() bytes of b. The header has the lowest 8 bits of f.Code.
func PutResponse(b []byte, f Response) {
	clear(b[:f.Form.Size()])
	b[0], b[1] = uint8(f.Code), f.Flags|f.Form.mark()
	binary.BigEndian.PutUint16(b[2:], f.Cookie)
	if f.Form == FormLong {
		binary.BigEndian.PutUint16(b[4:], ResponseHeader(b).Checksum())
		binary.BigEndian.PutUint32(b[coreLong:], f.CRC)
	}
}

// ParseResponse reads the headers of a response to a request of form want, and returns the payload behind them, a part of b. b is
// hostile. A response that carries an error has no payload and no other fields with a meaning.
func ParseResponse(b []byte, want Form) (f Response, payload []byte, bad *Error) {
	if len(b) < coreShort {
		return f, nil, malformed("response of %d bytes, its header has at least %d", len(b), coreShort)
	}
	h := ResponseHeader(b)
	f = Response{Form: want, Code: h.Code(), Flags: h.Flags() &^ FlagHasChecksums, Cookie: h.Cookie()}
	if bad := checkForm(b, want); bad != nil {
		return f, nil, bad
	}
	if len(b) < want.CoreSize() || f.Code == Success && len(b) < want.Size() {
		return f, nil, malformed("response of %d bytes, its headers have %d", len(b), want.Size())
	}
	if want == FormLong {
		if got, want := h.CRC16(), h.Checksum(); got != 0 && got != want {
			return f, nil, corrupt("response header", got, want)
		}
	}
	if f.Code != Success {
		return f, nil, nil
	}
	payload = b[want.Size():]
	if want == FormShort {
		return f, payload, nil
	}
	f.CRC = binary.BigEndian.Uint32(b[coreLong:])
	if f.Flags&FlagMoreData != 0 {
		return f, payload, nil
	}
	return f, payload, VerifyPayload(f.CRC, payload, false)
}

// checkForm returns an error if a response does not have the form of its request. Builds of 2.4.1 mark the form, and older ones repeat
// the mark of the request.
func checkForm(b []byte, want Form) *Error {
	marked := ResponseHeader(b).Flags()&FlagHasChecksums != 0
	switch {
	case marked && want == FormShort:
		return mismatch(FormLong, NoChecksums)
	case !marked && want == FormLong:
		return mismatch(FormShort, Checksums)
	}
	return nil
}

// CodeName returns the name that number n has in a release of Mercury, "2.3.1". Numbers above 21 have shifted twice:
// 2.4.0 put HG_IO_ERROR at 22 and 2.4.1 put HG_HOSTFIREWALL at 23. A response does not have its sender's release, so
// the caller knows it from elsewhere; an empty or unknown release is read as the newest.
func CodeName(n uint8, release string) string {
	c := codes.Code(n)
	if c > codes.Canceled {
		switch {
		case release == "2.4.0":
			if c >= codes.HostFirewall {
				c++
			}
		case olderThan24(release):
			c += 2
		}
	}
	if c > codes.OtherError { // beyond the last one of that release
		return "HG return code " + strconv.Itoa(int(n))
	}
	return c.Error()
}

// olderThan24 reports whether release is of the series 0 to 2.3.
func olderThan24(release string) bool {
	first, rest, _ := strings.Cut(release, ".")
	second, _, _ := strings.Cut(rest, ".")
	major, err := strconv.Atoi(first)
	if err != nil {
		return false
	}
	minor, err := strconv.Atoi(second)
	if err != nil {
		return major < 2
	}
	return major < 2 || major == 2 && minor < 4
}
