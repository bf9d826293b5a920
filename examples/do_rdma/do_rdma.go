// Package dordma has the RPC of the two programs of the do_rdma example, which are Thallium's tutorial "Transferring data
// over RDMA".
//
// The client exposes nine bytes, "Matthieu" and its NUL, and sends a handle to them in a request that has no response.
// The server pulls six of them out of the client's memory, since that is all the room it has, and prints them:
//
//	server      Server received bulk: Matthi
//	client
//
// Either program can be replaced by the C++ program of the tutorial: the RPC's name, provider, types and bytes are the
// same.
//
// # A request without response
//
// The client does not learn when the server has pulled. The tutorial's client ends as soon as its request has left, which
// goes well because so little memory travels inside the request; of more memory the server would find nothing any more.
// The client here keeps its memory exposed for a grace time, and then closes it, which waits for a pull that has begun. A
// program that must know better asks for a response, as most of Thallium's programs do.
//
// # Two forms of the tutorial
//
// The tutorial exists in two forms, and both sides must be of the same one. The older form calls disable_response, as [RPC]
// does. The newer form answers with an empty response, as [Answered] expects; its C++ server aborts when a request wants no
// response, because its handler responds all the same. The Go server here serves clients of both forms. The Go client is
// of the older form, and of the newer one with -answer.
package dordma

import "cinnabar"

const (
	// Address is where the tutorial's server listens.
	Address = "tcp://127.0.0.1:1234"
	// Text is the text that the client exposes; in C++ a NUL ends it.
	Text = "Matthieu\x00"
	// Room is how many bytes the server has room for.
	Room = 6
)

// RPC is the remote procedure. It is declared once and used by both sides.
var RPC = cinnabar.NewOneWay[cinnabar.BulkHandle]("do_rdma", cinnabar.WithFlavor(cinnabar.Thallium))

// Answered is the same remote procedure in the newer form of the tutorial, which answers with an empty response when the
// server has pulled.
var Answered = cinnabar.NewRPC[cinnabar.BulkHandle, struct{}]("do_rdma", cinnabar.WithFlavor(cinnabar.Thallium))
