// Package exercise is the exercise of lesson 3.
package exercise

import (
	"context"

	"cinnabar/examples/course/internal/lab"
	"cinnabar/verbs"
)

// Sum adds the values of a linked list in the memory of the peer. Each node of the list has 16 bytes: the value, and the offset of the next
// node in the region, both of 8 bytes in big-endian order (binary.BigEndian.Uint64). The first node is at offset 0. The offset 0 as next
// node ends the list.
//
// The peer has written the list, and a peer is hostile: the offset of a node that does not lie in the region is an error, and so is a list
// with more nodes than the region has room for, because it never ends.
func Sum(ctx context.Context, client *lab.End, region verbs.Region) (uint64, error) {
	return 0, lab.Unsolved("Sum", "read one node after the other into 16 bytes of memory with the right LocalWrite; check each offset before you read")
}
