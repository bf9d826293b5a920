// Package exercise is the exercise of lesson 8.
package exercise

import (
	"context"

	"cinnabar/examples/course/internal/lab"
)

// Stream sends messages in their order to a peer that has posted credits receives, each with room for 64 bytes. For each receive that the
// peer posts later it sends one empty message, a credit. A message that finds no receive ends the connection. Stream returns when the peer
// has sent a credit for each message.
func Stream(ctx context.Context, client *lab.End, messages []string, credits int) error {
	return lab.Unsolved("Stream", "post receives for the credits first. Before each send, wait for a completion with Op.IsRecv() while you have no credit, and post its receive again")
}
