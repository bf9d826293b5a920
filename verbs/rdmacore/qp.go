//go:build linux

package rdmacore

import (
	"errors"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"cinnabar/verbs"
)

const (
	// minRNRTimer is the delay that a peer without a posted receive asks senders for, 0.64 ms: the
	// connection manager's own 0 stands for 655 ms.
	minRNRTimer = 12
	// markerRoom is the request at the end of a send queue that is ours.
	markerRoom = 1
)

// queue is our account of a send or receive queue: a ring of the program's ids.
// head is moved by the poster, under the queue's lock, before the request is
// handed over; tail by the poller, under the completion queue's.
type queue struct {
	ids        []uint64
	ops        []verbs.WCOp
	depth      uint32
	head, tail atomic.Uint32 // counters that run on

	open []bool // by slot: not known to be done; nil where the device completes in order, see retire
}

func (r *queue) init(depth int) {
	size := 1 << bits.Len(uint(max(depth, 1)))
	r.ids, r.ops, r.depth = make([]uint64, size), make([]verbs.WCOp, size), uint32(depth)
}

func (r *queue) put(pos uint32, id uint64, op verbs.WCOp) {
	i := pos & uint32(len(r.ids)-1)
	r.ids[i], r.ops[i] = id, op
	if r.open != nil {
		r.open[i] = true
	}
}

// take retires the requests up to pos and returns the id and the operation of that one.
func (r *queue) take(pos uint32) (uint64, verbs.WCOp) {
	_ = r.head.Load() // makes the stores of put visible here
	i := pos & uint32(len(r.ids)-1)
	id, op := r.ids[i], r.ops[i]
	if r.open != nil {
		r.retire(pos)
		return id, op
	}
	r.tail.Store(pos + 1)
	return id, op
}

// qp is a queue pair: of a reliable or unreliable connection, or of datagrams.
type qp struct {
	pd     *pd
	h      qpHandle
	num    uint32
	serial uint64 // names the queue pair in asynchronous events
	init   verbs.QPInit
	sendCQ *cq
	recvCQ *cq
	srq    *srq // nil: own receives

	state         atomic.Uint32 // verbs.QPState; written under mu
	token         atomic.Uint64 // serial number in tokens; another one after each reset
	failureRaised atomic.Bool   // an event has reported its failure

	sendMu sync.Mutex
	sq     queue
	send   *sendBatch   // guarded by sendMu
	dests  destinations // of the requests in sq; nil: no datagrams
	// The longest datagram in bytes, as the port's MTU was when the queue pair went to INIT.
	maxDatagram atomic.Uint64

	recvMu sync.Mutex
	rq     queue
	recv   *recvBatch // guarded by recvMu

	gone bool // destroyed; written under sendMu and recvMu, read under either

	mu sync.Mutex
	// +checklocks:mu
	conn *conn
	// a Dial or Accept is under way
	// +checklocks:mu
	connecting bool
	// +checklocks:mu
	closed bool
	// closed when the marker of drain completes; nil: no drain
	// +checklocks:mu
	drained chan struct{}
}

func (p *pd) CreateQP(init verbs.QPInit) (verbs.QPDriver, error) {
	const op = "create queue pair"
	if err := p.dev.usable(op); err != nil {
		return nil, err
	}
	if !slices.Contains(p.dev.attr.QPTypes, init.Type) {
		return nil, verbs.Unsupported(op, "type %s (%d); device %s has %v", init.Type, init.Type, p.dev.name, p.dev.attr.QPTypes)
	}
	sendCQ, ok1 := init.SendCQ.(*cq)
	recvCQ, ok2 := init.RecvCQ.(*cq)
	if !ok1 || !ok2 || sendCQ.dev != p.dev || recvCQ.dev != p.dev {
		return nil, verbs.Errorf(op, verbs.ErrInvalid, "it needs two completion queues of the same device")
	}
	q := &qp{pd: p, init: init, sendCQ: sendCQ, recvCQ: recvCQ, send: new(sendBatch), recv: new(recvBatch)}
	if init.SRQ != nil {
		s, ok := init.SRQ.(*srq)
		if !ok || s.pd.dev != p.dev {
			return nil, verbs.Errorf(op, verbs.ErrInvalid, "its shared receive queue belongs to another device")
		}
		q.srq = s
	}
	if err := q.open(); err != nil {
		return nil, err
	}
	p.children.Add(1)
	if q.srq != nil {
		q.srq.users.Add(1)
	}
	return q, nil
}

// open makes the queue pair and moves it to INIT, where it takes receives.
func (q *qp) open() error {
	const op = "create queue pair"
	d := q.pd.dev
	d.mu.Lock()
	q.serial = d.nextSerial()
	d.qps[q.serial] = q
	token := d.nextSerial()
	d.qps[token] = q
	q.token.Store(token)
	d.mu.Unlock()
	raw := rawQP{pd: q.pd.h, sendCQ: q.sendCQ.h, recvCQ: q.recvCQ.h, id: q.serial, typ: q.init.Type, signalAll: q.init.SignalAll, cap: q.init.Cap}
	raw.cap.MaxSendWR += markerRoom
	raw.cap.MaxSendSGE, raw.cap.MaxRecvSGE = max(raw.cap.MaxSendSGE, 1), max(raw.cap.MaxRecvSGE, 1)
	if q.srq != nil {
		raw.srq = q.srq.h
		raw.cap.MaxRecvWR, raw.cap.MaxRecvSGE = 0, 0
	} else {
		raw.cap.MaxRecvWR = max(raw.cap.MaxRecvWR, 1)
	}
	h, num, granted, err := createQP(raw)
	if err != nil {
		q.forget()
		return roomError(op, err)
	}
	q.h, q.num = h, num
	q.init.Cap.MaxInline = max(q.init.Cap.MaxInline, granted.MaxInline)
	q.sq.init(q.init.Cap.MaxSendWR + markerRoom)
	q.sq.depth = uint32(q.init.Cap.MaxSendWR)
	q.rq.init(q.init.Cap.MaxRecvWR)
	q.rq.anyOrder()
	if d.iwarp() {
		q.sq.anyOrder()
	}
	if q.init.Type == verbs.UD {
		q.dests = make(destinations, len(q.sq.ids))
	}
	if err := q.Modify(verbs.QPAttr{Mask: verbs.AttrState, State: verbs.StateInit}); err != nil {
		q.forget()
		return errors.Join(err, destroyQP(h))
	}
	return nil
}

// forget takes the queue pair out of the device's tables.
func (q *qp) forget() {
	d := q.pd.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.qps, q.serial)
	delete(d.qps, q.token.Load())
}

// findNum finds a queue pair by its number; only failures need it.
func (d *device) findNum(num uint32) *qp {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for _, q := range d.qps {
		if q.num == num {
			return q
		}
	}
	return nil
}

func (q *qp) Num() uint32 { return q.num }

// access are the rights of peers through the queue pair; each region has its own besides.
func (q *qp) access() verbs.Access {
	a := verbs.LocalWrite | verbs.RemoteWrite
	if q.init.Type != verbs.RC {
		return a // writes are all there is
	}
	a |= verbs.RemoteRead
	if q.pd.dev.attr.AtomicCap != verbs.AtomicNone {
		a |= verbs.RemoteAtomic
	}
	return a
}

// complete fills in the fields that the device's completion lacks, and reports whether
// it is the program's.
func (q *qp) complete(kind uint64, pos uint32, wc *verbs.WC) bool {
	if kind == kindMarker {
		q.sq.take(pos)
		q.markerDone()
		return false
	}
	r := &q.sq
	if kind == kindRecv {
		r = &q.rq
	} else {
		q.dests.drop(r.tail.Load(), pos+1)
	}
	if !r.isOpen(pos) {
		return false
	}
	id, op := r.take(pos)
	wc.ID = id
	if wc.Status != verbs.StatusSuccess {
		wc.Op = op
		if wc.Status != verbs.StatusWRFlushErr || !q.pd.dev.iwarp() { // on iWARP the end of a connection flushes, and its event has the cause
			q.broken(wc.Err())
		}
	} else if kind == kindSend {
		wc.Op = op
	}
	return true
}

// broken handles a failed completion: the device has moved the queue pair to
// ERR. That of an unreliable type it may also have moved to SQE, or left alone.
func (q *qp) broken(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if s := verbs.QPState(q.state.Load()); q.closed || s != verbs.StateRTS && s != verbs.StateSQD && s != verbs.StateRTR {
		return
	}
	state := verbs.StateErr
	if q.init.Type != verbs.RC {
		if a, qerr := queryQP(q.h); qerr == nil {
			state = a.State
		}
	}
	q.state.Store(uint32(state))
	if q.conn != nil {
		q.conn.fail(err)
	}
}

// Query implements verbs.QPDriver.
func (q *qp) Query() (verbs.QPAttr, verbs.QPInit) {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := verbs.QPAttr{Mask: verbs.AttrState | verbs.AttrCap}
	if !q.closed && !q.pd.dev.iwarp() { // some iWARP drivers do not know their states
		if got, err := queryQP(q.h); err == nil {
			a = got
		}
	}
	if s := verbs.QPState(q.state.Load()); a.State != verbs.StateErr && a.State != verbs.StateSQE || q.pd.dev.iwarp() {
		a.State = s
	}
	a.Cap = q.init.Cap
	return a, q.init
}

// Close implements verbs.QPDriver.
func (q *qp) Close() error {
	const op = "close queue pair"
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return nil
	}
	if q.connecting {
		q.mu.Unlock()
		return verbs.Errorf(op, verbs.ErrBusy, "it is being connected; end that first")
	}
	q.closed = true
	c := q.conn
	q.mu.Unlock()
	if c != nil {
		c.fail(verbs.Errorf("connection", verbs.ErrClosed, "the queue pair was closed"))
		<-c.done
	}
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	q.recvMu.Lock()
	defer q.recvMu.Unlock()
	q.forget()
	q.gone = true
	q.dests.dropAll()
	q.sendCQ.purge(q.num)
	q.recvCQ.purge(q.num)
	if err := q.pd.dev.released(destroyQP(q.h)); err != nil {
		return &verbs.Error{Op: op, Err: err}
	}
	q.pd.children.Add(-1)
	if q.srq != nil {
		q.srq.users.Add(-1)
	}
	return nil
}
