// Package codes has the return codes of Mercury, the numbers that travel when a call fails.
//
// A [Code] is an error, so errors.Is compares the reason of a failure:
//
//	_, err := Get.Call(ctx, server, key)
//	if errors.Is(err, codes.NoEntry) {
//		// the server does not serve this procedure
//	}
//
// A handler that returns a Code, or an error that wraps one, answers its caller with that code. [Of] is the rule for
// errors that wrap none. Success has no constant, because it is a nil error.
package codes

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
)

// Code is a return code of Mercury (hg_return_t). [Timeout] also matches [context.DeadlineExceeded] and
// [os.ErrDeadlineExceeded], and [Canceled] also matches [context.Canceled].
//
// The numbers are those of Mercury 2.4.1. Older releases number the codes above 21 differently; a code from a peer
// keeps its number. Mercury's own header has room for codes up to 255, Margo's for 32 bits.
type Code uint32

// The codes; their C names begin with HG_. Number 0 is HG_SUCCESS.
const (
	Permission     Code = iota + 1 // PERMISSION: the memory's mode forbids the access, or the peer is shutting down
	NoEntry                        // NOENTRY: the peer does not serve the RPC
	Interrupt                      // INTERRUPT
	Again                          // AGAIN: the peer is overloaded, a later call may succeed
	NoMem                          // NOMEM
	Access                         // ACCESS
	Fault                          // FAULT
	Busy                           // BUSY
	Exist                          // EXIST
	NoDev                          // NODEV
	InvalidArg                     // INVALID_ARG
	ProtocolError                  // PROTOCOL_ERROR: received bytes violate the protocol
	Overflow                       // OVERFLOW: a value runs past the end of a message
	MsgSize                        // MSGSIZE
	ProtoNoSupport                 // PROTONOSUPPORT
	OpNotSupported                 // OPNOTSUPPORTED
	AddrInUse                      // ADDRINUSE
	AddrNotAvail                   // ADDRNOTAVAIL
	HostUnreach                    // HOSTUNREACH: the peer refuses, is lost or does not answer
	Timeout                        // TIMEOUT
	Canceled                       // CANCELED
	IOError                        // IO_ERROR
	HostFirewall                   // HOSTFIREWALL: the connection is lost and the peer cannot be dialed
	ChecksumError                  // CHECKSUM_ERROR
	NAError                        // NA_ERROR
	OtherError                     // OTHER_ERROR: any other failure, such as a handler's own error
)

var names = [...]string{
	"HG_SUCCESS", "HG_PERMISSION", "HG_NOENTRY", "HG_INTERRUPT", "HG_AGAIN", "HG_NOMEM", "HG_ACCESS", "HG_FAULT", "HG_BUSY",
	"HG_EXIST", "HG_NODEV", "HG_INVALID_ARG", "HG_PROTOCOL_ERROR", "HG_OVERFLOW", "HG_MSGSIZE", "HG_PROTONOSUPPORT",
	"HG_OPNOTSUPPORTED", "HG_ADDRINUSE", "HG_ADDRNOTAVAIL", "HG_HOSTUNREACH", "HG_TIMEOUT", "HG_CANCELED", "HG_IO_ERROR",
	"HG_HOSTFIREWALL", "HG_CHECKSUM_ERROR", "HG_NA_ERROR", "HG_OTHER_ERROR",
}

// Error returns the code's C name, "HG_NOENTRY".
func (c Code) Error() string {
	if uint64(c) < uint64(len(names)) {
		return names[c]
	}
	return "HG return code " + strconv.FormatUint(uint64(c), 10)
}

// Is reports whether target is the error of Go's packages for the same failure: time-outs and cancels have one.
func (c Code) Is(target error) bool {
	if c == Timeout {
		return target == context.DeadlineExceeded || target == os.ErrDeadlineExceeded
	}
	return c == Canceled && target == context.Canceled
}

// Of returns the code that stands for err: the first Code in its tree, [Timeout] and [Canceled] for the errors of
// contexts, [Permission] for errors that match [net.ErrClosed], and [OtherError] for all others. It returns 0, which is
// Mercury's success, only if err is nil or wraps that number.
func Of(err error) Code {
	if err == nil {
		return 0
	}
	if c, ok := errors.AsType[Code](err); ok {
		return c
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return Timeout
	case errors.Is(err, context.Canceled):
		return Canceled
	case errors.Is(err, net.ErrClosed):
		return Permission
	}
	return OtherError
}
