package iwarp

import (
	"sync"
	"sync/atomic"

	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/rdmap"
)

// response is the response to a request of the peer: a read or an atomic.
type response struct {
	read     rdmap.ReadRequest
	head     ddp.Header // of the read request
	m        *mr        // source; nil for zero bytes and for atomics
	off      int
	isAtomic bool
	id       uint32
	original uint64
}

// leastRing is the length of the ring of a response or read queue after its first entry.
const leastRing = 4

// resized returns a ring of n entries that begins with the count entries of ring from head on. n is not less than count.
func resized[T any](ring []T, head, count, n int) []T {
	r := make([]T, n)
	for i := range count {
		r[i] = ring[(head+i)%len(ring)]
	}
	return r
}

// responseQueue holds the responses in the order of the requests. IRD bounds the
// responses without a last FPDU yet, because the peer may send its next request
// as soon as it has the last byte of a response, which can be before the call that sends it
// returns.
type responseQueue struct {
	mu sync.Mutex
	// grows when it is full, up to IRD entries
	// +checklocks:mu
	ring []response
	// the next to start
	// +checklocks:mu
	head int
	// ready is the number of responses that are not started. It changes under mu; next loads it without the lock, because the
	// transmitter asks for the next response more often than there is one.
	ready atomic.Int32
	// without their last FPDU
	// +checklocks:mu
	open int
	// not handed to TCP to the last byte
	// +checklocks:mu
	unsent int
}

// push adds r. False means that the peer has more requests outstanding than IRD allows.
func (q *responseQueue) push(r response, ird int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open >= ird {
		return false
	}
	n := int(q.ready.Load())
	if n == len(q.ring) {
		q.ring, q.head = resized(q.ring, q.head, n, max(2*n, leastRing)), 0
	}
	q.ring[(q.head+n)%len(q.ring)] = r
	q.ready.Add(1)
	q.open++
	q.unsent++
	return true
}

// next takes the oldest response that is not started. Only the holder of txMu calls it.
func (q *responseQueue) next() (r response, ok bool) {
	if q.ready.Load() == 0 {
		return r, false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	r = q.ring[q.head]
	q.ring[q.head] = response{}
	q.head = (q.head + 1) % len(q.ring)
	q.ready.Add(-1)
	return r, true
}

// framed notes that the last FPDU of a response is made, and will be sent.
func (q *responseQueue) framed() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open--
}

// finish notes that TCP has the last byte of a response.
func (q *responseQueue) finish() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.unsent--
}

func (q *responseQueue) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.unsent == 0
}

// readOp is a request of ours that the peer has to answer: a read or a piece of
// one, an atomic, a confirmation (size 0), or the RTR (w nil).
type readOp struct {
	w        *sendWQE
	sink     seg // where the answer goes; n is 0 for none
	stag     uint32
	to       uint64
	size     uint32
	got      uint32
	isAtomic bool
	id       uint32
}

// readQueue holds the requests in the order in which the answers come. The
// queue pair's mu guards it.
type readQueue struct {
	ring  []readOp // grows when it is full; the limits on outstanding requests bound its length
	head  int
	count int
	ids   uint32 // last request identifier of an atomic
}

func (q *readQueue) push(r readOp) {
	if q.count == len(q.ring) {
		q.ring, q.head = resized(q.ring, q.head, q.count, max(2*q.count, leastRing)), 0
	}
	q.ring[(q.head+q.count)%len(q.ring)] = r
	q.count++
}

// front returns the request that the next response answers, nil if there is none.
func (q *readQueue) front() *readOp {
	if q.count == 0 {
		return nil
	}
	return &q.ring[q.head]
}

func (q *readQueue) pop() {
	q.ring[q.head] = readOp{}
	q.head = (q.head + 1) % len(q.ring)
	q.count--
}
