package iwarp

import (
	"sync"

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
}

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

func (p *qp) checkCap() error {
	const op = "create queue pair"
	c := &p.init.Cap
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
	if p.srq != nil {
		c.MaxRecvWR, c.MaxRecvSGE = 0, 0
	}
	return nil
}

func (p *qp) useObjects() error {
	if p.pd.closed.Load() {
		return verbs.Errorf("create queue pair", verbs.ErrClosed, "its protection domain is closed")
	}
	if err := p.sendCQ.use(); err != nil {
		return err
	}
	if err := p.recvCQ.use(); err != nil {
		p.sendCQ.unuse()
		return err
	}
	if p.srq == nil {
		return nil
	}
	if err := p.srq.use(); err != nil {
		p.sendCQ.unuse()
		p.recvCQ.unuse()
		return err
	}
	return nil
}

// eachCQ calls f once for each completion queue, with the entries of the work queues that complete there.
func (p *qp) eachCQ(f func(*cq, int)) {
	if p.sendCQ == p.recvCQ {
		f(p.sendCQ, p.init.Cap.MaxSendWR+p.init.Cap.MaxRecvWR)
		return
	}
	f(p.sendCQ, p.init.Cap.MaxSendWR)
	f(p.recvCQ, p.init.Cap.MaxRecvWR)
}

// +checklocks:p.mu
func (p *qp) resetAttr() {
	p.attr = verbs.QPAttr{
		Access:      verbs.RemoteRead | verbs.RemoteWrite | verbs.RemoteAtomic | verbs.LocalWrite,
		RNRRetry:    verbs.MaxRNRRetry,
		MinRNRTimer: 12, // 640 µs
		Port:        1,
	}
}

func (p *qp) Num() uint32 { return p.num }

// recvs is the queue that receives come from.
func (p *qp) recvs() *recvQueue {
	if p.srq != nil {
		return &p.srq.q
	}
	return &p.rq
}

func (p *qp) PostSend(wrs []verbs.SendWR) (int, error) {
	p.mu.Lock()
	n, err := p.postSendLocked(wrs)
	c := p.conn
	flush := p.state == verbs.StateErr
	p.mu.Unlock()
	switch {
	case n == 0:
	case flush:
		p.flush(nil)
	case c != nil:
		c.kick()
	}
	return n, err
}

// +checklocks:p.mu
func (p *qp) postSendLocked(wrs []verbs.SendWR) (int, error) {
	const op = "post send"
	switch {
	case p.closed:
		return 0, verbs.Errorf(op, verbs.ErrClosed, "queue pair %#06x is closed", p.num)
	case p.state < verbs.StateRTS:
		return 0, verbs.Errorf(op, verbs.ErrInvalid, "queue pair %#06x is in state %s; connect it first", p.num, p.state)
	case p.conn != nil && p.conn.closing.Load() && p.state != verbs.StateErr:
		return 0, verbs.Errorf(op, verbs.ErrDisconnected, "queue pair %#06x is being disconnected", p.num)
	}
	for i := range wrs {
		if p.sq.used.Load() >= int64(len(p.sq.ring)) {
			return i, verbs.Errorf(op, verbs.ErrQueueFull,
				"%d requests are posted or not yet given back, which is the send queue's depth; poll completions (one signaled request per depth at least) or create it deeper", len(p.sq.ring))
		}
		if err := p.checkSend(&wrs[i]); err != nil {
			return i, err
		}
		p.fill(p.sq.at(p.sq.head), &wrs[i])
		p.sq.head++
		p.sq.used.Add(1)
	}
	return len(wrs), nil
}

func (p *qp) PostRecv(wrs []verbs.RecvWR) (int, error) {
	const op = "post receive"
	if p.srq != nil {
		return 0, verbs.Errorf(op, verbs.ErrInvalid, "queue pair %#06x takes receives from its shared receive queue; post there", p.num)
	}
	p.mu.Lock()
	state, c := p.state, p.conn
	p.mu.Unlock()
	if state == verbs.StateReset {
		return 0, verbs.Errorf(op, verbs.ErrInvalid, "queue pair %#06x is in state %s; move it to INIT first", p.num, state)
	}
	for i := range wrs {
		if err := p.rq.post(&wrs[i]); err != nil {
			p.posted(c)
			return i, err
		}
	}
	p.posted(c)
	return len(wrs), nil
}

// posted has a held message delivered, and in state ERR the new receives flushed.
func (p *qp) posted(c *conn) {
	if c != nil && c.heldCount.Load() > 0 {
		c.deliverHeld()
	}
	p.mu.Lock()
	flush := p.state == verbs.StateErr
	p.mu.Unlock()
	if flush {
		p.flush(nil)
	}
}

// flush completes everything posted with a flush error. The connection, if
// there was one, must have let go of the memory. blame, if not nil, is what the
// oldest transmitted request is told; flush reports whether one was there.
func (p *qp) flush(blame *failure) (told bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.flushLocked(blame)
}

// flushLocked is one step: whoever posts meanwhile finds the queues flushed, and
// completions come in the order of the posts.
//
// +checklocks:p.mu
func (p *qp) flushLocked(blame *failure) (told bool) {
	for ; p.sq.tail < p.sq.head; p.sq.tail++ {
		w := p.sq.at(p.sq.tail)
		status, vendor := verbs.StatusWRFlushErr, uint32(0)
		switch {
		case w.status != verbs.StatusSuccess && p.sq.tail == p.sq.next:
			status = w.status
		case blame != nil && blame.status != verbs.StatusSuccess && !told && p.sq.tail < p.sq.next:
			status, vendor, told = blame.status, blame.vendor, true
		}
		p.completeLocked(w, status, vendor)
	}
	p.sq.next = p.sq.head
	if p.srq == nil {
		p.flushRecvs()
	}
	return told
}

func (p *qp) flushRecvs() {
	var w recvWQE
	for {
		if _, ok := p.rq.take(&w); !ok {
			return
		}
		p.recvCQ.add(cqe{qp: p, slots: &p.rq.used, n: 1,
			wc: verbs.WC{ID: w.id, Status: verbs.StatusWRFlushErr, Op: verbs.WCRecv, QPNum: p.num}}, false)
	}
}

// completeLocked reports w, the request at the tail.
//
// +checklocks:p.mu
func (p *qp) completeLocked(w *sendWQE, status verbs.WCStatus, vendor uint32) {
	if status == verbs.StatusSuccess && w.flags&verbs.Signaled == 0 {
		p.sq.silent++
		return
	}
	wc := verbs.WC{ID: w.id, Status: status, Op: wcOps[w.op], QPNum: p.num, Vendor: vendor}
	if needsAnswer(w.op) {
		wc.Len = uint32(w.total)
	}
	p.sendCQ.add(cqe{qp: p, slots: &p.sq.used, n: p.sq.silent + 1, wc: wc}, false)
	p.sq.silent = 0
}

// retireLocked completes the requests at the tail that are done, in order.
//
// +checklocks:p.mu
func (p *qp) retireLocked() {
	for p.sq.tail < p.sq.next {
		w := p.sq.at(p.sq.tail)
		if !w.sent || w.pending > 0 {
			return
		}
		p.completeLocked(w, verbs.StatusSuccess, 0)
		p.sq.tail++
		if p.state == verbs.StateSQD && p.sq.tail == p.sq.next {
			p.raise(verbs.DeviceEvent{Type: verbs.EventSQDrained})
		}
	}
}

// Close destroys the queue pair: a live connection is ended without waiting for
// the peer.
func (p *qp) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	c := p.conn
	p.mu.Unlock()
	if c != nil {
		c.fail(&failure{err: verbs.ErrDisconnected})
		c.teardown()
	}
	p.rq.close()
	p.sendCQ.purge(p)
	p.recvCQ.purge(p)
	p.eachCQ((*cq).unshare)
	p.sendCQ.unuse()
	p.recvCQ.unuse()
	if p.srq != nil {
		p.srq.unuse()
	}
	p.pd.dev.dropQP(p)
	p.pd.children.Add(-1)
	return nil
}
