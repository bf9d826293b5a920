package mpa

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// Sizes of the frames of the start-up phase, in octets.
const (
	// FrameLen is a request or reply frame without private data: the key, the flags, the revision and
	// PD_Length (RFC 5044 section 7.1.1).
	FrameLen = 20
	// MaxPrivateData bounds PD_Length (RFC 5044 section 7.1.1). In an enhanced frame the four octets of
	// set-up data count towards it; MaxUserData is the rest.
	MaxPrivateData = 512

	keyLen   = 16
	setupLen = 4 // RFC 6581 section 9

	offFlags    = 16
	offRevision = 17
	offPDLength = 18
)

// The keys that open a frame (RFC 5044 section 7.1.1). They differ in one octet only.
const (
	keyRequest = "MPA ID Req Frame"
	keyReply   = "MPA ID Rep Frame"
)

// Flags in the octet behind the key. S was carved out of RFC 5044's reserved bits by RFC 6581.
const (
	flagMarkers  = 0x80 // M
	flagCRC      = 0x40 // C
	flagReject   = 0x20 // R
	flagEnhanced = 0x10 // S
)

// Revisions of MPA that this package speaks.
const (
	// Revision1 is RFC 5044 as it stands.
	Revision1 = 1
	// Revision2 adds the enhanced set-up of RFC 6581.
	Revision2 = 2
)

// Depths in the set-up data of RFC 6581 section 9.
const (
	// MaxDepth is the largest IRD or ORD that can be negotiated.
	MaxDepth = NoNegotiation - 1
	// NoNegotiation as an IRD or ORD says that the sender wants no automatic negotiation of that depth:
	// its user takes care of it (RFC 6581 section 9.1).
	NoNegotiation = 0x3fff
)

// Flags in the top bits of the two 16-bit halves of the set-up data.
const (
	setupPeerToPeer = 0x8000 // A, beside IRD
	setupRTRSend    = 0x4000 // B, beside IRD
	setupRTRWrite   = 0x8000 // C, beside ORD
	setupRTRRead    = 0x4000 // D, beside ORD
	setupDepth      = 0x3fff
)

// Setup is the enhanced connection establishment data of RFC 6581 section 9:
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|A|B|            IRD            |C|D|            ORD            |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
// The RTR flags have a meaning only together with PeerToPeer: a parsed Setup never has one without it.
type Setup struct {
	IRD        uint16 // inbound reads the sender can serve at once, 14 bits; NoNegotiation to leave it open
	ORD        uint16 // outbound reads the sender would have in flight, 14 bits; NoNegotiation to leave it open
	PeerToPeer bool   // A: the active side sends a ready-to-receive message first
	RTRSend    bool   // B: it may be a zero-length Send
	RTRWrite   bool   // C: it may be a zero-length RDMA Write
	RTRRead    bool   // D: it may be a zero-length RDMA Read
}

// Frame is an MPA request or reply frame (RFC 5044 section 7.1.1, RFC 6581 section 6).
type Frame struct {
	Reply    bool  // the key was that of a reply
	Markers  bool  // M: the sender demands markers in the FPDUs that it receives
	CRC      bool  // C: the sender wants CRCs
	Reject   bool  // R: the connection is refused; replies only
	Enhanced bool  // S: Setup is present; revision 2 and later only
	Revision uint8 // Rev
	Setup    Setup // meaningful when Enhanced
	// PrivateData is the user's part: the four octets of set-up data are not in it. ParseFrame lets it
	// alias its input.
	PrivateData []byte
}

// MaxUserData returns how many octets of private data the user may send: 512, or 508 in an enhanced frame
// (RFC 6581 section 9).
func MaxUserData(enhanced bool) int {
	if enhanced {
		return MaxPrivateData - setupLen
	}
	return MaxPrivateData
}

// ParseFrame reads the frame at the start of b and returns it with its length n. When b holds only a part
// of a frame that is well-formed so far, n is 0 and err is nil: call again with more octets. It looks at
// nothing past the frame. A malformed frame is refused as soon as its octets show it, with an *Error; a
// wrong key by its first wrong octet.
//
// The revision is reported, not judged, and reserved bits are ignored, as are R in a request (RFC 5044
// section 7.1.1), S in a frame of revision 1 or 0, and the RTR flags without A (RFC 6581 section 9.2).
// PrivateData aliases b.
func ParseFrame(b []byte) (f Frame, n int, err error) {
	if err := checkKey(b); err != nil {
		return Frame{}, 0, err
	}
	if len(b) < FrameLen {
		return Frame{}, 0, nil
	}
	f = parseFixed(b)
	pd := int(binary.BigEndian.Uint16(b[offPDLength:]))
	if err := checkPDLength(pd, f.Enhanced); err != nil {
		return Frame{}, 0, err
	}
	n = FrameLen + pd
	if len(b) < n {
		return Frame{}, 0, nil
	}
	data := b[FrameLen:n:n]
	if f.Enhanced {
		f.Setup = parseSetup(data)
		data = data[setupLen:]
	}
	if len(data) > 0 {
		f.PrivateData = data
	}
	return f, n, nil
}

// checkKey compares as much of the key as b holds (RFC 5044 sections 7.1.1 and 7.1.2 rule 5).
func checkKey(b []byte) error {
	got := b[:min(len(b), keyLen)]
	if bytes.HasPrefix([]byte(keyRequest), got) || bytes.HasPrefix([]byte(keyReply), got) {
		return nil
	}
	return &Error{
		Op:      opParse,
		Field:   "Key",
		Problem: fmt.Sprintf("%q opens neither an MPA request nor an MPA reply", got),
		Remedy:  "close the connection and check that the peer speaks iWARP on this port",
		Code:    CodeInvalidFrame,
	}
}

// parseFixed reads the flags and the revision of a frame of at least FrameLen octets with a valid key.
func parseFixed(b []byte) Frame {
	flags := b[offFlags]
	f := Frame{
		Reply:    string(b[:keyLen]) == keyReply,
		Markers:  flags&flagMarkers != 0,
		CRC:      flags&flagCRC != 0,
		Revision: b[offRevision],
	}
	f.Reject = f.Reply && flags&flagReject != 0
	f.Enhanced = f.Revision >= Revision2 && flags&flagEnhanced != 0
	return f
}

// checkPDLength enforces RFC 5044 section 7.1.2 rule 9, and that an enhanced frame has room for its set-up
// data (RFC 6581 section 6).
func checkPDLength(pd int, enhanced bool) error {
	var problem string
	switch {
	case pd > MaxPrivateData:
		problem = fmt.Sprintf("%d octets of private data, the limit is %d", pd, MaxPrivateData)
	case enhanced && pd < setupLen:
		problem = fmt.Sprintf("%d octets, an enhanced frame begins with %d octets of set-up data", pd, setupLen)
	default:
		return nil
	}
	return &Error{
		Op:      opParse,
		Field:   "PD_Length",
		Problem: problem,
		Remedy:  "close the connection: the peer's frame is malformed",
		Code:    CodeInvalidFrame,
	}
}

// parseSetup reads the four octets of set-up data at the start of b.
func parseSetup(b []byte) Setup {
	ird, ord := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	s := Setup{IRD: ird & setupDepth, ORD: ord & setupDepth}
	// RFC 6581 section 9.2: without A the flags B, C and D are ignored.
	if ird&setupPeerToPeer != 0 {
		s.PeerToPeer = true
		s.RTRSend = ird&setupRTRSend != 0
		s.RTRWrite = ord&setupRTRWrite != 0
		s.RTRRead = ord&setupRTRRead != 0
	}
	return s
}

// AppendFrame appends f to b and returns the extended slice. It refuses, with an *Error and b unchanged,
// frames that no receiver could parse: private data over the limit, a depth of more than 14 bits, an
// enhanced frame of revision 1, a request that rejects, an RTR flag without PeerToPeer.
func AppendFrame(b []byte, f Frame) ([]byte, error) {
	if err := checkFrame(opAppend, f); err != nil {
		return b, err
	}
	key, pd := keyRequest, len(f.PrivateData)
	if f.Reply {
		key = keyReply
	}
	if f.Enhanced {
		pd += setupLen
	}
	b = append(b, key...)
	b = append(b, frameFlags(f), f.Revision)
	b = binary.BigEndian.AppendUint16(b, uint16(pd))
	if f.Enhanced {
		b = appendSetup(b, f.Setup)
	}
	return append(b, f.PrivateData...), nil
}

// checkFrame reports why f cannot be sent, as an error of op.
func checkFrame(op string, f Frame) error {
	s := f.Setup
	switch limit := MaxUserData(f.Enhanced); {
	case len(f.PrivateData) > limit:
		return localError(op, "PrivateData",
			fmt.Sprintf("%d octets, the limit is %d", len(f.PrivateData), limit), "send less, or send it after the connection stands")
	case f.Enhanced && f.Revision < Revision2:
		return localError(op, "Revision",
			fmt.Sprintf("revision %d has no enhanced set-up", f.Revision), "use revision 2")
	case f.Reject && !f.Reply:
		return localError(op, "Reject", "only a reply can reject", "send a reply")
	case f.Enhanced && s.IRD > NoNegotiation:
		return depthError(op, "IRD", s.IRD)
	case f.Enhanced && s.ORD > NoNegotiation:
		return depthError(op, "ORD", s.ORD)
	case f.Enhanced && !s.PeerToPeer && (s.RTRSend || s.RTRWrite || s.RTRRead):
		// RFC 6581 section 9.2: B, C and D are 0 when A is.
		return localError(op, "Setup", "an RTR kind is set without peer-to-peer", "set PeerToPeer too")
	}
	return nil
}

// frameFlags builds the flags octet; the reserved bits are zero (RFC 5044 section 7.1.1).
func frameFlags(f Frame) byte {
	return bit[byte](f.Markers, flagMarkers) | bit[byte](f.CRC, flagCRC) | bit[byte](f.Reject, flagReject) | bit[byte](f.Enhanced, flagEnhanced)
}

// bit returns flag if on, and 0 otherwise.
func bit[T byte | uint16](on bool, flag T) T {
	if on {
		return flag
	}
	return 0
}

// appendSetup appends the set-up data in network order (RFC 6581 section 9).
func appendSetup(b []byte, s Setup) []byte {
	b = binary.BigEndian.AppendUint16(b, s.IRD|bit[uint16](s.PeerToPeer, setupPeerToPeer)|bit[uint16](s.RTRSend, setupRTRSend))
	return binary.BigEndian.AppendUint16(b, s.ORD|bit[uint16](s.RTRWrite, setupRTRWrite)|bit[uint16](s.RTRRead, setupRTRRead))
}
