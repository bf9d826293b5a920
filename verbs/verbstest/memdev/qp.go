package memdev

import (
	"slices"
	"time"

	"cinnabar/verbs"
)

// sendWR is a queued send request with the post's copies of its list and inline data.
type sendWR struct {
	verbs.SendWR
	inline []byte // payload of an Inline request
}

// sendQueue is a ring of requests that reuses their lists.
type sendQueue struct {
	ring   []sendWR
	head   int
	count  int // posted and not done
	used   int // posted and not yet given back by a polled completion
	silent int // done without a completion since the last one
}

func newSendQueue(c verbs.QPCap) sendQueue {
	s := sendQueue{ring: make([]sendWR, c.MaxSendWR)}
	for i := range s.ring {
		s.ring[i].SGL = make([]verbs.SGE, 0, c.MaxSendSGE)
		s.ring[i].inline = make([]byte, 0, c.MaxInline)
	}
	return s
}

func (s *sendQueue) front() *sendWR { return &s.ring[s.head] }
func (s *sendQueue) back() *sendWR  { return &s.ring[(s.head+s.count)%len(s.ring)] }

func (s *sendQueue) pop() {
	s.head = (s.head + 1) % len(s.ring)
	s.count--
}

// clear forgets everything.
func (s *sendQueue) clear() { s.count, s.used, s.silent = 0, 0, 0 }

// qp is a queue pair. Its states, all moved by setState:
//
//	RESET -> INIT -> (connected) RTS -> ERR -> RESET
//
// Any state goes to ERR and to RESET.
type qp struct {
	pd    *pd
	num   uint32
	init  verbs.QPInit
	state verbs.QPState
	attr  verbs.QPAttr
	sq    sendQueue
	rq    recvQueue
	srq   *srq // nil: rq is used
	peer  *qp  // set while connected
	conn  *conn
	rnr   *time.Timer // runs while a send waits for a receive a finite time
	late  bool        // rnr has fired for the request at the head of sq
	busy  bool        // run is active further up the stack
	gone  bool
}

// CreateQP makes a queue pair in INIT, so that receives can be posted before it
// is connected, as rdma_create_qp does.
func (p *pd) CreateQP(init verbs.QPInit) (verbs.QPDriver, error) {
	if init.Type != verbs.RC {
		return nil, verbs.Unsupported("create queue pair", "type %v; the device has RC only", init.Type)
	}
	if err := checkCap(&init.Cap); err != nil {
		return nil, err
	}
	scq, okS := init.SendCQ.(*cq)
	rcq, okR := init.RecvCQ.(*cq)
	if !okS || !okR {
		return nil, verbs.Errorf("create queue pair", verbs.ErrInvalid, "completion queues of another device")
	}
	var shared *srq
	if init.SRQ != nil {
		shared = init.SRQ.(*srq)
	}
	d := p.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	q := &qp{pd: p, num: d.nextQPN, init: init, state: verbs.StateInit, srq: shared,
		sq: newSendQueue(init.Cap), rq: newRecvQueue(init.Cap.MaxRecvWR, init.Cap.MaxRecvSGE)}
	q.attr = verbs.QPAttr{RNRRetry: verbs.MaxRNRRetry, RetryCount: 7, MinRNRTimer: 12, PathMTU: 5, Port: 1,
		Access: verbs.RemoteWrite | verbs.RemoteRead | verbs.RemoteAtomic, MaxRDAtomic: maxRead, MaxDestRDAtomic: maxRead}
	d.nextQPN++
	d.qps[q.num] = q
	p.objects++
	scq.users++
	rcq.users++
	if shared != nil {
		shared.users = append(shared.users, q)
	}
	return q, nil
}

// checkCap fills the zero values of a capacity and checks the rest.
func checkCap(c *verbs.QPCap) error {
	c.MaxSendSGE, c.MaxRecvSGE = max(1, c.MaxSendSGE), max(1, c.MaxRecvSGE)
	for _, l := range []struct {
		name     string
		got, max int
	}{
		{"send depth", c.MaxSendWR, maxDepth}, {"receive depth", c.MaxRecvWR, maxDepth},
		{"gather entries", c.MaxSendSGE, maxSGE}, {"scatter entries", c.MaxRecvSGE, maxSGE},
		{"inline bytes", c.MaxInline, maxInline},
	} {
		if l.got < 0 || l.got > l.max {
			return verbs.Errorf("create queue pair", verbs.ErrInvalid, "%s %d; the device takes 0 to %d", l.name, l.got, l.max)
		}
	}
	return nil
}

func (q *qp) Num() uint32     { return q.num }
func (q *qp) sendCQ() *cq     { return q.init.SendCQ.(*cq) }
func (q *qp) recvCQ() *cq     { return q.init.RecvCQ.(*cq) }
func (q *qp) device() *Device { return q.pd.dev }

// PostSend queues requests and carries out those that need not wait.
func (q *qp) PostSend(wrs []verbs.SendWR) (int, error) {
	q.pd.dev.mu.Lock()
	defer q.pd.dev.mu.Unlock()
	if q.gone {
		return 0, verbs.Errorf("post send", verbs.ErrClosed, "the queue pair")
	}
	if q.state != verbs.StateRTS && q.state != verbs.StateSQD && q.state != verbs.StateErr {
		return 0, verbs.Errorf("post send", verbs.ErrInvalid, "the queue pair is in %v; connect it first", q.state)
	}
	for i := range wrs {
		if err := q.enqueue(&wrs[i]); err != nil {
			q.run()
			return i, err
		}
	}
	q.run()
	return len(wrs), nil
}

// enqueue checks one request and queues a copy.
func (q *qp) enqueue(wr *verbs.SendWR) error {
	if err := q.check(wr); err != nil {
		return err
	}
	if q.sq.used == q.init.Cap.MaxSendWR {
		return verbs.Errorf("post send", verbs.ErrQueueFull, "all %d entries of the send queue are posted; poll for completions first", q.init.Cap.MaxSendWR)
	}
	w := q.sq.back()
	sgl, inline := w.SGL, w.inline
	w.SendWR = *wr
	w.SGL, w.inline = append(sgl[:0], wr.SGL...), inline[:0]
	if wr.Flags&verbs.Inline != 0 {
		// This device knows memory only through regions, so it asks for a key
		// where others do not.
		segs, ok := q.pd.local(&q.device().src, wr.SGL, 0)
		if !ok {
			return verbs.Errorf("post send", verbs.ErrInvalid, "inline data outside registered memory")
		}
		w.inline = append(w.inline, flatten(segs)...)
	}
	q.device().stats["sends"]++
	q.sq.count++
	q.sq.used++
	return nil
}

// check refuses a request with an error that the device can see before it queues.
func (q *qp) check(wr *verbs.SendWR) error {
	if need := opCaps[wr.Op]; !q.device().caps.Has(need) {
		return verbs.Unsupported("post send", "%v: the device lacks %v", wr.Op, need)
	}
	if !knownOp(wr.Op) {
		return verbs.Unsupported("post send", "%v (opcode %d)", wr.Op, uint32(wr.Op))
	}
	n := length(wr.SGL)
	switch {
	case len(wr.SGL) > q.init.Cap.MaxSendSGE:
		return verbs.Errorf("post send", verbs.ErrInvalid, "%d gather entries; the queue pair takes %d", len(wr.SGL), q.init.Cap.MaxSendSGE)
	case n > maxMessage:
		return verbs.Errorf("post send", verbs.ErrInvalid, "%d bytes; a message takes %d", n, uint64(maxMessage))
	case wr.Flags&verbs.Inline != 0 && n > uint64(q.init.Cap.MaxInline):
		return verbs.Errorf("post send", verbs.ErrInvalid, "%d bytes inline; the queue pair takes %d", n, q.init.Cap.MaxInline)
	case isAtomic(wr.Op) && (n != 8 || wr.Remote.Addr%8 != 0):
		return verbs.Errorf("post send", verbs.ErrInvalid, "%v of %d bytes at %#x; it takes 8 bytes on an 8-byte boundary", wr.Op, n, wr.Remote.Addr)
	}
	return nil
}

var opCaps = map[verbs.Opcode]verbs.Caps{
	verbs.OpWriteImm: verbs.CapWriteImm, verbs.OpSendImm: verbs.CapSendImm,
	verbs.OpSendInvalidate: verbs.CapSendInvalidate,
	verbs.OpCompareSwap:    verbs.CapAtomics, verbs.OpFetchAdd: verbs.CapAtomics,
}

func knownOp(op verbs.Opcode) bool {
	return op <= verbs.OpFetchAdd || op == verbs.OpSendInvalidate
}

func isAtomic(op verbs.Opcode) bool {
	return op == verbs.OpCompareSwap || op == verbs.OpFetchAdd
}

// PostRecv queues receives and lets a waiting sender go on.
func (q *qp) PostRecv(wrs []verbs.RecvWR) (int, error) {
	q.pd.dev.mu.Lock()
	defer q.pd.dev.mu.Unlock()
	switch {
	case q.gone:
		return 0, verbs.Errorf("post receive", verbs.ErrClosed, "the queue pair")
	case q.srq != nil:
		return 0, verbs.Errorf("post receive", verbs.ErrInvalid, "the queue pair takes its receives from a shared queue")
	case q.state == verbs.StateReset:
		return 0, verbs.Errorf("post receive", verbs.ErrInvalid, "the queue pair is in RESET; move it to INIT first")
	}
	n, err := q.rq.post("post receive", wrs)
	if q.state == verbs.StateErr {
		q.flushRecv()
	} else if q.peer != nil {
		q.peer.run()
	}
	return n, err
}

// Query returns attributes and creation parameters.
func (q *qp) Query() (verbs.QPAttr, verbs.QPInit) {
	q.pd.dev.mu.Lock()
	defer q.pd.dev.mu.Unlock()
	a := q.attr
	a.State, a.CurState, a.Cap = q.state, q.state, q.init.Cap
	a.Mask = verbs.AttrState | verbs.AttrCurState | verbs.AttrCap | verbs.AttrAccess | verbs.AttrPort | verbs.AttrPathMTU |
		verbs.AttrRetryCount | verbs.AttrRNRRetry | verbs.AttrMinRNRTimer | verbs.AttrMaxRDAtomic | verbs.AttrMaxDestRDAtomic
	if q.peer != nil {
		a.DestQPN = q.peer.num
		a.Mask |= verbs.AttrDestQPN
	}
	return a, q.init
}

// Modify changes the state and the retry parameters.
func (q *qp) Modify(a verbs.QPAttr) error {
	q.pd.dev.mu.Lock()
	defer q.pd.dev.mu.Unlock()
	if q.gone {
		return verbs.Errorf("modify queue pair", verbs.ErrClosed, "the queue pair")
	}
	if a.Mask&verbs.AttrState != 0 {
		if err := q.checkStep(a.State); err != nil {
			return err
		}
	}
	if a.Mask&verbs.AttrRNRRetry != 0 {
		q.attr.RNRRetry = min(a.RNRRetry, verbs.MaxRNRRetry)
	}
	if a.Mask&verbs.AttrMinRNRTimer != 0 {
		q.attr.MinRNRTimer = a.MinRNRTimer & 31
	}
	if a.Mask&verbs.AttrAccess != 0 {
		q.attr.Access = a.Access
	}
	if a.Mask&verbs.AttrState != 0 {
		q.setState(a.State)
	}
	return nil
}

// checkStep says whether a program may make the step by hand.
func (q *qp) checkStep(to verbs.QPState) error {
	switch {
	case to == verbs.StateRTR, to == verbs.StateRTS && q.state != verbs.StateSQD && q.state != verbs.StateRTS:
		return verbs.Unsupported("modify queue pair", "%v by hand; the device connects by Dial and Accept", to)
	case to == verbs.StateErr, to == verbs.StateReset,
		to == verbs.StateInit && (q.state == verbs.StateReset || q.state == verbs.StateInit),
		to == verbs.StateSQD && (q.state == verbs.StateRTS || q.state == verbs.StateSQD),
		to == verbs.StateRTS:
		return nil
	}
	return verbs.Errorf("modify queue pair", verbs.ErrInvalid, "no step leads from %v to %v", q.state, to)
}

// setState makes a step that is known to be legal.
func (q *qp) setState(to verbs.QPState) {
	switch to {
	case verbs.StateErr:
		q.fail(verbs.Errorf("connection", verbs.ErrDisconnected, "the queue pair was moved to ERR"))
	case verbs.StateReset:
		q.sq.clear()
		q.rq.clear()
		q.fail(verbs.Errorf("connection", verbs.ErrDisconnected, "the queue pair was reset"))
		q.sendCQ().purge(q)
		q.recvCQ().purge(q)
		q.sq.used, q.rq.used = 0, 0
		q.state = to
	case verbs.StateSQD:
		q.state = to
		q.device().raise(verbs.DeviceEvent{Type: verbs.EventSQDrained, Context: q.init.Context, QPNum: q.num})
	default:
		q.state = to
		q.run()
	}
}

// fail moves the queue pair and its peer to ERR and flushes both. The connection
// reports cause. The caller holds mu.
func (q *qp) fail(cause error) {
	peer := q.peer
	q.enterErr()
	if peer != nil {
		peer.enterErr()
	}
	if q.conn != nil {
		q.conn.end(cause)
	}
}

// enterErr flushes one queue pair.
func (q *qp) enterErr() {
	if q.state == verbs.StateErr {
		return
	}
	q.state, q.peer = verbs.StateErr, nil
	q.stopTimer()
	q.flushSend()
	q.flushRecv()
	if q.srq != nil {
		q.device().raise(verbs.DeviceEvent{Type: verbs.EventQPLastWQEReached, Context: q.init.Context, QPNum: q.num})
	}
}

func (q *qp) flushSend() {
	for q.sq.count > 0 {
		id := q.sq.front().ID
		q.sq.pop()
		q.complete(verbs.WC{ID: id, Status: verbs.StatusWRFlushErr, QPNum: q.num})
	}
}

func (q *qp) flushRecv() {
	for q.rq.count > 0 {
		wc := verbs.WC{ID: q.rq.pop(), Status: verbs.StatusWRFlushErr, QPNum: q.num}
		q.recvCQ().add(cqe{wc: wc, used: &q.rq.used, n: 1}, false)
	}
}

// complete reports a send request that is out of the queue.
func (q *qp) complete(wc verbs.WC) {
	q.sendCQ().add(cqe{wc: wc, used: &q.sq.used, n: q.sq.silent + 1}, false)
	q.sq.silent = 0
}

// Close ends the connection without completions for outstanding requests.
func (q *qp) Close() error {
	q.pd.dev.mu.Lock()
	defer q.pd.dev.mu.Unlock()
	if q.gone {
		return nil
	}
	q.gone = true
	q.sq.clear()
	q.rq.clear()
	q.fail(verbs.Errorf("connection", verbs.ErrDisconnected, "the queue pair was closed"))
	q.sendCQ().users--
	q.recvCQ().users--
	if q.srq != nil {
		q.srq.users = slices.DeleteFunc(q.srq.users, func(o *qp) bool { return o == q })
	}
	q.pd.objects--
	delete(q.device().qps, q.num)
	return nil
}
