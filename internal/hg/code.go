package hg

import (
	"strconv"
	"strings"

	"cinnabar/codes"
	"cinnabar/internal/na"
)

// Code is a return code of Mercury, HG_RETURN_VALUES in mercury_core_types.h as of release 2.4.1. It travels as one byte
// in responses; values without a name are passed on as they are.
type Code uint8

const (
	Success        Code = iota // HG_SUCCESS
	Permission                 // HG_PERMISSION
	NoEntry                    // HG_NOENTRY
	Interrupt                  // HG_INTERRUPT
	Again                      // HG_AGAIN
	NoMem                      // HG_NOMEM
	Access                     // HG_ACCESS
	Fault                      // HG_FAULT
	Busy                       // HG_BUSY
	Exist                      // HG_EXIST
	NoDev                      // HG_NODEV
	InvalidArg                 // HG_INVALID_ARG
	ProtocolError              // HG_PROTOCOL_ERROR
	Overflow                   // HG_OVERFLOW
	MsgSize                    // HG_MSGSIZE
	ProtoNoSupport             // HG_PROTONOSUPPORT
	OpNotSupported             // HG_OPNOTSUPPORTED
	AddrInUse                  // HG_ADDRINUSE
	AddrNotAvail               // HG_ADDRNOTAVAIL
	HostUnreach                // HG_HOSTUNREACH
	Timeout                    // HG_TIMEOUT
	Canceled                   // HG_CANCELED
	IOError                    // HG_IO_ERROR, since 2.4.0
	HostFirewall               // HG_HOSTFIREWALL, since 2.4.1
	ChecksumError              // HG_CHECKSUM_ERROR
	NAError                    // HG_NA_ERROR
	OtherError                 // HG_OTHER_ERROR
)

// String returns the name of C, "HG_NOENTRY"; that of release 2.4.1 where releases differ.
func (c Code) String() string {
	if c <= OtherError {
		return codes.Code(c).Error()
	}
	return "HG_RETURN_" + strconv.Itoa(int(c))
}

// CodeName returns the name that number n has in a release of Mercury, "2.3.1". Numbers above 21 have shifted twice:
// 2.4.0 put HG_IO_ERROR at 22 and 2.4.1 put HG_HOSTFIREWALL at 23. A response does not tell its sender's release, so
// this is for those who know it otherwise; an empty or unknown release is read as the newest.
func CodeName(n uint8, release string) string {
	c := Code(n)
	if c > Canceled {
		switch {
		case release == "2.4.0":
			if c >= HostFirewall {
				c++
			}
		case olderThan24(release):
			c += 2
		}
	}
	if c < Code(n) || c > OtherError { // wrapped, or beyond that release's last
		return "HG_RETURN_" + strconv.Itoa(int(n))
	}
	return c.String()
}

// olderThan24 tells whether release is of the series 0 to 2.3.
func olderThan24(release string) bool {
	first, rest, _ := strings.Cut(release, ".")
	second, _, _ := strings.Cut(rest, ".")
	major, err := strconv.Atoi(first)
	if err != nil {
		return false
	}
	minor, err := strconv.Atoi(second)
	if err != nil {
		return major < 2
	}
	return major < 2 || major == 2 && minor < 4
}

// codeOf translates an error of the transport.
func codeOf(err error) Code {
	switch na.KindOf(err) {
	case na.Unreachable:
		return HostUnreach
	case na.Canceled, na.Closed:
		return Canceled
	case na.Truncated:
		return MsgSize
	case na.Protocol:
		return ProtocolError
	case na.Denied:
		return Permission
	case na.Invalid:
		return InvalidArg
	case na.Firewalled:
		return HostFirewall
	case na.Unsupported:
		return ProtoNoSupport
	case na.InUse:
		return AddrInUse
	case na.NotAvailable:
		return AddrNotAvail
	}
	return NAError
}
