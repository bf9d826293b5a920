// Package native is remote procedure calls between Go programs: those of package [cinnabar] with an envelope in front of arguments and
// results. The envelope carries values for which the wire of Mercury and Margo has no place:
//
//   - the time that the caller still waits, and its cancel, which end the context of the handler;
//   - metadata, strings by name, with the request and with the response;
//   - the trace context of the W3C;
//   - the text and the typed details of a handler's error;
//   - compressed arguments and results, if the program asks for them.
//
// An [RPC] is declared once and shared by both sides, as in package cinnabar:
//
//	var Add = native.New[AddIn, AddOut]("add")
//
//	err := Add.Handle(server, func(ctx context.Context, in AddIn) (AddOut, error) {
//		return AddOut{Sum: in.X + in.Y}, nil
//	})
//
//	out, err := Add.Call(ctx, endpoint, AddIn{X: 1, Y: 2})
//
// A [Stream] is declared by [NewStream] in the same way, and carries any number of elements in both directions: see [Stream.Handle] and
// [Stream.Open]. [Health] serves the state of services, for [CheckHealth] and [WatchHealth], and [HandleReflection] the names and types of all RPCs, for
// [Reflect]. Package balance distributes calls over several servers.
//
// Engines, providers, pools of handlers, interceptors and monitors are those of package cinnabar, and a process may serve an RPC of either
// package by the same name. Programs in C serve and call no native RPCs: a call from the one family to the other fails with an error that
// names the mistake. docs/wire-native.md in the repository describes the bytes.
//
// All functions and types are safe for concurrent use, except that one goroutine at a time receives from a [ClientStream] or a [ServerStream]. A
// [Metadata] is a map: a program must not change one while another goroutine uses it.
package native
