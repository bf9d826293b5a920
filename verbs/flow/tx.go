package flow

import (
	"context"
	"errors"
	"fmt"

	"cinnabar/internal/waitlist"
	"cinnabar/regmem"
	"cinnabar/regmem/ring"
	"cinnabar/verbs"
)

// The id of a work request has its kind in the first byte, and its number in the others.
const (
	idReceive  = iota << 56 // number of the receive's buffer
	idRecord                // number of the record
	idControl               // number of the slot
	idOneSided              // number of the slot of a one-sided operation
	idWrite                 // number of the record with the written payload, if the write is signaled
	idMask     = 0xFF << 56
)

// mostPieces is how many pieces a record may have, beside its header.
const mostPieces = 3

// txState is the sending half of a connection.
type txState struct {
	window         *sendWindow
	waiters        waitlist.List[*outgoing, uint64]
	out            []*outgoing // by number of the record modulo the length; from completed to window.credit.Sent()-1
	completed      uint64      // records that the device is done with
	freeSlots      []uint16    // slots of sendMR for records; the last one is used first, so that few pages of sendMR are in use
	waitingSenders int         // senders that are or will be among the waiters
	waitedOut      int         // number of records in out for which SendFrom waits
	staging        int         // number of senders that wait for room to copy a record
	fin            bool        // CloseWrite was called; the end is sent when waitingSenders is 0
	finSent        bool
	unsentFlags    flags                // answers that wait for a slot
	slots          [controls]bool       // of control messages, in use
	idle           []chan struct{}      // closed when all has left; of linger
	wrs            [atOnce]verbs.SendWR // reused for each post
	sgl            []verbs.SGE
	spare          []*outgoing // to be used again
}

// outgoing is a record that is being sent. It is reused: by SendFrom, which waits for it, or else when it has been sent.
type outgoing struct {
	n      int
	slot   int    // of sendMR, while the record is in out
	short  []byte // payload that is copied behind the header
	pieces [mostPieces]verbs.SGE
	sgl    []verbs.SGE             // payload in registered memory: the first of pieces
	block  regmem.Block[*verbs.MR] // staging that is freed when it is sent, unless zero
	waited bool                    // SendFrom waits for sent
	sent   chan struct{}           // capacity 1; signaled when the device has sent the record, if waited
	over   bool                    // sent has been signaled
	err    error                   // the reason if it was not sent; set before sent is signaled
}

// put sets the payload to pieces of registered memory.
func (o *outgoing) put(pieces ...verbs.SGE) {
	o.sgl = o.pieces[:copy(o.pieces[:], pieces)]
}

// outgoing returns a record to be filled.
func (c *Conn) outgoing(n int) *outgoing {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := len(c.tx.spare) - 1
	if last < 0 {
		return &outgoing{n: n, sent: make(chan struct{}, 1)}
	}
	o := c.tx.spare[last]
	c.tx.spare = c.tx.spare[:last]
	o.n = n
	return o
}

// end signals sent: err is nil if the device has sent the record, and otherwise the reason why it never will.
func (o *outgoing) end(err error) {
	o.err, o.over = err, true
	o.sent <- struct{}{}
}

// Served implements [waitlist.Entry].
func (o *outgoing) Served() bool { return o.over }

// reuse keeps o for another record. It is not in use any more, and its channel is empty.
func (tx *txState) reuse(o *outgoing) {
	*o = outgoing{sent: o.sent}
	if len(tx.spare) < len(tx.out) {
		tx.spare = append(tx.spare, o)
	}
}

func newTx(w *sendWindow, records int) txState {
	free := make([]uint16, records) // 16 bits hold each slot, because records is at most mostRecords
	for i := range free {
		free[i] = uint16(records - 1 - i)
	}
	return txState{window: w, out: make([]*outgoing, records), freeSlots: free}
}

// end ends the records that are being sent.
func (tx *txState) end(err error) {
	for i, o := range tx.out {
		if o != nil && o.waited {
			o.end(err)
		}
		tx.out[i] = nil
	}
	tx.waitedOut = 0
	tx.release()
}

// release wakes linger.
func (tx *txState) release() {
	for _, c := range tx.idle {
		close(c)
	}
	tx.idle = nil
}

// Send sends a record of any length up to [Conn.MaxRecord], also of none. It waits until the peer has room, and until this
// end has room to copy p, which may be changed when Send returns. A nil error says that the record is on its way, not
// that it has arrived. If ctx ends earlier, nothing is sent. The first record that is longer than Config.Inline
// allocates and registers a copy buffer of Config.Bytes, which may fail.
func (c *Conn) Send(ctx context.Context, p []byte) error {
	const op = "send"
	if len(p) <= c.slotLen-headerLen {
		o := c.outgoing(len(p))
		o.short = p
		return c.post(ctx, op, o)
	}
	if err := c.checkLength(op, len(p)); err != nil {
		return err
	}
	staging, err := c.stage(op)
	if err != nil {
		return err
	}
	block, err := c.allocStaging(ctx, staging, len(p))
	for errors.Is(err, regmem.ErrClosed) { // unstage or the end of the connection has closed the ring
		if staging, err = c.stageAgain(op); err != nil {
			return err
		}
		block, err = c.allocStaging(ctx, staging, len(p))
	}
	switch {
	case errors.Is(err, regmem.ErrTooLarge):
		return fmt.Errorf("flow: %s %d bytes: %w: Config.Bytes of this end is %d; use SendFrom", op, len(p), ErrTooLong, c.cfg.Bytes)
	case err != nil:
		return fmt.Errorf("flow: %s: %w", op, err)
	}
	copy(block.Bytes(), p)
	o := c.outgoing(len(p))
	o.block = block
	o.put(block.Region().SGE(block.Offset(), block.Len()))
	if err := c.post(ctx, op, o); err != nil {
		return errors.Join(err, block.Free())
	}
	c.mu.Lock()
	c.stats.Copied += uint64(len(p))
	c.mu.Unlock()
	return nil
}

// allocStaging returns memory for a copy of n bytes, and waits while staging has too little room.
func (c *Conn) allocStaging(ctx context.Context, staging *ring.Ring[*verbs.MR], n int) (regmem.Block[*verbs.MR], error) {
	block, err := staging.Alloc(n)
	if !errors.Is(err, regmem.ErrFull) {
		return block, err
	}
	c.mu.Lock()
	c.tx.staging++
	c.driver.returnLocked()
	c.mu.Unlock()
	block, err = staging.AllocContext(ctx, n)
	c.mu.Lock()
	c.tx.staging--
	c.mu.Unlock()
	return block, err
}

// SendFrom sends a record that lies in registered memory of [Conn.PD], in at most three pieces, without a copy. It returns
// when the device is done with the memory. If ctx ends before the record is on its way nothing is sent; after that,
// SendFrom waits for the device all the same.
func (c *Conn) SendFrom(ctx context.Context, sgl []verbs.SGE) error {
	const op = "send"
	if len(sgl) > mostPieces {
		return fmt.Errorf("flow: %s: a record in %d pieces; at most %d, so copy it together or send several", op, len(sgl), mostPieces)
	}
	n := 0
	for _, s := range sgl {
		if n += int(s.Length); n > mostBytes {
			return c.checkLength(op, n)
		}
	}
	if err := c.checkLength(op, n); err != nil {
		return err
	}
	o := c.outgoing(n)
	o.waited = true
	o.put(sgl...)
	if err := c.post(ctx, op, o); err != nil {
		select {
		case <-o.sent: // a part of it may have been posted
			return c.closeAfter(op, err)
		default:
			return err
		}
	}
	c.drive(context.Background(), o)
	<-o.sent
	err := o.err
	c.mu.Lock()
	c.tx.reuse(o)
	c.mu.Unlock()
	return c.closeAfter(op, err)
}

func (c *Conn) checkLength(op string, n int) error {
	if most := c.MaxRecord(); n > most {
		return fmt.Errorf("flow: %s %d bytes: %w: the peer takes %d at most (its Config.Bytes)", op, n, ErrTooLong, most)
	}
	return nil
}

func (c *Conn) over(op string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.overLocked(op)
}

// post sends a record as soon as the peer has room.
func (c *Conn) post(ctx context.Context, op string, o *outgoing) error {
	c.mu.Lock()
	if err := c.writableLocked(op); err != nil {
		c.mu.Unlock()
		return err
	}
	if !c.tx.waiters.Waiting() {
		if _, ok := c.sendLocked(o); ok {
			err := c.err
			c.mu.Unlock()
			return err
		}
	}
	c.stats.Waited++
	c.tx.waitingSenders++
	c.askLocked()
	c.mu.Unlock()
	return c.wait(ctx, op, o)
}

// wait waits for the peer to have room.
//
// +checklocksignore: the list takes the lock
func (c *Conn) wait(ctx context.Context, op string, o *outgoing) error {
	_, err := c.tx.waiters.WaitWorking(ctx, &c.mu, o, c.sendNext, c.driveNext)
	c.mu.Lock()
	c.tx.waitingSenders--
	c.answerLocked() // the end, if it waited for this record
	c.mu.Unlock()
	if errors.Is(err, waitlist.ErrEnded) {
		return c.over(op)
	}
	if err != nil {
		return fmt.Errorf("flow: %s: waiting for the peer to have room for %d bytes: %w", op, o.n, err)
	}
	return nil
}

// may locks c.mu and calls writableLocked.
func (c *Conn) writable(op string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writableLocked(op)
}

// writableLocked returns the error if the connection can send no more records, and nil if it can.
//
// +checklocks:c.mu
func (c *Conn) writableLocked(op string) error {
	if c.err != nil {
		return c.overLocked(op)
	}
	if c.tx.fin {
		return fmt.Errorf("flow: %s: %w for writing", op, ErrClosed)
	}
	return nil
}

// sendWaiting is sendLocked for calls that wait.
//
// +checklocksignore: the list calls it while the lock is held
func (c *Conn) sendWaiting(o *outgoing) (uint64, bool) {
	seq, ok := c.sendLocked(o)
	if !ok {
		c.askLocked()
	}
	return seq, ok
}

// sendLocked posts a record if the peer has room and the connection is open, and reports whether it did.
//
// +checklocks:c.mu
func (c *Conn) sendLocked(o *outgoing) (uint64, bool) {
	tx := &c.tx
	if !c.open || c.err != nil || !tx.window.fits(o.n) || tx.window.credit.Sent()-tx.completed >= uint64(len(tx.out)) {
		return 0, false
	}
	p := tx.window.send(o.n)
	o.slot = int(tx.freeSlots[len(tx.freeSlots)-1])
	tx.freeSlots = tx.freeSlots[:len(tx.freeSlots)-1]
	h := c.headerLocked(kindRecord)
	h.length, h.seq = uint32(o.n), uint32(p.seq)
	if p.askSoon {
		h.flags |= askSoon
	}
	wrs := tx.wrs[:0]
	if p.inRing {
		h.flags |= inRing
		h.offset = uint32(p.offset)
		to := c.remote
		to.Addr += uint64(p.offset)
		wrs = append(wrs, verbs.SendWR{ID: idWrite | p.seq&^idMask, Op: verbs.OpWrite, Flags: c.written, SGL: o.sgl, Remote: to})
	}
	at := controls*headerLen + o.slot*c.slotLen
	mem := c.sendMR.Bytes()[at : at+c.slotLen]
	h.put(mem)
	n := headerLen + copy(mem[headerLen:], o.short)
	c.stats.Copied += uint64(len(o.short))
	tx.sgl = append(tx.sgl[:0], c.sendMR.SGE(at, n))
	if !p.inRing {
		tx.sgl = append(tx.sgl, o.sgl...)
	}
	wrs = append(wrs, verbs.SendWR{ID: idRecord | p.seq&^idMask, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: tx.sgl})
	tx.out[p.seq%uint64(len(tx.out))] = o
	if o.waited {
		tx.waitedOut++
	}
	c.driver.long = p.inRing
	c.stats.Sent++
	c.stats.SentBytes += uint64(o.n)
	if _, err := c.qp.PostSend(wrs); err != nil {
		c.failLocked(fmt.Errorf("post a record: %w", err))
	}
	return p.seq, true
}
