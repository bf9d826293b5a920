package rdmap

import (
	"math"

	"cinnabar/internal/iwarp/ddp"
)

// Cause states why a stream ends: layer (4 bits), error type (4 bits) and error
// code (8 bits) as the first two octets of a Terminate have them in RFC 5040
// figure 8.
type Cause uint16

// Layers of a Cause (RFC 5040 figure 9).
const (
	LayerRDMAP = 0x0
	LayerDDP   = 0x1
	LayerLLP   = 0x2 // MPA
)

// Error types of [LayerRDMAP] (RFC 5040 figure 9).
const (
	TypeLocalCatastrophic = 0x0
	TypeRemoteProtection  = 0x1
	TypeRemoteOperation   = 0x2
)

// Errors of RDMAP (RFC 5040 figure 9). The protection errors are about
// Read Requests, Atomic Requests and the STag of a Send with Invalidate; those
// of a Write or Read Response belong to DDP.
const (
	TermLocalCatastrophic     Cause = 0x0000
	TermInvalidSTag           Cause = 0x0100
	TermBaseBounds            Cause = 0x0101
	TermAccess                Cause = 0x0102
	TermSTagNotAssociated     Cause = 0x0103
	TermTOWrap                Cause = 0x0104
	TermCannotInvalidate      Cause = 0x0109
	TermProtectionUnspecified Cause = 0x01ff
	TermInvalidVersion        Cause = 0x0205
	TermUnexpectedOpcode      Cause = 0x0206
	TermCatastrophic          Cause = 0x0207 // an error of this stream alone, such as an atomic operation on an address that is not aligned
	TermCatastrophicGlobal    Cause = 0x0208 // an error that is not limited to this stream
	TermOpCannotInvalidate    Cause = 0x0209
	TermOperationUnspecified  Cause = 0x02ff
)

// Errors of DDP (RFC 5041 section 7.2).
const (
	TermDDPCatastrophic      Cause = 0x1000
	TermDDPInvalidSTag       Cause = 0x1100
	TermDDPBaseBounds        Cause = 0x1101
	TermDDPSTagNotAssociated Cause = 0x1102
	TermDDPTOWrap            Cause = 0x1103
	TermDDPTaggedVersion     Cause = 0x1104
	TermDDPInvalidQN         Cause = 0x1201
	TermDDPNoBuffer          Cause = 0x1202
	TermDDPMSNRange          Cause = 0x1203
	TermDDPInvalidMO         Cause = 0x1204
	TermDDPTooLong           Cause = 0x1205
	TermDDPUntaggedVersion   Cause = 0x1206
)

// Errors of MPA (RFC 5044 section 8; the last three RFC 6581 section 8).
const (
	TermMPAClosed          Cause = 0x2001
	TermMPACRC             Cause = 0x2002
	TermMPAMarker          Cause = 0x2003
	TermMPARequest         Cause = 0x2004
	TermMPACatastrophic    Cause = 0x2005
	TermMPAInsufficientIRD Cause = 0x2006
	TermMPANoRTR           Cause = 0x2007
)

// Layer returns the layer that found the error.
func (c Cause) Layer() uint8 { return uint8(c >> 12) }

// Type returns the error type. Its meaning depends on the layer.
func (c Cause) Type() uint8 { return uint8(c>>8) & 0x0f }

// Code returns the error code. Its meaning depends on layer and type.
func (c Cause) Code() uint8 { return uint8(c) }

// CauseOf returns the cause that reports e.
func CauseOf(e *ddp.Error) Cause {
	return LayerDDP<<12 | Cause(e.Type&0x0f)<<8 | Cause(e.Code)
}

// Terminate returns the message for an error that no inbound message caused:
// it has no headers (RFC 5040 section 7.1, rule 1).
func (c Cause) Terminate() Terminate {
	return Terminate{Layer: c.Layer(), Type: c.Type(), Code: c.Code()}
}

// ForSegment returns the message for an error that an inbound segment caused:
// h is its header, payload the number of octets behind it. The header is
// included where RFC 5040 figure 10 says so, that is not for errors of the
// layer below DDP nor for local ones.
func (c Cause) ForSegment(h ddp.Header, payload int) Terminate {
	t := c.Terminate()
	if c.Layer() == LayerLLP || c.Type() == TypeLocalCatastrophic {
		return t
	}
	t.HasDDP = true
	t.DDPHeader = ddp.AppendHeader(make([]byte, 0, ddp.UntaggedHeaderLen), h)
	if n := h.Len() + payload; payload >= 0 && n <= math.MaxUint16 {
		t.HasLength, t.SegmentLength = true, uint16(n)
	}
	return t
}

// ForReadRequest is ForSegment for an error that a Read Request caused; r is the rest
// of the read (RFC 5040 section 4.8: after n octets have been sent
// both offsets are n further and the size is n less). Figure 10 includes it with
// protection errors only.
func (c Cause) ForReadRequest(h ddp.Header, payload int, r ReadRequest) Terminate {
	t := c.ForSegment(h, payload)
	if c.Layer() == LayerRDMAP && c.Type() == TypeRemoteProtection {
		t.HasRDMAP = true
		t.ReadRequest = AppendReadRequest(make([]byte, 0, ReadRequestLen), r)
	}
	return t
}
