package iwarp

import (
	"bytes"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
)

// Messages without a posted receive. iWARP has no RNR NAK, and what has come
// over TCP cannot be asked for again: such a message is held, in bounded memory,
// for the time that this side's MinRNRTimer and RNRRetry allow, and what comes
// behind it goes on being processed. Beyond the bound the socket is not read.

// rnrTimer ends a connection whose peer has waited long enough.
type rnrTimer struct {
	timer *time.Timer
	wait  time.Duration
	turn  uint64 // a timer that fires for an earlier wait does nothing
}

// heldOverhead is what a held message counts besides its payload, in bytes, so
// that empty ones are bounded too.
const heldOverhead = 128

// holdFull reports whether n more bytes of a further message would exceed the bytes that may be held: by the connection, whose first
// message always fits, or by its host, for which the bytes are then counted.
//
// +checklocks:c.rxMu
func (c *conn) holdFull(n int) bool {
	r := &c.rx
	if len(r.held) == 0 {
		return n > 0 && !c.reserve(n+heldOverhead) // a first message without payload costs next to nothing
	}
	return r.heldBytes+n+heldOverhead > c.dev.cfg.HoldLimit || !c.reserve(n+heldOverhead)
}

// reserveStep is the least number of bytes that a connection has counted for its host at a time.
const reserveStep = 4 << 10

// reserve makes sure that n bytes more than are held are counted for the host.
//
// +checklocks:c.rxMu
func (c *conn) reserve(n int) bool {
	r := &c.rx
	lack := r.heldBytes + n - r.reserved
	if lack <= 0 {
		return true
	}
	lack = max(lack, reserveStep)
	if c.account.Take(hostquota.Memory, int64(lack)) != nil {
		return false
	}
	r.reserved += lack
	return true
}

// unreserve gives back the bytes that are counted for the host, when nothing is held.
//
// +checklocks:c.rxMu
func (c *conn) unreserve() {
	if n := c.rx.reserved; n > 0 {
		c.rx.reserved = 0
		c.account.Give(hostquota.Memory, int64(n))
	}
}

// hold adds a message for which there is no receive, or the beginning of one,
// of which n bytes come now. False means that it cannot: the connection has
// failed, or is stalled for want of room.
//
// +checklocks:c.rxMu
func (c *conn) hold(m heldMsg, n int) bool {
	r := &c.rx
	if wait, ok := c.patience(); !ok {
		c.noReceive()
		return false
	} else if c.holdFull(n) {
		if len(c.rx.held) == 0 {
			c.startRNR(wait)
		}
		c.stall()
		c.awaitRecv()
		return false
	} else if len(r.held) == 0 {
		c.startRNR(wait)
	}
	r.append(&m)
	r.immNext = false
	c.awaitRecv()
	return true
}

func (r *rxState) append(m *heldMsg) {
	r.held = append(r.held, m)
	r.heldBytes += heldOverhead + len(m.data)
	if !m.complete {
		r.open = m
	}
}

// holdRequest keeps a request of the peer's behind the messages that are held, so
// that its answer does not tell more than is true: with a zero-length read behind
// a send the peer may ask whether the send has been received.
//
// +checklocks:c.rxMu
func (c *conn) holdRequest() bool {
	r := &c.rx
	r.append(&heldMsg{op: r.seg.Op, head: r.seg.Header, size: r.seg.Payload, data: bytes.Clone(r.ctl[:r.seg.Payload]), complete: true})
	c.awaitRecv()
	c.tryHeld()
	return !c.over()
}

// awaitRecv makes posts deliver what is held. A receive that was posted since the
// queue was found empty is seen by tryHeld, which follows.
//
// +checklocks:c.rxMu
func (c *conn) awaitRecv() {
	n := int32(len(c.rx.held))
	if c.rx.stalled {
		n++ // a post finds that something waits, also where the host's share has no room for the first message
	}
	c.heldCount.Store(n)
	if c.qp.srq != nil {
		c.qp.srq.wait(c)
	}
}

// patience returns how long a message is held; 0 is for ever. False means that
// it is not held at all. The queue pair's limits are for want of receives: a message for which there are some waits for the host's
// others to end, which have limits of their own.
//
// +checklocks:c.rxMu
func (c *conn) patience() (time.Duration, bool) {
	if c.rx.kept {
		return 0, true
	}
	c.qp.mu.Lock()
	defer c.qp.mu.Unlock()
	a := &c.qp.attr
	if a.RNRRetry == verbs.MaxRNRRetry {
		return 0, true
	}
	return time.Duration(a.RNRRetry) * verbs.RNRDelay(a.MinRNRTimer), a.RNRRetry > 0
}

// +checklocks:c.rxMu
func (c *conn) startRNR(wait time.Duration) {
	if wait == 0 {
		return
	}
	r := &c.rx.rnr
	r.turn++
	r.wait = wait
	turn := r.turn
	r.timer = time.AfterFunc(wait, func() {
		c.rxMu.Lock()
		if c.rx.rnr.turn == turn && (len(c.rx.held) > 0 || c.rx.stalled) {
			c.noReceive()
		}
		c.rxMu.Unlock()
		c.teardownIfFailed()
	})
}

// +checklocks:c.rxMu
func (c *conn) stopRNR() {
	r := &c.rx.rnr
	r.turn++
	if r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
}

// blamed returns the segment that a Terminate about the receive queue is about,
// by header and payload: that of the held message in question, or the present one.
func (r *rxState) blamed() (ddp.Header, int) {
	switch {
	case r.delivered != nil:
		return r.delivered.head, r.delivered.size
	case len(r.held) > 0:
		return r.held[0].head, r.held[0].size
	}
	return r.seg.Header, r.seg.Payload
}

// noReceive ends the connection because no receive was posted in time.
//
// +checklocks:c.rxMu
func (c *conn) noReceive() {
	t := rdmap.TermDDPNoBuffer.ForSegment(c.rx.blamed())
	t.Detail = "no receive was posted in time"
	c.refuse(refused(&t))
}

// placeHeld places a segment of the message at the end of the held ones.
//
// +checklocks:c.rxMu
func (c *conn) placeHeld() bool {
	r := &c.rx
	n := r.seg.Payload
	m := r.open
	if !r.seg.First && ((len(r.held) > 1 || len(m.data) > 0) && r.heldBytes+n > c.dev.cfg.HoldLimit || !c.reserve(n)) {
		c.stall()
		return false
	}
	at := len(m.data)
	m.data = append(m.data, make([]byte, n)...)
	r.heldBytes += n
	r.dst = append(r.dst, m.data[at:])
	return true
}

// actHeld takes a segment of a held message into account.
//
// +checklocks:c.rxMu
func (c *conn) actHeld() bool {
	r := &c.rx
	c.rxStats.held += uint64(r.seg.Payload)
	if m := r.open; r.seg.Last {
		m.complete = true
		m.len, m.head, m.size = r.msgOff, r.seg.Header, r.seg.Payload
		r.open, r.msgOff = nil, 0
	}
	c.tryHeld()
	return !c.over()
}

// tryHeld delivers held messages to receives that have been posted. The time of
// the next one, if there is no receive for it, begins anew.
//
// +checklocks:c.rxMu
func (c *conn) tryHeld() {
	r := &c.rx
	before, kept := len(r.held), r.kept
	c.deliverAll()
	// A receive that came to a shared queue before the connection was on its list
	// has told nobody.
	for s := c.qp.srq; len(r.held) > 0 && s != nil && !c.over(); c.deliverAll() {
		s.wait(c)
		posted := s.q.posted() > 0
		if r.kept = posted && !r.held[0].complete && !s.mayBegin(c.host); r.kept || !posted {
			break
		}
	}
	c.heldCount.Store(int32(len(r.held)))
	switch {
	case len(r.held) == 0:
		r.held = nil
		c.unreserve()
		c.stopRNR()
	case r.kept:
		c.stopRNR()
	case kept: // there are no receives any more
		if wait, ok := c.patience(); ok {
			c.startRNR(wait)
		} else {
			c.noReceive()
		}
	case len(r.held) < before && r.rnr.timer != nil:
		c.stopRNR()
		c.startRNR(r.rnr.wait)
	}
}

// deliverAll delivers held messages as far as there are receives. The last one
// may be incomplete: then the receive becomes its place from here on.
//
// +checklocks:c.rxMu
func (c *conn) deliverAll() {
	r := &c.rx
	for len(r.held) > 0 && !c.over() && (isRequest(r.held[0].op) || c.takeRecv(r.held[0].complete)) {
		m := r.held[0]
		r.held[0] = nil
		r.held = r.held[1:]
		r.heldBytes -= len(m.data) + heldOverhead
		r.delivered = m
		c.deliver(m)
		r.delivered = nil
	}
}

// deliver puts a held message into the receive that was taken for it.
//
// +checklocks:c.rxMu
func (c *conn) deliver(m *heldMsg) {
	r := &c.rx
	switch m.op {
	case rdmap.OpReadRequest:
		c.readRequested(m.head, m.data)
		return
	case rdmap.OpAtomicRequest:
		c.atomicRequested(m.head, m.data)
		return
	case rdmap.OpImmediate, rdmap.OpImmediateSE:
		c.completeImmediate(*m)
		return
	default: // a Send
	}
	if !c.fits(uint64(len(m.data))) {
		return
	}
	if !scatter(r.curSegs, m.data) {
		c.failRecv(verbs.StatusLocProtErr, rdmap.TermLocalCatastrophic, "the receive's region was deregistered")
		return
	}
	if m.complete {
		c.completeSend(*m)
		return
	}
	r.curSegs = advanceSegs(r.curSegs, len(m.data))
	r.open = nil
	r.bound, r.imm, r.immNext = true, m.imm, m.hasImm
}

// deliverHeld is called when receives have been posted.
func (c *conn) deliverHeld() {
	c.rxMu.Lock()
	r := &c.rx
	// A segment on its way into a held message's memory ends there: actHeld goes on.
	if midway := r.placed && !r.bound && isSend(r.seg.Op); !midway && !c.torn.Load() {
		c.tryHeld()
		c.unstall()
		c.countUnfinished()
	}
	c.rxMu.Unlock()
	c.afterRx()
}

func isRequest(op rdmap.Opcode) bool {
	return op == rdmap.OpReadRequest || op == rdmap.OpAtomicRequest
}

func isSend(op rdmap.Opcode) bool {
	return op >= rdmap.OpSend && op <= rdmap.OpSendSEInvalidate
}

// stall stops reading until a receive is posted.
//
// +checklocks:c.rxMu
func (c *conn) stall() {
	c.rx.stalled = true
	c.paused.Store(true)
}

// unstall goes on where reading stopped.
//
// +checklocks:c.rxMu
func (c *conn) unstall() {
	r := &c.rx
	if r.stalled && !c.over() {
		r.stalled = false
		c.place()
		if !r.stalled {
			c.paused.Store(false)
			c.wakeReader()
		}
	}
	if r.eof && len(r.held) == 0 {
		r.eof = false
		c.endOfStream()
	}
}
