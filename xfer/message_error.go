package xfer

import (
	"encoding/binary"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// An error message is the reason for which a side gives up: a code, the length of the text in
// bytes, the text in UTF-8.
//
//	0  code, uint16
//	2  length, uint16
//	4  text
const errorMessageLen = 4

// maxErrorMessage is the length of the longest encoding of an error message, in bytes.
const maxErrorMessage = 240

type errorMessage struct {
	code Code
	text string
}

// errorMessageOf makes an error message for the other side.
func errorMessageOf(err error) errorMessage {
	f := asFailure(err)
	return errorMessage{code: f.code, text: f.Error()}
}

// failure returns the failure of a transfer that the peer has ended with this message.
func (v errorMessage) failure() *failure {
	f := &failure{code: v.code, remote: true}
	if v.text != "" && v.text != v.code.String() {
		f.err = fmt.Errorf("%s", printable(v.text))
	}
	return f
}

// appendErrorMessage appends v to b, its text cut so that it takes at most limit bytes.
func appendErrorMessage(b []byte, v errorMessage, limit int) []byte {
	text := v.text
	if most := max(min(limit, maxErrorMessage)-errorMessageLen, 0); len(text) > most {
		for most > 0 && !utf8.RuneStart(text[most]) { // no half character
			most--
		}
		text = text[:most]
	}
	b = binary.LittleEndian.AppendUint16(b, uint16(v.code))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(text)))
	return append(b, text...)
}

// parseErrorMessage reads an error message and its length, which is negative if it is malformed.
func parseErrorMessage(b []byte) (errorMessage, int) {
	if len(b) < errorMessageLen {
		return errorMessage{}, -1
	}
	n := int(binary.LittleEndian.Uint16(b[2:]))
	if n > maxErrorMessage-errorMessageLen || n > len(b)-errorMessageLen {
		return errorMessage{}, -1
	}
	v := errorMessage{code: Code(binary.LittleEndian.Uint16(b)), text: string(b[errorMessageLen : errorMessageLen+n])}
	return v, errorMessageLen + n
}

// printable makes text of the peer harmless for terminals and logs.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}
