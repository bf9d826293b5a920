package memdev

import (
	"encoding/binary"
	"time"

	"cinnabar/internal/hostmem"
	"cinnabar/verbs"
)

// verdict is the result of carrying out one request.
type verdict struct {
	status verbs.WCStatus
	wait   bool   // nothing was done: the peer has no receive posted
	n      uint32 // bytes read
}

// run carries out queued requests in order until one must wait. The caller holds mu.
func (q *qp) run() {
	if q.state == verbs.StateErr {
		q.flushSend()
		return
	}
	if q.busy { // a peer's receive was posted by the request under way
		return
	}
	q.busy = true
	defer func() { q.busy = false }()
	for q.state == verbs.StateRTS && q.sq.count > 0 {
		v := q.execute(q.sq.front())
		if v.wait {
			q.startTimer()
			return
		}
		q.stopTimer()
		q.finish(v)
	}
}

// finish completes the request at the head and fails the queue pair if it failed.
func (q *qp) finish(v verdict) {
	w := q.sq.front()
	q.sq.pop()
	failed := v.status != verbs.StatusSuccess
	if failed || q.init.SignalAll || w.Flags&verbs.Signaled != 0 {
		q.complete(verbs.WC{ID: w.ID, Status: v.status, Op: sendOps[w.Op], Len: v.n, QPNum: q.num})
	} else {
		q.sq.silent++
	}
	if failed {
		q.fail(&verbs.StatusError{ID: w.ID, Status: v.status, QPNum: q.num})
	}
}

var sendOps = map[verbs.Opcode]verbs.WCOp{
	verbs.OpWrite: verbs.WCWrite, verbs.OpWriteImm: verbs.WCWrite,
	verbs.OpSend: verbs.WCSend, verbs.OpSendImm: verbs.WCSend, verbs.OpSendInvalidate: verbs.WCSend,
	verbs.OpRead: verbs.WCRead, verbs.OpCompareSwap: verbs.WCCompareSwap, verbs.OpFetchAdd: verbs.WCFetchAdd,
}

// startTimer bounds the wait for a receive as the retry count asks.
func (q *qp) startTimer() {
	if q.attr.RNRRetry == verbs.MaxRNRRetry || q.rnr != nil {
		return
	}
	wait := time.Duration(q.attr.RNRRetry) * verbs.RNRDelay(q.peer.attr.MinRNRTimer)
	var timer *time.Timer
	timer = time.AfterFunc(wait, func() {
		q.pd.dev.mu.Lock()
		defer q.pd.dev.mu.Unlock()
		if q.rnr == timer {
			q.late = true
			q.run()
		}
	})
	q.rnr = timer
}

func (q *qp) stopTimer() {
	if q.rnr != nil {
		q.rnr.Stop()
		q.rnr = nil
	}
	q.late = false
}

// execute carries out one request.
func (q *qp) execute(w *sendWR) verdict {
	switch w.Op {
	case verbs.OpRead:
		return q.read(w)
	case verbs.OpCompareSwap, verbs.OpFetchAdd:
		return q.atomic(w)
	default: // the others send a payload
	}
	src, ok := q.payload(w)
	if !ok {
		return verdict{status: verbs.StatusLocProtErr}
	}
	if w.Op == verbs.OpWrite {
		return verdict{status: q.write(w, src)}
	}
	r := q.peer.receives()
	if r.count == 0 {
		return q.notReady()
	}
	if w.Op == verbs.OpWriteImm {
		return verdict{status: q.writeImm(w, src)}
	}
	return verdict{status: q.send(w, src)}
}

// notReady waits for a receive, or gives up.
func (q *qp) notReady() verdict {
	if q.attr.RNRRetry == 0 || q.late {
		return verdict{status: verbs.StatusRNRRetryExcErr}
	}
	return verdict{wait: true}
}

// payload returns the bytes that the request sends.
func (q *qp) payload(w *sendWR) ([][]byte, bool) {
	if w.Flags&verbs.Inline != 0 {
		src := &q.device().src
		*src = append((*src)[:0], w.inline)
		return *src, true
	}
	return q.pd.local(&q.device().src, w.SGL, 0)
}

// receives is the queue that inbound messages take from.
func (q *qp) receives() *recvQueue {
	if q.srq != nil {
		return &q.srq.queue
	}
	return &q.rq
}

// target resolves memory at the peer and reports a violation there.
func (q *qp) target(r verbs.RemoteAddr, n int, need verbs.Access) ([]byte, bool) {
	p := q.peer
	b, ok := p.pd.remote(r, uint64(n), need)
	if n > 0 && p.attr.Access&need != need {
		ok = false
	}
	if !ok {
		p.device().raise(verbs.DeviceEvent{Type: verbs.EventQPAccessErr, Context: p.init.Context, QPNum: p.num})
	}
	return b, ok
}

func (q *qp) write(w *sendWR, src [][]byte) verbs.WCStatus {
	dst, ok := q.target(w.Remote, total(src), verbs.RemoteWrite)
	if !ok {
		return verbs.StatusRemAccessErr
	}
	gather(dst, src)
	return verbs.StatusSuccess
}

func (q *qp) writeImm(w *sendWR, src [][]byte) verbs.WCStatus {
	if st := q.write(w, src); st != verbs.StatusSuccess {
		return st
	}
	wc := verbs.WC{Op: verbs.WCRecvRDMAImm, HasImm: true, Imm: w.Imm, Len: uint32(total(src))}
	q.peer.received(wc, w.Flags&verbs.Solicited != 0)
	return verbs.StatusSuccess
}

// received completes the peer's oldest receive with wc.
func (q *qp) received(wc verbs.WC, solicited bool) {
	r := q.receives()
	wc.ID, wc.QPNum = r.pop(), q.num
	q.recvCQ().add(cqe{wc: wc, used: &r.used, n: 1}, solicited)
	if q.srq != nil {
		q.srq.checkLimit()
	}
}

func (q *qp) send(w *sendWR, src [][]byte) verbs.WCStatus {
	p := q.peer
	dst, ok := p.pd.local(&p.device().dst, p.receives().front().SGL, verbs.LocalWrite)
	if !ok {
		p.received(verbs.WC{Status: verbs.StatusLocProtErr}, true)
		return verbs.StatusRemOpErr
	}
	if total(dst) < total(src) {
		p.received(verbs.WC{Status: verbs.StatusLocLenErr}, true)
		return verbs.StatusRemInvReqErr
	}
	if w.Op == verbs.OpSendInvalidate && !p.invalidate(w.InvKey) {
		p.received(verbs.WC{Status: verbs.StatusLocProtErr}, true)
		return verbs.StatusRemAccessErr
	}
	wc := verbs.WC{Op: verbs.WCRecv, Len: uint32(scatter(dst, flatten(src)))}
	switch w.Op {
	case verbs.OpSendImm:
		wc.HasImm, wc.Imm = true, w.Imm
	case verbs.OpSendInvalidate:
		wc.HasInv, wc.InvKey = true, w.InvKey
	default: // a plain send
	}
	p.received(wc, w.Flags&verbs.Solicited != 0)
	return verbs.StatusSuccess
}

// invalidate revokes a remote key of the queue pair's domain, if its region grants that.
func (q *qp) invalidate(key uint32) bool {
	m := q.device().regions[key]
	if m == nil || m.rkey != key || m.pd != q.pd || m.revoked || m.access&verbs.RemoteInvalidate == 0 {
		return false
	}
	m.revoked = true
	return true
}

func (q *qp) read(w *sendWR) verdict {
	dst, ok := q.pd.local(&q.device().dst, w.SGL, verbs.LocalWrite)
	if !ok {
		return verdict{status: verbs.StatusLocProtErr}
	}
	src, ok := q.target(w.Remote, total(dst), verbs.RemoteRead)
	if !ok {
		return verdict{status: verbs.StatusRemAccessErr}
	}
	return verdict{n: uint32(scatter(dst, src))}
}

// atomic runs an atomic operation; the old value lands in host byte order.
func (q *qp) atomic(w *sendWR) verdict {
	dst, ok := q.pd.local(&q.device().dst, w.SGL, verbs.LocalWrite)
	if !ok {
		return verdict{status: verbs.StatusLocProtErr}
	}
	word, ok := q.target(w.Remote, 8, verbs.RemoteAtomic)
	if !ok {
		return verdict{status: verbs.StatusRemAccessErr}
	}
	var old uint64
	if w.Op == verbs.OpCompareSwap {
		old, ok = hostmem.CompareAndSwap64(word, w.CompareAdd, w.Swap)
	} else {
		old, ok = hostmem.Add64(word, w.CompareAdd)
	}
	if !ok {
		return verdict{status: verbs.StatusRemInvReqErr}
	}
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], old)
	return verdict{n: uint32(scatter(dst, b[:]))}
}
