// Package exercise is the exercise of lesson 9.
package exercise

import "cinnabar/examples/course/internal/lab"

// Place returns the offset of the next block of n bytes in a ring of size bytes, and false if the ring has no room for it.
//
// The ring has blocks blocks in use. If blocks is 0, the next one begins at 0. Otherwise the oldest block begins at tail, and the youngest
// one ends at head. The next block begins at head if it fits there. If the bytes from head to the end of the ring are too few, they are
// skipped, and the block begins at 0 if it fits before tail. A block never wraps, and never covers a byte of a block in use.
func Place(size, head, tail, blocks, n int) (offset int, ok bool, err error) {
	return 0, false, lab.Unsolved("Place", "draw the ring twice: with head behind tail, and with head before tail or at it. head equal to tail is a full ring if blocks is not 0")
}
