package cinnabar

import (
	"context"
	"os"
	"strconv"

	"cinnabar/internal/hg"
)

// Code is Mercury's return code, the number that travels when a call fails. It is an error, so that
// errors.Is(err, cinnabar.CodeNoEntry) tells whether a call failed for that reason. CodeTimeout also matches
// [context.DeadlineExceeded] and [os.ErrDeadlineExceeded], CodeCanceled also [context.Canceled].
//
// The numbers are those of Mercury 2.4.1. Older releases number the codes above 21 differently; a code from a peer is
// passed on as it came.
type Code uint32

// Mercury's return codes (hg_return_t); the C names begin with HG_.
const (
	CodeSuccess        = Code(hg.Success)        // SUCCESS
	CodePermission     = Code(hg.Permission)     // PERMISSION: the memory's mode forbids it, or the peer is shutting down
	CodeNoEntry        = Code(hg.NoEntry)        // NOENTRY: no such RPC at the peer
	CodeInterrupt      = Code(hg.Interrupt)      // INTERRUPT
	CodeAgain          = Code(hg.Again)          // AGAIN: the peer is overloaded, try later
	CodeNoMem          = Code(hg.NoMem)          // NOMEM
	CodeAccess         = Code(hg.Access)         // ACCESS
	CodeFault          = Code(hg.Fault)          // FAULT
	CodeBusy           = Code(hg.Busy)           // BUSY
	CodeExist          = Code(hg.Exist)          // EXIST
	CodeNoDev          = Code(hg.NoDev)          // NODEV
	CodeInvalidArg     = Code(hg.InvalidArg)     // INVALID_ARG
	CodeProtocolError  = Code(hg.ProtocolError)  // PROTOCOL_ERROR: bytes that cannot be what they should be
	CodeOverflow       = Code(hg.Overflow)       // OVERFLOW: a value runs past the end of a message
	CodeMsgSize        = Code(hg.MsgSize)        // MSGSIZE
	CodeProtoNoSupport = Code(hg.ProtoNoSupport) // PROTONOSUPPORT
	CodeOpNotSupported = Code(hg.OpNotSupported) // OPNOTSUPPORTED
	CodeAddrInUse      = Code(hg.AddrInUse)      // ADDRINUSE
	CodeAddrNotAvail   = Code(hg.AddrNotAvail)   // ADDRNOTAVAIL
	CodeHostUnreach    = Code(hg.HostUnreach)    // HOSTUNREACH: the peer refuses, is lost or does not answer
	CodeTimeout        = Code(hg.Timeout)        // TIMEOUT
	CodeCanceled       = Code(hg.Canceled)       // CANCELED
	CodeIOError        = Code(hg.IOError)        // IO_ERROR
	CodeHostFirewall   = Code(hg.HostFirewall)   // HOSTFIREWALL: the connection is lost and the peer cannot be dialed
	CodeChecksumError  = Code(hg.ChecksumError)  // CHECKSUM_ERROR
	CodeNAError        = Code(hg.NAError)        // NA_ERROR
	CodeOtherError     = Code(hg.OtherError)     // OTHER_ERROR: anything else, such as a handler's own error
)

// Error returns the code's C name.
func (c Code) Error() string {
	if c > CodeOtherError {
		return "HG return code " + strconv.FormatUint(uint64(c), 10)
	}
	return hg.Code(c).String()
}

// Is makes the codes of time-out and cancel match the errors that Go's packages have for them.
func (c Code) Is(target error) bool {
	if c == CodeTimeout {
		return target == context.DeadlineExceeded || target == os.ErrDeadlineExceeded
	}
	return c == CodeCanceled && target == context.Canceled
}
