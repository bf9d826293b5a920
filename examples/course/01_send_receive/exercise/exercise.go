// Package exercise is the exercise of lesson 1.
package exercise

import (
	"context"

	"cinnabar/examples/course/internal/lab"
)

// Echo receives one message of at most 64 bytes and sends the same bytes back. It returns when its own send is complete.
//
// The end has a protection domain (server.PD), a completion queue (server.CQ) and a connected queue pair (server.QP). server.Alloc(size,
// access) registers memory, which the test closes, and server.Wait(ctx) returns the next completion.
func Echo(ctx context.Context, server *lab.End) error {
	return lab.Unsolved("Echo", "post a receive with memory that has the right LocalWrite, wait for its completion, and send the first Len bytes of that memory")
}
