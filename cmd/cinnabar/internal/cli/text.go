package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// OneLine is the text of err; joined errors are separated by semicolons.
func OneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// Printable returns text of the peer without the characters that a terminal might obey.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}

// WriteJSON prints v as indented JSON. It escapes the characters that a terminal would act upon.
func WriteJSON(w io.Writer, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err == nil {
		_, err = fmt.Fprintf(w, "%s\n", PrintableJSON(b))
	}
	return err
}

// PrintableJSON escapes the characters that a terminal would act upon. Characters that are not printable stand in strings only, besides
// white space; there they may all be escaped.
func PrintableJSON(b []byte) []byte {
	var out []byte
	for _, r := range string(b) {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			out = utf8.AppendRune(out, r)
		case r == '\r' || r == '\t': // between values
			out = append(out, ' ')
		case r <= 0xffff:
			out = fmt.Appendf(out, `\u%04x`, r)
		default:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		}
	}
	return out
}

// Printer prints to W and keeps the first error of its writer.
type Printer struct {
	W   io.Writer
	Err error // the first error
}

// Printf prints, unless an earlier call failed.
func (i *Printer) Printf(format string, args ...any) {
	if i.Err == nil {
		_, i.Err = fmt.Fprintf(i.W, format, args...)
	}
}

// Join joins the texts of values with spaces.
func Join[T fmt.Stringer](values []T) string {
	texts := make([]string, len(values))
	for n, v := range values {
		texts[n] = v.String()
	}
	return strings.Join(texts, " ")
}

// NewTable aligns columns separated by tabs, two spaces apart.
func NewTable(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 0, 2, ' ', 0) }
