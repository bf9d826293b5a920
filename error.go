package cinnabar

import (
	"context"
	"errors"
	"fmt"
	"net"

	"cinnabar/codec"
	"cinnabar/internal/hg"
	"cinnabar/internal/na"
)

// ErrClosed is why an operation on a closed engine fails, and one that was under way when the engine was closed. It
// matches [net.ErrClosed].
var ErrClosed = fmt.Errorf("cinnabar: engine is closed (%w)", net.ErrClosed)

// Error is why an operation failed. errors.Is matches its Code and everything below its Err.
type Error struct {
	Op     string // "call", "send", "pull"; empty if an error that wraps this one has the operation
	RPC    string // the procedure's name, with @ and the provider id where one was addressed; empty for other operations
	Addr   string // the peer's address; empty if no peer was involved
	Code   Code
	Remote bool  // the peer said so; otherwise it was found out here
	Err    error // the cause, may be nil
}

// Error returns one line that names the operation, the RPC, the peer and the cause.
func (e *Error) Error() string {
	s := e.Op
	if e.RPC != "" {
		s += " " + e.RPC
	}
	if e.Addr != "" {
		s += " at " + e.Addr
	}
	if s != "" {
		s += ": "
	}
	if e.Remote {
		s += "peer answers "
	}
	s += e.Code.Error()
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the code and the cause.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Code}
	}
	return []error{e.Code, e.Err}
}

// Timeout tells whether the time given to the operation was over (net.Error).
func (e *Error) Timeout() bool { return e.Code == CodeTimeout }

// errorFrom makes the error that an operation returns from what a layer below says. A nil err gives nil; an err that
// is an *Error already is returned as it is.
func errorFrom(op, rpc, addr string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := err.(*Error); ok { //nolint:errorlint // a wrapped one is a cause, not this operation's error
		return err
	}
	e := &Error{Op: op, RPC: rpc, Addr: addr, Code: CodeOf(err), Err: err}
	if h, ok := errors.AsType[*hg.Error](err); ok {
		e.Remote, e.Err = h.Remote, h.Err
	}
	if n, ok := e.Err.(*na.Error); ok && n.Addr == addr && n.Err != nil { //nolint:errorlint // a wrapped one has text of its own around it
		e.Err = n.Err // without the rest of n, because e has the code, the operation and the address
	}
	switch {
	case na.KindOf(err) == na.Closed:
		e.Err = ErrClosed
	case errors.Is(err, errPeerGone):
		e.Code = CodeHostUnreach
	}
	return e
}

// CodeOf returns the code that stands for err: that of an [*Error] or [Code] in its chain, CodeTimeout and
// CodeCanceled for the errors of contexts, CodeSuccess for nil, and CodeOtherError for what has no code. It is the rule
// by which a handler's error becomes the code that its caller sees.
func CodeOf(err error) Code {
	if err == nil {
		return CodeSuccess
	}
	if e, ok := errors.AsType[*Error](err); ok {
		if e == nil { // as returned by a function that says error and means *Error
			return CodeOtherError
		}
		return e.Code
	}
	if c, ok := errors.AsType[Code](err); ok {
		return c
	}
	if h, ok := errors.AsType[*hg.Error](err); ok && h != nil {
		return Code(h.Code)
	}
	return plainCode(err)
}

// plainCode is CodeOf for errors that carry no code.
func plainCode(err error) Code {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return CodeTimeout
	case errors.Is(err, context.Canceled):
		return CodeCanceled
	case errors.Is(err, ErrClosed):
		return CodePermission
	case errors.Is(err, errPeerGone):
		return CodeHostUnreach
	case errors.Is(err, codec.ErrOverflow):
		return CodeOverflow
	}
	return kindCodes[na.KindOf(err)]
}

// kindCodes are the codes of the transports' errors.
var kindCodes = map[na.Kind]Code{
	0:              CodeOtherError, // not a transport's
	na.Unreachable: CodeHostUnreach, na.Canceled: CodeCanceled, na.Closed: CodeCanceled, na.Truncated: CodeMsgSize,
	na.Protocol: CodeProtocolError, na.Denied: CodePermission, na.Invalid: CodeInvalidArg, na.Firewalled: CodeHostFirewall,
	na.Unsupported: CodeProtoNoSupport, na.InUse: CodeAddrInUse, na.NotAvailable: CodeAddrNotAvail,
}

// encodingError is the error of an operation whose values cannot be encoded, which is a fault of this process.
func encodingError(op, rpc, addr string, err error) error {
	return &Error{Op: op, RPC: rpc, Addr: addr, Code: CodeInvalidArg, Err: err}
}

// argumentError is the error of an operation whose arguments cannot be right.
func argumentError(op, rpc, addr, format string, args ...any) error {
	return &Error{Op: op, RPC: rpc, Addr: addr, Code: CodeInvalidArg, Err: fmt.Errorf(format, args...)}
}
