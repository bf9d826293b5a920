package iwarp

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/internal/rundown"
	"cinnabar/verbs"
)

// srq is a receive queue that several queue pairs share.
type srq struct {
	dev     *device
	context any
	q       recvQueue
	users   rundown.Guard // queue pairs

	mu sync.Mutex
	// raise the limit event below this; 0: never, or raised already
	// +checklocks:mu
	limit int
	// connections that hold messages for want of a receive, in the order in which they began to wait
	// +checklocks:mu
	waiting []waiter
	// number of messages that have begun in a receive and are unfinished, by host and of all hosts
	// +checklocks:mu
	unfinished map[hostquota.Host]int
	// +checklocks:mu
	unfinishedAll int
	// whether a connection waits because its host has used up its share of receives
	// +checklocks:mu
	refused bool
	// whether wake runs
	// +checklocks:mu
	waking bool

	due atomic.Bool // receives were posted, or an unfinished message has ended, and wake must be called
}

// waiter is a connection that holds messages for want of a receive of a shared queue.
type waiter struct {
	c     *conn
	whole bool // its first message is complete, and may take a receive beyond the share of its host
}

func (p *pd) CreateSRQ(init verbs.SRQInit) (verbs.SRQDriver, error) {
	const op = "create shared receive queue"
	if err := checkDepth(op, "MaxWR", init.MaxWR, 1, maxQueueWR); err != nil {
		return nil, err
	}
	if err := checkDepth(op, "MaxSGE", init.MaxSGE, 0, maxSGE); err != nil {
		return nil, err
	}
	if err := checkDepth(op, "Limit", init.Limit, 0, init.MaxWR); err != nil {
		return nil, err
	}
	s := &srq{dev: p.dev, context: init.Context, limit: init.Limit, unfinished: map[hostquota.Host]int{}}
	s.q.init(p, init.MaxWR, init.MaxSGE)
	p.children.Add(1)
	return s, nil
}

func (s *srq) PostRecv(wrs []verbs.RecvWR) (int, error) {
	for i := range wrs {
		if err := s.q.post(&wrs[i]); err != nil {
			if i > 0 {
				s.wake()
			}
			return i, err
		}
	}
	s.wake()
	return len(wrs), nil
}

// mayBegin reports whether a message of host h may begin in a receive. A host gets a share of the receives that are posted or hold
// unfinished messages, because many connections of one host that each begin a message and never end it could otherwise take all.
func (s *srq) mayBegin(h hostquota.Host) bool {
	posted := s.q.posted()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.grantsLocked(posted, h) {
		return true
	}
	s.refused = true
	return posted == 0 // the lack of receives, not the share, then delays the message
}

// grantsLocked reports whether host h has a share of the receives left.
//
// +checklocks:s.mu
func (s *srq) grantsLocked(posted int, h hostquota.Host) bool {
	return hostquota.Grants(int64(posted+s.unfinishedAll), int64(s.unfinishedAll+1), int64(s.unfinished[h]+1))
}

// begun counts an unfinished message of host h.
func (s *srq) begun(h hostquota.Host) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unfinished[h]++
	s.unfinishedAll++
}

// ended ends the count of an unfinished message of host h.
func (s *srq) ended(h hostquota.Host) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unfinishedAll--
	if s.unfinished[h]--; s.unfinished[h] == 0 {
		delete(s.unfinished, h)
	}
	if s.refused {
		s.refused = false
		s.due.Store(true)
	}
}

// wake delivers messages of waiting connections after receives were posted or an unfinished message has ended. It calls
// deliverHeld of one connection after the other, as long as a receive is posted that the next one may take, because a call for
// each waiting connection and each receive would cost the square of their number. The caller holds no lock. The connections may
// call wake in turn; such a call returns at once, and the outer call starts over.
func (s *srq) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due.Store(true)
	if s.waking {
		return
	}
	s.waking = true
	for s.due.Swap(false) {
		for tries := len(s.waiting); tries > 0; tries-- { // a connection that waits again is not tried again
			c := s.nextLocked()
			if c == nil {
				break
			}
			s.mu.Unlock()
			c.deliverHeld()
			s.mu.Lock()
		}
	}
	s.waking = false
}

// nextLocked takes the first connection off the list that may take a receive, nil if there is none.
//
// +checklocks:s.mu
func (s *srq) nextLocked() *conn {
	posted := s.q.posted()
	if posted == 0 {
		return nil
	}
	var refused *conn // the last one of a host that has no share left
	for i, w := range s.waiting {
		if !w.whole && (refused != nil && refused.host == w.c.host || !s.grantsLocked(posted, w.c.host)) {
			s.refused, refused = true, w.c
			continue
		}
		s.waiting = slices.Delete(s.waiting, i, i+1)
		return w.c
	}
	return nil
}

// countUnfinished is called after each pass over the input. It counts a message in a shared receive that is unfinished, and ends the
// count of one that is complete.
//
// +checklocks:c.rxMu
func (c *conn) countUnfinished() {
	r := &c.rx
	if c.qp.srq == nil || r.counted == r.bound {
		return
	}
	if r.counted = r.bound; r.bound {
		c.qp.srq.begun(c.host)
	} else {
		c.qp.srq.ended(c.host)
	}
}

// wait adds c to the connections that hold messages for want of a receive; wake calls its deliverHeld. whole reports whether its
// first message is complete.
func (s *srq) wait(c *conn, whole bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.IndexFunc(s.waiting, func(w waiter) bool { return w.c == c }); i >= 0 {
		s.waiting[i].whole = whole
		return
	}
	s.waiting = append(s.waiting, waiter{c, whole})
}

func (s *srq) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = slices.DeleteFunc(s.waiting, func(w waiter) bool { return w.c == c })
}

// A message that has begun in a receive of a shared queue must bring sharedLeast bytes in each sharedStall, or end. A
// connection has one such message at a time, so it can keep one receive from the others. It could do so for ever if single
// bytes were enough.
const (
	sharedStall = 30 * time.Second
	sharedLeast = 32 << 10 // bytes; a path that brings less than 1 KiB/s is as good as broken
)

// watchShared ends the connection if the message that has begun makes no progress.
//
// +checklocks:c.rxMu
func (c *conn) watchShared() {
	r := &c.rx
	if r.shared != nil {
		return
	}
	before, takes := c.rxStats.bytes, r.takes
	r.shared = time.AfterFunc(c.dev.sharedStall, func() {
		c.rxMu.Lock()
		r.shared = nil
		switch {
		case !r.bound || c.closed.Load() || c.over():
		case r.takes != takes || c.rxStats.bytes-before >= sharedLeast:
			c.watchShared()
		default:
			t := rdmap.TermLocalCatastrophic.Terminate()
			t.Detail = fmt.Sprintf("a message in a shared receive went on for %v and brought less than %d bytes", c.dev.sharedStall, sharedLeast)
			c.dev.trail.Record(audit.Evicted, "unfinished message in a shared receive", c.host, c.logAttr())
			c.fail(refused(&t)) // queued responses must not keep the receive
		}
		c.rxMu.Unlock()
		c.teardownIfFailed()
	})
}

// taken raises the limit event if left receives are fewer than the limit. The
// limit is then unset, as in ibv_modify_srq(3).
func (s *srq) taken(left int) {
	s.mu.Lock()
	hit := s.limit > 0 && left < s.limit
	if hit {
		s.limit = 0
	}
	s.mu.Unlock()
	if hit {
		s.dev.raise(verbs.DeviceEvent{Type: verbs.EventSRQLimitReached, Context: s.context})
	}
}

func (s *srq) Modify(attr verbs.SRQAttr, limit, depth bool) error {
	const op = "modify shared receive queue"
	if depth {
		return verbs.Unsupported(op, "the depth is fixed at creation")
	}
	if !limit {
		return nil
	}
	if err := checkDepth(op, "Limit", attr.Limit, 0, s.Query().MaxWR); err != nil {
		return err
	}
	s.mu.Lock()
	s.limit = attr.Limit
	s.mu.Unlock()
	return nil
}

func (s *srq) Query() verbs.SRQAttr {
	s.mu.Lock()
	defer s.mu.Unlock()
	return verbs.SRQAttr{MaxWR: s.q.depth, Limit: s.limit}
}

func (s *srq) use() error {
	if !s.users.Acquire() {
		return verbs.Errorf("create queue pair", verbs.ErrClosed, "its shared receive queue is closed")
	}
	return nil
}

func (s *srq) Close() error {
	if s.users.CloseIdle() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.q.close()
		s.q.pd.children.Add(-1)
	} else if !s.users.Closed() {
		return verbs.Errorf("close shared receive queue", verbs.ErrBusy, "%d queue pairs use it; close them first", s.users.Users())
	}
	return nil
}

// checkDepth refuses a size outside of its limits by name.
func checkDepth(op, name string, v, low, high int) error {
	if v < low || v > high {
		return verbs.Errorf(op, verbs.ErrInvalid, "%s is %d; %d to %d are possible", name, v, low, high)
	}
	return nil
}
