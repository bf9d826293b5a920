package wire

import (
	"bytes"
	"encoding/binary"

	"cinnabar/codes"
)

// ProbeSize is the size of both headers of a probe in bytes.
const ProbeSize = coreLong + hgHeader

// PutProbe writes a probe with the given id to the first ProbeSize bytes of b. A probe is a request for an RPC that no process has. Its
// answer shows the form of the peer, see [ParseProbeAnswer]. It is valid in both forms: without FlagHasChecksums, so that a build without
// checksums accepts it, but with the checksum of the header at its place in FormLong, which has no meaning in FormShort.
func PutProbe(b []byte, id uint64) {
	PutRequest(b, Request{Form: FormShort, ID: id})
	h := RequestHeader(b)
	clear(h[coreShort:ProbeSize])
	binary.BigEndian.PutUint16(h[coreShort:], h.Checksum())
}

// IsProbe reports whether b, a request that ParseRequest has accepted, looks like a probe. A call without arguments looks the same if it
// comes from a process that was built with checksums and does not mark its requests; C marks them since 2.4.1.
func IsProbe(b []byte) bool {
	if len(b) != ProbeSize {
		return false
	}
	h := RequestHeader(b)
	return h.Flags() == 0 && h.CRC16() == h.Checksum() && len(bytes.Trim(b[coreShort+2:], "\x00")) == 0
}

// ParseProbeAnswer returns the form of the peer that has answered a probe with b. Each build pads the answer to Form.ErrorSize, and
// builds of 2.4.1 mark it too. b is hostile.
func ParseProbeAnswer(b []byte) (f Form, bad *Error) {
	unknown := func(code codes.Code) *Error {
		return &Error{Code: code, text: "peer's answer does not show whether its Mercury is built with checksums: set Config.Checksums to NoChecksums or WithChecksums"}
	}
	switch {
	case len(b) < coreShort:
		return 0, unknown(codes.ProtocolError)
	case ResponseHeader(b).Flags()&FlagHasChecksums != 0, len(b) == FormLong.ErrorSize():
		return FormLong, nil
	case len(b) == FormShort.ErrorSize():
		return FormShort, nil
	}
	return 0, unknown(codes.ProtoNoSupport)
}
