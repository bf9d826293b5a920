//go:build linux

package rdmacore

import (
	"sync"
	"sync/atomic"

	"cinnabar/verbs"
)

// srq is a receive queue that several queue pairs share. Its receives complete
// in any order, so that they have slots instead of positions.
type srq struct {
	pd     *pd
	h      srqHandle
	serial uint64
	init   verbs.SRQInit
	limit  atomic.Int64
	users  atomic.Int64

	mu    sync.Mutex
	batch *recvBatch // guarded by mu
	// ids by slot
	// +checklocks:mu
	ids []uint64
	// +checklocks:mu
	free []uint32
	// +checklocks:mu
	closed bool
}

func (p *pd) CreateSRQ(init verbs.SRQInit) (verbs.SRQDriver, error) {
	const op = "create shared receive queue"
	if err := p.dev.usable(op); err != nil {
		return nil, err
	}
	a := &p.dev.attr
	switch {
	case !a.Caps.Has(verbs.CapSRQ):
		return nil, verbs.Unsupported(op, "device %s has none", p.dev.name)
	case init.MaxWR < 1 || init.MaxWR > a.MaxSRQWR:
		return nil, verbs.Errorf(op, verbs.ErrInvalid, "MaxWR is %d; 1 to %d are possible", init.MaxWR, a.MaxSRQWR)
	case init.MaxSGE < 0 || init.MaxSGE > a.MaxSRQSGE:
		return nil, verbs.Errorf(op, verbs.ErrInvalid, "MaxSGE is %d; 0 to %d are possible", init.MaxSGE, a.MaxSRQSGE)
	case init.Limit < 0 || init.Limit > init.MaxWR:
		return nil, verbs.Errorf(op, verbs.ErrInvalid, "Limit is %d; 0 to %d are possible", init.Limit, init.MaxWR)
	}
	s := &srq{pd: p, init: init, batch: new(recvBatch), ids: make([]uint64, init.MaxWR), free: make([]uint32, init.MaxWR)}
	for i := range s.free {
		s.free[i] = uint32(init.MaxWR - 1 - i)
	}
	s.limit.Store(int64(init.Limit))
	d := p.dev
	d.mu.Lock()
	s.serial = d.nextSerial()
	d.srqs[s.serial] = s
	d.mu.Unlock()
	raw := init
	raw.MaxSGE = max(raw.MaxSGE, 1)
	h, err := createSRQ(p.h, s.serial, &raw)
	if err != nil {
		s.forget()
		return nil, roomError(op, err)
	}
	s.h = h
	p.children.Add(1)
	return s, nil
}

func (s *srq) forget() {
	d := s.pd.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.srqs, s.serial)
}

// release frees a slot and returns the id that was posted in it.
func (s *srq) release(slot uint32) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if uint64(slot) >= uint64(len(s.ids)) {
		return 0 // the completion names no request of this queue
	}
	s.free = append(s.free, slot)
	return s.ids[slot]
}

// PostRecv implements verbs.SRQDriver.
func (s *srq) PostRecv(wrs []verbs.RecvWR) (int, error) {
	const op = "post receive"
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, verbs.Errorf(op, verbs.ErrClosed, "the shared receive queue is closed")
	}
	if s.pd.dev.removal.isGone() {
		return 0, s.pd.dev.removedErr(op)
	}
	for n := 0; n < len(wrs); {
		taken, stop := s.collect(wrs[n:])
		posted, err := s.batch.postShared(s.h)
		s.pd.dev.stats.crossings.Add(1)
		s.pd.dev.stats.recvs.Add(uint64(posted))
		if err != nil {
			s.free = s.free[:len(s.free)+taken-posted] // the slots taken last, which still stand there
			return n + posted, postError(op, err)
		}
		if n += taken; stop != nil {
			return n, stop
		}
	}
	return len(wrs), nil
}

// collect fills the batch, as qp.collect does.
//
// +checklocks:s.mu
func (s *srq) collect(wrs []verbs.RecvWR) (taken int, stop error) {
	for i := range wrs {
		wr := &wrs[i]
		if stop = checkRecv(wr, s.init.MaxSGE); stop != nil {
			return i, stop
		}
		last := len(s.free) - 1
		if last < 0 {
			return i, recvFull(len(s.ids))
		}
		slot := s.free[last]
		if !s.batch.add(wr, makeToken(kindShared, s.serial, slot), s.pd.dev.iwarp()) {
			return i, nil
		}
		s.ids[slot] = wr.ID
		s.free = s.free[:last]
	}
	return len(wrs), nil
}

// Modify implements verbs.SRQDriver.
func (s *srq) Modify(attr verbs.SRQAttr, limit, depth bool) error {
	const op = "modify shared receive queue"
	if depth {
		return verbs.Unsupported(op, "the depth; create the queue deep enough")
	}
	if !limit {
		return nil
	}
	if attr.Limit < 0 || attr.Limit > s.init.MaxWR {
		return verbs.Errorf(op, verbs.ErrInvalid, "Limit is %d; 0 to %d are possible", attr.Limit, s.init.MaxWR)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return verbs.Errorf(op, verbs.ErrClosed, "the shared receive queue is closed")
	}
	if err := modifySRQ(s.h, attr.Limit); err != nil {
		return &verbs.Error{Op: op, Err: err}
	}
	s.limit.Store(int64(attr.Limit))
	return nil
}

// Query implements verbs.SRQDriver. The limit is 0 once its event was raised.
func (s *srq) Query() verbs.SRQAttr {
	return verbs.SRQAttr{MaxWR: s.init.MaxWR, Limit: int(s.limit.Load())}
}

func (s *srq) Close() error {
	const op = "close shared receive queue"
	if n := s.users.Load(); n > 0 {
		return verbs.Errorf(op, verbs.ErrBusy, "%d queue pairs use it; close them first", n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	if err := s.pd.dev.released(destroySRQ(s.h)); err != nil {
		return &verbs.Error{Op: op, Err: err}
	}
	s.closed = true
	s.forget()
	s.pd.children.Add(-1)
	return nil
}
