package rdmap

import (
	"fmt"

	"cinnabar/internal/iwarp/ddp"
)

// Known reports whether the RFCs assign layer, type and code together. It
// accepts every code of a local catastrophic error of RDMAP, because the RFCs
// assign that type no codes.
func (c Cause) Known() bool {
	switch c.Layer() {
	case LayerRDMAP:
		return c.Type() == TypeLocalCatastrophic || c.rdmapText() != ""
	case LayerDDP:
		return ddp.KnownCode(c.Type(), c.Code())
	case LayerLLP:
		return c.mpaText() != ""
	}
	return false
}

// String names layer, type and code in words.
func (c Cause) String() string {
	switch c.Layer() {
	case LayerRDMAP:
		return "RDMAP layer: " + c.rdmapType()
	case LayerDDP:
		return "DDP layer: " + join(ddp.TypeText(c.Type()), ddp.CodeText(c.Type(), c.Code()))
	case LayerLLP:
		text := c.mpaText()
		if text == "" {
			text = fmt.Sprintf("error type %#x, code %#02x", c.Type(), c.Code())
		}
		return "MPA layer: " + text
	}
	return fmt.Sprintf("layer %d: error type %#x, code %#02x", c.Layer(), c.Type(), c.Code())
}

func (c Cause) rdmapType() string {
	text := c.rdmapText()
	if text == "" {
		text = fmt.Sprintf("code %#02x", c.Code())
	}
	switch c.Type() {
	case TypeLocalCatastrophic:
		return "local catastrophic error"
	case TypeRemoteProtection:
		return "remote protection error: " + text
	case TypeRemoteOperation:
		return "remote operation error: " + text
	}
	return fmt.Sprintf("error type %#x: %s", c.Type(), text)
}

// rdmapText names a code of RFC 5040 figure 9, or returns "".
func (c Cause) rdmapText() string {
	switch c {
	case TermInvalidSTag:
		return "invalid STag"
	case TermBaseBounds:
		return "base or bounds violation"
	case TermAccess:
		return "access rights violation"
	case TermSTagNotAssociated:
		return "STag not associated with the stream"
	case TermTOWrap:
		return "tagged offset wraps"
	case TermInvalidVersion:
		return "invalid RDMAP version"
	case TermUnexpectedOpcode:
		return "unexpected opcode"
	case TermCatastrophic:
		return "catastrophic error, localized to the stream"
	case TermCatastrophicGlobal:
		return "catastrophic error, global"
	case TermCannotInvalidate, TermOpCannotInvalidate:
		return "STag cannot be invalidated"
	case TermProtectionUnspecified, TermOperationUnspecified:
		return "unspecified error"
	default:
		return ""
	}
}

// mpaText names a code of RFC 5044 section 8 or RFC 6581 section 8, or returns
// "".
func (c Cause) mpaText() string {
	switch c {
	case TermMPAClosed:
		return "TCP connection closed, terminated or lost"
	case TermMPACRC:
		return "CRC mismatch"
	case TermMPAMarker:
		return "marker and ULPDU length disagree"
	case TermMPARequest:
		return "invalid MPA request or reply"
	case TermMPACatastrophic:
		return "local catastrophic error in connection set-up"
	case TermMPAInsufficientIRD:
		return "insufficient IRD resources"
	case TermMPANoRTR:
		return "no matching RTR option"
	default:
		return ""
	}
}

// join is "typ: code", or typ alone where the code repeats it.
func join(typ, code string) string {
	if typ == code+" error" {
		return typ
	}
	return typ + ": " + code
}
