package iwarp

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar/internal/progress"
	"cinnabar/internal/rundown"
	"cinnabar/internal/sockio"
	"cinnabar/verbs"
)

// cqe is a completion, and the entries of its work queue that are free when it is removed.
type cqe struct {
	wc    verbs.WC
	qp    *qp
	slots *atomic.Int64 // the work queue's count of used entries
	n     int64         // entries that this completion frees: itself and the silent ones before it
}

// States of a completion queue's notification.
const (
	disarmed = iota
	armedSolicited
	armedAny
)

// maxDrive bounds the connections that one Poll reads. Those beyond have
// their turn at the next Poll, or are read in the background.
const maxDrive = 8

// cq is a completion queue.
type cq struct {
	dev     *device
	context any
	event   chan struct{} // capacity 1

	// policy decides for how long goroutines that wait for input of a connection of the queue spin, and watch looks at the connections. Both
	// are set before a connection has the queue.
	policy *progress.Policy
	watch  *progress.Watcher

	users rundown.Guard // work queues that complete here; closed with mu held

	mu sync.Mutex
	// +checklocks:mu
	depth int
	// completions; it grows when it is full, up to depth entries
	// +checklocks:mu
	ring []cqe
	// +checklocks:mu
	head int
	// +checklocks:mu
	count int
	// +checklocks:mu
	armed int
	// +checklocks:mu
	overrun bool
	// +checklocks:mu
	closed bool
	// queue pairs that complete here, and the entries of their work queues together
	// +checklocks:mu
	pairs, demand int
	// the log has said that demand is more than the depth
	// +checklocks:mu
	warned bool
	// +checklocks:mu
	attached []*conn
	// delays events; nil: each comes at once
	// +checklocks:mu
	moderation *moderation
	// add sets WallclockNS
	// +checklocks:mu
	stamps bool

	ready    atomic.Int64            // count, for the look before the lock
	ended    atomic.Bool             // the queue is closed or overrun; Poll reads it without the lock
	asleep   atomic.Pointer[conn]    // the connection with a goroutine asleep in its seat; nil: none
	armedNow atomic.Bool             // armed is not disarmed
	conns    atomic.Pointer[[]*conn] // copy of attached for Poll
	turn     atomic.Uint64
	vain     atomic.Uint32 // number of polls that have found no completion
}

func newCQ(d *device, depth int, context any) *cq {
	return &cq{dev: d, context: context, policy: d.policy, watch: &d.watch, event: make(chan struct{}, 1), depth: depth, ring: make([]cqe, min(depth, firstEntries))}
}

func (q *cq) Event() <-chan struct{} { return q.event }

func (q *cq) Depth() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.depth
}

// Poll takes completions and, if there are none, reads the sockets of the
// connections that complete here.
func (q *cq) Poll(wc []verbs.WC) (int, error) {
	if len(wc) == 0 {
		return 0, nil
	}
	if q.ready.Load() == 0 {
		q.drive()
		if q.ready.Load() == 0 {
			poller.Look(q.vain.Add(1))
			if !q.ended.Load() {
				return 0, nil
			}
		}
	}
	return q.take(wc)
}

// poller wakes the readers of all connections of the process. A goroutine that polls a queue in vain calls Look, because the peer may answer only
// after this process has read another connection, and Go's scheduler wakes no reader while goroutines spin on all processors.
var poller sockio.SharedPoller

func (q *cq) take(wc []verbs.WC) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(wc), q.count)
	for i := range n {
		e := &q.ring[q.head]
		wc[i] = e.wc
		e.slots.Add(-e.n)
		*e = cqe{}
		if q.head++; q.head == len(q.ring) {
			q.head = 0
		}
	}
	q.count -= n
	q.ready.Store(int64(q.count))
	switch {
	case n > 0:
		return n, nil
	case q.closed:
		return 0, verbs.Errorf("poll completion queue", verbs.ErrClosed, "the queue is closed")
	case q.overrun:
		return 0, verbs.Errorf("poll completion queue", verbs.ErrCQOverrun,
			"more than %d completions were waiting and some are lost; create the queue as deep as all work queues that use it have entries together", q.depth)
	}
	return 0, nil
}

// Follow implements [progress.Follower].
func (q *cq) Follow(p *progress.Policy, w *progress.Watcher) { q.policy, q.watch = p, w }

// Moves implements [verbs.CQMover].
func (q *cq) Moves() (n uint64) {
	if p := q.conns.Load(); p != nil {
		for _, c := range *p {
			n += c.traffic.Load()
		}
	}
	return n
}

// drive lets the attached connections make progress in the caller's time.
func (q *cq) drive() {
	p := q.conns.Load()
	if p == nil {
		return
	}
	// The poll between arming and parking does not take the reading over again.
	claim := !q.armedNow.Load()
	list := *p
	n, start := len(list), 0
	if n > maxDrive {
		start = int(q.turn.Add(maxDrive) % uint64(n))
		n = maxDrive
	}
	for i := range n {
		list[(start+i)%len(list)].poll(claim)
	}
}

// Arm asks for an event and hands the connections to their background readers,
// since the caller is about to park.
func (q *cq) Arm(solicitedOnly bool) error {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return verbs.Errorf("arm completion queue", verbs.ErrClosed, "the queue is closed")
	}
	if !solicitedOnly {
		q.armed = armedAny
	} else if q.armed == disarmed {
		q.armed = armedSolicited
	}
	q.armedNow.Store(true)
	if q.overrun {
		q.signalLocked()
	}
	q.mu.Unlock()
	if p := q.conns.Load(); p != nil {
		for _, c := range *p {
			c.endClaim()
		}
	}
	return nil
}

// +checklocks:q.mu
func (q *cq) signalLocked() {
	if q.moderation != nil {
		q.moderation.end()
	}
	q.armed = disarmed
	q.armedNow.Store(false)
	select {
	case q.event <- struct{}{}:
	default:
	}
}

// add appends a completion. A full queue loses it: add raises a device event, and Poll
// returns an error when the completions before it are taken.
func (q *cq) add(e cqe, solicited bool) {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return
	}
	if q.count == q.depth {
		first := !q.overrun
		q.overrun = true
		q.ended.Store(true)
		e.slots.Add(-e.n) // the completion is lost, so no poll will free the entries
		q.signalLocked()
		q.mu.Unlock()
		if first {
			q.dev.raise(verbs.DeviceEvent{Type: verbs.EventCQErr, Context: q.context, QPNum: e.wc.QPNum, Err: verbs.ErrCQOverrun})
		}
		return
	}
	if q.count == len(q.ring) {
		q.ring, q.head = resized(q.ring, q.head, q.count, min(2*len(q.ring), q.depth)), 0
	}
	i := q.head + q.count
	if i >= len(q.ring) {
		i -= len(q.ring)
	}
	q.ring[i] = e
	if q.stamps {
		q.ring[i].wc.WallclockNS = time.Now().UnixNano()
	}
	q.count++
	q.ready.Store(int64(q.count))
	failed := e.wc.Status != verbs.StatusSuccess
	if q.armed == armedAny || q.armed == armedSolicited && (solicited || failed) {
		if q.moderation == nil || failed || q.moderation.due() {
			q.signalLocked()
		}
	}
	q.mu.Unlock()
	q.Unpark()
}

// SetTimestamps implements [verbs.CQDriver].
func (q *cq) SetTimestamps(on bool) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stamps = on
	return nil
}

// purge removes the completions of a destroyed queue pair.
func (q *cq) purge(p *qp) {
	q.mu.Lock()
	defer q.mu.Unlock()
	kept := make([]cqe, len(q.ring))
	n := 0
	for i := range q.count {
		if e := q.ring[(q.head+i)%len(q.ring)]; e.qp != p {
			kept[n] = e
			n++
		} else {
			e.slots.Add(-e.n)
		}
	}
	q.ring, q.head, q.count = kept, 0, n
	q.ready.Store(int64(n))
}

func (q *cq) Resize(depth int) error {
	const op = "resize completion queue"
	if depth < 1 || depth > maxCQE {
		return verbs.Errorf(op, verbs.ErrInvalid, "%d entries; 1 to %d are possible", depth, maxCQE)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if depth < q.count {
		return verbs.Errorf(op, verbs.ErrInvalid, "%d entries cannot hold the %d completions that wait; poll them first", depth, q.count)
	}
	q.depth = depth
	if depth < len(q.ring) {
		q.ring, q.head = resized(q.ring, q.head, q.count, depth), 0
	}
	return nil
}

// shrink frees all entries but the first ones, if no completion waits.
func (q *cq) shrink() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := min(q.depth, firstEntries); q.count == 0 && len(q.ring) > n {
		q.ring, q.head = make([]cqe, n), 0
	}
}

func (q *cq) Close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		if !q.users.CloseIdle() {
			return verbs.Errorf("close completion queue", verbs.ErrBusy, "%d work queues complete here; close their queue pairs first", q.users.Users())
		}
		q.closed = true
		q.ended.Store(true)
		q.dev.cqs.Add(-1)
		q.signalLocked()
	}
	return nil
}

// use counts a work queue that completes here, or refuses.
func (q *cq) use() error {
	if !q.users.Acquire() {
		return verbs.Errorf("create queue pair", verbs.ErrClosed, "its completion queue is closed")
	}
	return nil
}

// share notes that a queue pair completes here with n entries of its work queues. One line of the log says so where
// several queue pairs share a queue that is too small for them together, because a peer that makes it overrun then takes
// completions from the others. It is no error: a program that posts less than it could needs no more.
func (q *cq) share(n int) {
	q.mu.Lock()
	q.pairs++
	q.demand += n
	warn := q.pairs > 1 && q.demand > q.depth && !q.warned
	q.warned = q.warned || warn
	depth, demand := q.depth, q.demand
	q.mu.Unlock()
	if warn {
		q.dev.cfg.Logger.Warn("a completion queue is smaller than the work queues that share it", "depth", depth, "entries", demand)
	}
}

// unshare takes a queue pair back that share has noted.
func (q *cq) unshare(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pairs--
	q.demand -= n
}

// attach makes Poll drive c; detach ends that.
func (q *cq) attach(c *conn) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !slices.Contains(q.attached, c) {
		q.attached = append(q.attached, c)
	}
	q.publishLocked()
}

func (q *cq) detach(c *conn) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.attached = slices.DeleteFunc(q.attached, func(x *conn) bool { return x == c })
	q.publishLocked()
}

// +checklocks:q.mu
func (q *cq) publishLocked() {
	list := slices.Clone(q.attached)
	q.conns.Store(&list)
}
