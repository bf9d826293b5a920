package codec

import (
	"errors"
	"reflect"
	"strings"
)

// ErrOverflow says that a value runs past the end of the message: the message was cut short, or a length in it is
// larger than the rest of the message. Mercury's name for it is HG_OVERFLOW.
var ErrOverflow = errors.New("codec: value runs past the end of the message")

// Op names a method of a codec or a plan.
type Op string

// The operations on a type or a value.
const (
	OpPlan   Op = "plan"
	OpAppend Op = "append"
	OpDecode Op = "decode"
)

// Error is why a type has no plan or a value could not be written or read.
type Error struct {
	Codec   string       // name of the codec; empty if a function for parts of a value was called by itself
	Op      Op           // the operation that failed
	Type    reflect.Type // the whole value's type; nil if none was given
	Path    string       // from the whole value to the offending part, as in "Items[3].Name"; empty for the whole
	Problem string       // the fault, with the limit that was passed
	Remedy  string       // the change to make in the program; empty if there is none
	Err     error        // ErrOverflow, or the error of a type that reads and writes itself, or nil
}

// Error returns one line such as
//
//	hgproc: decode main.In: Items[3].Name: string length 99 exceeds the 12 bytes that remain
func (e *Error) Error() string {
	var text strings.Builder
	if e.Codec != "" {
		text.WriteString(e.Codec + ": " + string(e.Op) + " " + typeName(e.Type) + ": ")
	}
	if e.Path != "" {
		text.WriteString(e.Path + ": ")
	}
	text.WriteString(e.Problem)
	if e.Remedy != "" {
		text.WriteString("; " + e.Remedy)
	}
	return text.String()
}

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }

func typeName(t reflect.Type) string {
	if t == nil {
		return "nil"
	}
	return t.String()
}
