package flow

import (
	"context"
	"errors"
	"fmt"

	"cinnabar/verbs"
)

// mostOneSided is the largest number of one-sided operations under way.
const mostOneSided = 32

// oneSidedOps are the one-sided operations of the program.
type oneSidedOps struct {
	free  chan int                    // numbers of slots
	ended [mostOneSided]chan struct{} // capacity 1, made once
	errs  [mostOneSided]error         // guarded by the connection's lock
	busy  [mostOneSided]bool          // guarded by the connection's lock
	n     int                         // number of busy slots; guarded by the connection's lock

	slots [mostOneSided]oneSidedOp
}

// oneSidedOp is the [waitlist.Entry] of the goroutine that waits for the operation in a slot.
type oneSidedOp struct {
	all  *oneSidedOps
	slot int
}

func (o *oneSidedOp) Served() bool { return !o.all.busy[o.slot] }

func newOneSidedOps() *oneSidedOps {
	s := &oneSidedOps{free: make(chan int, mostOneSided)}
	for i := range mostOneSided {
		s.ended[i] = make(chan struct{}, 1)
		s.slots[i] = oneSidedOp{s, i}
		s.free <- i
	}
	return s
}

// atOnce is how many work requests one operation may have, and a record.
const atOnce = 2

// Do executes one or two work requests that need nothing of the peer's program: writes, reads or atomic operations on memory
// of the peer, by an address and a key that the peer has sent. It returns when all are complete. If a read follows a write, the
// data of the write has then been stored at the peer, also on a device that completes writes earlier. Do sets the IDs and the flag
// Signaled; the memory must be of [Conn.PD]. There may be 32 such operations under way, further ones wait.
//
// If ctx ends while the operation is under way, Do ends the connection, because only then the device stops using the memory, and
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
	ops := c.oneSidedOps()
	var slot int
	select {
	case slot = <-ops.free:
	case <-ctx.Done():
		return fmt.Errorf("flow: %s: waiting for those under way: %w", op, context.Cause(ctx))
	}
	defer func() { ops.free <- slot }()
	if err := c.postOneSided(op, slot, wrs); err != nil {
		return err
	}
	c.drive(ctx, &ops.slots[slot])
	select {
	case <-ops.ended[slot]:
	case <-ctx.Done():
		c.Abort(GivenUp(context.Cause(ctx)))
		<-ops.ended[slot] // because Abort signals it
	}
	c.mu.Lock()
	err := ops.errs[slot]
	c.mu.Unlock()
	if ctx.Err() != nil && errors.Is(err, ErrGivenUp) {
		err = context.Cause(ctx) // the cause of this caller, instead of another's ErrGivenUp
	}
	return c.closeAfter(op, err)
}

// oneSidedOps returns the operations of c. The first call makes them, because most connections have none.
func (c *Conn) oneSidedOps() *oneSidedOps {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.oneSided == nil {
		c.oneSided = newOneSidedOps()
	}
	return c.oneSided
}

// GivenUp returns an [ErrGivenUp] for [Conn.Abort] that contains why, the reason for which an operation ended early, as text. It
// does not wrap why, because other operations on the connection return the error, and another caller's context error must not
// look like their own.
func GivenUp(why error) error {
	return fmt.Errorf("%w (%s); connect again", ErrGivenUp, why.Error())
}

// closeAfter ends an operation on the caller's memory. If the operation has failed, the connection has failed, and closeAfter closes
// the queue pair, so that the device does not use the memory any more.
func (c *Conn) closeAfter(op string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("flow: %s: %w", op, errors.Join(err, c.qp.Close()))
}

func (c *Conn) postOneSided(op string, slot int, wrs []verbs.SendWR) error {
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
		post[i].ID, post[i].Flags = idOneSided|uint64(slot), post[i].Flags&^verbs.Signaled // a failure completes all the same
	}
	post[len(post)-1].Flags |= verbs.Signaled
	n, err := c.qp.PostSend(post)
	if err != nil && n == 0 {
		return fmt.Errorf("flow: %s: %w", op, err)
	}
	c.oneSided.busy[slot], c.oneSided.errs[slot] = true, nil
	c.oneSided.n++
	if err != nil { // the device has the first request, and its success has no completion
		c.failLocked(err)
	}
	return nil
}

// endOneSidedLocked ends the operation in a slot.
//
// +checklocks:c.mu
func (c *Conn) endOneSidedLocked(slot uint64, err error) {
	if slot < mostOneSided && c.oneSided != nil && c.oneSided.busy[slot] {
		c.oneSided.busy[slot], c.oneSided.errs[slot] = false, err
		c.oneSided.n--
		c.oneSided.ended[slot] <- struct{}{}
	}
}
