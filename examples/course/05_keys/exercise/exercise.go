// Package exercise is the exercise of lesson 5.
package exercise

import (
	"cinnabar/examples/course/internal/lab"
	"cinnabar/verbs"
)

// Lend lets the peer of server read data, and not write it. The peer reads data itself: a later change of data is a change for the peer.
// revoke takes the right back: after it has returned, every read of the peer is refused.
func Lend(server *lab.End, data []byte) (region verbs.Region, revoke func() error, err error) {
	return verbs.Region{}, nil, lab.Unsolved("Lend", "server.PD.RegMR registers memory that you have. Give the least rights, and remember which call ends the life of both keys")
}
