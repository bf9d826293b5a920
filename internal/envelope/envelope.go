// Package envelope is the seam between the engine and the RPCs of package native: their arguments and results travel behind an envelope.
//
// The engine recognizes such an RPC by its [Codec]. It gives the RPC an id of its own (wire.NativeID), and calls the methods of [Arguments]
// and [Results] at the steps of a call, because an envelope has fields that depend on the context of the call, on the connection and on
// the limits of the engine.
package envelope

import (
	"context"
	"reflect"
	"time"

	"cinnabar/codec"
	"cinnabar/codes"
)

// Mark is the result of Codec.Enveloped. No other module can name the type, so no other module can implement [Codec].
type Mark struct{}

// Codec is the codec of an RPC with arguments that implement [Arguments] and results that implement [Results], both on the pointer. The
// result of a one-way RPC may be struct{}.
type Codec interface {
	codec.Codec
	Enveloped() Mark
}

// Continuing is a [Codec] of requests that belong to calls under way, so that an engine that is shutting down serves them until these calls end.
type Continuing interface {
	Codec
	Continues()
}

// Described is a [Codec] that names the types behind its envelopes.
type Described interface {
	Codec
	Described() Types
}

// Types are the types of an RPC as the program has declared them.
type Types struct {
	In, Out reflect.Type
	Stream  bool   // In and Out are the elements of a stream
	Codec   string // name of their codec
}

// Registration is an RPC that an engine serves.
type Registration struct {
	Name           string
	ID             uint64
	Provider       uint16
	Flavor         uint8 // of package cinnabar
	OneWay, Native bool
	Types
}

// Registry is the table of the RPCs that an engine serves.
type Registry interface {
	// Registrations returns the RPCs in the order of their ids, except the native RPCs that carry frames of streams and cancels.
	Registrations() []Registration
}

// Arguments are the arguments of a call. Depart and Abandon are called at the caller, the other methods at the server.
type Arguments interface {
	// Depart is called before the arguments are encoded, inside the interceptors, with the context that they have passed on. An error
	// ends the call.
	Depart(ctx context.Context) error
	// Abandon is called when ctx has ended before the response came. It must not block.
	Abandon()

	// Arrive is called when the request has been received, before it waits for a worker, on a goroutine that makes progress. It must
	// not block.
	Arrive(a Arrival)
	// Begin is called by the worker after the arguments are decoded. It returns the context of interceptors and handler, which is
	// derived from ctx. The request is refused with the error.
	Begin(ctx context.Context) (context.Context, error)
	// End is called once, when the handler has returned and the response is sent, or when the request is given up. It must not block.
	End()
}

// Results are the results of a call.
type Results interface {
	// Refuse is called at the server, on results of their own, when the call with these arguments fails with err, which has that code. It
	// makes the results carry the error to the caller. It returns false if the caller would not understand such results; the caller
	// receives the code alone then.
	Refuse(in Arguments, code codes.Code, err error) bool
	// Expect is called at the caller before the results are decoded.
	Expect(limits Limits)
	// Failure returns the code and the cause of the error that decoded results carry, and 0 if they carry none.
	Failure() (codes.Code, error)
}

// Budget counts memory of a request or a response for the host of its sender, until the request is freed or the response is decoded.
type Budget interface {
	// Charge counts n bytes more. The error says which limit they exceed.
	Charge(n int64) error
}

// Limits bound the memory that received arguments or results take when they are decompressed.
type Limits struct {
	MaxBytes int64 // Config.MaxOverflow
	Budget   Budget
}

// Breaches counts messages that break the protocol of package native, and logs them at the limited rate for their host.
type Breaches interface {
	// Broken counts one message that breaks the protocol, as err says. It may be called until the request is freed.
	Broken(err error)
}

// Arrival describes a received request.
type Arrival struct {
	Payload []byte          // the envelope and the arguments, valid until End
	Context context.Context // that Begin is called with
	Conn    <-chan struct{} // closed when the connection of the request is lost; nil for a call of the process to itself
	Host    any             // the host of the caller, a comparable value, by which streams are counted

	Breaches Breaches // counts messages of the caller that break the protocol
	Limits
	*Server
}

// Server is the part of an engine that all of its native calls share.
type Server struct {
	Calls   Table           // the calls that the engine serves
	Streams *Streams        // the streams among them
	MaxTime time.Duration   // Config.MaxHandlerTime; 0: none
	Served  Registry        // the RPCs of the engine
	Ending  <-chan struct{} // closed when the engine begins to shut down
}

// ScopeKey is the type of the key under which the context of a handler has the engine's description of the request.
type ScopeKey struct{}
