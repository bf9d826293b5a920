// Package exercise is the exercise of lesson 7.
package exercise

import (
	"context"

	"cinnabar/examples/course/internal/lab"
	"cinnabar/verbs"
)

// Max makes the word of 8 bytes at remote the larger one of its value and value. Other clients do the same at the same time, and no larger
// value may get lost. The peer permits atomic operations only.
func Max(ctx context.Context, client *lab.End, remote verbs.RemoteAddr, value uint64) error {
	return lab.Unsolved("Max", "an OpCompareSwap that finds another value than you expected returns the value that it has found: compare with that one, and try again")
}
