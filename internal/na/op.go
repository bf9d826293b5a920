package na

import (
	"errors"
	"strconv"
	"sync/atomic"
)

// Op is one operation in flight. It is a part of a structure of the caller's, so that starting an operation allocates
// nothing. An Op may be used again after its completion.
type Op struct {
	// Done is called at the completion. Set it before the operation starts.
	Done Completer
	// Blocking allows the transport to do the whole work before the call that starts the operation returns, because the caller waits for
	// the end at once.
	Blocking bool

	// N is the count of bytes received or transferred, Err why the operation failed, nil if it did not: an [*Error].
	// Both are valid from the completion on.
	N   int64
	Err error

	// Progress grows as bytes of a Get or Put move: when they have arrived, have been handed to the network, or are
	// acknowledged. Only its change has a meaning. It is not reset, so that a goroutine that watches for stalled transfers
	// may read it at any time.
	Progress atomic.Int64

	// Transport is the transport's own state of the operation. Only the transport uses it.
	Transport any

	state atomic.Uint32
}

// Completer is called at the end of an operation.
type Completer interface {
	// Complete is called exactly once for each operation, on any goroutine, possibly before the call that started the
	// operation returns. It must not block. The transport does not touch op after the call, so that op may start anew.
	Complete(op *Op)
}

const (
	opIdle uint32 = iota
	opActive
)

// Begin marks op as in flight. Transports call it first; it panics if op is in flight already, which is a bug of its owner.
func (op *Op) Begin() {
	if !op.state.CompareAndSwap(opIdle, opActive) {
		panic("na: operation started twice")
	}
	op.N, op.Err = 0, nil
}

// Finish completes op. Transports call it; the second call of one operation panics, since it would be a second completion.
func (op *Op) Finish(n int64, err error) {
	op.N, op.Err, op.Transport = n, err, nil
	if !op.state.CompareAndSwap(opActive, opIdle) {
		panic("na: operation completed twice")
	}
	op.Done.Complete(op)
}

// Kind is the reason of a failed operation. Each corresponds to a return code of Mercury's NA layer.
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
