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

// Do executes a work request that needs nothing of the peer's program: a write, a read or an atomic operation on memory
// whose address and key the peer has told. It returns when that is done. wr's ID and Signaled are the package's; its memory
// must be of [Conn.PD]. There may be 32 under way, further ones wait.
//
// If ctx ends while the operation is under way, the connection is ended, since there is no other way to make the device
// let go of the memory; so is it if the peer refuses the access.
func (c *Conn) Do(ctx context.Context, wr verbs.SendWR) error {
	const op = "one-sided operation"
	switch wr.Op {
	case verbs.OpWrite, verbs.OpRead, verbs.OpCompareSwap, verbs.OpFetchAdd:
	default:
		return fmt.Errorf("flow: %s: %v takes a receive of the peer, and those are for records: use Send or SendFrom", op, wr.Op)
	}
	var slot int
	select {
	case slot = <-c.sides.free:
	case <-ctx.Done():
		return fmt.Errorf("flow: %s: waiting for those under way: %w", op, context.Cause(ctx))
	}
	defer func() { c.sides.free <- slot }()
	if err := c.postSide(op, slot, wr); err != nil {
		return err
	}
	select {
	case <-c.sides.ended[slot]:
	case <-ctx.Done():
		c.fail(fmt.Errorf("a one-sided operation was given up: %w", context.Cause(ctx)))
		<-c.sides.ended[slot] // by what ends the connection
	}
	c.mu.Lock()
	err := c.sides.errs[slot]
	c.mu.Unlock()
	return c.letGo(op, err)
}

// letGo is the end of an operation on the caller's memory. After a failure, which is one of the connection, it makes sure
// that the device does not touch the memory any more.
func (c *Conn) letGo(op string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("flow: %s: %w", op, errors.Join(err, c.qp.Close()))
}

func (c *Conn) postSide(op string, slot int, wr verbs.SendWR) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
		return c.overLocked(op)
	case !c.open:
		return fmt.Errorf("flow: %s: the active side has to send first", op)
	}
	wr.ID, wr.Flags = idSide|uint64(slot), wr.Flags|verbs.Signaled
	c.tx.wrs[0] = wr
	if _, err := c.qp.PostSend(c.tx.wrs[:1]); err != nil {
		return fmt.Errorf("flow: %s: %w", op, err)
	}
	c.sides.busy[slot], c.sides.errs[slot] = true, nil
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
