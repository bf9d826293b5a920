package xfer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"cinnabar/internal/audit"
)

// Code is the class of a failed transfer. The protocols send it to the other side, except
// where they have no message for it. A Code is an error, so that
// errors.Is(err, xfer.CodeExists) works on either side.
type Code uint16

// The codes. Their numbers are part of the wire format.
const (
	CodeOther       Code = 1 + iota // none of the others
	CodeName                        // the receiver does not take this name
	CodeExists                      // the receiver has a file of this name
	CodeStorage                     // the receiver cannot store the file (disk full, no permission), or has stored it and cannot sync it
	CodeSource                      // the sender cannot read its file
	CodeChanged                     // the file grew or shrank while it was sent
	CodeCorrupt                     // a checksum or a digest differs
	CodeProtocol                    // one side broke the rules of the protocol
	CodeTooLarge                    // a limit of one side is exceeded
	CodeBusy                        // the receiver serves as many transfers as it may
	CodeUnsupported                 // the two sides have no protocol in common
	CodeTimeout                     // no progress for as long as the timeout says
	CodeCanceled                    // the program or its user gave up
	CodeLost                        // the connection failed or could not be made
)

var codeNames = [...]string{
	CodeOther: "failed", CodeName: "name refused", CodeExists: "file exists", CodeStorage: "cannot store",
	CodeSource: "cannot read the source", CodeChanged: "file changed while it was sent", CodeCorrupt: "data corrupted",
	CodeProtocol: "protocol broken", CodeTooLarge: "too large", CodeBusy: "receiver busy",
	CodeUnsupported: "no common protocol", CodeTimeout: "no progress", CodeCanceled: "cancelled", CodeLost: "connection failed",
}

// String names the class in a few words.
func (c Code) String() string {
	if int(c) < len(codeNames) && codeNames[c] != "" {
		return codeNames[c]
	}
	return "code " + strconv.Itoa(int(c))
}

// event returns how a receiver counts a failure of the class.
func (c Code) event() audit.Event {
	switch c {
	case CodeName, CodeExists, CodeTooLarge, CodeBusy, CodeUnsupported:
		return audit.Refused
	case CodeProtocol, CodeCorrupt:
		return audit.Broken
	default:
		return audit.Failed
	}
}

// cause returns the words by which a receiver counts a failure of the class. A peer chooses among the codes that exist
// only, because the counters are never forgotten.
func (c Code) cause() string {
	if int(c) < len(codeNames) && codeNames[c] != "" {
		return codeNames[c]
	}
	return "a code that is not known"
}

// Error is String; it makes codes usable as targets of errors.Is.
func (c Code) Error() string { return c.String() }

// Error is the failure of a transfer. Every error of Send, Serve and ServeOne that
// concerns a peer is one.
type Error struct {
	Op     string         // "send" or "receive"
	Name   string         // of the file; "" if it was not known yet
	Peer   netip.AddrPort // the other side
	Code   Code
	Remote bool  // the other side has sent the error; otherwise this side has found it
	Err    error // the reason in words
}

// Error returns operation, file, peer, class and reason as text.
func (e *Error) Error() string {
	s := e.Op
	if e.Name != "" {
		s += " " + strconv.Quote(e.Name)
	}
	if e.Peer.IsValid() {
		s += " (peer " + e.Peer.String() + ")"
	}
	if e.Remote {
		s += ": the peer says"
	}
	if e.Code != CodeOther {
		s += ": " + e.Code.String()
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the class and the reason, for errors.Is.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Code}
	}
	return []error{e.Code, e.Err}
}

// failure is an Error before names and addresses are added.
type failure struct {
	code   Code
	remote bool
	err    error
}

func (f *failure) Error() string {
	if f.err == nil {
		return f.code.String()
	}
	return f.err.Error()
}

func (f *failure) Unwrap() []error {
	if f.err == nil {
		return []error{f.code}
	}
	return []error{f.code, f.err}
}

// failf makes a failure of this side.
func failf(code Code, format string, args ...any) *failure {
	return &failure{code: code, err: fmt.Errorf(format, args...)}
}

// asFailure finds the failure in err, or makes one of it: of the class that err
// is of, if it is of one.
func asFailure(err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	code, ok := errors.AsType[Code](err)
	if !ok {
		code = CodeOther
	}
	if ok && err.Error() == code.String() {
		err = nil // it says nothing else
	}
	return &failure{code: code, err: err}
}

// classed is asFailure with a code for errors that have none.
func classed(code Code, err error) *failure {
	f := *asFailure(err)
	if f.code == CodeOther {
		f.code = code
	}
	return &f
}

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
