package flow

import (
	"context"
	"errors"
	"fmt"

	"cinnabar/verbs"
)

// oneSided is how many one-sided operations may be under way.
const oneSided = 32

// sides are the one-sided operations of the program.
type sides struct {
	free  chan int                // numbers of slots
	ended [oneSided]chan struct{} // capacity 1, made once
	errs  [oneSided]error         // guarded by the connection's lock
	busy  [oneSided]bool          // guarded by the connection's lock
}

func newSides() *sides {
	s := &sides{free: make(chan int, oneSided)}
	for i := range oneSided {
		s.ended[i] = make(chan struct{}, 1)
		s.free <- i
	}
	return s
}

// atOnce is how many work requests one operation may have, and a record.
const atOnce = 2

// Do executes one or two work requests that need nothing of the peer's program: writes, reads or atomic operations on memory
// whose address and key the peer has told. It returns when the last is done, and so are all. With a read behind a write, the
// write is done when the peer has it, also on a device that says so earlier. IDs and Signaled are the package's; the memory
// must be of [Conn.PD]. There may be 32 such operations under way, further ones wait.
//
// If ctx ends while the operation is under way, Do ends the connection, because a device stops to use the memory only then, and
// returns the context's cause. All other operations on the connection fail with [ErrGivenUp], and the peer may have executed them. A
// refusal of the access by the peer ends the connection too.
func (c *Conn) Do(ctx context.Context, wrs ...verbs.SendWR) error {
	const op = "one-sided operation"
	if len(wrs) < 1 || len(wrs) > atOnce {
		return fmt.Errorf("flow: %s: %d work requests; from 1 to %d", op, len(wrs), atOnce)
	}
	for i := range wrs {
		switch wr := &wrs[i]; wr.Op {
		case verbs.OpWrite, verbs.OpRead, verbs.OpCompareSwap, verbs.OpFetchAdd:
		default:
			return fmt.Errorf("flow: %s: %v takes a receive of the peer, and those are for records: use Send or SendFrom", op, wr.Op)
		}
	}
	var slot int
	select {
	case slot = <-c.sides.free:
	case <-ctx.Done():
		return fmt.Errorf("flow: %s: waiting for those under way: %w", op, context.Cause(ctx))
	}
	defer func() { c.sides.free <- slot }()
	if err := c.postSide(op, slot, wrs); err != nil {
		return err
	}
	select {
	case <-c.sides.ended[slot]:
	case <-ctx.Done():
		c.Abort(GivenUp(context.Cause(ctx)))
		<-c.sides.ended[slot] // by what ends the connection
	}
	c.mu.Lock()
	err := c.sides.errs[slot]
	c.mu.Unlock()
	if ctx.Err() != nil && errors.Is(err, ErrGivenUp) {
		err = context.Cause(ctx) // the cause of this caller, instead of another's ErrGivenUp
	}
	return c.letGo(op, err)
}

// GivenUp returns an [ErrGivenUp] for [Conn.Abort] that contains why, the reason for which an operation ended early, as text. It
// does not wrap why, because other operations on the connection return the error, and another caller's context error must not
// look like their own.
func GivenUp(why error) error {
	return fmt.Errorf("%w (%s); connect again", ErrGivenUp, why.Error())
}

// letGo is the end of an operation on the caller's memory. After a failure, which is one of the connection, it makes sure
// that the device does not touch the memory any more.
func (c *Conn) letGo(op string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("flow: %s: %w", op, errors.Join(err, c.qp.Close()))
}

func (c *Conn) postSide(op string, slot int, wrs []verbs.SendWR) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
		return c.overLocked(op)
	case !c.open:
		return fmt.Errorf("flow: %s: the active side has to send first", op)
	}
	post := c.tx.wrs[:copy(c.tx.wrs[:], wrs)]
	for i := range post {
		post[i].ID, post[i].Flags = idSide|uint64(slot), post[i].Flags&^verbs.Signaled // a failure is told all the same
	}
	post[len(post)-1].Flags |= verbs.Signaled
	n, err := c.qp.PostSend(post)
	if err != nil && n == 0 {
		return fmt.Errorf("flow: %s: %w", op, err)
	}
	c.sides.busy[slot], c.sides.errs[slot] = true, nil
	if err != nil { // the device has a part of it, whose end nobody would hear of
		c.failLocked(err)
	}
	return nil
}

// sideLocked ends the operation in a slot.
//
// +checklocks:c.mu
func (c *Conn) sideLocked(slot uint64, err error) {
	if slot < oneSided && c.sides.busy[slot] {
		c.sides.busy[slot], c.sides.errs[slot] = false, err
		c.sides.ended[slot] <- struct{}{}
	}
}
