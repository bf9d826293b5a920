// Package rstream is a byte stream over a queue pair: a net.Conn and a net.Listener on any verbs device, for programs that
// know sockets only. It corresponds to rsockets in C.
//
//	l, err := rstream.Listen(dev, addr) // a net.Listener: http.Serve(l, handler)
//	c, err := rstream.Dial(ctx, dev, addr) // a net.Conn
//
// Bytes travel as records of package verbs/flow: each Write is one or more, which the peer's Read takes apart again, so
// boundaries do not show. The window of the peer is the stream's: Write waits while the peer does not read. Deadlines,
// half close (CloseWrite) and concurrent use are as net.Conn has them. The data are copied once on each side, between the
// program's slices and registered memory; a program that cannot afford that uses verbs/flow itself.
// A stream that has been quiet for half a second gives the memory of its window back to the system, where package flow can do so.
//
// Servers and clients of net/http and gRPC run over it as they are: http.Server.Serve takes the listener, a Transport's
// DialContext and grpc.WithContextDialer call Dial. The device is closed after all that uses it; gRPC closes connections in
// the background, and bench/peers/grpcrstream shows how to wait for them.
package rstream
