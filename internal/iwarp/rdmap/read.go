package rdmap

import "encoding/binary"

// ReadRequestLen is the length in octets of a Read Request's header, which is
// all of its payload.
const ReadRequestLen = 28

// Offsets in the Read Request header.
const (
	rrSinkSTag   = 0
	rrSinkTO     = 4
	rrSize       = 12
	rrSourceSTag = 16
	rrSourceTO   = 20
)

// ReadRequest asks for Size octets of the peer's buffer SourceSTag to be sent
// back to SinkSTag (RFC 5040 section 4.4):
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                    Data Sink STag (SinkSTag)                  |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                 Data Sink Tagged Offset (SinkTO)              |
//	|                                                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                  RDMA Read Message Size (Size)                |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                   Data Source STag (SourceSTag)               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                Data Source Tagged Offset (SourceTO)           |
//	|                                                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
// With Size 0 neither buffer is looked at (RFC 5040 section 5.2.1). The answer
// copies SinkSTag and SinkTO without interpreting them.
type ReadRequest struct {
	SinkSTag   uint32
	SinkTO     uint64
	Size       uint32 // octets
	SourceSTag uint32
	SourceTO   uint64
}

// ParseReadRequest reads the header at the start of b and returns it with its
// length, or n < 0 if b is too short. Every content is well-formed.
func ParseReadRequest(b []byte) (r ReadRequest, n int) {
	if len(b) < ReadRequestLen {
		return ReadRequest{}, -1
	}
	return ReadRequest{
		SinkSTag:   binary.BigEndian.Uint32(b[rrSinkSTag:]),
		SinkTO:     binary.BigEndian.Uint64(b[rrSinkTO:]),
		Size:       binary.BigEndian.Uint32(b[rrSize:]),
		SourceSTag: binary.BigEndian.Uint32(b[rrSourceSTag:]),
		SourceTO:   binary.BigEndian.Uint64(b[rrSourceTO:]),
	}, ReadRequestLen
}

// AppendReadRequest appends r in wire form to b.
func AppendReadRequest(b []byte, r ReadRequest) []byte {
	b = binary.BigEndian.AppendUint32(b, r.SinkSTag)
	b = binary.BigEndian.AppendUint64(b, r.SinkTO)
	b = binary.BigEndian.AppendUint32(b, r.Size)
	b = binary.BigEndian.AppendUint32(b, r.SourceSTag)
	return binary.BigEndian.AppendUint64(b, r.SourceTO)
}

// Wraps reports whether the octets asked for run over the end of the 64-bit
// offset space, for which the answer is [TermTOWrap] (RFC 5040 section 7.2, rule
// 4e). A read of nothing never does.
func (r ReadRequest) Wraps() bool { return r.SourceTO+uint64(r.Size) < r.SourceTO }
