package memdev

import (
	"slices"

	"cinnabar/verbs/driver"
)

// recvQueue is a receive queue, of a queue pair or shared.
type recvQueue struct {
	depth, maxSGE int
	wrs           []driver.RecvWR
}

// post appends copies of wrs until one is refused.
func (q *recvQueue) post(op string, wrs []driver.RecvWR) (int, error) {
	for i, wr := range wrs {
		if len(wr.SGL) > q.maxSGE {
			return i, driver.Errorf(op, driver.ErrInvalid, "%d scatter entries; the queue takes %d", len(wr.SGL), q.maxSGE)
		}
		if len(q.wrs) == q.depth {
			return i, driver.Errorf(op, driver.ErrQueueFull, "all %d entries of the receive queue are posted; poll for completions first", q.depth)
		}
		q.wrs = append(q.wrs, driver.RecvWR{ID: wr.ID, SGL: slices.Clone(wr.SGL)})
	}
	return len(wrs), nil
}

// pop takes the oldest request; there is one.
func (q *recvQueue) pop() driver.RecvWR {
	wr := q.wrs[0]
	q.wrs = q.wrs[:copy(q.wrs, q.wrs[1:])]
	return wr
}

// srq is a shared receive queue.
type srq struct {
	pd      *pd
	queue   recvQueue
	limit   int // 0: disarmed
	context any
	users   []*qp
	closed  bool
}

// CreateSRQ makes a shared receive queue.
func (p *pd) CreateSRQ(init driver.SRQInit) (driver.SRQ, error) {
	d := p.dev
	if !d.caps.Has(driver.CapSRQ) {
		return nil, driver.Unsupported("create shared receive queue", "the device has none")
	}
	if init.MaxWR < 1 || init.MaxWR > maxDepth || init.MaxSGE < 0 || init.MaxSGE > maxSGE || init.Limit < 0 || init.Limit > init.MaxWR {
		return nil, driver.Errorf("create shared receive queue", driver.ErrInvalid,
			"depth %d, %d entries, limit %d; the device takes depth 1 to %d and %d entries, and a limit up to the depth",
			init.MaxWR, init.MaxSGE, init.Limit, maxDepth, maxSGE)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	p.objects++
	return &srq{pd: p, queue: recvQueue{depth: init.MaxWR, maxSGE: max(1, init.MaxSGE)}, limit: init.Limit, context: init.Context}, nil
}

// PostRecv adds receives and lets waiting senders go on.
func (s *srq) PostRecv(wrs []driver.RecvWR) (int, error) {
	s.pd.dev.mu.Lock()
	defer s.pd.dev.mu.Unlock()
	n, err := s.queue.post("post shared receive", wrs)
	for _, q := range s.users {
		if q.peer != nil {
			q.peer.run()
		}
	}
	return n, err
}

// Modify arms the limit or changes the depth.
func (s *srq) Modify(attr driver.SRQAttr, limit, depth bool) error {
	s.pd.dev.mu.Lock()
	defer s.pd.dev.mu.Unlock()
	if depth {
		if attr.MaxWR < max(1, len(s.queue.wrs)) || attr.MaxWR > maxDepth {
			return driver.Errorf("modify shared receive queue", driver.ErrInvalid, "depth %d; %d receives are posted and the device takes %d",
				attr.MaxWR, len(s.queue.wrs), maxDepth)
		}
		s.queue.depth = attr.MaxWR
	}
	if limit {
		if attr.Limit < 0 || attr.Limit > s.queue.depth {
			return driver.Errorf("modify shared receive queue", driver.ErrInvalid, "limit %d; the depth is %d", attr.Limit, s.queue.depth)
		}
		s.limit = attr.Limit
		s.checkLimit()
	}
	return nil
}

// checkLimit raises the limit event once. The caller holds mu.
func (s *srq) checkLimit() {
	if s.limit > 0 && len(s.queue.wrs) < s.limit {
		s.limit = 0
		s.pd.dev.raise(driver.AsyncEvent{Type: driver.EventSRQLimitReached, Context: s.context})
	}
}

func (s *srq) Query() driver.SRQAttr {
	s.pd.dev.mu.Lock()
	defer s.pd.dev.mu.Unlock()
	return driver.SRQAttr{MaxWR: s.queue.depth, Limit: s.limit}
}

// Close releases the queue; its receives come back nowhere, as in libibverbs.
func (s *srq) Close() error {
	s.pd.dev.mu.Lock()
	defer s.pd.dev.mu.Unlock()
	if len(s.users) > 0 {
		return driver.Errorf("close shared receive queue", driver.ErrBusy, "%d queue pairs use it", len(s.users))
	}
	if !s.closed {
		s.closed = true
		s.pd.objects--
	}
	return nil
}
