package hg

import (
	"errors"

	"cinnabar/codes"
	"cinnabar/internal/na"
)

// Error is why a call, response or transfer failed.
type Error struct {
	Op     string // "call", "respond", "transfer", "expose"
	Addr   string // the peer's, may be empty
	Code   codes.Code
	Remote bool  // the peer said Code; otherwise this process concluded it
	Err    error // the cause, may be nil
}

func (e *Error) Error() string {
	s := "hg: " + e.Op
	if e.Addr != "" {
		s += " " + e.Addr
	}
	if e.Remote {
		s += ": peer answers"
	} else {
		s += ":"
	}
	s += " " + e.Code.Error()
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// newError makes an Error about peer a, which may be nil.
func newError(op string, a na.Addr, code codes.Code, err error) *Error {
	e := &Error{Op: op, Code: code, Err: err}
	if a != nil {
		e.Addr = a.String()
		e.Err = brief(err, e.Addr)
	}
	return e
}

// brief returns an error of the transport without its address, if the Error around it says that.
func brief(err error, addr string) error {
	if n, ok := err.(*na.Error); ok && n.Addr == addr { //nolint:errorlint // a wrapped one has text of its own around it
		return &na.Error{Kind: n.Kind, Op: n.Op, Err: n.Err}
	}
	return err
}

// rewrap makes err, which comes from a part of an operation of this package, an Error of the whole.
func rewrap(op string, a na.Addr, err error) *Error {
	if part, ok := errors.AsType[*Error](err); ok {
		return newError(op, a, part.Code, part.Err)
	}
	return newError(op, a, codes.OtherError, err)
}

// kindCodes has the code of each kind of error of the transport that has a code of its own.
var kindCodes = map[na.Kind]codes.Code{
	na.Unreachable:  codes.HostUnreach,
	na.Canceled:     codes.Canceled,
	na.Closed:       codes.Canceled,
	na.Truncated:    codes.MsgSize,
	na.Protocol:     codes.ProtocolError,
	na.Denied:       codes.Permission,
	na.Invalid:      codes.InvalidArg,
	na.Firewalled:   codes.HostFirewall,
	na.Unsupported:  codes.ProtoNoSupport,
	na.InUse:        codes.AddrInUse,
	na.NotAvailable: codes.AddrNotAvail,
}

// codeOf returns the code of an error of the transport.
func codeOf(err error) codes.Code {
	if c, ok := kindCodes[na.KindOf(err)]; ok {
		return c
	}
	return codes.NAError
}
