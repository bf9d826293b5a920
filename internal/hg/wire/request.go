package wire

import "encoding/binary"

// Protocol is the version of the headers: HG_CORE_PROTOCOL_VERSION since Mercury 2.1.
const Protocol = 0x05

// magic is the first byte of each request, HG_CORE_IDENTIFIER: 'G' | 0x80 | 0x10.
const magic = 0xd7

// RequestHeader is the core header of a request:
//
//	 0       1          2                      10      11       12        14      16
//	+-------+----------+----------------------+-------+--------+---------+-------+
//	| magic | protocol | RPC id, big endian   | flags | cookie | CRC16   |       |
//	+-------+----------+----------------------+-------+--------+---------+-------+
//	 struct hg_core_header_request                               only FormLong
//
// The cookie is the sender's context id and comes back in the response.
type RequestHeader []byte

// Magic and the methods below it return the fields of the header, which has at least 12 bytes, and at least 14 for CRC16.
func (h RequestHeader) Magic() uint8    { return h[0] }
func (h RequestHeader) Protocol() uint8 { return h[1] }
func (h RequestHeader) ID() uint64      { return binary.BigEndian.Uint64(h[2:]) }
func (h RequestHeader) Flags() uint8    { return h[10] }
func (h RequestHeader) Cookie() uint8   { return h[11] }
func (h RequestHeader) CRC16() uint16   { return binary.BigEndian.Uint16(h[12:]) } // FormLong only

// Checksum returns the value that CRC16 should have. C computes it over its structure in memory, so the id counts in little endian.
func (h RequestHeader) Checksum() uint16 {
	var b [12]byte
	b[0], b[1] = h[0], h[1]
	binary.LittleEndian.PutUint64(b[2:], h.ID())
	b[10], b[11] = h[10], h[11]
	return crc16(0, b[:])
}

// Request has the contents of both headers of a request.
type Request struct {
	Form   Form
	ID     uint64
	Flags  uint8 // without FlagHasChecksums, which belongs to Form
	Cookie uint8
	CRC    uint32 // CRC32C of the whole payload; FormLong only
}

// PutRequest writes both headers to the first f.Form.Size() bytes of b.
func PutRequest(b []byte, f Request) {
	clear(b[:f.Form.Size()])
	b[0], b[1] = magic, Protocol
	binary.BigEndian.PutUint64(b[2:], f.ID)
	b[10], b[11] = f.Flags|f.Form.mark(), f.Cookie
	if f.Form == FormLong {
		binary.BigEndian.PutUint16(b[12:], RequestHeader(b).Checksum())
		binary.BigEndian.PutUint32(b[coreLong:], f.CRC)
	}
}

// ParseRequest reads the headers of a request that came to a process of the given mode, and returns the payload behind them, a part
// of b. b is hostile. If bad.Answer is set, the response repeats the fields of f.
//
// A checksum field that is zero has not been written: builds with checksums leave it so at checksum level "none". Such
// requests pass unverified, as they do in C.
func ParseRequest(b []byte, mode ChecksumMode) (f Request, payload []byte, bad *Error) {
	if len(b) < coreShort {
		return f, nil, malformed("request of %d bytes, its header has at least %d", len(b), coreShort)
	}
	h := RequestHeader(b)
	if h.Magic() != magic {
		return f, nil, malformed("request starts with byte %#02x, not %#02x: no Mercury RPC", h.Magic(), magic)
	}
	if h.Protocol() != Protocol {
		return f, nil, malformed("request of protocol version %#02x, this process speaks %#02x (Mercury 2.1 or later)", h.Protocol(), Protocol)
	}
	f = Request{Form: formOf(b, mode), ID: h.ID(), Flags: h.Flags() &^ FlagHasChecksums, Cookie: h.Cookie()}
	if mode == NoChecksums && f.Form == FormLong || mode == Checksums && f.Form == FormShort {
		return f, nil, mismatch(f.Form, mode)
	}
	if len(b) < f.Form.Size() {
		return f, nil, malformed("request of %d bytes, its headers have %d", len(b), f.Form.Size())
	}
	payload = b[f.Form.Size():]
	if f.Form == FormShort {
		return f, payload, nil
	}
	if got, want := h.CRC16(), h.Checksum(); got != 0 && got != want {
		return f, nil, corrupt("request header", got, want)
	}
	f.CRC = binary.BigEndian.Uint32(b[coreLong:])
	return f, payload, f.verify(payload)
}

// formOf returns the form of a request. Builds before 2.4.1 do not mark it; then only valid checksums at the places of FormLong show
// it.
func formOf(b []byte, mode ChecksumMode) Form {
	h := RequestHeader(b)
	if h.Flags()&FlagHasChecksums != 0 {
		return FormLong
	}
	if mode == NoChecksums || len(b) < FormLong.Size() {
		return FormShort
	}
	if mode == Checksums && h.CRC16() == 0 && binary.BigEndian.Uint32(b[coreLong:]) == 0 {
		return FormLong // the mode implies checksum level "none"; a payload may begin with zeros, but Margo's do not
	}
	if h.CRC16() == 0 || h.CRC16() != h.Checksum() {
		return FormShort
	}
	// Sixteen bits may agree by accident where a build without checksums leaves stale memory.
	if mode == Detect && binary.BigEndian.Uint32(b[coreLong:]) != CRC32C(b[FormLong.Size():]) {
		return FormShort
	}
	return FormLong
}

// verify checks the payload's checksum unless the payload is yet to be pulled.
func (f *Request) verify(payload []byte) *Error {
	if f.Flags&FlagMoreData != 0 {
		return nil
	}
	return VerifyPayload(f.CRC, payload, f.Flags&FlagNoResponse == 0)
}
