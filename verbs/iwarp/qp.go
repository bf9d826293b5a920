package iwarp

import (
	"sync"
	"sync/atomic"

	"cinnabar/verbs"
)

// qp is a reliable connection's queue pair.
//
// Locks, in the order in which they may be nested: conn.rxMu, conn.txMu,
// qp.mu, cq.mu and recvQueue.mu. None is held while user code runs; mu, like the
// queues' own, only for a few instructions.
type qp struct {
	pd     *pd
	num    uint32
	init   verbs.QPInit
	sendCQ *cq
	recvCQ *cq
	srq    *srq      // nil: own receives
	rq     recvQueue // own receives

	mu sync.Mutex
	// +checklocks:mu
	state verbs.QPState
	// +checklocks:mu
	attr verbs.QPAttr
	// (used is atomic)
	// +checklocks:mu
	sq sendQueue
	// +checklocks:mu
	conn *conn
	// +checklocks:mu
	closed bool
	// a Dial or Accept is under way
	// +checklocks:mu
	connecting bool

	// unsent is the number of requests from sq.next to sq.head, which the transmitter loads without the lock, because it asks for the
	// next request more often than there is one.
	unsent atomic.Int64
}

// countUnsentLocked sets unsent after a change of sq.
//
// +checklocks:q.mu
func (q *qp) countUnsentLocked() { q.unsent.Store(int64(q.sq.head - q.sq.next)) }

func (p *pd) CreateQP(init verbs.QPInit) (verbs.QPDriver, error) {
	const op = "create queue pair"
	if init.Type != verbs.RC {
		return nil, verbs.Unsupported(op, "type %s (%d); iWARP has reliable connections (RC) only", init.Type, init.Type)
	}
	sendCQ, ok1 := init.SendCQ.(*cq)
	recvCQ, ok2 := init.RecvCQ.(*cq)
	if !ok1 || !ok2 || sendCQ.dev != p.dev || recvCQ.dev != p.dev {
		return nil, verbs.Errorf(op, verbs.ErrInvalid, "it needs two completion queues of the same device")
	}
	q := &qp{pd: p, init: init, sendCQ: sendCQ, recvCQ: recvCQ}
	if init.SRQ != nil {
		s, ok := init.SRQ.(*srq)
		if !ok || s.dev != p.dev {
			return nil, verbs.Errorf(op, verbs.ErrInvalid, "its shared receive queue belongs to another device")
		}
		q.srq = s
	}
	if err := q.checkCap(); err != nil {
		return nil, err
	}
	if err := q.useObjects(); err != nil {
		return nil, err
	}
	q.sq.init(init.Cap.MaxSendWR, init.Cap.MaxSendSGE, init.Cap.MaxInline)
	q.rq.init(p, init.Cap.MaxRecvWR, init.Cap.MaxRecvSGE)
	q.mu.Lock()
	q.resetAttr()
	q.state = verbs.StateInit // as after rdma_create_qp; the connection manager makes the further changes of state
	q.mu.Unlock()
	p.children.Add(1)
	q.eachCQ((*cq).share)
	p.dev.addQP(q)
	return q, nil
}

func (q *qp) checkCap() error {
	const op = "create queue pair"
	c := &q.init.Cap
	for _, l := range []struct {
		name   string
		v, max int
	}{
		{"MaxSendWR", c.MaxSendWR, maxQueueWR}, {"MaxRecvWR", c.MaxRecvWR, maxQueueWR},
		{"MaxSendSGE", c.MaxSendSGE, maxSGE}, {"MaxRecvSGE", c.MaxRecvSGE, maxSGE},
		{"MaxInline", c.MaxInline, maxInline},
	} {
		if err := checkDepth(op, l.name, l.v, 0, l.max); err != nil {
			return err
		}
	}
	if q.srq != nil {
		c.MaxRecvWR, c.MaxRecvSGE = 0, 0
	}
	return nil
}

func (q *qp) useObjects() error {
	if q.pd.closed.Load() {
		return verbs.Errorf("create queue pair", verbs.ErrClosed, "its protection domain is closed")
	}
	if err := q.sendCQ.use(); err != nil {
		return err
	}
	if err := q.recvCQ.use(); err != nil {
		q.sendCQ.users.Release()
		return err
	}
	if q.srq == nil {
		return nil
	}
	if err := q.srq.use(); err != nil {
		q.sendCQ.users.Release()
		q.recvCQ.users.Release()
		return err
	}
	return nil
}

// eachCQ calls f once for each completion queue, with the entries of the work queues that complete there.
func (q *qp) eachCQ(f func(*cq, int)) {
	if q.sendCQ == q.recvCQ {
		f(q.sendCQ, q.init.Cap.MaxSendWR+q.init.Cap.MaxRecvWR)
		return
	}
	f(q.sendCQ, q.init.Cap.MaxSendWR)
	f(q.recvCQ, q.init.Cap.MaxRecvWR)
}

// +checklocks:q.mu
func (q *qp) resetAttr() {
	q.attr = verbs.QPAttr{
		Access:      verbs.RemoteRead | verbs.RemoteWrite | verbs.RemoteAtomic | verbs.LocalWrite,
		RNRRetry:    verbs.MaxRNRRetry,
		MinRNRTimer: 12, // 640 µs
		Port:        1,
	}
}

func (q *qp) Num() uint32 { return q.num }

// recvs is the queue that receives come from.
func (q *qp) recvs() *recvQueue {
	if q.srq != nil {
		return &q.srq.q
	}
	return &q.rq
}

func (q *qp) PostSend(wrs []verbs.SendWR) (int, error) {
	q.mu.Lock()
	n, err := q.postSendLocked(wrs)
	q.countUnsentLocked()
	c := q.conn
	flush := q.state == verbs.StateErr
	q.mu.Unlock()
	switch {
	case n == 0:
	case flush:
		q.flush()
	case c != nil:
		c.kick()
	}
	return n, err
}

// +checklocks:q.mu
func (q *qp) postSendLocked(wrs []verbs.SendWR) (int, error) {
	const op = "post send"
	switch {
	case q.closed:
		return 0, verbs.Errorf(op, verbs.ErrClosed, "queue pair %#06x is closed", q.num)
	case q.state < verbs.StateRTS:
		return 0, verbs.Errorf(op, verbs.ErrInvalid, "queue pair %#06x is in state %s; connect it first", q.num, q.state)
	case q.conn != nil && q.conn.closing.Load() && q.state != verbs.StateErr:
		return 0, verbs.Errorf(op, verbs.ErrDisconnected, "queue pair %#06x is being disconnected", q.num)
	}
	for i := range wrs {
		if q.sq.used.Load() >= int64(q.sq.depth) {
			return i, verbs.Errorf(op, verbs.ErrQueueFull,
				"all %d entries of the send queue are in use until their completions are polled; poll them (at least one request for each filling of the queue must be signaled), or create a deeper queue", q.sq.depth)
		}
		if err := q.checkSend(&wrs[i]); err != nil {
			return i, err
		}
		q.fill(q.sq.free(), &wrs[i])
		q.sq.head++
		q.sq.used.Add(1)
	}
	return len(wrs), nil
}

func (q *qp) PostRecv(wrs []verbs.RecvWR) (int, error) {
	const op = "post receive"
	if q.srq != nil {
		return 0, verbs.Errorf(op, verbs.ErrInvalid, "queue pair %#06x takes receives from its shared receive queue; post there", q.num)
	}
	q.mu.Lock()
	state, c := q.state, q.conn
	q.mu.Unlock()
	if state == verbs.StateReset {
		return 0, verbs.Errorf(op, verbs.ErrInvalid, "queue pair %#06x is in state %s; move it to INIT first", q.num, state)
	}
	for i := range wrs {
		if err := q.rq.post(&wrs[i]); err != nil {
			q.posted(c)
			return i, err
		}
	}
	q.posted(c)
	return len(wrs), nil
}

// posted delivers held messages to new receives, and flushes the receives in state ERR.
func (q *qp) posted(c *conn) {
	if c != nil && c.heldCount.Load() > 0 {
		c.deliverHeld()
	}
	q.mu.Lock()
	flush := q.state == verbs.StateErr
	q.mu.Unlock()
	if flush {
		q.flush()
	}
}

// flush completes all posted work with a flush error. There is no connection, or it does
// not use the memory any more.
func (q *qp) flush() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.flushLocked(nil)
}

// flushLocked is flush at the end of a connection. If f has a status, the oldest
// transmitted request completes with it; flushLocked reports whether there was such a
// request. It holds the lock throughout, so that completions come in the order of the
// posts.
//
// +checklocks:q.mu
func (q *qp) flushLocked(f *failure) (reported bool) {
	for ; q.sq.tail < q.sq.head; q.sq.tail++ {
		w := q.sq.at(q.sq.tail)
		status, vendor := verbs.StatusWRFlushErr, uint32(0)
		switch {
		case w.status != verbs.StatusSuccess && q.sq.tail == q.sq.next:
			status = w.status
		case f != nil && f.status != verbs.StatusSuccess && !reported && q.sq.tail < q.sq.next:
			status, vendor, reported = f.status, f.vendor, true
		}
		q.completeLocked(w, status, vendor)
	}
	q.sq.next = q.sq.head
	q.countUnsentLocked()
	if q.srq == nil {
		q.flushRecvs()
	}
	return reported
}

func (q *qp) flushRecvs() {
	var w recvWQE
	for {
		if _, ok := q.rq.take(&w); !ok {
			return
		}
		q.recvCQ.add(cqe{qp: q, slots: &q.rq.used, n: 1,
			wc: verbs.WC{ID: w.id, Status: verbs.StatusWRFlushErr, Op: verbs.WCRecv, QPNum: q.num}}, false)
	}
}

// completeLocked reports w, the request at the tail.
//
// +checklocks:q.mu
func (q *qp) completeLocked(w *sendWQE, status verbs.WCStatus, vendor uint32) {
	if status == verbs.StatusSuccess && w.flags&verbs.Signaled == 0 {
		q.sq.silent++
		return
	}
	wc := verbs.WC{ID: w.id, Status: status, Op: wcOps[w.op], QPNum: q.num, Vendor: vendor}
	if needsAnswer(w.op) {
		wc.Len = uint32(w.total)
	}
	q.sendCQ.add(cqe{qp: q, slots: &q.sq.used, n: q.sq.silent + 1, wc: wc}, false)
	q.sq.silent = 0
}

// retireLocked completes the requests at the tail that are done, in order.
//
// +checklocks:q.mu
func (q *qp) retireLocked() {
	for q.sq.tail < q.sq.next {
		w := q.sq.at(q.sq.tail)
		if !w.sent || w.pending > 0 {
			return
		}
		q.completeLocked(w, verbs.StatusSuccess, 0)
		clear(w.segs) // because the entry would keep the memory of a closed region alive
		q.sq.tail++
		if q.state == verbs.StateSQD && q.sq.tail == q.sq.next {
			q.raise(verbs.DeviceEvent{Type: verbs.EventSQDrained})
		}
	}
}

// Close destroys the queue pair: a live connection is ended without waiting for
// the peer.
func (q *qp) Close() error {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return nil
	}
	q.closed = true
	c := q.conn
	q.mu.Unlock()
	if c != nil {
		c.fail(&failure{err: verbs.ErrDisconnected})
		c.teardown()
	}
	q.rq.close()
	q.sendCQ.purge(q)
	q.recvCQ.purge(q)
	q.eachCQ((*cq).unshare)
	q.sendCQ.users.Release()
	q.recvCQ.users.Release()
	if q.srq != nil {
		q.srq.users.Release()
	}
	q.pd.dev.dropQP(q)
	q.pd.children.Add(-1)
	return nil
}
