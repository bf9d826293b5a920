package ofiverbs

import (
	"errors"
	"slices"

	"cinnabar/internal/invariants"
	"cinnabar/verbs"
)

// receives are the buffers for the packets of peers: those of one connection, or those of a sharedQueue. The zero value has none.
type receives struct {
	mr   *verbs.MR
	size int            // bytes of a buffer
	wrs  []verbs.RecvWR // one for each buffer, with its number in the lower half of the ID; never changed
}

// newReceives registers n buffers of size bytes.
func (e *Endpoint) newReceives(n, size int) (r receives, err error) {
	if r.mr, err = e.regMR(make([]byte, n*size), verbs.LocalWrite); err != nil {
		return receives{}, err
	}
	r.size = size
	sges := make([]verbs.SGE, n)
	for i := range n {
		sges[i] = r.mr.SGE(i*size, size)
		r.wrs = append(r.wrs, verbs.RecvWR{ID: idReceive | uint64(i), SGL: sges[i : i+1]})
	}
	return r, nil
}

// bytes returns the first n bytes of a buffer.
func (r *receives) bytes(i int, n uint32) []byte { return r.mr.Bytes()[i*r.size:][:n:n] }

// A server with many clients would pin mostPinned bytes for each of them. Therefore an endpoint that has Config.OwnQueues connections gives
// each further connection that a peer makes a place in a shared receive queue. Such a connection has a window: the number of receives that
// its peer may use. The windows of all connections of a queue are never larger together than the number of its receives, so that each packet
// for which a peer has a credit finds a receive, as on a queue of its own. A window is sharedWindow at least. It grows while the peer
// sends, up to mostReceives, and becomes smaller when the peer sends after other peers have grown theirs. It does not change
// while the peer sends nothing, because no packet takes credits back.
const (
	sharedPlaces = 32                                       // connections of a queue
	sharedWindow = 4                                        // least window; in a smaller one each credit packet would cause another one, without end
	sharedCommon = 4 * sharedPlaces                         // receives of a queue by which windows grow
	sharedPart   = 2                                        // a window is at most sharedWindow plus the free common receives divided by sharedPart
	sharedSlots  = 8                                        // packets of a connection that are being sent
	sharedMost   = sharedPlaces*sharedWindow + sharedCommon // receives of a queue
)

// sharedQueue is a shared receive queue with its buffers. The endpoint closes it when its last connection has ended.
type sharedQueue struct {
	receives
	srq *verbs.SRQ

	mu invariants.Mutex // lock order: after those of connections
	// +checklocks:mu
	places int // connections that the queue has
	// common is the number of receives by which windows can grow. Each connection that ends takes one for good, because a
	// device may lose the receive of a packet that has begun. So common may be negative.
	// +checklocks:mu
	common int
}

// sharedQueues are the shared receive queues of an endpoint.
type sharedQueues struct {
	mu invariants.Mutex // lock order: before that of sharedQueue
	// +checklocks:mu
	list []*sharedQueue
}

// join returns a queue with a place for one more connection, which calls leave in the end. It returns nil if no queue has a place and another
// queue would save nothing, or the device has no room for one. The connection then needs a receive queue of its own.
//
// Another queue saves nothing if the present ones have more receives than queues of their own would give their connections. A host that keeps
// one connection in each queue and ends many others could otherwise have a queue pinned for each connection that it keeps.
func (e *Endpoint) join() *sharedQueue {
	e.queues.mu.Lock()
	defer e.queues.mu.Unlock()
	places := 0
	for _, q := range e.queues.list {
		if q.join() {
			return q
		}
		places += q.taken()
	}
	if len(e.queues.list)*sharedMost > places*e.shape.receives {
		return nil
	}
	q, err := e.newSharedQueue()
	if err != nil { // a queue of one connection needs less memory, and has an error of its own if there is none
		e.cfg.Logger.Debug("no further shared receive queue", keyError, err)
		return nil
	}
	q.join()
	e.queues.list = append(e.queues.list, q)
	return q
}

// newSharedQueue makes a queue and posts its receives.
func (e *Endpoint) newSharedQueue() (*sharedQueue, error) {
	srq, err := e.pd.CreateSRQ(verbs.SRQConfig{MaxWR: sharedMost, MaxSGE: 1})
	if err != nil {
		return nil, err
	}
	q := &sharedQueue{srq: srq}
	q.mu.Lock()
	q.common = sharedCommon
	q.mu.Unlock()
	if q.receives, err = e.newReceives(sharedMost, e.shape.receive); err == nil {
		_, err = srq.PostRecv(q.wrs)
	}
	if err != nil {
		return nil, errors.Join(err, q.close())
	}
	return q, nil
}

// close releases the queue, which no queue pair uses.
func (q *sharedQueue) close() error {
	err := q.srq.Close()
	if q.mr != nil {
		err = errors.Join(err, q.mr.Close())
	}
	return err
}

// join takes a place, and reports whether there was one. There is none if the queue has no common receives left: it may have lost
// them, and is closed when its connections have ended.
func (q *sharedQueue) join() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.places == sharedPlaces || q.common <= 0 {
		return false
	}
	q.places++
	return true
}

// taken returns the number of connections of the queue.
func (q *sharedQueue) taken() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.places
}

// leave gives back the place and the window of a connection. Its queue pair is closed.
func (e *Endpoint) leave(q *sharedQueue, window int) error {
	e.queues.mu.Lock()
	defer e.queues.mu.Unlock()
	q.mu.Lock()
	q.places--
	q.common += window - sharedWindow - 1
	last := q.places == 0
	q.mu.Unlock()
	if !last {
		return nil
	}
	e.queues.list = slices.DeleteFunc(e.queues.list, func(o *sharedQueue) bool { return o == q })
	return q.close()
}

// resize returns the new size of a window after n packets of the connection were received.
func (q *sharedQueue) resize(window, n int) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	want := min(sharedWindow+max(0, q.common)/sharedPart, mostReceives)
	if want > window {
		want = min(want, window+n, window+max(0, q.common))
	} else {
		want = max(want, window-n)
	}
	q.common -= want - window
	return want
}
