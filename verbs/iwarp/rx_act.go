package iwarp

import (
	"encoding/binary"
	"fmt"
	"runtime/debug"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostmem"
	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
)

// act processes a complete and checked FPDU. False means that the connection is over.
//
// +checklocks:c.rxMu
func (c *conn) act() bool {
	r := &c.rx
	switch r.seg.Op {
	case rdmap.OpWrite:
		if r.seg.Last {
			r.writeLen = r.seg.Offset + uint32(r.seg.Payload)
		}
		return true
	case rdmap.OpReadResponse:
		return c.actResponse()
	case rdmap.OpReadRequest, rdmap.OpAtomicRequest:
		return c.actRequest()
	case rdmap.OpAtomicResponse:
		return c.actAtomicResponse()
	case rdmap.OpImmediate, rdmap.OpImmediateSE:
		return c.actImmediate()
	case rdmap.OpTerminate:
		c.rxStats.terminates++
		t, swapped, n := r.recv.ParseTerminate(r.ctl[:r.seg.Payload])
		c.fail(terminated(t, swapped, n, c.dev.cfg))
		return false
	default: // the four kinds of Send; rdmap.Receiver lets nothing else pass
		return c.actSend()
	}
}

// actSend takes a segment of a Send into account and completes the message.
//
// +checklocks:c.rxMu
func (c *conn) actSend() bool {
	r := &c.rx
	r.msgOff += uint32(r.seg.Payload)
	if !r.bound {
		return c.actHeld()
	}
	r.curSegs = advanceSegs(r.curSegs, r.seg.Payload)
	if !r.seg.Last {
		return true
	}
	m := heldMsg{op: r.seg.Op, head: r.seg.Header, size: r.seg.Payload, inv: r.seg.Header.Rsvd, imm: r.imm, hasImm: r.immNext, len: r.msgOff}
	r.ahead.note(r.seg.First)
	r.immNext, r.msgOff, r.bound = false, 0, false
	return c.completeSend(m)
}

// completeSend reports a Send that is whole in the receive in use.
//
// +checklocks:c.rxMu
func (c *conn) completeSend(m heldMsg) bool {
	wc := verbs.WC{ID: c.rx.cur.id, Op: verbs.WCRecv, Len: m.len, Imm: m.imm, HasImm: m.hasImm}
	if m.op.Invalidates() {
		if bad := c.dev.keys.invalidate(c, m.inv); bad != protectionOK {
			t := rdmap.TermCannotInvalidate.ForSegment(m.head, m.size)
			t.Detail = fmt.Sprintf("key %#x cannot be invalidated: %s", m.inv, bad)
			c.addRecv(verbs.WC{ID: wc.ID, Status: verbs.StatusLocQPOpErr, Op: verbs.WCRecv}, false)
			c.deny(bad, m.inv, &t)
			return false
		}
		c.dev.trail.Record(audit.Invalidated, "Send with Invalidate", c.host, c.logAttr())
		wc.HasInv, wc.InvKey = true, m.inv
	}
	c.addRecv(wc, m.op.Solicited())
	return true
}

// actImmediate handles immediate data: that of a write completes a receive, a
// marked one waits for its Send.
//
// +checklocks:c.rxMu
func (c *conn) actImmediate() bool {
	r := &c.rx
	imm := binary.BigEndian.Uint32(r.ctl[:])
	if binary.BigEndian.Uint32(r.ctl[4:]) == sendImmMark {
		r.imm, r.immNext = imm, true
		return true
	}
	m := heldMsg{op: r.seg.Op, head: r.seg.Header, size: r.seg.Payload, imm: imm, hasImm: true, len: r.writeLen, complete: true}
	r.writeLen = 0
	if len(r.held) == 0 && c.takeRecv(true) {
		return c.completeImmediate(m)
	}
	if !c.hold(m, 0) { // only when the receiver is not to wait: the connection has failed
		return false
	}
	c.tryHeld()
	return !c.over()
}

// +checklocks:c.rxMu
func (c *conn) completeImmediate(m heldMsg) bool {
	if !c.fits(0) {
		return false
	}
	c.addRecv(verbs.WC{ID: c.rx.cur.id, Op: verbs.WCRecvRDMAImm, Len: m.len, Imm: m.imm, HasImm: true}, m.op.Solicited())
	return true
}

// actResponse takes a segment of a read response into account.
//
// +checklocks:c.rxMu
func (c *conn) actResponse() bool {
	r := &c.rx
	c.qp.mu.Lock()
	op := c.reads.front()
	op.got += uint32(r.seg.Payload)
	short := r.seg.Last && op.got < op.size
	if r.seg.Last && !short {
		c.answeredLocked(op)
	}
	c.qp.mu.Unlock()
	if short {
		t := rdmap.TermDDPBaseBounds.ForSegment(r.seg.Header, r.seg.Payload)
		t.Detail = "a read response shorter than the read request"
		c.refuse(refused(&t).failOldest(verbs.StatusBadRespErr))
	}
	return !short
}

// answeredLocked retires the request at the front when its response is complete.
//
// +checklocks:c.rxMu
// +checklocks:c.qp.mu
func (c *conn) answeredLocked(op *readOp) {
	if op.w != nil {
		op.w.pending--
	}
	c.reads.pop()
	c.qp.retireLocked()
	c.rx.completed = true
	c.txWant.Store(true) // a request may have waited for this: fence, ORD, disconnect
}

// +checklocks:c.rxMu
func (c *conn) actRequest() bool {
	r := &c.rx
	payload := r.ctl[:r.seg.Payload]
	switch {
	case len(r.held) > 0:
		return c.holdRequest()
	case r.seg.Op == rdmap.OpReadRequest:
		return c.readRequested(r.seg.Header, payload)
	}
	return c.atomicRequested(r.seg.Header, payload)
}

func requestLen(r response) int {
	if r.isAtomic {
		return rdmap.AtomicRequestLen
	}
	return rdmap.ReadRequestLen
}

// readRequested answers a Read Request.
//
// +checklocks:c.rxMu
func (c *conn) readRequested(h ddp.Header, payload []byte) bool {
	req, _ := rdmap.ParseReadRequest(payload) // Receiver has checked the length
	resp := response{read: req, head: h}
	if req.Size > 0 {
		m, off, bad := c.remoteRange(req.SourceSTag, req.SourceTO, uint64(req.Size), verbs.RemoteRead)
		if bad != protectionOK {
			t := readCauses[bad].ForReadRequest(h, len(payload), req)
			c.deny(bad, req.SourceSTag, &t)
			return false
		}
		resp.m, resp.off = m, off
	}
	return c.queueResponse(resp)
}

// queueResponse queues a response to the peer.
//
// +checklocks:c.rxMu
func (c *conn) queueResponse(resp response) bool {
	if !c.responses.push(resp, c.ird) {
		t := rdmap.TermDDPNoBuffer.ForSegment(resp.head, requestLen(resp))
		t.Detail = fmt.Sprintf("more than %d reads and atomics are outstanding", c.ird)
		c.refuse(refused(&t))
		return false
	}
	c.txWant.Store(true)
	return true
}

// atomicRequested performs an Atomic Request and answers it.
//
// +checklocks:c.rxMu
func (c *conn) atomicRequested(h ddp.Header, payload []byte) bool {
	req, _ := rdmap.ParseAtomicRequest(payload) // Receiver has checked the length
	m, off, bad := c.remoteRange(req.STag, req.TO, rdmap.AtomicLen, verbs.RemoteAtomic)
	if bad == protectionOK && !m.enter() {
		bad = badSTag
	}
	if bad != protectionOK {
		t := readCauses[bad].ForSegment(h, len(payload))
		c.deny(bad, req.STag, &t)
		return false
	}
	original, ok, there := uint64(0), req.Op.Valid(), true
	if ok {
		b := m.buf[off : off+rdmap.AtomicLen]
		exposed.beginWrite(m, spanOf(b))
		original, ok, there = c.dev.apply(b, req)
		exposed.endWrite(m)
	}
	m.exit()
	if !there {
		c.placeGone()
		return false
	}
	if !ok {
		t := rdmap.TermCatastrophic.ForSegment(h, len(payload))
		t.Detail = fmt.Sprintf("%s at %#x: not an operation on 8 aligned bytes", req.Op, req.TO)
		c.refuse(refused(&t))
		return false
	}
	return c.queueResponse(response{head: h, isAtomic: true, id: req.RequestID, original: original})
}

// apply performs an atomic operation on b with the processor's instructions, so
// that it is atomic against programs too. Operations with masks are loops of
// compare-and-swap. there is false if the memory is not there.
func (d *device) apply(b []byte, req rdmap.AtomicRequest) (original uint64, ok, there bool) {
	defer unguard(debug.SetPanicOnFault(true), &there)
	for {
		old, ok := hostmem.Load64(b)
		if !ok {
			return 0, false, true
		}
		seen, _ := hostmem.CompareAndSwap64(b, old, req.Apply(old))
		if seen == old {
			return old, true, true
		}
	}
}

// +checklocks:c.rxMu
func (c *conn) actAtomicResponse() bool {
	r := &c.rx
	resp, _ := rdmap.ParseAtomicResponse(r.ctl[:r.seg.Payload])
	c.qp.mu.Lock()
	op := c.reads.front()
	match := op != nil && op.isAtomic && op.id == resp.RequestID
	var segs []seg
	if match {
		segs = op.w.segs
	}
	c.qp.mu.Unlock()
	if !match {
		t := rdmap.TermCatastrophic.ForSegment(r.seg.Header, r.seg.Payload)
		t.Detail = "an atomic response without an atomic request"
		c.refuse(refused(&t).failOldest(verbs.StatusBadRespErr))
		return false
	}
	var value [8]byte
	binary.NativeEndian.PutUint64(value[:], resp.Original)
	if !scatter(segs, value[:]) {
		t := rdmap.TermLocalCatastrophic.Terminate()
		t.Detail = "the atomic's region was deregistered"
		c.refuse(refused(&t).failOldest(verbs.StatusLocProtErr))
		return false
	}
	c.qp.mu.Lock()
	c.answeredLocked(c.reads.front())
	c.qp.mu.Unlock()
	return true
}

// scatter copies b into segs. False means that a region is closed, or that a mapping cannot be written any more.
func scatter(segs []seg, b []byte) bool {
	for _, s := range segs {
		if len(b) == 0 {
			break
		}
		if !s.m.enter() {
			return false
		}
		n, ok := copyGuarded(s.bytes(), b)
		s.m.exit()
		if !ok {
			return false
		}
		b = b[n:]
	}
	return true
}
