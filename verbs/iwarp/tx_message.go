package iwarp

import (
	"encoding/binary"
	"slices"
	"time"

	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
)

// sendImmMark is the second word of the Immediate Data message that belongs to the
// Send behind it (docs/adr/0005). RFC 7306 leaves all 8 octets to the user.
const sendImmMark = 0x53494d44 // "SIMD": send immediate data

// nextMessageLocked starts the next message: responses and requests in turn, so
// that neither starves the other.
//
// +checklocks:c.txMu
func (c *conn) nextMessageLocked() bool {
	t := &c.tx
	if !c.canSend.Load() {
		return false
	}
	if c.draining.Load() != nil {
		return c.nextResponseLocked()
	}
	if t.w != nil {
		// Responses wait behind all messages of a request, except where its next message
		// waits for a response: that of the peer may wait for ours.
		return c.nextRequestLocked() || c.nextResponseLocked()
	}
	if !c.closing.Load() && c.resendRTR.Swap(false) {
		t.begin()
		t.msg.h = emptyWrite
		return true
	}
	if t.turn = !t.turn; t.turn {
		return c.nextResponseLocked() || c.nextRequestLocked()
	}
	return c.nextRequestLocked() || c.nextResponseLocked()
}

// +checklocks:c.txMu
func (c *conn) nextResponseLocked() bool {
	r, ok := c.responses.next()
	if !ok {
		return false
	}
	m := c.tx.begin()
	m.end = txMark{response: true}
	if r.isAtomic {
		c.untagged(rdmap.OpAtomicResponse, ddp.QNAtomicResponse, 0)
		m.ctl = rdmap.AppendAtomicResponse(m.ctlBuf[:0], rdmap.AtomicResponse{RequestID: r.id, Original: r.original})
		m.left = len(m.ctl)
		return true
	}
	m.resp = r
	m.h = ddp.Header{Tagged: true, Version: ddp.Version, ULP: rdmap.Control(rdmap.OpReadResponse), STag: r.read.SinkSTag, TO: r.read.SinkTO}
	m.left = int(r.read.Size)
	if r.m != nil {
		m.segs = append(m.own[:0], seg{m: r.m, off: r.off, n: int(r.read.Size)})
	}
	return true
}

// begin clears the message for a new one.
func (t *txState) begin() *txMsg {
	m := &t.msg
	m.active = true
	m.h, m.segs, m.raw, m.ctl, m.left, m.end = ddp.Header{}, nil, nil, nil, 0, txMark{}
	m.size, m.same = 0, 0
	return m
}

// untagged gives the message the header of an untagged one.
//
// +checklocks:c.txMu
func (c *conn) untagged(op rdmap.Opcode, qn, rsvd uint32) {
	c.tx.msg.h = ddp.Header{Version: ddp.Version, ULP: rdmap.Control(op), Rsvd: rsvd, QN: qn, MSN: c.tx.msns.Next(qn)}
}

// nextRequestLocked starts the next message of the send queue. A request is one
// message or several:
//
//	write            Write
//	write with imm   Write, Immediate Data
//	send             Send (plain, SE, Invalidate)
//	send with imm    marked Immediate Data, Send
//	read             a Read Request for each scatter entry
//	atomic           Atomic Request
//	confirmation     behind a signaled write or send: a Read Request for 0 bytes
//
// +checklocks:c.txMu
func (c *conn) nextRequestLocked() bool {
	t := &c.tx
	if t.w == nil && c.qp.unsent.Load() == 0 {
		return false
	}
	c.qp.mu.Lock()
	defer c.qp.mu.Unlock()
	if t.w == nil && !c.openRequestLocked() {
		return false
	}
	return c.stepLocked(t.w)
}

// openRequestLocked takes the next request off the send queue, if it may start.
//
// +checklocks:c.txMu
// +checklocks:c.qp.mu
func (c *conn) openRequestLocked() bool {
	t, p := &c.tx, c.qp
	c.runLocalLocked()
	if p.state != verbs.StateRTS || p.sq.next == p.sq.head {
		return false
	}
	w := p.sq.at(p.sq.next)
	if w.flags&verbs.Fence != 0 && c.reads.count > 0 {
		return false
	}
	if w.status == verbs.StatusSuccess && anyClosed(w.segs) {
		w.status = verbs.StatusLocProtErr
	}
	if w.status != verbs.StatusSuccess {
		// PostSend has found the error. The requests before this one are completed first.
		if p.sq.tail == p.sq.next && t.queued == t.written {
			c.fail(&failure{quiet: true, err: verbs.Errorf("post send", verbs.ErrInvalid,
				"work request %d: %s: %s", w.id, w.status, w.status.Cause())})
		}
		return false
	}
	p.sq.next++
	p.countUnsentLocked()
	t.w, t.step = w, 0
	return true
}

// anyClosed reports whether a region of segs has been deregistered.
func anyClosed(segs []seg) bool {
	return slices.ContainsFunc(segs, func(s seg) bool { return s.m.users.Closed() })
}

// steps returns how many messages the request itself has.
func (w *sendWQE) steps() int {
	switch w.op {
	case verbs.OpWriteImm, verbs.OpSendImm:
		return 2
	case verbs.OpRead:
		return max(len(w.segs), 1)
	default:
		return 1
	}
}

// confirmed reports whether a zero-length read follows w.
func (c *conn) confirmed(w *sendWQE) bool {
	return c.dev.cfg.ConfirmWrites && w.flags&verbs.Signaled != 0 && !needsAnswer(w.op) && !isLocal(w.op)
}

// stepLocked starts message t.step of request w.
//
// +checklocks:c.txMu
// +checklocks:c.qp.mu
func (c *conn) stepLocked(w *sendWQE) bool {
	t := &c.tx
	steps := w.steps()
	confirm := t.step == steps
	if (confirm || needsAnswer(w.op)) && c.reads.count >= c.ord {
		return false // until an answer comes
	}
	m := t.begin()
	switch {
	case confirm:
		c.readRequest(w, readOp{w: w}, 0, 0)
	case w.op == verbs.OpWrite || w.op == verbs.OpWriteImm && t.step == 0:
		m.h = ddp.Header{Tagged: true, Version: ddp.Version, ULP: rdmap.Control(rdmap.OpWrite), STag: w.remote.RKey, TO: w.remote.Addr}
		c.payloadOf(w)
	case w.op == verbs.OpWriteImm:
		c.immediate(w, 0)
	case w.op == verbs.OpSendImm && t.step == 0:
		c.immediate(w, sendImmMark)
	case w.op == verbs.OpRead:
		c.readPiece(w, t.step)
	case isAtomic(w.op):
		c.atomicRequest(w)
	default:
		c.untagged(sendOpcode(w), ddp.QNSend, invalidated(w))
		c.payloadOf(w)
	}
	t.step++
	if t.step == steps && !c.confirmed(w) || confirm {
		m.end.w, t.w = w, nil
	}
	return true
}

func sendOpcode(w *sendWQE) rdmap.Opcode {
	se := w.flags&verbs.Solicited != 0
	switch {
	case w.op == verbs.OpSendInvalidate && se:
		return rdmap.OpSendSEInvalidate
	case w.op == verbs.OpSendInvalidate:
		return rdmap.OpSendInvalidate
	case se:
		return rdmap.OpSendSE
	}
	return rdmap.OpSend
}

func invalidated(w *sendWQE) uint32 {
	if w.op == verbs.OpSendInvalidate {
		return w.invKey
	}
	return 0
}

// payloadOf gives the message the payload of w.
//
// +checklocks:c.txMu
func (c *conn) payloadOf(w *sendWQE) {
	m := &c.tx.msg
	m.left = int(w.total)
	if w.flags&verbs.Inline != 0 {
		m.raw = w.inline
		return
	}
	m.segs = append(m.own[:0], w.segs...)
}

// immediate makes the message an Immediate Data message: our 32 bits first, in
// network order, and a mark.
//
// +checklocks:c.txMu
func (c *conn) immediate(w *sendWQE, mark uint32) {
	op := rdmap.OpImmediate
	if w.flags&verbs.Solicited != 0 && mark == 0 {
		op = rdmap.OpImmediateSE
	}
	c.untagged(op, ddp.QNSend, 0)
	m := &c.tx.msg
	m.ctl = binary.BigEndian.AppendUint32(m.ctlBuf[:0], w.imm)
	m.ctl = binary.BigEndian.AppendUint32(m.ctl, mark)
	m.left = len(m.ctl)
}

// readPiece makes the message the Read Request for one scatter entry of w.
//
// +checklocks:c.txMu
func (c *conn) readPiece(w *sendWQE, i int) {
	r := readOp{w: w}
	var skip uint64
	if len(w.segs) > 0 {
		for _, s := range w.segs[:i] {
			skip += uint64(s.n)
		}
		s := w.segs[i]
		r.sink, r.stag, r.to, r.size = s, s.m.lkey, s.m.iova+uint64(s.off), uint32(s.n)
	}
	c.readRequest(w, r, w.remote.RKey, w.remote.Addr+skip)
}

// readRequest makes the message a Read Request and expects its answer.
//
// +checklocks:c.txMu
func (c *conn) readRequest(w *sendWQE, r readOp, source uint32, to uint64) {
	c.untagged(rdmap.OpReadRequest, ddp.QNReadRequest, 0)
	m := &c.tx.msg
	m.ctl = rdmap.AppendReadRequest(m.ctlBuf[:0], rdmap.ReadRequest{
		SinkSTag: r.stag, SinkTO: r.to, Size: r.size, SourceSTag: source, SourceTO: to})
	m.left = len(m.ctl)
	if w != nil {
		w.pending++
	}
	c.reads.push(r)
}

// atomicRequest makes the message an Atomic Request and expects its answer.
//
// +checklocks:c.txMu
func (c *conn) atomicRequest(w *sendWQE) {
	c.untagged(rdmap.OpAtomicRequest, ddp.QNReadRequest, 0)
	c.reads.ids++
	id := c.reads.ids
	req := rdmap.FetchAdd(id, w.remote.RKey, w.remote.Addr, w.compareAdd)
	if w.op == verbs.OpCompareSwap {
		req = rdmap.CmpSwap(id, w.remote.RKey, w.remote.Addr, w.compareAdd, w.swap)
	}
	m := &c.tx.msg
	m.ctl = rdmap.AppendAtomicRequest(m.ctlBuf[:0], req)
	m.left = len(m.ctl)
	w.pending++
	c.reads.push(readOp{w: w, isAtomic: true, id: id, size: 8})
}

// emptyWrite is a Write of nothing to nowhere, which needs no region at the peer.
var emptyWrite = ddp.Header{Tagged: true, Version: ddp.Version, ULP: rdmap.Control(rdmap.OpWrite)}

// resendDelays are the times without a message of the peer after which the opening message
// is sent again. Linux's siw sends its MPA reply before it listens for data: data that
// arrives in between stays unread until more data arrives, which may be never.
var resendDelays = [...]time.Duration{10 * time.Millisecond, 100 * time.Millisecond, time.Second}

// resendRTRLater sends an empty write after each of the delays, until a message of the peer arrives.
func (c *conn) resendRTRLater(delays []time.Duration) {
	if len(delays) == 0 {
		return
	}
	time.AfterFunc(delays[0], func() {
		if c.received.Load() || c.closing.Load() || c.closed.Load() {
			return
		}
		c.resendRTR.Store(true)
		c.kick()
		c.resendRTRLater(delays[1:])
	})
}

// sendRTR queues the message by which the active side opens a peer-to-peer
// connection (RFC 6581 section 9.2), ahead of anything posted.
func (c *conn) sendRTR(write bool) {
	c.txMu.Lock()
	c.tx.begin()
	if write {
		c.tx.msg.h = emptyWrite
	} else {
		c.qp.mu.Lock()
		c.readRequest(nil, readOp{}, 0, 0)
		c.qp.mu.Unlock()
	}
	c.txMu.Unlock()
	c.kick()
}
