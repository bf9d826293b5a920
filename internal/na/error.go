package na

import (
	"errors"
	"strconv"
)

// Kind says what went wrong with an operation. Each corresponds to a return code of Mercury's NA layer.
type Kind uint8

const (
	Unreachable  Kind = iota + 1 // connection refused, reset, lost or timed out: NA_HOSTUNREACH
	Canceled                     // by Cancel: NA_CANCELED
	Closed                       // the endpoint is closed: NA_CANCELED too
	Truncated                    // a message is larger than its buffer: NA_MSGSIZE
	Protocol                     // the peer breaks the protocol: NA_PROTOCOL_ERROR
	Denied                       // range or right of memory: NA_PERMISSION
	Invalid                      // an argument: NA_INVALID_ARG
	Firewalled                   // the connection is lost and the peer cannot be dialed: NA_HOSTFIREWALL
	Unsupported                  // a protocol variant or address form that this transport does not speak: NA_PROTONOSUPPORT
	InUse                        // the address to listen on is taken: NA_ADDRINUSE
	NotAvailable                 // the address to listen on is not this host's: NA_ADDRNOTAVAIL
)

var kinds = [...]string{
	Unreachable: "unreachable", Canceled: "canceled", Closed: "endpoint closed", Truncated: "message too long", Protocol: "protocol error",
	Denied: "access denied", Invalid: "invalid argument", Firewalled: "peer cannot be dialed", Unsupported: "not supported",
	InUse: "address in use", NotAvailable: "address not available",
}

func (k Kind) String() string {
	if int(k) < len(kinds) && kinds[k] != "" {
		return kinds[k]
	}
	return "kind " + strconv.Itoa(int(k))
}

// Error is why an operation failed.
type Error struct {
	Kind Kind
	Op   string // "get", "send request"
	Addr string // the peer's, may be empty
	Err  error  // the cause, may be nil
}

func (e *Error) Error() string {
	s := e.Op
	if e.Addr != "" {
		s += " " + e.Addr
	}
	s += ": " + e.Kind.String()
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// KindOf returns the kind of the [*Error] in err's chain, 0 if there is none.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return 0
}
