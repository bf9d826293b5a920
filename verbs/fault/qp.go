package fault

import (
	"math"
	"slices"

	"cinnabar/verbs"
)

// never is a poll count that is not reached.
const never = math.MaxInt

// qp is a queue pair. Everything after inner is guarded by the injector's mutex.
//
// A send normally goes straight down. When one is lost or must wait, it and all
// behind it are kept in held: the gate. The gate opens at a poll count, or when
// the queue pair fails; then the requests go down, to be carried out or flushed.
type qp struct {
	in     *Injector
	pd     *pd
	number int // from 1
	init   verbs.QPInit
	send   *cq
	recv   *cq
	srq    *srq // nil: receives of its own
	inner  verbs.QPDriver

	sends, recvs ledger
	held         []heldSend
	gate         int            // the value of the send queue's clock at which the held requests go on
	lost         []verbs.RecvWR // receives that were dropped, tagged
	breaking     bool           // a request that will break the connection was posted
}

// CreateQP makes a queue pair over the queues below ours.
func (p *pd) CreateQP(init verbs.QPInit) (verbs.QPDriver, error) {
	if err := p.in.failure(AtCreateQP, p.number); err != nil {
		return nil, err
	}
	send, okS := init.SendCQ.(*cq)
	recv, okR := init.RecvCQ.(*cq)
	if !okS || !okR {
		return nil, verbs.Errorf("create queue pair", verbs.ErrInvalid, "its completion queues belong to another device")
	}
	q := &qp{in: p.in, pd: p, init: init, send: send, recv: recv}
	below := init
	below.SendCQ, below.RecvCQ = send.inner, recv.inner
	if init.SRQ != nil {
		shared, ok := init.SRQ.(*srq)
		if !ok {
			return nil, verbs.Errorf("create queue pair", verbs.ErrInvalid, "its shared receive queue belongs to another device")
		}
		q.srq, below.SRQ = shared, shared.inner
	}
	// The layer locks across the creation so that numbers follow its order.
	p.in.mu.Lock()
	defer p.in.mu.Unlock()
	var err error
	if q.inner, err = p.inner.CreateQP(below); err != nil {
		return nil, err
	}
	p.in.qps = append(p.in.qps, q)
	p.in.byNum[q.inner.Num()] = q
	q.number = len(p.in.qps)
	send.use(q)
	recv.use(q)
	return q, nil
}

func (q *qp) Num() uint32 { return q.inner.Num() }

// Query returns the device's view with the handles that the program knows.
func (q *qp) Query() (verbs.QPAttr, verbs.QPInit) {
	attr, init := q.inner.Query()
	init.SendCQ, init.RecvCQ, init.SRQ = q.init.SendCQ, q.init.RecvCQ, q.init.SRQ
	return attr, init
}

// Modify passes on; a queue pair that goes to ERR flushes its held requests, one that goes to RESET drops them.
func (q *qp) Modify(attr verbs.QPAttr) error {
	q.in.mu.Lock()
	defer q.in.mu.Unlock()
	if err := q.inner.Modify(attr); err != nil {
		return err
	}
	if attr.Mask&verbs.AttrState != 0 {
		switch attr.State {
		case verbs.StateErr:
			q.flush()
		case verbs.StateReset:
			q.forget()
		default: // nothing is held that the step concerns
		}
	}
	return nil
}

// forget drops the held requests, without completions.
func (q *qp) forget() {
	for i := range q.held {
		q.held[i].release()
	}
	q.held, q.lost, q.breaking = nil, nil, false
}

// Close destroys the queue pair. Completions that are late are late no more.
func (q *qp) Close() error {
	if err := q.inner.Close(); err != nil {
		return err
	}
	q.in.mu.Lock()
	defer q.in.mu.Unlock()
	q.forget()
	q.send.drop(q)
	q.recv.drop(q)
	if q.in.byNum[q.inner.Num()] == q {
		delete(q.in.byNum, q.inner.Num())
	}
	return nil
}

// PostSend asks the plan about each request and posts it, or the requests that the plan puts in its place.
func (q *qp) PostSend(wrs []verbs.SendWR) (int, error) {
	q.in.mu.Lock()
	defer q.in.mu.Unlock()
	for i := range wrs {
		d := q.in.decide(AtSend, q.number, wrs[i].Op)
		if err := d.apply(q.postSend(&wrs[i], d.do), q.raise); err != nil {
			return i, err
		}
	}
	return len(wrs), nil
}

// postSend posts one request, or keeps it behind the gate.
func (q *qp) postSend(wr *verbs.SendWR, do Action) error {
	if f, ok := do.(fail); ok {
		return f.err
	}
	if len(q.held) > 0 || q.breaking {
		return q.hold(wr, do)
	}
	shut, err := q.start(wr, do)
	if shut {
		return q.hold(wr, nil)
	}
	return err
}

// start passes a request down in the form that the action wants. It reports
// shut, having done nothing, if the action closes the gate before the request.
func (q *qp) start(wr *verbs.SendWR, do Action) (shut bool, err error) {
	switch a := do.(type) {
	case drop:
		q.gate = never
		return true, nil
	case notReady:
		if a.polls < 0 {
			return false, q.standIn(wr, status{verbs.StatusRNRRetryExcErr})
		}
		q.gate = q.send.clock() + a.polls
		return true, nil
	case status, disconnect:
		return false, q.standIn(wr, do)
	case partial:
		return false, q.postPart(wr, a)
	case duplicate:
		return false, q.postTwice(wr)
	}
	return false, q.down(wr, do)
}

// down posts a request below under our own id.
func (q *qp) down(wr *verbs.SendWR, do Action) error {
	below := *wr
	if _, ok := do.(overrun); ok {
		below.Flags |= verbs.Signaled // the completion that gets lost
	}
	return q.downAs(below, entry{id: wr.ID, op: wr.Op, silent: q.silent(wr), do: do})
}

// silent reports whether the request makes no completion when it succeeds.
func (q *qp) silent(wr *verbs.SendWR) bool {
	return !q.init.SignalAll && wr.Flags&verbs.Signaled == 0
}

// downAs posts wr in the place of the request that e describes.
func (q *qp) downAs(wr verbs.SendWR, e entry) error {
	seq := q.sends.add(e)
	wr.ID = makeTag(kindSend, q.number-1, seq)
	_, err := q.inner.PostSend([]verbs.SendWR{wr})
	if err != nil {
		q.sends.cancel(seq)
	}
	return err
}

// standIn posts a write of zero bytes in the place of a request that must not
// take effect. It needs no key (RFC 5040 section 5.1; InfiniBand likewise), and
// completes after all before it.
func (q *qp) standIn(wr *verbs.SendWR, do Action) error {
	e := entry{id: wr.ID, op: wr.Op, silent: q.silent(wr), do: do}
	return q.breakWith(verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.Signaled | wr.Flags&verbs.Fence}, e)
}

// postPart posts the prefix of a write or read.
func (q *qp) postPart(wr *verbs.SendWR, a partial) error {
	fails := status{a.status}
	part := *wr
	switch wr.Op {
	case verbs.OpWrite, verbs.OpRead:
	case verbs.OpWriteImm:
		part.Op = verbs.OpWrite // the immediate comes after the last byte
	default:
		return q.standIn(wr, fails)
	}
	part.SGL = prefix(wr.SGL, a.n)
	part.Flags |= verbs.Signaled
	return q.breakWith(part, entry{id: wr.ID, op: wr.Op, do: fails})
}

// breakWith posts a request that breaks the connection at its completion, unless
// the status that it brings is success. Nothing behind it may start.
func (q *qp) breakWith(wr verbs.SendWR, e entry) error {
	if err := q.downAs(wr, e); err != nil {
		return err
	}
	if s, ok := e.do.(status); !ok || s.status != verbs.StatusSuccess {
		q.breaking = true
	}
	// The stand-in succeeds below, so a queue armed for solicited events and failures would not signal it.
	return q.send.inner.Arm(false)
}

// prefix returns the first n bytes of a gather list.
func prefix(sgl []verbs.SGE, n int) []verbs.SGE {
	var part []verbs.SGE
	for _, s := range sgl {
		s.Length = uint32(min(int64(s.Length), int64(n)))
		n -= int(s.Length)
		part = append(part, s)
	}
	return part
}

// postTwice posts a request and its copy.
func (q *qp) postTwice(wr *verbs.SendWR) error {
	if err := q.down(wr, nil); err != nil {
		return err
	}
	again := *wr
	again.ID = makeTag(kindAgain, q.number-1, 0)
	again.Flags &^= verbs.Signaled
	_, _ = q.inner.PostSend([]verbs.SendWR{again}) // left out if there is no room
	return nil
}

// PostRecv asks the plan about each receive.
func (q *qp) PostRecv(wrs []verbs.RecvWR) (int, error) {
	q.in.mu.Lock()
	defer q.in.mu.Unlock()
	return q.in.postRecvs(AtRecv, q.number, wrs, q.postRecv, q.raise)
}

// raise raises an event about the queue pair or an object that it uses. The caller holds mu.
func (q *qp) raise(ev verbs.EventType) { q.in.raiseAt(ev, q) }

// postRecv posts one receive. A lost one is kept until the queue pair fails.
func (q *qp) postRecv(wr verbs.RecvWR, do Action) error {
	if f, ok := do.(fail); ok {
		return f.err
	}
	seq := q.recvs.add(entry{id: wr.ID, do: do})
	wr.ID = makeTag(kindRecv, q.number-1, seq)
	if _, ok := do.(drop); ok && !q.failed() {
		wr.SGL = slices.Clone(wr.SGL)
		q.lost = append(q.lost, wr)
		return nil
	}
	if _, err := q.inner.PostRecv([]verbs.RecvWR{wr}); err != nil {
		q.recvs.cancel(seq)
		return err
	}
	return nil
}

// failed reports whether the queue pair is in ERR, by a call or by a failure.
func (q *qp) failed() bool {
	a, _ := q.inner.Query()
	return a.State == verbs.StateErr
}

// breakDown ends the connection as a failed request does.
func (q *qp) breakDown() error {
	err := q.inner.Modify(verbs.QPAttr{Mask: verbs.AttrState, State: verbs.StateErr})
	q.flush()
	return err
}

// flush gives all that is held to the device below, which is in ERR and flushes
// it behind earlier requests. If the device refuses one, the completion is made here.
func (q *qp) flush() {
	q.breaking = false
	held, lost := q.held, q.lost
	q.held, q.lost = nil, nil
	for i := range held {
		h := &held[i]
		if err := q.down(&h.wr, nil); err != nil {
			q.send.emit(q, false, verbs.WC{ID: h.wr.ID, Status: verbs.StatusWRFlushErr, QPNum: q.inner.Num()}, nil)
			q.send.signal()
		}
		h.release()
	}
	for _, wr := range lost {
		if _, err := q.inner.PostRecv([]verbs.RecvWR{wr}); err != nil {
			e := q.recvs.take(tag(wr.ID).seq())
			q.recv.emit(q, true, verbs.WC{ID: e.id, Status: verbs.StatusWRFlushErr, QPNum: q.inner.Num()}, nil)
			q.recv.signal()
		}
	}
}

// tick opens the gate when it is time, or when the queue pair has failed.
func (q *qp) tick() {
	if len(q.held) == 0 && len(q.lost) == 0 {
		return
	}
	if q.failed() {
		q.flush()
	} else if q.gate != never && q.send.clock() >= q.gate {
		q.resume()
	}
}

// resume passes held requests down until one of them closes the gate again.
func (q *qp) resume() {
	for len(q.held) > 0 && !q.breaking {
		h := &q.held[0]
		shut, err := q.start(&h.wr, h.do)
		if shut {
			h.do = nil
			return
		}
		if err != nil {
			return // no room below yet: again at the next poll
		}
		h.release()
		q.held = slices.Delete(q.held, 0, 1)
	}
}

// waiting reports whether polls alone make the queue pair go on.
func (q *qp) waiting() bool { return len(q.held) > 0 && !q.breaking && q.gate != never }

// watch flushes the held requests when the connection ends on its own. The
// goroutine ends with the connection; the device waits for it in Close.
func (q *qp) watch(c verbs.ConnDriver) {
	q.in.wg.Go(func() {
		<-c.Done()
		q.in.mu.Lock()
		defer q.in.mu.Unlock()
		if q.failed() {
			q.flush()
		}
	})
}
