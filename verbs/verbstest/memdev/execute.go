package memdev

import (
	"encoding/binary"
	"time"

	"cinnabar/internal/hostmem"
	"cinnabar/verbs/driver"
)

// verdict is what carrying out one request came to.
type verdict struct {
	status driver.WCStatus
	wait   bool   // nothing was done: the peer has no receive posted
	n      uint32 // bytes read
}

// run carries out queued requests in order until one must wait. The caller holds mu.
func (q *qp) run() {
	if q.state == driver.StateErr {
		q.flushSend()
		return
	}
	if q.busy { // a peer's receive was posted by what we are doing
		return
	}
	q.busy = true
	defer func() { q.busy = false }()
	for q.state == driver.StateRTS && q.sq.count > 0 {
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
	failed := v.status != driver.StatusSuccess
	if failed || q.init.SignalAll || w.Flags&driver.Signaled != 0 {
		q.complete(driver.WC{ID: w.ID, Status: v.status, Op: sendOps[w.Op], Len: v.n, QPNum: q.num})
	} else {
		q.sq.silent++
	}
	if failed {
		q.fail(&driver.StatusError{ID: w.ID, Status: v.status, QPNum: q.num})
	}
}

var sendOps = map[driver.Opcode]driver.WCOp{
	driver.OpWrite: driver.WCWrite, driver.OpWriteImm: driver.WCWrite,
	driver.OpSend: driver.WCSend, driver.OpSendImm: driver.WCSend, driver.OpSendInvalidate: driver.WCSend,
	driver.OpRead: driver.WCRead, driver.OpCompareSwap: driver.WCCompareSwap, driver.OpFetchAdd: driver.WCFetchAdd,
}

// startTimer bounds the wait for a receive as the retry count asks.
func (q *qp) startTimer() {
	if q.attr.RNRRetry == driver.MaxRNRRetry || q.rnr != nil {
		return
	}
	wait := time.Duration(q.attr.RNRRetry) * driver.RNRDelay(q.peer.attr.MinRNRTimer)
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
	case driver.OpRead:
		return q.read(w)
	case driver.OpCompareSwap, driver.OpFetchAdd:
		return q.atomic(w)
	default: // the others send a payload
	}
	src, ok := q.payload(w)
	if !ok {
		return verdict{status: driver.StatusLocProtErr}
	}
	if w.Op == driver.OpWrite {
		return verdict{status: q.write(w, src)}
	}
	r := q.peer.receives()
	if r.count == 0 {
		return q.notReady()
	}
	if w.Op == driver.OpWriteImm {
		return verdict{status: q.writeImm(w, src)}
	}
	return verdict{status: q.send(w, src)}
}

// notReady waits for a receive, or gives up.
func (q *qp) notReady() verdict {
	if q.attr.RNRRetry == 0 || q.late {
		return verdict{status: driver.StatusRNRRetryExcErr}
	}
	return verdict{wait: true}
}

// payload is what the request sends.
func (q *qp) payload(w *sendWR) ([][]byte, bool) {
	if w.Flags&driver.Inline != 0 {
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
func (q *qp) target(r driver.RemoteAddr, n int, need driver.Access) ([]byte, bool) {
	p := q.peer
	b, ok := p.pd.remote(r, uint64(n), need)
	if n > 0 && p.attr.Access&need != need {
		ok = false
	}
	if !ok {
		p.device().raise(driver.AsyncEvent{Type: driver.EventQPAccessErr, Context: p.init.Context, QPNum: p.num})
	}
	return b, ok
}

func (q *qp) write(w *sendWR, src [][]byte) driver.WCStatus {
	dst, ok := q.target(w.Remote, total(src), driver.RemoteWrite)
	if !ok {
		return driver.StatusRemAccessErr
	}
	gather(dst, src)
	return driver.StatusSuccess
}

func (q *qp) writeImm(w *sendWR, src [][]byte) driver.WCStatus {
	if st := q.write(w, src); st != driver.StatusSuccess {
		return st
	}
	wc := driver.WC{Op: driver.WCRecvRDMAImm, HasImm: true, Imm: w.Imm, Len: uint32(total(src))}
	q.peer.received(wc, w.Flags&driver.Solicited != 0)
	return driver.StatusSuccess
}

// received completes the peer's oldest receive with wc.
func (q *qp) received(wc driver.WC, solicited bool) {
	r := q.receives()
	wc.ID, wc.QPNum = r.pop(), q.num
	q.recvCQ().add(cqe{wc: wc, used: &r.used, n: 1}, solicited)
	if q.srq != nil {
		q.srq.checkLimit()
	}
}

func (q *qp) send(w *sendWR, src [][]byte) driver.WCStatus {
	p := q.peer
	dst, ok := p.pd.local(&p.device().dst, p.receives().front().SGL, driver.LocalWrite)
	if !ok {
		p.received(driver.WC{Status: driver.StatusLocProtErr}, true)
		return driver.StatusRemOpErr
	}
	if total(dst) < total(src) {
		p.received(driver.WC{Status: driver.StatusLocLenErr}, true)
		return driver.StatusRemInvReqErr
	}
	if w.Op == driver.OpSendInvalidate && !p.invalidate(w.InvKey) {
		p.received(driver.WC{Status: driver.StatusLocProtErr}, true)
		return driver.StatusRemAccessErr
	}
	wc := driver.WC{Op: driver.WCRecv, Len: uint32(scatter(dst, flatten(src)))}
	switch w.Op {
	case driver.OpSendImm:
		wc.HasImm, wc.Imm = true, w.Imm
	case driver.OpSendInvalidate:
		wc.HasInv, wc.InvKey = true, w.InvKey
	default: // a plain send
	}
	p.received(wc, w.Flags&driver.Solicited != 0)
	return driver.StatusSuccess
}

// invalidate revokes a remote key of the queue pair's domain, if its region grants that.
func (q *qp) invalidate(key uint32) bool {
	m := q.device().regions[key]
	if m == nil || m.rkey != key || m.pd != q.pd || m.revoked || m.access&driver.RemoteInvalidate == 0 {
		return false
	}
	m.revoked = true
	return true
}

func (q *qp) read(w *sendWR) verdict {
	dst, ok := q.pd.local(&q.device().dst, w.SGL, driver.LocalWrite)
	if !ok {
		return verdict{status: driver.StatusLocProtErr}
	}
	src, ok := q.target(w.Remote, total(dst), driver.RemoteRead)
	if !ok {
		return verdict{status: driver.StatusRemAccessErr}
	}
	return verdict{n: uint32(scatter(dst, src))}
}

// atomic runs an atomic operation; the old value lands in host byte order.
func (q *qp) atomic(w *sendWR) verdict {
	dst, ok := q.pd.local(&q.device().dst, w.SGL, driver.LocalWrite)
	if !ok {
		return verdict{status: driver.StatusLocProtErr}
	}
	word, ok := q.target(w.Remote, 8, driver.RemoteAtomic)
	if !ok {
		return verdict{status: driver.StatusRemAccessErr}
	}
	var old uint64
	if w.Op == driver.OpCompareSwap {
		old, ok = hostmem.CompareAndSwap64(word, w.CompareAdd, w.Swap)
	} else {
		old, ok = hostmem.Add64(word, w.CompareAdd)
	}
	if !ok {
		return verdict{status: driver.StatusRemInvReqErr}
	}
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], old)
	return verdict{n: uint32(scatter(dst, b[:]))}
}
