package verbs

import (
	"errors"
	"fmt"
)

// The classes of failure on which callers branch. They are matched with
// errors.Is; an [Error] adds the operation, the limit and the remedy.
var (
	// ErrInvalid: an argument that no device, or not this one, accepts (EINVAL).
	ErrInvalid = errors.New("invalid argument")
	// ErrQueueFull: the queue has no room for the work request; poll completions first.
	ErrQueueFull = errors.New("queue full")
	// ErrBusy: the object cannot be closed while others depend on it (EBUSY).
	ErrBusy = errors.New("object still in use")
	// ErrClosed: use of an object after its Close.
	ErrClosed = errors.New("object closed")
	// ErrLockLimit: the memory would exceed the limit of locked memory of the process.
	ErrLockLimit = errors.New("locked memory limit")
	// ErrDisconnected: the connection ended in order.
	ErrDisconnected = errors.New("connection ended")
	// ErrCQOverrun: more completions came than the completion queue holds.
	ErrCQOverrun = errors.New("completion queue overrun")
	// ErrDeviceRemoved: the device was unplugged, its driver was unloaded, or it
	// failed for good. Its objects can only be closed.
	ErrDeviceRemoved = errors.New("RDMA device removed")
)

// Error is a failure of a verbs call: Op is the call, Kind the class of failure, and
// Detail names the thing, the limit and the remedy.
type Error struct {
	Op     string // "post send", "register memory", ...
	Kind   error  // one of the Err variables, errors.ErrUnsupported, or nil
	Detail string
	Err    error // underlying error, may be nil
}

// Error joins the parts.
func (e *Error) Error() string {
	s := e.Op
	for _, part := range []error{e.Kind} {
		if part != nil {
			s += ": " + part.Error()
		}
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap gives errors.Is both the class and the cause.
func (e *Error) Unwrap() []error {
	var errs []error
	if e.Kind != nil {
		errs = append(errs, e.Kind)
	}
	if e.Err != nil {
		errs = append(errs, e.Err)
	}
	return errs
}

// Errorf makes an [*Error] with a formatted Detail.
func Errorf(op string, kind error, format string, args ...any) *Error {
	return &Error{Op: op, Kind: kind, Detail: fmt.Sprintf(format, args...)}
}

// Unsupported makes an [*Error] that matches errors.ErrUnsupported.
func Unsupported(op, format string, args ...any) *Error {
	return Errorf(op, errors.ErrUnsupported, format, args...)
}

// RejectedError is the error of [Dial] when the peer refused the connection.
type RejectedError struct {
	PrivateData []byte // data that the refusing side sent; owned by the receiver of the error
	Reason      string // the device's text, if the protocol and not the peer's program refused
}

// Error quotes the reason and the size of the private data.
func (e *RejectedError) Error() string {
	s := "connection rejected by the peer"
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	if len(e.PrivateData) > 0 {
		s += fmt.Sprintf(" (%d bytes of private data)", len(e.PrivateData))
	}
	return s
}
