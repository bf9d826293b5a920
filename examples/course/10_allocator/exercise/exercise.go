// Package exercise is the exercise of lesson 10.
package exercise

import "cinnabar/examples/course/internal/lab"

// Alloc takes n bytes, n > 0, from the beginning of the smallest free chunk that has room for them; of two chunks of the same size it
// takes the one with the lower offset. free has the free chunks in the order of their offsets; no two of them touch. ok is false if no
// chunk has room, and left has the free chunks after the call.
func Alloc(free []lab.Chunk, n int) (block lab.Chunk, left []lab.Chunk, ok bool, err error) {
	return lab.Chunk{}, nil, false, lab.Unsolved("Alloc", "look at all chunks before you choose; a chunk of exactly n bytes disappears from the list")
}

// Free returns a block to the free chunks, and joins it with the chunks that touch it. A block of which a byte is free already is an error.
func Free(free []lab.Chunk, block lab.Chunk) (left []lab.Chunk, err error) {
	return nil, lab.Unsolved("Free", "find the place of the block in the order of the offsets; it touches at most the chunk before and the chunk behind")
}
