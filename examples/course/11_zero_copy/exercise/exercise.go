// Package exercise is the exercise of lesson 11.
package exercise

import (
	"cinnabar/examples/course/internal/lab"
	"cinnabar/verbs"
)

// Message returns a signaled send of one message: all bytes of header, and behind them the first n bytes of body. The two lie in different
// memory, and the program copies neither.
func Message(header, body *verbs.MR, n int) (verbs.SendWR, error) {
	return verbs.SendWR{}, lab.Unsolved("Message", "the gather list (SGL) of a request may have several entries, which the device joins")
}
