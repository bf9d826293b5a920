package flow

import (
	"context"
	"errors"
	"fmt"
	"io"

	"cinnabar/internal/waitlist"
	"cinnabar/regmem"
	"cinnabar/verbs"
)

// rxState is the receiving half of a connection.
type rxState struct {
	window   *recvWindow
	queue    []Record // ring of the received records that are not read: n of them, from first on; it grows when it is full
	first    int
	n        int
	readers  waitlist.List[struct{}, Record]
	fin      bool // no record follows
	received bool // a sign of life has come since the last takeSigns

	wrs [1]verbs.RecvWR // reused for each post
	sgl [1]verbs.SGE
}

// Record is a record that was received. It stays in the memory in which the device has stored it, until Release.
type Record struct {
	c       *Conn
	data    []byte
	seq     uint64
	receive int // number of the receive that it lies in, -1 if it lies in the ring
}

// Bytes returns the record. It must not be used after Release.
func (r Record) Bytes() []byte { return r.data }

// Release gives the room of the record back to the peer, in the order of the records: a record that is not released keeps the room
// of all behind it. A second Release is an error and does no harm.
func (r Record) Release() error {
	c := r.c
	if c == nil {
		return fmt.Errorf("flow: release of no record: %w", regmem.ErrForeign)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.rx.window.release(r.seq); err != nil {
		return fmt.Errorf("flow: release of record %d: %w", r.seq, err)
	}
	if c.err != nil {
		return nil
	}
	if r.receive >= 0 { // before the grant that lets the peer use it
		if err := c.postReceiveLocked(r.receive); err != nil {
			c.failLocked(fmt.Errorf("post a receive: %w", err))
		}
	}
	c.answerLocked()
	return nil
}

// Recv returns the next record. It returns io.EOF after the peer's CloseWrite. After the end of the connection it returns the
// records that were received before, and then the error.
func (c *Conn) Recv(ctx context.Context) (Record, error) {
	const op = "receive"
	c.mu.Lock()
	if r, ok := c.readLocked(); ok {
		c.mu.Unlock()
		return r, nil
	}
	if err := c.endLocked(op); err != nil {
		c.mu.Unlock()
		return Record{}, err
	}
	c.mu.Unlock()
	return c.waitRecord(ctx, op)
}

// waitRecord waits for a record.
//
// +checklocksignore: the list takes the lock
func (c *Conn) waitRecord(ctx context.Context, op string) (Record, error) {
	r, err := c.rx.readers.WaitWorking(ctx, &c.mu, struct{}{}, c.readNext, c.driveNext)
	if errors.Is(err, waitlist.ErrEnded) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if r, ok := c.readLocked(); ok { // it came, with the end, just before the wait
			return r, nil
		}
		return Record{}, c.endLocked(op)
	}
	if err != nil {
		return Record{}, fmt.Errorf("flow: %s: %w", op, err)
	}
	return r, nil
}

// endLocked returns the error if no record can come any more, and nil if one can.
//
// +checklocks:c.mu
func (c *Conn) endLocked(op string) error {
	switch {
	case c.rx.fin:
		return io.EOF
	case c.err != nil:
		return c.overLocked(op)
	}
	return nil
}

// readLocked takes the next record off the queue, if there is one.
//
// +checklocks:c.mu
func (c *Conn) readLocked() (Record, bool) {
	rx := &c.rx
	if rx.n == 0 {
		return Record{}, false
	}
	r := rx.queue[rx.first]
	rx.queue[rx.first] = Record{}
	rx.first = (rx.first + 1) % len(rx.queue)
	rx.n--
	return r, true
}

// leastQueue is the length of the ring rxState.queue after its first record.
const leastQueue = 4

// push puts a record behind the others. recvWindow has made sure that there is room.
func (rx *rxState) push(r Record) {
	if rx.n == len(rx.queue) {
		queue := make([]Record, max(2*rx.n, leastQueue))
		k := copy(queue, rx.queue[rx.first:])
		copy(queue[k:], rx.queue[:rx.first])
		rx.queue, rx.first = queue, 0
	}
	rx.queue[(rx.first+rx.n)%len(rx.queue)] = r
	rx.n++
}

// readWaiting is readLocked for calls that wait.
//
// +checklocksignore: the list calls it while the lock is held
func (c *Conn) readWaiting(struct{}) (Record, bool) { return c.readLocked() }

// postReceiveLocked posts the receive with buffer i.
//
// +checklocks:c.mu
func (c *Conn) postReceiveLocked(i int) error {
	n := c.receiveLen()
	c.rx.sgl[0] = c.recvMR.SGE(i*n, n)
	c.rx.wrs[0] = verbs.RecvWR{ID: idReceive | uint64(i), SGL: c.rx.sgl[:]}
	_, err := c.qp.PostRecv(c.rx.wrs[:])
	return err
}

// completeLocked processes one completion.
//
// +checklocks:c.mu
func (c *Conn) completeLocked(wc *verbs.WC) error {
	if c.err != nil {
		return nil
	}
	if err := wc.Err(); err != nil {
		if wc.ID&idMask == idOneSided {
			c.endOneSidedLocked(wc.ID&^idMask, err)
		}
		if wc.Status == verbs.StatusWRFlushErr && c.rx.fin {
			return io.EOF // the peer has said that it has ended
		}
		return fmt.Errorf("the connection to %v is lost: %w", c.RemoteAddr(), err)
	}
	c.noteSignLocked(wc)
	switch i := wc.ID &^ idMask; wc.ID & idMask {
	case idReceive:
		n, err := c.lengthOf(wc)
		if err == nil {
			err = c.messageLocked(int(i), n)
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrPeer, err)
		}
	case idRecord:
		return c.sentLocked(i)
	case idWrite: // the completion of the message behind it follows
	case idControl:
		c.tx.slots[i] = false
	case idOneSided:
		c.endOneSidedLocked(i, nil)
	}
	return nil
}

// lengthOf returns the length of the message that a receive's completion reports. The length of an RDMA write with immediate
// data is not one, because the write's bytes are elsewhere and may be more than the receive's buffer holds. The protocol has
// neither immediate data nor invalidations, so lengthOf refuses both.
func (c *Conn) lengthOf(wc *verbs.WC) (int, error) {
	n := int(wc.Len)
	switch {
	case wc.Op != verbs.WCRecv:
		return 0, fmt.Errorf("a receive is consumed by %v, of %d bytes: it must be a send", wc.Op, n)
	case wc.HasImm:
		return 0, fmt.Errorf("a message with immediate data %#x", wc.Imm)
	case wc.HasInv:
		return 0, fmt.Errorf("a message that invalidates key %#x", wc.InvKey)
	case n > c.receiveLen():
		return 0, fmt.Errorf("a message of %d bytes in a receive of %d", n, c.receiveLen())
	}
	return n, nil
}

// sentLocked ends record seq, which the device has sent.
//
// +checklocks:c.mu
func (c *Conn) sentLocked(seq uint64) error {
	tx := &c.tx
	o := tx.out[seq%uint64(len(tx.out))]
	tx.out[seq%uint64(len(tx.out))] = nil
	tx.completed++
	tx.freeSlots = append(tx.freeSlots, uint16(o.slot))
	if o.waited {
		tx.waitedOut--
		o.end(nil) // after that SendFrom reuses o
		return nil
	}
	block := o.block
	tx.reuse(o)
	if block.IsZero() {
		return nil
	}
	return block.Free()
}

// messageLocked processes a message of n bytes in receive buffer i.
//
// +checklocks:c.mu
func (c *Conn) messageLocked(i, n int) error {
	at := i * c.receiveLen()
	buf := c.recvMR.Bytes()[at : at+n : at+n]
	c.quiet.taken += uint64(n)
	c.useLocked(c.receiveLen())
	h, err := parseHeader(buf)
	if err != nil {
		return err
	}
	if c.open = true; c.first != nil {
		c.first.Stop()
		c.first = nil
	}
	if err := c.grantsLocked(&h); err != nil {
		return err
	}
	if h.kind == kindRecord {
		short, err := c.recordLocked(&h, buf[headerLen:], i)
		if short || err != nil {
			return err // the receive stays in use until the record is released
		}
	}
	if h.kind == kindFin {
		if c.rx.fin {
			return errors.New("a second end")
		}
		c.rx.fin = true
	}
	return c.postReceiveLocked(i)
}

// grantsLocked processes the grant, the requests and the answers of a header.
//
// +checklocks:c.mu
func (c *Conn) grantsLocked(h *header) error {
	if err := c.tx.window.grant(h.granted); err != nil {
		return err
	}
	if err := c.tx.window.answered(h.flags&answerSoon != 0, h.flags&answerNow != 0); err != nil {
		return err
	}
	return c.rx.window.request(h.flags&askSoon != 0, h.flags&askNow != 0, h.known)
}

// recordLocked queues a record for Recv. short reports whether it lies in the receive's buffer.
//
// +checklocks:c.mu
func (c *Conn) recordLocked(h *header, payload []byte, receive int) (short bool, err error) {
	if c.rx.fin {
		return false, fmt.Errorf("record %d after the end", h.seq)
	}
	r := Record{c: c, data: payload, receive: receive}
	if h.flags&inRing != 0 {
		mem := c.ringMR.Bytes()
		if uint64(h.offset)+uint64(h.length) > uint64(len(mem)) || len(payload) > 0 {
			return false, fmt.Errorf("record %d is at %d, %d bytes long, in a ring of %d bytes", h.seq, h.offset, h.length, len(mem))
		}
		end := h.offset + h.length
		r.data, r.receive = mem[h.offset:end:end], -1
		c.quiet.written += uint64(h.length)
		c.useLocked(int(h.length))
	} else if int(h.length) != len(payload) {
		return false, fmt.Errorf("record %d is said to have %d bytes, and has %d", h.seq, h.length, len(payload))
	}
	if r.seq, err = c.rx.window.receive(h.seq, int(h.length)); err != nil {
		return false, err
	}
	c.stats.Received++
	c.stats.ReceivedBytes += uint64(h.length)
	c.rx.push(r)
	c.driver.long = r.receive < 0
	return r.receive >= 0, nil
}
