// Package exercise is the exercise of lesson 2.
package exercise

import (
	"context"

	"cinnabar/examples/course/internal/lab"
	"cinnabar/verbs"
)

// Patch writes data to the region of the peer, from byte offset of the region on, and returns when the write is complete. Data that does
// not lie in the region is an error, and then nothing is written: the connection must stay usable. offset and data may have any values.
func Patch(ctx context.Context, client *lab.End, region verbs.Region, offset uint64, data []byte) error {
	return lab.Unsolved("Patch", "compare offset and len(data) with region.Size first; then copy data into registered memory, and post an OpWrite to region.Add(offset)")
}
