package fault

import (
	"cinnabar/verbs"
)

// srq is a shared receive queue. Its ledger is guarded by the injector's mutex.
type srq struct {
	in      *Injector
	inner   verbs.SRQDriver
	number  int // from 1
	context any
	recvs   ledger
}

func (p *pd) CreateSRQ(init verbs.SRQInit) (verbs.SRQDriver, error) {
	p.in.mu.Lock()
	defer p.in.mu.Unlock()
	inner, err := p.inner.CreateSRQ(init)
	if err != nil {
		return nil, err
	}
	s := &srq{in: p.in, inner: inner, number: len(p.in.srqs) + 1, context: init.Context}
	p.in.srqs = append(p.in.srqs, s)
	return s, nil
}

// PostRecv asks the plan about each receive. A lost one does not come back: a
// shared queue is never flushed.
func (s *srq) PostRecv(wrs []verbs.RecvWR) (int, error) {
	s.in.mu.Lock()
	defer s.in.mu.Unlock()
	return s.in.postRecvs(AtSharedRecv, s.number, wrs, s.postRecv, s.raise)
}

// postRecvs asks the plan about each receive of a queue and passes it to post, up to the first error. The caller holds mu.
func (in *Injector) postRecvs(at Point, queue int, wrs []verbs.RecvWR, post func(verbs.RecvWR, Action) error, raise func(verbs.EventType)) (int, error) {
	for i := range wrs {
		d := in.decide(at, queue, 0)
		if err := d.apply(post(wrs[i], d.do), raise); err != nil {
			return i, err
		}
	}
	return len(wrs), nil
}

func (s *srq) postRecv(wr verbs.RecvWR, do Action) error {
	switch a := do.(type) {
	case fail:
		return a.err
	case drop:
		return nil
	}
	seq := s.recvs.add(entry{id: wr.ID, do: do})
	wr.ID = makeTag(kindShared, s.number-1, seq)
	if _, err := s.inner.PostRecv([]verbs.RecvWR{wr}); err != nil {
		s.recvs.cancel(seq)
		return err
	}
	return nil
}

// raise raises an event from here; only the queue itself, the port and the
// device can be its subject.
func (s *srq) raise(t verbs.EventType) {
	ev := verbs.DeviceEvent{Type: t}
	switch subjectOf(t) {
	case aboutSRQ:
		ev.Context = s.context
	case aboutPort:
		ev.Port = 1
	case aboutQP, aboutCQ:
		return // the trace says that it was asked for; there is no queue to name
	case aboutDevice:
	}
	s.in.raise(ev)
}

func (s *srq) Modify(attr verbs.SRQAttr, limit, depth bool) error {
	return s.inner.Modify(attr, limit, depth)
}

func (s *srq) Query() verbs.SRQAttr { return s.inner.Query() }
func (s *srq) Close() error         { return s.inner.Close() }
