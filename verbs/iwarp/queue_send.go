package iwarp

import (
	"sync/atomic"

	"cinnabar/verbs"
)

// sendWQE is a posted send work request. Its content does not change between
// post and completion; the progress marks are guarded by the queue pair's mu.
type sendWQE struct {
	id         uint64
	op         verbs.Opcode
	flags      verbs.SendFlags
	imm        uint32
	invKey     uint32
	remote     verbs.RemoteAddr
	compareAdd uint64
	swap       uint64
	segs       []seg
	inline     []byte         // the payload of an Inline request, copied
	bind       *binding       // of OpBindMW
	total      uint64         // bytes
	status     verbs.WCStatus // not success: a local error found when it was posted, with which it completes in order

	sent    bool // handed to TCP to the last byte
	pending int  // answers that are due: read responses, atomic responses, confirmations
}

// firstEntries is the number of entries for which a new send queue or completion queue allocates memory, if it is that deep. It allocates more
// when all of them are in use, because most queues never fill.
const firstEntries = 4

// sendQueue is the ring of a queue pair. The counters run on; the index of an entry in the ring is its
// counter modulo the ring's length:
//
//	tail ≤ next ≤ head,   head - tail ≤ len(ring) ≤ depth
//	tail…next   transmitted (or in transmission), not completed
//	next…head   posted, not yet transmitted
//
// The transmitter holds pointers to entries without the lock, so an entry stays where it is when the ring grows.
type sendQueue struct {
	depth, maxSGE, maxInline int

	ring             []*sendWQE
	head, next, tail uint64
	silent           int64        // completed without a completion since the last one
	used             atomic.Int64 // posted and not yet given back by a polled completion
}

func (q *sendQueue) init(depth, maxSGE, inline int) {
	q.depth, q.maxSGE, q.maxInline = depth, maxSGE, inline
	q.grow(min(depth, firstEntries))
}

// grow makes the ring n entries long. The caller must have found no free entry in it.
func (q *sendQueue) grow(n int) {
	old := q.ring
	q.ring = make([]*sendWQE, n)
	for i := q.tail; i < q.head; i++ {
		q.ring[i%uint64(n)] = old[i%uint64(len(old))]
	}
	more := n - len(old)
	entries, segs, bytes := make([]sendWQE, more), make([]seg, more*q.maxSGE), make([]byte, more*q.maxInline)
	for i := range q.ring {
		if q.ring[i] != nil {
			continue
		}
		more--
		w := &entries[more]
		w.segs = segs[more*q.maxSGE : more*q.maxSGE : (more+1)*q.maxSGE]
		w.inline = bytes[more*q.maxInline : more*q.maxInline : (more+1)*q.maxInline]
		q.ring[i] = w
	}
}

// shrink frees all entries but the first ones. No entry may be in use.
func (q *sendQueue) shrink() {
	if n := min(q.depth, firstEntries); len(q.ring) > n {
		q.ring = nil
		q.grow(n)
	}
}

// free returns the free entry at head, and grows the ring if there is none. Fewer than depth entries must be in use.
func (q *sendQueue) free() *sendWQE {
	if q.head-q.tail == uint64(len(q.ring)) {
		q.grow(min(2*len(q.ring), q.depth))
	}
	return q.at(q.head)
}

func (q *sendQueue) at(i uint64) *sendWQE { return q.ring[i%uint64(len(q.ring))] }

// wcOps gives the completion's operation for each opcode.
var wcOps = [...]verbs.WCOp{
	verbs.OpWrite: verbs.WCWrite, verbs.OpWriteImm: verbs.WCWrite, verbs.OpSend: verbs.WCSend,
	verbs.OpSendImm: verbs.WCSend, verbs.OpRead: verbs.WCRead, verbs.OpCompareSwap: verbs.WCCompareSwap,
	verbs.OpFetchAdd: verbs.WCFetchAdd, verbs.OpSendInvalidate: verbs.WCSend,
	verbs.OpLocalInv: verbs.WCLocalInv, verbs.OpBindMW: verbs.WCBindMW,
}

// requiredCaps are the abilities that an opcode needs of the device.
var requiredCaps = [...]verbs.Caps{
	verbs.OpWriteImm: verbs.CapWriteImm, verbs.OpSendImm: verbs.CapSendImm, verbs.OpRead: 0,
	verbs.OpCompareSwap: verbs.CapAtomics, verbs.OpFetchAdd: verbs.CapAtomics,
	verbs.OpSendInvalidate: verbs.CapSendInvalidate, verbs.OpLocalInv: verbs.CapMW2, verbs.OpBindMW: verbs.CapMW2,
}

func isAtomic(op verbs.Opcode) bool {
	return op == verbs.OpCompareSwap || op == verbs.OpFetchAdd
}

// needsAnswer reports whether the operation itself is answered by the peer.
func needsAnswer(op verbs.Opcode) bool { return op == verbs.OpRead || isAtomic(op) }

// checkSend refuses requests that can never be sent. It does not check keys and ranges:
// wrong ones end the queue pair when their turn comes, as on hardware.
//
// +checklocks:q.mu
func (q *qp) checkSend(wr *verbs.SendWR) error {
	const op = "post send"
	if int(wr.Op) >= len(requiredCaps) {
		return verbs.Unsupported(op, "operation %s (%d)", wr.Op, wr.Op)
	}
	if need := requiredCaps[wr.Op]; !q.pd.dev.caps.Has(need) {
		return verbs.Unsupported(op, "%s: this device was opened without %s (see Config.NoImmediates and Config.NoAtomics)", wr.Op, need)
	}
	if isLocal(wr.Op) {
		return q.checkLocal(wr)
	}
	if len(wr.SGL) > q.init.Cap.MaxSendSGE {
		return verbs.Errorf(op, verbs.ErrInvalid, "%d gather entries, the queue pair was made for %d", len(wr.SGL), q.init.Cap.MaxSendSGE)
	}
	var total uint64
	for i := range wr.SGL {
		total += uint64(wr.SGL[i].Length)
	}
	switch {
	case total > maxMessage:
		return verbs.Errorf(op, verbs.ErrInvalid, "a message of %d bytes; the port takes %d at most, split it", total, uint64(maxMessage))
	case wr.Flags&verbs.Inline != 0 && needsAnswer(wr.Op):
		return verbs.Errorf(op, verbs.ErrInvalid, "%s cannot be inline: its memory is written to", wr.Op)
	case wr.Flags&verbs.Inline != 0 && total > uint64(q.init.Cap.MaxInline):
		return verbs.Errorf(op, verbs.ErrInvalid, "%d inline bytes, the queue pair was made for %d", total, q.init.Cap.MaxInline)
	case needsAnswer(wr.Op) && q.conn != nil && q.conn.ord == 0:
		return verbs.Errorf(op, verbs.ErrInvalid, "%s on a connection that allows none; connect with an InitiatorDepth, and ResponderResources at the peer", wr.Op)
	case isAtomic(wr.Op) && total != 8:
		return verbs.Errorf(op, verbs.ErrInvalid, "%s returns 8 bytes, the list has room for %d", wr.Op, total)
	case isAtomic(wr.Op) && wr.Remote.Addr%8 != 0:
		return verbs.Errorf(op, verbs.ErrInvalid, "%s at %#x; the address must be a multiple of 8", wr.Op, wr.Remote.Addr)
	}
	return nil
}

// fill copies wr into w.
func (q *qp) fill(w *sendWQE, wr *verbs.SendWR) {
	w.id, w.op, w.flags = wr.ID, wr.Op, wr.Flags
	w.imm, w.invKey, w.remote = wr.Imm, wr.InvKey, wr.Remote
	w.compareAdd, w.swap = wr.CompareAdd, wr.Swap
	w.sent, w.pending, w.bind = false, 0, nil
	if wr.Op == verbs.OpBindMW {
		w.bind = newBinding(wr)
		wr = &verbs.SendWR{} // the range is looked up when the request's turn comes
	}
	w.segs, w.total, w.status = q.pd.resolve(w.segs[:0], wr.SGL, needsAnswer(wr.Op))
	w.inline = w.inline[:0]
	if q.init.SignalAll {
		w.flags |= verbs.Signaled
	}
	if wr.Flags&verbs.Inline != 0 && w.status == verbs.StatusSuccess {
		q.copyInline(w)
	}
}

// copyInline copies the payload, so that the caller may reuse its memory.
func (q *qp) copyInline(w *sendWQE) {
	for _, s := range w.segs {
		if !s.m.enter() {
			w.status = verbs.StatusLocProtErr
			return
		}
		b, ok := appendGuarded(w.inline, s.bytes())
		s.m.exit()
		if !ok {
			w.status = verbs.StatusLocProtErr
			return
		}
		w.inline = b
	}
	w.segs = w.segs[:0]
}
