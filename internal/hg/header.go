package hg

import "encoding/binary"

// Protocol is the version of the headers: HG_CORE_PROTOCOL_VERSION since Mercury 2.1.
const Protocol = 0x05

// Constants of mercury_core_header.h.
const (
	magic    = 0xd7 // HG_CORE_IDENTIFIER: 'G' | 0x80 | 0x10
	protocol = Protocol
)

// Flags of both headers.
const (
	flagMoreData     = 0x01 // HG_CORE_MORE_DATA: the payload is a bulk descriptor of the payload
	flagNoResponse   = 0x02 // HG_CORE_NO_RESPONSE: a one-way RPC
	flagHasChecksums = 0x80 // HG_CORE_HAS_CHECKSUMS: built with checksums, since 2.4.1
)

// form is one of the two layouts of the headers.
type form uint8

const (
	formShort form = iota // built without checksums: 12 bytes + 4
	formLong              // built with checksums: 16 bytes + 4
)

// Sizes in bytes.
const (
	coreShort = 12
	coreLong  = 16
	hgHeader  = 4 // header of the HG layer, after the core header: CRC32C of the payload, or nothing
)

// core returns the size of the core header.
func (f form) core() int {
	if f == formLong {
		return coreLong
	}
	return coreShort
}

// size returns the size of the headers together: where the payload starts.
func (f form) size() int { return f.core() + hgHeader }

// mark returns the flag by which this form is known.
func (f form) mark() uint8 {
	if f == formLong {
		return flagHasChecksums
	}
	return 0
}

func (f form) String() string {
	if f == formLong {
		return "built with checksums"
	}
	return "built without checksums"
}

// requestHeader is the core header of a request:
//
//	 0       1          2                      10      11       12        14      16
//	+-------+----------+----------------------+-------+--------+---------+-------+
//	| magic | protocol | RPC id, big endian   | flags | cookie | CRC16   |       |
//	+-------+----------+----------------------+-------+--------+---------+-------+
//	 struct hg_core_header_request                               only formLong
//
// The cookie is the sender's context id and comes back in the response.
type requestHeader []byte

func (h requestHeader) magic() uint8    { return h[0] }
func (h requestHeader) protocol() uint8 { return h[1] }
func (h requestHeader) id() ID          { return ID(binary.BigEndian.Uint64(h[2:])) }
func (h requestHeader) flags() uint8    { return h[10] }
func (h requestHeader) cookie() uint8   { return h[11] }
func (h requestHeader) crc16() uint16   { return binary.BigEndian.Uint16(h[12:]) } // formLong only

// checksum returns what crc16 should be. C computes it over its structure in memory, so the id counts in little endian.
func (h requestHeader) checksum() uint16 {
	var b [12]byte
	b[0], b[1] = h[0], h[1]
	binary.LittleEndian.PutUint64(b[2:], uint64(h.id()))
	b[10], b[11] = h[10], h[11]
	return crc16(0, b[:])
}

// requestFields are the contents of a request's headers.
type requestFields struct {
	form   form
	id     ID
	flags  uint8 // without the mark of the form
	cookie uint8
	crc    uint32 // of the whole payload; formLong only
}

// putRequest writes both headers to the first f.form.size() bytes of b.
func putRequest(b []byte, f requestFields) {
	clear(b[:f.form.size()])
	b[0], b[1] = magic, protocol
	binary.BigEndian.PutUint64(b[2:], uint64(f.id))
	b[10], b[11] = f.flags|f.form.mark(), f.cookie
	if f.form == formLong {
		binary.BigEndian.PutUint16(b[12:], requestHeader(b).checksum())
		binary.BigEndian.PutUint32(b[coreLong:], f.crc)
	}
}

// responseHeader is the core header of a response:
//
//	 0      1       2                    4        6                12      16
//	+------+-------+--------------------+--------+----------------+-------+
//	| code | flags | cookie, big endian | CRC16  |                |       |
//	+------+-------+--------------------+--------+----------------+-------+
//	 struct hg_core_header_response       formLong                 formLong
//
// What has no name here is never written by C and never read.
type responseHeader []byte

func (h responseHeader) code() Code     { return Code(h[0]) }
func (h responseHeader) flags() uint8   { return h[1] }
func (h responseHeader) cookie() uint16 { return binary.BigEndian.Uint16(h[2:]) }
func (h responseHeader) crc16() uint16  { return binary.BigEndian.Uint16(h[4:]) } // formLong only

// checksum returns what crc16 should be: as for requests, the cookie counts in little endian.
func (h responseHeader) checksum() uint16 {
	return crc16(0, []byte{h[0], h[1], h[3], h[2]})
}

// responseFields are the contents of a response's headers.
type responseFields struct {
	form   form
	code   Code
	flags  uint8 // without the mark of the form
	cookie uint16
	crc    uint32 // of the whole payload; formLong only
}

// putResponse writes both headers to the first f.form.size() bytes of b.
func putResponse(b []byte, f responseFields) {
	clear(b[:f.form.size()])
	b[0], b[1] = uint8(f.code), f.flags|f.form.mark()
	binary.BigEndian.PutUint16(b[2:], f.cookie)
	if f.form == formLong {
		binary.BigEndian.PutUint16(b[4:], responseHeader(b).checksum())
		binary.BigEndian.PutUint32(b[coreLong:], f.crc)
	}
}
