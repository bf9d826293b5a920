package native

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"cinnabar/codec"
	"cinnabar/codes"
)

// Error is the error of a handler as its caller receives it, the cause in the [cinnabar.Error] that Call returns. [errors.AsType] finds the
// details by their types, and [errors.Is] the code.
type Error struct {
	Code      codes.Code
	Text      string  // of the handler's error, at most 4096 bytes, as the peer has sent it; Error escapes it
	Details   []error // in the order of the server's WithDetail: values of the declared types, and [*UnknownDetail]
	Truncated bool    // text or details exceeded their limits, or a detail could not be encoded; the server has left that part out

	metadata Metadata
}

// Error returns the text with control characters escaped, so that a peer cannot write to the terminal or forge lines of the log.
func (e *Error) Error() string {
	s := printable(e.Text)
	if s == "" {
		s = "no text"
	}
	if e.Truncated {
		s += "… (the server has left out a part)"
	}
	return s
}

// Unwrap returns the code and the details.
func (e *Error) Unwrap() []error { return append([]error{e.Code}, e.Details...) }

// UnknownDetail is a detail of a type that the RPC of the caller does not declare, or cannot decode.
type UnknownDetail struct {
	Name string // from the server's WithDetail
	Data []byte // the encoded value
	Err  error  // the error of decoding; nil if the name is not declared
}

// Error names the detail.
func (d *UnknownDetail) Error() string {
	if d.Err != nil {
		return fmt.Sprintf("detail %q of %d bytes cannot be decoded: %v; compare the types of both sides", d.Name, len(d.Data), d.Err)
	}
	return fmt.Sprintf("detail %q of %d bytes, which this RPC does not declare (native.WithDetail)", d.Name, len(d.Data))
}

// Unwrap returns Err.
func (d *UnknownDetail) Unwrap() error { return d.Err }

// printable returns s as it is if all of it can be printed on one line, and otherwise with escapes as in a string of Go.
func printable(s string) string {
	if utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
		return s
	}
	q := strconv.Quote(s)
	return q[1 : len(q)-1]
}

// detail is a type of errors that travels with its value.
type detail struct {
	name  string
	typ   reflect.Type // of the value that is encoded
	plan  codec.Plan
	find  func(err error) any // returns a pointer to the value in the tree of err, or nil
	fresh func() (ptr any, value func() error)
}

// newDetail describes the errors of type E, a type or a pointer to one.
func newDetail[E error](name string) detail {
	d := detail{name: name, typ: reflect.TypeFor[E]()}
	if d.typ.Kind() != reflect.Pointer {
		d.find = func(err error) any {
			if e, ok := errors.AsType[E](err); ok {
				return &e
			}
			return nil
		}
		d.fresh = func() (any, func() error) {
			e := new(E)
			return e, func() error { return *e }
		}
		return d
	}
	d.typ = d.typ.Elem()
	d.find = func(err error) any {
		if e, ok := errors.AsType[E](err); ok && !reflect.ValueOf(e).IsNil() {
			return e
		}
		return nil
	}
	d.fresh = func() (any, func() error) {
		e := reflect.New(d.typ).Interface()
		return e, func() error { return e.(error) }
	}
	return d
}

// shorten returns the first bytes of a text, without half a character at the end, and reports whether that is less than the whole.
func shorten(s string, most int) (string, bool) {
	if len(s) <= most {
		return s, false
	}
	n := most
	for n > most-utf8.UTFMax && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n], true
}

// refusal is the error of a call on its way to the caller.
type refusal struct {
	code codes.Code
	err  error
	text string
}

// fail returns the error in the form of the wire. A detail that cannot be encoded, or does not fit, is left out.
func (s *spec) fail(r *refusal) *failure {
	f := &failure{code: r.code}
	f.text, f.truncated = shorten(r.text, maxText)
	left := maxDetailBytes
	for _, d := range s.details {
		ptr := d.find(r.err)
		if ptr == nil {
			continue
		}
		data, err := d.plan.Append(nil, ptr)
		if err != nil || len(d.name)+len(data) > left {
			f.truncated = true
			continue
		}
		left -= len(d.name) + len(data)
		f.details = append(f.details, rawDetail{d.name, data})
	}
	return f
}

// received returns the error that a response carries.
func (s *spec) received(f *failure, m Metadata) *Error {
	e := &Error{Code: f.code, Text: f.text, Truncated: f.truncated, metadata: m}
	for _, raw := range f.details {
		e.Details = append(e.Details, s.decodeDetail(raw))
	}
	return e
}

func (s *spec) decodeDetail(raw rawDetail) error {
	unknown := &UnknownDetail{Name: raw.name}
	for _, d := range s.details {
		if d.name != raw.name {
			continue
		}
		ptr, value := d.fresh()
		if _, unknown.Err = d.plan.Decode(raw.data, ptr); unknown.Err == nil {
			return value()
		}
	}
	unknown.Data = append([]byte(nil), raw.data...)
	return unknown
}
