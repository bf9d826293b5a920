package na

import "sync/atomic"

// Op is one operation in flight. It is a part of a structure of the caller's, so that starting an operation allocates
// nothing. An Op may be used again after its completion.
type Op struct {
	// Done is told of the completion. Set it before the operation starts.
	Done Completer
	// Blocking says that who starts the operation waits for its end at once: the transport may do the whole work before the
	// call returns that starts it.
	Blocking bool

	// N is the count of bytes received or transferred, Err why the operation failed, nil if it did not: an [*Error].
	// Both are valid from the completion on.
	N   int64
	Err error

	// Progress grows as bytes of a Get or Put move: when they have arrived, have been handed to the network, or are
	// acknowledged. Only its change has a meaning. It is not reset, so that a goroutine that watches for stalled transfers
	// may read it at any time.
	Progress atomic.Int64

	// Transport is the transport's own state of the operation. Nobody else touches it.
	Transport any

	state atomic.Uint32
}

// Completer learns that an operation is over.
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
