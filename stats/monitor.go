package stats

import (
	"context"
	"fmt"
	"time"
)

// Monitor receives the events of an engine. The engine calls Event on the goroutine that executes the operation, so a slow Event
// delays that operation. Event must be safe for concurrent use. [cinnabar/margo.Statistics] is a Monitor.
//
// ctx is the context of the operation. Memory is exposed without one, so the event of that has the background context.
type Monitor interface {
	Event(ctx context.Context, ev Event)
}

// EventKind is the kind of operation that an [Event] is about.
type EventKind uint8

// The kinds of operations.
const (
	EventCall     EventKind = iota + 1 // a call, from its request to its response
	EventRequest                       // a received request: decoding, the handler's run, and the sending of a result that the handler returns
	EventHandle                        // a handler's run, within EventRequest
	EventRespond                       // the sending of a response
	EventTransfer                      // a pull or push
	EventExpose                        // the registration of memory
)

// String returns one word, such as "call".
func (k EventKind) String() string {
	switch k {
	case EventCall:
		return "call"
	case EventRequest:
		return "request"
	case EventHandle:
		return "handle"
	case EventRespond:
		return "respond"
	case EventTransfer:
		return "transfer"
	case EventExpose:
		return "expose"
	}
	return fmt.Sprintf("EventKind(%d)", uint8(k))
}

// Event is the start or the end of an operation.
type Event struct {
	Kind EventKind
	End  bool // the event is the end of the operation; false: the start
	// Info describes the call or request. At the start of an EventRequest its Parent is 65535, because the request is not yet
	// decoded. For a transfer, RPC is "pull" or "push", Peer is the owner of the remote memory, and Parent is the id of the RPC
	// with the handler that started the transfer. For exposed memory, RPC is "expose".
	Info  CallInfo
	Bytes int64  // response: size of the payload; exposed memory: its size; transfer: bytes requested at the start, bytes moved at the end
	Err   error  // at the end: nil if the operation succeeded, and always nil for EventRequest, because EventHandle has the handler's error
	Times Timing // set at the end
}

// CallInfo describes the call of an [Event].
type CallInfo struct {
	Server   bool         // the event is at the process that serves the call; false: at its caller
	RPC      string       // name
	ID       uint64       // on the wire
	Provider uint16       // 0 for the flavour Mercury, which has none
	Peer     fmt.Stringer // the other process, a [*cinnabar.Endpoint]; its String is the address
	Parent   uint64       // the id of the RPC with the handler that makes the call, as the caller says; 65535: outside handlers
	Pool     string       // at the server: the name of the handler's pool; empty: it has none
}

// Timing has the time at which an operation began and the time at which each of its steps was over. A step has the zero Time if
// the operation does not have it or did not reach it.
type Timing struct {
	Began    time.Time // call, transfer: the program made it; request: it arrived; response: the program returned the result; exposed memory: registration began
	Encoded  time.Time // call: the arguments were encoded; response: the result was encoded
	Sent     time.Time // call, transfer: the network accepted it
	Admitted time.Time // request: the engine chose its pool
	Running  time.Time // request and its response: a worker of the pool began the request
	Ended    time.Time // call: the response arrived, or the call failed after Sent; others: the operation was over
	Decoded  time.Time // call: the result was decoded; request: the arguments were decoded
}
