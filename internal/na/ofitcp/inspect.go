package ofitcp

import "errors"

// The types of this file describe the bytes of a recorded connection to programs that decode captures.

// FrameKind is the kind of a data message.
type FrameKind uint8

// The kinds. Those of a rendezvous appear between programs in C only.
const (
	FrameMessage FrameKind = iota // a request
	FrameAck                      // the acknowledgement of a write
	FrameTagged                   // a response, or a request with bit 32 of the tag set
	FrameRead                     // the request of a read
	FrameReadData
	FrameWrite
	FrameAnnounce // the first message of a rendezvous: a tagged message is waiting
	FrameClear    // its receiver is ready
	FrameData     // the tagged message
)

// Piece is a piece of registered memory: Addr is an offset.
type Piece struct{ Addr, Length, Key uint64 }

// Frame is the header of a data message.
type Frame struct {
	Kind    FrameKind
	Header  int    // bytes of the header
	Payload uint64 // bytes behind it
	Tag     uint64 // of FrameMessage and FrameTagged
	WantAck bool
	Pieces  []Piece // of FrameRead and FrameWrite
}

// ParseFrame reads the header at the start of b, which is hostile, and returns its length, or 0 if more bytes are needed. Unlike an Endpoint
// it takes the messages of a rendezvous.
func ParseFrame(b []byte) (f Frame, n int, err error) {
	var m message
	switch n = parseHeader(&m, b); {
	case n == badRendezvous && header(b).size() >= uint64(m.hdr):
		if len(b) < m.hdr {
			return Frame{}, 0, nil
		}
		return Frame{Kind: FrameAnnounce + FrameKind(m.op-opTagRTS), Header: m.hdr, Payload: header(b).size() - uint64(m.hdr)}, m.hdr, nil
	case n == badRendezvous:
		return Frame{}, 0, errors.New(malformed(badSize))
	case n < 0:
		return Frame{}, 0, errors.New(malformed(n))
	case n == 0:
		return Frame{}, 0, nil
	}
	f = Frame{Header: n, Payload: m.payload, Tag: m.tag, WantAck: m.wantAck}
	switch m.op {
	case opMsg:
		f.Kind, f.Tag = FrameMessage, m.cqData
		if m.ack {
			f.Kind = FrameAck
		}
	case opTag:
		f.Kind = FrameTagged
	case opReadReq:
		f.Kind = FrameRead
	case opReadRsp:
		f.Kind = FrameReadData
	case opWrite:
		f.Kind = FrameWrite
	}
	for _, v := range m.iov[:m.niov] {
		f.Pieces = append(f.Pieces, Piece{Addr: v.addr, Length: v.len, Key: v.key})
	}
	return f, n, nil
}

// HelloKind is the kind of a connection message.
type HelloKind uint8

// The kinds.
const (
	HelloRequest HelloKind = cmRequest
	HelloAccept  HelloKind = cmResponse
	HelloRefusal HelloKind = cmNack
)

// Hello is a connection message.
type Hello struct {
	Kind     HelloKind
	Version  byte   // of the protocol; bit 7: the version was checked
	Features byte   // bit 0: the sender cannot be dialed
	Port     uint16 // that the requester listens on
	Process  uint32
	Foreign  bool // the sender is a big-endian machine
	Go       bool // the sender is a program of this module
}

// ParseHello reads the connection message at the start of b, which is hostile, and returns its length, or 0 if more bytes are needed.
func ParseHello(b []byte) (h Hello, n int, err error) {
	if len(b) < cmHead {
		return Hello{}, 0, nil
	}
	m, size := parseCMHead(b)
	if size < 0 || m.typ != cmRequest && m.typ != cmResponse && m.typ != cmNack {
		return Hello{}, 0, errors.New("a connection message of an unknown version, type or length")
	}
	if n = cmHead + size; len(b) < n {
		return Hello{}, 0, nil
	}
	h = Hello{Kind: HelloKind(m.typ), Foreign: m.probe == probeBig, Go: !m.id.isZero()}
	if size >= cmData {
		m.parseCMData(b)
		h.Version, h.Features, h.Port, h.Process = m.version, m.features, m.port, m.pid
	}
	return h, n, nil
}
