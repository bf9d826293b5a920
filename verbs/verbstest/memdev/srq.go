package memdev

import (
	"cinnabar/verbs"
)

// recvQueue is a receive queue, of a queue pair or shared: a ring that reuses its requests' lists.
type recvQueue struct {
	ring   []verbs.RecvWR
	maxSGE int
	head   int
	count  int // posted and not consumed
	used   int // posted and not yet polled
}

func newRecvQueue(depth, maxSGE int) recvQueue {
	q := recvQueue{ring: make([]verbs.RecvWR, depth), maxSGE: max(1, maxSGE)}
	for i := range q.ring {
		q.ring[i].SGL = make([]verbs.SGE, 0, q.maxSGE)
	}
	return q
}

// post appends copies of wrs until one is refused.
func (q *recvQueue) post(op string, wrs []verbs.RecvWR) (int, error) {
	for i := range wrs {
		wr := &wrs[i]
		if len(wr.SGL) > q.maxSGE {
			return i, verbs.Errorf(op, verbs.ErrInvalid, "%d scatter entries; the queue takes %d", len(wr.SGL), q.maxSGE)
		}
		if q.used == len(q.ring) {
			return i, verbs.Errorf(op, verbs.ErrQueueFull, "all %d entries of the receive queue are posted; poll for completions first", len(q.ring))
		}
		slot := &q.ring[(q.head+q.count)%len(q.ring)]
		slot.ID, slot.SGL = wr.ID, append(slot.SGL[:0], wr.SGL...)
		q.count++
		q.used++
	}
	return len(wrs), nil
}

// front is the oldest request; there is one.
func (q *recvQueue) front() *verbs.RecvWR { return &q.ring[q.head] }

// pop consumes the oldest request and returns its id.
func (q *recvQueue) pop() uint64 {
	id := q.ring[q.head].ID
	q.head = (q.head + 1) % len(q.ring)
	q.count--
	return id
}

// clear forgets all requests that are not consumed.
func (q *recvQueue) clear() {
	q.used -= q.count
	q.count = 0
}

// resize changes the depth, which is at least the number of entries in use.
func (q *recvQueue) resize(depth int) {
	next := newRecvQueue(depth, q.maxSGE)
	for i := range q.count {
		next.ring[i] = q.ring[(q.head+i)%len(q.ring)]
	}
	q.ring, q.head = next.ring, 0
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
func (p *pd) CreateSRQ(init verbs.SRQInit) (verbs.SRQDriver, error) {
	d := p.dev
	if !d.caps.Has(verbs.CapSRQ) {
		return nil, verbs.Unsupported("create shared receive queue", "the device has none")
	}
	if init.MaxWR < 1 || init.MaxWR > maxDepth || init.MaxSGE < 0 || init.MaxSGE > maxSGE || init.Limit < 0 || init.Limit > init.MaxWR {
		return nil, verbs.Errorf("create shared receive queue", verbs.ErrInvalid,
			"depth %d, %d entries, limit %d; the device takes depth 1 to %d and %d entries, and a limit up to the depth",
			init.MaxWR, init.MaxSGE, init.Limit, maxDepth, maxSGE)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	p.objects++
	return &srq{pd: p, queue: newRecvQueue(init.MaxWR, init.MaxSGE), limit: init.Limit, context: init.Context}, nil
}

// PostRecv adds receives and lets waiting senders go on.
func (s *srq) PostRecv(wrs []verbs.RecvWR) (int, error) {
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
func (s *srq) Modify(attr verbs.SRQAttr, limit, depth bool) error {
	s.pd.dev.mu.Lock()
	defer s.pd.dev.mu.Unlock()
	if depth {
		if attr.MaxWR < max(1, s.queue.used) || attr.MaxWR > maxDepth {
			return verbs.Errorf("modify shared receive queue", verbs.ErrInvalid, "depth %d; %d receives are posted and the device takes %d",
				attr.MaxWR, s.queue.used, maxDepth)
		}
		s.queue.resize(attr.MaxWR)
	}
	if limit {
		if attr.Limit < 0 || attr.Limit > len(s.queue.ring) {
			return verbs.Errorf("modify shared receive queue", verbs.ErrInvalid, "limit %d; the depth is %d", attr.Limit, len(s.queue.ring))
		}
		s.limit = attr.Limit
		s.checkLimit()
	}
	return nil
}

// checkLimit raises the limit event once. The caller holds mu.
func (s *srq) checkLimit() {
	if s.limit > 0 && s.queue.count < s.limit {
		s.limit = 0
		s.pd.dev.raise(verbs.DeviceEvent{Type: verbs.EventSRQLimitReached, Context: s.context})
	}
}

func (s *srq) Query() verbs.SRQAttr {
	s.pd.dev.mu.Lock()
	defer s.pd.dev.mu.Unlock()
	return verbs.SRQAttr{MaxWR: len(s.queue.ring), Limit: s.limit}
}

// Close releases the queue; its receives come back nowhere, as in libibverbs.
func (s *srq) Close() error {
	s.pd.dev.mu.Lock()
	defer s.pd.dev.mu.Unlock()
	if len(s.users) > 0 {
		return verbs.Errorf("close shared receive queue", verbs.ErrBusy, "%d queue pairs use it", len(s.users))
	}
	if !s.closed {
		s.closed = true
		s.pd.objects--
	}
	return nil
}
