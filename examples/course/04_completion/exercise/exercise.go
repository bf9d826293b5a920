// Package exercise is the exercise of lesson 4.
package exercise

import (
	"context"

	"cinnabar/examples/course/internal/lab"
	"cinnabar/verbs"
)

// Collect receives n records and returns them in the order of their arrival. The peer sends each record by one write with immediate data:
// the record is written to memory from byte 0 on, and the immediate data is the length of the record in bytes. When Collect has taken a
// record, it sends an empty message, and the peer writes the next one to the same place. Before Collect is called, one receive is posted.
//
// The peer is hostile: an immediate value that is larger than memory is an error.
func Collect(ctx context.Context, server *lab.End, memory *verbs.MR, n int) ([]string, error) {
	return nil, lab.Unsolved("Collect", "wait for a completion with HasImm; copy the record (string makes a copy), post the next receive, and only then send the empty message, because the peer writes at once")
}
