package cinnabar

import (
	"context"
	"fmt"
	"time"
)

// Monitor receives the events of an engine. The engine calls Event on the goroutine that does the work, so a slow Event delays
// that work, and on many goroutines at once. [cinnabar/margo.Statistics] is a Monitor.
type Monitor interface {
	Event(ctx context.Context, ev Event)
}

// EventKind is the kind of operation that an [Event] is about.
type EventKind uint8

const (
	EventCall     EventKind = iota + 1 // a call, from its request to its response
	EventRequest                       // the work for a received request: to decode it, run its handler, and send a result that the handler returns
	EventHandle                        // a handler's run, within EventRequest
	EventRespond                       // the sending of a response
	EventTransfer                      // a pull or push
	EventExpose                        // the registration of memory
)

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
	End  bool // otherwise the start
	// Info describes the call or request. At the start of an EventRequest its Parent is 65535, because the request is not yet
	// decoded. Of a transfer it has "pull" or "push" as RPC, the owner of the remote memory as Peer, and as Parent the id of the RPC
	// in whose handler the transfer was started. Of exposed memory it has "expose" as RPC.
	Info  CallInfo
	Bytes int64  // responses: of the payload; exposed memory: its size; transfers: the bytes asked for, and at the end the bytes moved
	Err   error  // at the end: nil if the operation succeeded. An EventRequest has none: the handler's error is that of EventHandle
	Times Timing // at the end
}

// Timing has the time at which an operation began and the time at which each of its steps was over. A step that the operation
// does not have, or that it did not reach, has the zero Time.
type Timing struct {
	Began    time.Time // call, transfer: was made; request: arrived; response: was given by the program; exposed memory: registration began
	Encoded  time.Time // call: its arguments are encoded; response: its result is
	Sent     time.Time // call, transfer: the network has it
	Admitted time.Time // request: its pool was chosen
	Running  time.Time // request and its response: a worker of the pool began to work for it
	Ended    time.Time // call: the response is there, or there will be none; others: the operation was over
	Decoded  time.Time // call: the result is decoded; request: its arguments are
}

// observe passes ev to the monitor, if there is one.
func (e *Engine) observe(ctx context.Context, ev Event) {
	if m := e.cfg.Monitor; m != nil {
		m.Event(ctx, ev)
	}
}
