package iwarp

import (
	"bytes"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
)

// Messages without a posted receive. iWARP has no RNR NAK, and TCP does not repeat
// received bytes: such a message is held, in bounded memory, for the time that this
// side's MinRNRTimer and RNRRetry allow, and the input behind it is processed. Beyond the
// bound the socket is not read.

// rnrTimer ends a connection if a message has waited too long for a receive.
type rnrTimer struct {
	timer *time.Timer
	wait  time.Duration
	turn  uint64 // a timer that fires for an earlier wait does nothing
}

// heldOverhead is the size of a held message besides its payload, in bytes, so that the
// number of empty ones is bounded too.
const heldOverhead = 128

// holdFull reports whether n more bytes of a further message would exceed a limit on held bytes: that of the connection, which always
// takes a first message, or the share of its host. If not, the bytes are counted for the host.
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
	if wait, ok := c.holdTime(); !ok {
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

// holdRequest holds a request of the peer behind the held messages, because the peer may
// use the response to a zero-length read as the proof that the sends before it have been
// received.
//
// +checklocks:c.rxMu
func (c *conn) holdRequest() bool {
	r := &c.rx
	r.append(&heldMsg{op: r.seg.Op, head: r.seg.Header, size: r.seg.Payload, data: bytes.Clone(r.ctl[:r.seg.Payload]), complete: true})
	c.awaitRecv()
	c.tryHeld()
	return !c.over()
}

// awaitRecv makes posts deliver the held messages. tryHeld, which the caller calls next, finds a
// receive that was posted since the queue was found empty.
//
// +checklocks:c.rxMu
func (c *conn) awaitRecv() {
	n := int32(len(c.rx.held))
	if c.rx.stalled {
		n++ // a post finds that something waits, also where the host's share has no room for the first message
	}
	c.heldCount.Store(n)
	if c.qp.srq != nil {
		c.qp.srq.wait(c, c.rx.headWhole())
	}
}

// headWhole reports whether the first held message is complete.
func (r *rxState) headWhole() bool { return len(r.held) > 0 && r.held[0].complete }

// holdTime returns the time for which a message is held; 0 is for ever. False means that it is not held at all. The queue pair's
// limits hold where no receive is posted: a message of a host that has used up its share of receives waits for the host's other
// messages, which have limits of their own.
//
// +checklocks:c.rxMu
func (c *conn) holdTime() (time.Duration, bool) {
	if c.rx.overShare {
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

// refusedSegment returns header and payload length of the segment that a Terminate about
// the receive queue must name: that of the held message, or the present one.
func (r *rxState) refusedSegment() (ddp.Header, int) {
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
	t := rdmap.TermDDPNoBuffer.ForSegment(c.rx.refusedSegment())
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

// actHeld processes a segment of a held message.
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
	before, overShare := len(r.held), r.overShare
	c.deliverAll()
	// A receive that was posted to a shared queue before the connection was on its list
	// has woken no connection.
	for s := c.qp.srq; len(r.held) > 0 && s != nil && !c.over(); c.deliverAll() {
		s.wait(c, r.headWhole())
		posted := s.q.posted() > 0
		if r.overShare = posted && !r.headWhole() && !s.mayBegin(c.host); r.overShare || !posted {
			break
		}
	}
	c.heldCount.Store(int32(len(r.held)))
	switch {
	case len(r.held) == 0:
		r.held = nil
		c.unreserve()
		c.stopRNR()
	case r.overShare:
		c.stopRNR()
	case overShare: // there are no receives any more
		if wait, ok := c.holdTime(); ok {
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
	if midway := r.placed && !r.bound && isSend(r.seg.Op); !midway && !c.closed.Load() {
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
