package iwarp

import (
	"sync"
	"sync/atomic"

	"cinnabar/verbs"
)

// recvEntry is a posted receive in a ring. Its pieces are in recvQueue.segs.
type recvEntry struct {
	id     uint64
	total  uint64
	status verbs.WCStatus
	pieces int32
}

// recvWQE is a receive that a message has taken from the queue.
type recvWQE struct {
	id     uint64
	segs   []seg
	total  uint64
	status verbs.WCStatus // not success: an error found when it was posted, with which it completes in order
}

// recvQueue holds posted receives in order: of a queue pair, or shared.
type recvQueue struct {
	pd     *pd
	maxSGE int
	depth  int
	used   atomic.Int64 // posted and not yet polled

	mu sync.Mutex
	// +checklocks:mu
	ring []recvEntry
	// the pieces of all entries of ring, maxSGE for each
	// +checklocks:mu
	segs []seg
	// +checklocks:mu
	head int
	// posted and not yet taken
	// +checklocks:mu
	count int
	// +checklocks:mu
	closed bool
}

func (q *recvQueue) init(p *pd, depth, maxSGE int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pd, q.maxSGE, q.depth = p, maxSGE, depth
	q.ring, q.segs = make([]recvEntry, depth), make([]seg, depth*maxSGE)
}

// piecesLocked returns the memory for the pieces of entry i of the ring.
//
// +checklocks:q.mu
func (q *recvQueue) piecesLocked(i int) []seg { return q.segs[i*q.maxSGE : (i+1)*q.maxSGE] }

// post queues wr.
func (q *recvQueue) post(wr *verbs.RecvWR) error {
	const op = "post receive"
	if len(wr.SGL) > q.maxSGE {
		return verbs.Errorf(op, verbs.ErrInvalid, "%d scatter entries, the queue was made for %d", len(wr.SGL), q.maxSGE)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return verbs.Errorf(op, verbs.ErrClosed, "the queue is closed")
	}
	if q.used.Load() >= int64(q.depth) {
		return verbs.Errorf(op, verbs.ErrQueueFull, "%d receives are posted or not yet polled, which is the queue's depth; poll completions or create it deeper", q.depth)
	}
	i := q.head + q.count
	if i >= len(q.ring) {
		i -= len(q.ring)
	}
	segs, total, status := q.pd.resolve(q.piecesLocked(i)[:0], wr.SGL, true)
	q.ring[i] = recvEntry{id: wr.ID, total: total, status: status, pieces: int32(len(segs))}
	q.count++
	q.used.Add(1)
	return nil
}

// take moves the oldest receive into w, reuses w's segs, and returns the number of
// receives that remain.
func (q *recvQueue) take(w *recvWQE) (left int, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.count == 0 {
		return 0, false
	}
	from := &q.ring[q.head]
	w.id, w.total, w.status = from.id, from.total, from.status
	segs := q.piecesLocked(q.head)
	w.segs = append(w.segs[:0], segs[:from.pieces]...)
	clear(segs)
	if q.head++; q.head == len(q.ring) {
		q.head = 0
	}
	q.count--
	return q.count, true
}

// posted returns the number of receives that are posted and not taken.
func (q *recvQueue) posted() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.count
}

// close refuses further posts and drops the posted receives.
func (q *recvQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.count = 0
}
