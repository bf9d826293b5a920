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

// The codes. Their C names, which the comments begin with, have the prefix HG_. Number 0 is HG_SUCCESS. The rest of a comment is the
// failure for which an engine of this module has the code; programs in C may use a code for other failures.
const (
	Permission     Code = iota + 1 // PERMISSION: the memory's mode forbids the access, or the peer is shutting down
	NoEntry                        // NOENTRY: the peer does not serve the RPC
	Interrupt                      // INTERRUPT: only from handlers that return it and from peers in C
	Again                          // AGAIN: the peer is overloaded, a later call may succeed
	NoMem                          // NOMEM: the system or Config.MaxMemory has no room for memory or for the queue of a pool
	Access                         // ACCESS: the system does not allow access to the file that the program exposes
	Fault                          // FAULT: mapped memory cannot be accessed, because its file has become shorter or its file system is full
	Busy                           // BUSY: the pool is in use, or the timer is started
	Exist                          // EXIST: another pool, RPC or provider has the name or id
	NoDev                          // NODEV: only from handlers that return it and from peers in C
	InvalidArg                     // INVALID_ARG: an argument, an address or a setting is not valid, or the Bulk is closed
	ProtocolError                  // PROTOCOL_ERROR: received bytes violate the protocol
	Overflow                       // OVERFLOW: a value runs past the end of a message
	MsgSize                        // MSGSIZE: a message is longer than its limit, or than the buffer for it
	ProtoNoSupport                 // PROTONOSUPPORT: this module, this host or the peer does not have the protocol or the checksums
	OpNotSupported                 // OPNOTSUPPORTED: the operation does not exist here, such as a response to a one-way request
	AddrInUse                      // ADDRINUSE: another socket has the address and port
	AddrNotAvail                   // ADDRNOTAVAIL: this host does not have the address or the interface
	HostUnreach                    // HOSTUNREACH: the peer refuses, is lost or does not answer
	Timeout                        // TIMEOUT: the deadline of a context has passed, or a transfer moves no bytes
	Canceled                       // CANCELED: a context was cancelled, or the engine was closed
	IOError                        // IO_ERROR: a file cannot be exposed
	HostFirewall                   // HOSTFIREWALL: the connection is lost and the peer cannot be dialed
	ChecksumError                  // CHECKSUM_ERROR: received headers or payload have another checksum
	NAError                        // NA_ERROR: a failure of the network without a code of its own
	OtherError                     // OTHER_ERROR: any other failure, such as a handler's own error
)

// Draining is not a code of Mercury. An engine that is shutting down answers native calls with it, before a handler has begun, so that the caller may
// call another server. Calls of C programs are answered [Permission].
const Draining Code = 1 << 16

var names = [...]string{
	"HG_SUCCESS", "HG_PERMISSION", "HG_NOENTRY", "HG_INTERRUPT", "HG_AGAIN", "HG_NOMEM", "HG_ACCESS", "HG_FAULT", "HG_BUSY",
	"HG_EXIST", "HG_NODEV", "HG_INVALID_ARG", "HG_PROTOCOL_ERROR", "HG_OVERFLOW", "HG_MSGSIZE", "HG_PROTONOSUPPORT",
	"HG_OPNOTSUPPORTED", "HG_ADDRINUSE", "HG_ADDRNOTAVAIL", "HG_HOSTUNREACH", "HG_TIMEOUT", "HG_CANCELED", "HG_IO_ERROR",
	"HG_HOSTFIREWALL", "HG_CHECKSUM_ERROR", "HG_NA_ERROR", "HG_OTHER_ERROR",
}

// Error returns the code's C name, "HG_NOENTRY". Draining, which C does not have, is "DRAINING".
func (c Code) Error() string {
	switch {
	case uint64(c) < uint64(len(names)):
		return names[c]
	case c == Draining:
		return "DRAINING"
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
