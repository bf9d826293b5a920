package cinnabar

import (
	"errors"
	"fmt"
	"net"

	"cinnabar/codec"
	"cinnabar/codes"
	"cinnabar/internal/hg"
	"cinnabar/internal/na"
)

// ErrClosed is the cause in the error of an operation on a closed engine, or of one that was under way when the engine was closed.
// [errors.Is] finds it there. It matches [net.ErrClosed].
var ErrClosed = fmt.Errorf("cinnabar: engine is closed (%w)", net.ErrClosed)

// Error is the error of an operation. [errors.Is] matches its Code and everything below its Err.
type Error struct {
	Op     string // "call", "send", "pull"; empty if an error that wraps this one has the operation
	RPC    string // the procedure's name, with @ and the provider id where one was addressed; empty for other operations
	Addr   string // the peer's address; empty if no peer was involved
	Code   codes.Code
	Remote bool  // the peer answered Code; otherwise this process found the failure
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
	switch {
	case e == nil: // in a non-nil error that a function with the result *Error has returned
		return nil
	case e.Err == nil:
		return []error{e.Code}
	}
	return []error{e.Code, e.Err}
}

// errorFrom makes the error of an operation from the error of a layer below. A nil err gives nil; an err that
// is an *Error already is returned as it is.
func errorFrom(op, rpc, addr string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := err.(*Error); ok { //nolint:errorlint // a wrapped one is a cause, not this operation's error
		return err
	}
	e := &Error{Op: op, RPC: rpc, Addr: addr, Code: codeOf(err), Err: err}
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
		e.Code = codes.HostUnreach
	}
	return e
}

// codeOf is [codes.Of] with the errors that the layers below return, and without [net.ErrClosed] of other objects than engines, because
// a caller takes codes.Permission for a request that has not begun. It is the rule by which a handler's error becomes the
// code that its caller receives.
func codeOf(err error) codes.Code {
	if c, ok := errors.AsType[codes.Code](err); ok {
		return c
	}
	if h, ok := errors.AsType[*hg.Error](err); ok && h != nil {
		return h.Code
	}
	kind := na.KindOf(err)
	switch code := codes.Of(err); {
	case code == codes.Timeout || code == codes.Canceled: // by a context, which is more exact than the kind
		return code
	case errors.Is(err, errPeerGone):
		return codes.HostUnreach
	case errors.Is(err, codec.ErrOverflow):
		return codes.Overflow
	case kind != 0:
		return kindCodes[kind]
	case code == codes.Permission && !errors.Is(err, ErrClosed): // another object is closed, such as a file of the handler
		return codes.OtherError
	default:
		return code
	}
}

// kindCodes are the codes of the transports' errors.
var kindCodes = map[na.Kind]codes.Code{
	na.Unreachable: codes.HostUnreach, na.Canceled: codes.Canceled, na.Closed: codes.Canceled, na.Truncated: codes.MsgSize,
	na.Protocol: codes.ProtocolError, na.Denied: codes.Permission, na.Invalid: codes.InvalidArg, na.Firewalled: codes.HostFirewall,
	na.Unsupported: codes.ProtoNoSupport, na.InUse: codes.AddrInUse, na.NotAvailable: codes.AddrNotAvail,
}

// encodingError is the error of an operation with values that cannot be encoded, which is a fault of this process.
func encodingError(op, rpc, addr string, err error) error {
	return &Error{Op: op, RPC: rpc, Addr: addr, Code: codes.InvalidArg, Err: err}
}

// argumentError is the error of an operation that has invalid arguments; the text names the argument and the valid ones.
func argumentError(op, rpc, addr, format string, args ...any) error {
	return &Error{Op: op, RPC: rpc, Addr: addr, Code: codes.InvalidArg, Err: fmt.Errorf(format, args...)}
}
