package rdmap

import (
	"encoding/binary"
	"fmt"

	"cinnabar/internal/iwarp/ddp"
)

const (
	// MinTerminateLen is the length in octets of a Terminate header without
	// any optional part.
	MinTerminateLen = 4
	// MaxTerminateLen is the length in octets of the longest Terminate
	// header: control word, segment length, untagged DDP header, Read Request.
	MaxTerminateLen = MinTerminateLen + segmentLengthLen + ddp.UntaggedHeaderLen + ReadRequestLen

	segmentLengthLen = 2
)

// Header control bits, in the third octet of the control word.
const (
	termHasLength = 0x80 // M: the segment length is valid
	termHasDDP    = 0x40 // D: a DDP header follows it
	termHasRDMAP  = 0x20 // R: a Read Request header comes last
	termReserved  = 0x1f // of that octet; and all of the fourth
)

// Terminate is the last message of a stream: why its sender gives up (RFC 5040
// section 4.8):
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	| Layer | EType |  Error Code   |M|D|R|        Reserved         |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	| DDP Segment Length  (if any)  |                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+                               +
//	|           Terminated DDP Header (if any), 14 or 18            |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|          Terminated Read Request Header (if any), 28          |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
// The length field is there if M or D is set and means something if M is. A
// Terminate is an error: the peer's, when parsed, or one that this side has found
// and sends, when made by a [Cause] or a [Receiver].
type Terminate struct {
	Layer, Type, Code uint8
	HasLength         bool   // M
	HasDDP            bool   // D
	HasRDMAP          bool   // R
	SegmentLength     uint16 // octets of the DDP segment at fault, header included
	DDPHeader         []byte // its header, 14 or 18 octets, if HasDDP
	ReadRequest       []byte // 28 octets, if HasRDMAP
	// Detail says more for the local log. It does not go over the wire.
	Detail string
}

// Cause returns layer, type and code as one value to compare with.
func (t Terminate) Cause() Cause {
	return Cause(t.Layer)<<12 | Cause(t.Type&0x0f)<<8 | Cause(t.Code)
}

// String names layer, type and code in words, and the detail if there is one.
func (t Terminate) String() string {
	s := fmt.Sprintf("%s (layer %d, type %d, code %d)", t.Cause(), t.Layer, t.Type, t.Code)
	if t.Detail != "" {
		s += ": " + t.Detail
	}
	return s
}

// Error is String with the package's prefix.
func (t Terminate) Error() string { return "rdmap: terminate: " + t.String() }

// AppendTerminate appends t in wire form to b, in the bit order of RFC 5040.
// The reserved bits are zero. t.DDPHeader must be a whole header if t.HasDDP is
// set, and t.ReadRequest if t.HasRDMAP is: as a [Cause] makes them.
func AppendTerminate(b []byte, t Terminate) []byte {
	var flags byte
	if t.HasLength {
		flags |= termHasLength
	}
	if t.HasDDP {
		flags |= termHasDDP
	}
	if t.HasRDMAP {
		flags |= termHasRDMAP
	}
	b = append(b, t.Layer<<4|t.Type&0x0f, t.Code, flags, 0)
	if t.HasLength || t.HasDDP {
		b = binary.BigEndian.AppendUint16(b, t.SegmentLength)
	}
	if t.HasDDP {
		b = append(b, t.DDPHeader...)
	}
	if t.HasRDMAP {
		b = append(b, t.ReadRequest...)
	}
	return b
}

// ParseTerminate reads the Terminate header at the start of b and returns it
// with its length. n < 0 means malformed: b is shorter than the control word or
// than the parts that the control word announces. In the second case t still
// has Layer, Type and Code (siw announces a Read Request header that it does not
// append when a Send with Invalidate was at fault). Octets behind the header are
// left alone. t's slices point into b.
//
// Linux siw on a little-endian machine sends the control word with its bit
// fields the other way round: the first octet is EType<<4|Layer, and M, D and R
// are 0x01, 0x02 and 0x04 of the third. Nothing in the message says so, hence
// this rule: the word is read as siw's (swapped is true) if that makes sense
// and the RFC's order does not. A reading makes sense if layer, type and code
// are assigned together, the bits reserved in that order are zero, and the code
// is not one of RFC 6581's, MPA 5 to 7, which end a connection before it is in
// use; those are for [Receiver.ParseTerminate] to recognise.
//
// With any of M, D and R set the rule is exact between senders that zero the
// reserved bits. Without them two words make sense both ways and are read in
// the RFC's order: 01 00 (RDMAP invalid STag) would be DDP's local catastrophic
// error from siw, and 10 00 the reverse. siw sends both with M and D only.
func ParseTerminate(b []byte) (t Terminate, swapped bool, n int) {
	return parseTerminate(b, Cause.inUse)
}

// inUse reports whether the cause can end a connection that is in use. That is
// every known cause but those of RFC 6581, because they end a connection during
// its set-up.
func (c Cause) inUse() bool { return c.Known() && !c.setup() }

// inSetup reports whether the cause can end a connection before the passive
// side has sent anything, because only its MPA reply can be at fault then.
func (c Cause) inSetup() bool {
	return c.Known() && (c.Layer() == LayerLLP || c.Layer() == LayerRDMAP && c.Type() == TypeLocalCatastrophic)
}

// setup reports whether the cause is one that RFC 6581 adds for the set-up of a
// connection.
func (c Cause) setup() bool { return c >= TermMPACatastrophic && c <= TermMPANoRTR }

// parseTerminate is ParseTerminate with plausible, which reports whether a cause
// makes sense.
func parseTerminate(b []byte, plausible func(Cause) bool) (t Terminate, swapped bool, n int) {
	if len(b) < MinTerminateLen {
		return Terminate{}, false, -1
	}
	std, siw := rfcControl(b), siwControl(b)
	swapped = !std.plausible(plausible) && siw.plausible(plausible)
	c := std
	if swapped {
		c = siw
	}
	t = Terminate{Layer: c.layer, Type: c.typ, Code: c.code}
	if !c.fits(b) {
		return t, swapped, -1
	}
	n = MinTerminateLen
	t.HasLength, t.HasDDP, t.HasRDMAP = c.length, c.ddp, c.rdmap
	if c.length || c.ddp {
		t.SegmentLength = binary.BigEndian.Uint16(b[n:])
		n += segmentLengthLen
	}
	if c.ddp {
		t.DDPHeader = b[n : n+ddp.HeaderLen(b[n])]
		n += len(t.DDPHeader)
	}
	if c.rdmap {
		t.ReadRequest = b[n : n+ReadRequestLen]
		n += ReadRequestLen
	}
	return t, swapped, n
}

// termControl has the fields of a control word, read in one of the two bit orders.
type termControl struct {
	layer, typ, code   uint8
	length, ddp, rdmap bool
	reserved           bool // a reserved bit is set
}

func rfcControl(b []byte) termControl {
	return termControl{
		layer: b[0] >> 4, typ: b[0] & 0x0f, code: b[1],
		length:   b[2]&termHasLength != 0,
		ddp:      b[2]&termHasDDP != 0,
		rdmap:    b[2]&termHasRDMAP != 0,
		reserved: b[2]&termReserved != 0 || b[3] != 0,
	}
}

func siwControl(b []byte) termControl {
	return termControl{
		layer: b[0] & 0x0f, typ: b[0] >> 4, code: b[1],
		length:   b[2]&0x01 != 0,
		ddp:      b[2]&0x02 != 0,
		rdmap:    b[2]&0x04 != 0,
		reserved: b[2]&0xf8 != 0 || b[3] != 0,
	}
}

// plausible reports whether a sender with the bit order of c could have sent the
// control word: the reserved bits are zero, and cause accepts layer, type and
// code. parseTerminate calls it for both bit orders, because the message does
// not say which one its sender uses.
func (c termControl) plausible(cause func(Cause) bool) bool {
	return !c.reserved && cause(Cause(c.layer)<<12|Cause(c.typ)<<8|Cause(c.code))
}

// fits reports whether b has all parts that the control word announces.
func (c termControl) fits(b []byte) bool {
	n := MinTerminateLen
	if c.length || c.ddp {
		n += segmentLengthLen
	}
	if c.ddp {
		if len(b) <= n {
			return false
		}
		n += ddp.HeaderLen(b[n])
	}
	if c.rdmap {
		n += ReadRequestLen
	}
	return len(b) >= n
}
