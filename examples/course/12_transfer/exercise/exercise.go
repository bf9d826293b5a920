// Package exercise is the exercise of lesson 12, and the one that the paper leaves to its readers.
package exercise

import (
	"context"

	"cinnabar/examples/course/internal/lab"
	"cinnabar/verbs"
)

// WriteChunk writes the first n bytes of buffer to the memory at to, on a device without immediate data. It says n to the peer by a message
// of 4 bytes, in big-endian order, that the peer receives when the bytes are in its memory. WriteChunk returns when buffer is free again.
func WriteChunk(ctx context.Context, client *lab.End, buffer *verbs.MR, n int, to verbs.RemoteAddr) error {
	return lab.Unsolved("WriteChunk", "post an OpWrite and behind it an OpSend. A write of no bytes may be left out, the message may not")
}
