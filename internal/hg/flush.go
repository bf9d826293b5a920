package hg

import (
	"context"
	"time"
)

// flush tells who waits for responses to leave that none may be left. It has room for one token, which stays there when
// nobody waits, so that telling costs next to nothing.
type flush chan struct{}

func (f flush) tell() {
	select {
	case f <- struct{}{}:
	default:
	}
}

// Flush returns when the network has taken all responses, or has failed to: at a moment when [Class.Unsent] is 0. It
// returns the cause of ctx's end if that comes first. It sees no end of responses that go on being made.
func (c *Class) Flush(ctx context.Context) error {
	for c.Unsent() > 0 {
		select {
		case <-c.flush:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	c.flush.tell() // there may be others who wait
	return nil
}

// hurryTime stands for ackTime after Hurry.
const hurryTime = 2 * time.Second

// Hurry is for who is about to close: from now on a response that does not fit into a message is lent for two seconds
// only, and for what its size takes, instead of a minute. A caller that has given up does not say so, and would hold up
// the end otherwise. Hurry may be called again.
func (c *Class) Hurry() { c.hurry.Do(func() { close(c.hurried) }) }
