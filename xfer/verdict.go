package xfer

import (
	"encoding/binary"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A verdict says why a side gives up: a code, the length of the text in bytes,
// the text in UTF-8.
//
//	0  code, uint16
//	2  length, uint16
//	4  text
const verdictLen = 4

// maxVerdict is the longest encoding of a verdict.
const maxVerdict = 240

type verdict struct {
	code Code
	text string
}

// verdictOf makes words for the other side.
func verdictOf(err error) verdict {
	f := asFailure(err)
	return verdict{code: f.code, text: f.Error()}
}

// failure turns what the peer said into a failure.
func (v verdict) failure() *failure {
	f := &failure{code: v.code, remote: true}
	if v.text != "" && v.text != v.code.String() {
		f.err = fmt.Errorf("%s", printable(v.text))
	}
	return f
}

// appendVerdict appends v to b, its text cut so that it takes at most limit bytes.
func appendVerdict(b []byte, v verdict, limit int) []byte {
	text := v.text
	if most := max(min(limit, maxVerdict)-verdictLen, 0); len(text) > most {
		for most > 0 && !utf8.RuneStart(text[most]) { // no half character
			most--
		}
		text = text[:most]
	}
	b = binary.LittleEndian.AppendUint16(b, uint16(v.code))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(text)))
	return append(b, text...)
}

// parseVerdict reads a verdict and its length, which is negative if it is malformed.
func parseVerdict(b []byte) (verdict, int) {
	if len(b) < verdictLen {
		return verdict{}, -1
	}
	n := int(binary.LittleEndian.Uint16(b[2:]))
	if n > maxVerdict-verdictLen || n > len(b)-verdictLen {
		return verdict{}, -1
	}
	v := verdict{code: Code(binary.LittleEndian.Uint16(b)), text: string(b[verdictLen : verdictLen+n])}
	return v, verdictLen + n
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
