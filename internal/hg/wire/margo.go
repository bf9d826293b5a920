package wire

import "encoding/binary"

// The sizes of the headers that Margo puts in front of arguments and results (margo-serialization.h), little endian:
//
//	request    0        8
//	           +--------+-----------------
//	           | parent | arguments
//	           +--------+-----------------
//
//	response   0        4
//	           +--------+-----------------
//	           | return | result, only if return is HG_SUCCESS
//	           +--------+-----------------
const (
	MargoRequestSize  = 8
	MargoResponseSize = 4
)

// NoParent is the parent of a call that is not made by a handler.
const NoParent uint64 = 0xffff

// AppendMargoRequest appends the header of a request: the id of the RPC that the calling handler serves, or NoParent. It
// is for statistics only.
func AppendMargoRequest(b []byte, parent uint64) []byte {
	return binary.LittleEndian.AppendUint64(b, parent)
}

// ParseMargoRequest reads a request's header and returns the arguments behind it. ok is false if b is too short.
func ParseMargoRequest(b []byte) (parent uint64, rest []byte, ok bool) {
	if len(b) < MargoRequestSize {
		return 0, nil, false
	}
	return binary.LittleEndian.Uint64(b), b[MargoRequestSize:], true
}

// AppendMargoResponse appends the header of a response: the number of an hg_return_t.
func AppendMargoResponse(b []byte, code uint32) []byte {
	return binary.LittleEndian.AppendUint32(b, code)
}

// ParseMargoResponse reads a response's header and returns the result behind it, which means something only if code
// is 0. ok is false if b is too short.
func ParseMargoResponse(b []byte) (code uint32, rest []byte, ok bool) {
	if len(b) < MargoResponseSize {
		return 0, nil, false
	}
	return binary.LittleEndian.Uint32(b), b[MargoResponseSize:], true
}
