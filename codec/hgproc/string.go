package hgproc

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"reflect"
	"strings"

	"cinnabar/codec"
	"cinnabar/internal/codecplan"
)

// AppendString appends s as hg_string_t, for types that write their own bytes:
//
//	 0               8
//	+---------------+-----------+-----+----------+----------+
//	| u64 length+1  | text      | NUL | is_const | is_owned |
//	+---------------+-----------+-----+----------+----------+
//
// A string with a NUL inside is refused, since C would read it as a shorter one.
func AppendString(b []byte, s string) ([]byte, error) {
	out, err := appendString(b, s, false)
	if err != nil {
		return b, err
	}
	return out, nil
}

// DecodeString reads a string of [AppendString] from the start of b, and returns a copy of the text and the number of
// bytes that it took. C's null string, a length of 0 without anything after it, is the empty string.
func DecodeString(b []byte) (s string, n int, err error) {
	text, n, err := parseString(b)
	return string(text), n, err
}

// appendString appends s as hg_string_t or, if isConst, as hg_const_string_t. C senders always say that the text is
// not owned (mercury_proc_string.h).
func appendString(b []byte, s string, isConst bool) ([]byte, error) {
	if i := strings.IndexByte(s, 0); i >= 0 {
		return nil, &codec.Error{
			Problem: fmt.Sprintf("the string of %d bytes has a NUL at %d, where C would end it", len(s), i),
			Remedy:  "send it as a counted slice of bytes",
		}
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(len(s))+1)
	b = append(b, s...)
	b = append(b, 0)
	b = codecplan.AppendBool(b, isConst)
	return append(b, 0), nil
}

func decodeString(b []byte, v reflect.Value) ([]byte, error) {
	text, n, err := parseString(b)
	if err != nil {
		return nil, err
	}
	v.SetString(string(text))
	return b[n:], nil
}

// parseString returns the text of the string at the start of b, which aliases b, and the number of bytes it takes.
// The two flags say how the sender's memory was managed; C receivers read and ignore them, and so do we.
func parseString(b []byte) (text []byte, n int, err error) {
	if len(b) < stringLenSize {
		return nil, 0, codecplan.Overflow("a string length takes %d bytes, %d remain", stringLenSize, len(b))
	}
	size := binary.LittleEndian.Uint64(b)
	b = b[stringLenSize:]
	if size == 0 {
		return nil, stringLenSize, nil
	}
	// The length counts the NUL but not the flags.
	const flags = stringTail - 1
	if len(b) < flags || size > uint64(len(b)-flags) {
		return nil, 0, codecplan.Overflow("string length %d and %d flag bytes exceed the %d bytes that remain", size, flags, len(b))
	}
	text = b[:size-1]
	if b[size-1] != 0 {
		return nil, 0, &codec.Error{Problem: fmt.Sprintf("the string of length %d does not end in NUL", size)}
	}
	if i := bytes.IndexByte(text, 0); i >= 0 {
		return nil, 0, &codec.Error{Problem: fmt.Sprintf("the string of length %d has a NUL at %d", size, i)}
	}
	return text, stringLenSize + int(size) + flags, nil
}
