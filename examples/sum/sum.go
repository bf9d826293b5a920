// Package sum has the RPC of the two programs of the sum example, with its types, as the tutorial's types.h has
// them.
//
// The client exposes an array of integers and sends a handle to it; the server pulls the array from the client's memory
// and answers with the sum. Either program can be replaced by the C program of Margo's tutorial "Transferring data over
// RDMA": the RPC's name, types and bytes are the same.
//
//	server ofi+tcp://127.0.0.1:0     prints its address
//	client ofi+tcp://127.0.0.1:PORT  four times, then the server has had its 16 calls and ends
package sum

import "cinnabar"

// Calls is how many calls the server answers before it ends itself: TOTAL_RPCS of the tutorial.
const Calls = 16

// In is the argument: how many integers, and where they are. It is the tutorial's sum_in_t.
type In struct {
	N    int32
	Data cinnabar.BulkHandle
}

// Out is the result, the tutorial's sum_out_t.
type Out struct {
	Ret int32
}

// RPC is the remote procedure. It is declared once and used by both sides.
var RPC = cinnabar.NewRPC[In, Out]("sum")
