package ddp

import "fmt"

// Error types (RFC 5041 section 7.2), 4 bits.
const (
	TypeLocalCatastrophic = 0x0
	TypeTagged            = 0x1
	TypeUntagged          = 0x2
	TypeLLP               = 0x3 // reserved for the layer below
)

// Error codes of [TypeTagged] (RFC 5041 section 7.2).
const (
	CodeInvalidSTag       = 0x00
	CodeBaseBounds        = 0x01
	CodeSTagNotAssociated = 0x02
	CodeTOWrap            = 0x03
	CodeTaggedVersion     = 0x04
)

// Error codes of [TypeUntagged] (RFC 5041 section 7.2).
const (
	CodeInvalidQN       = 0x01
	CodeNoBuffer        = 0x02
	CodeMSNRange        = 0x03
	CodeInvalidMO       = 0x04
	CodeTooLong         = 0x05
	CodeUntaggedVersion = 0x06
)

// Error says which rule of DDP an inbound segment broke. Type and Code are the
// numbers that RFC 5041 section 7.2 makes the report carry; Header is that of
// the segment. All of them are fatal for the stream.
type Error struct {
	Type, Code uint8
	Header     Header
	// Field is the wrong field or quantity, Got its value, and Want the value that was due,
	// or the greatest allowed if Limit is set.
	Field     string
	Got, Want uint64
	Limit     bool
}

// Error names the rule, the values and the place in the stream.
func (e *Error) Error() string {
	return fmt.Sprintf("ddp: %s: %s: %s", TypeText(e.Type), CodeText(e.Type, e.Code), e.Detail())
}

// Detail is the part of the text that differs between errors of one code: the
// values and the place in the stream.
func (e *Error) Detail() string {
	want := "want"
	if e.Limit {
		want = "limit"
	}
	if e.Header.Tagged {
		return fmt.Sprintf("%s is %#x, %s %#x (STag %#08x, TO %#x)",
			e.Field, e.Got, want, e.Want, e.Header.STag, e.Header.TO)
	}
	return fmt.Sprintf("%s is %d, %s %d (queue %d, MSN %d, MO %d)",
		e.Field, e.Got, want, e.Want, e.Header.QN, e.Header.MSN, e.Header.MO)
}

// TypeText names an error type in words; an unassigned one is shown as number.
func TypeText(typ uint8) string {
	switch typ {
	case TypeLocalCatastrophic:
		return "local catastrophic error"
	case TypeTagged:
		return "tagged buffer error"
	case TypeUntagged:
		return "untagged buffer error"
	case TypeLLP:
		return "error of the layer below"
	}
	return fmt.Sprintf("error type %#x", typ)
}

// CodeText names an error code of the given type in words; an unassigned one is
// shown as number.
func CodeText(typ, code uint8) string {
	if text, ok := codeText(typ, code); ok {
		return text
	}
	return fmt.Sprintf("code %#02x", code)
}

// KnownCode reports whether RFC 5041 section 7.2 assigns code to typ.
func KnownCode(typ, code uint8) bool {
	_, ok := codeText(typ, code)
	return ok
}

// The names of the codes that RFC 5041 section 7.2 assigns to errors of tagged and of untagged segments.
var (
	taggedTexts = map[uint8]string{
		CodeInvalidSTag:       "invalid STag",
		CodeBaseBounds:        "base or bounds violation",
		CodeSTagNotAssociated: "STag not associated with the stream",
		CodeTOWrap:            "tagged offset wraps",
		CodeTaggedVersion:     "invalid DDP version",
	}
	untaggedTexts = map[uint8]string{
		CodeInvalidQN:       "invalid queue number",
		CodeNoBuffer:        "no buffer available for the message",
		CodeMSNRange:        "message sequence number out of range",
		CodeInvalidMO:       "invalid message offset",
		CodeTooLong:         "message too long for its buffer",
		CodeUntaggedVersion: "invalid DDP version",
	}
)

func codeText(typ, code uint8) (text string, ok bool) {
	switch typ {
	case TypeLocalCatastrophic:
		return "local catastrophic", code == 0
	case TypeTagged:
		text, ok = taggedTexts[code]
	case TypeUntagged:
		text, ok = untaggedTexts[code]
	}
	return text, ok
}
