//go:build linux

package rdmacore

import (
	"math/rand/v2"
	"testing"

	"cinnabar/verbs"
)

// TestQueueAnyOrder completes reads and writes each in order, but the one beside the
// other, as siw does: every completion has its own id, and no slot is used
// again before its request is done.
func TestQueueAnyOrder(t *testing.T) {
	const depth, requests = 6, 2000
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		var q queue
		q.init(depth)
		q.anyOrder()
		kinds := [...]verbs.WCOp{verbs.WCRead, verbs.WCWrite}
		var outstanding [2][]uint32 // positions by kind
		for posted := uint32(0); posted < requests; {
			kind := rnd.IntN(2)
			if room := posted-q.tail.Load() < depth; room && rnd.IntN(2) == 0 {
				q.put(posted, uint64(posted), kinds[kind])
				posted++
				q.head.Store(posted)
				outstanding[kind] = append(outstanding[kind], posted-1)
				continue
			}
			if len(outstanding[kind]) == 0 {
				continue
			}
			pos := outstanding[kind][0]
			if kind == 0 { // its answer tells that the writes before it have gone
				for len(outstanding[1]) > 0 && outstanding[1][0] < pos {
					outstanding[1] = outstanding[1][1:]
				}
			}
			outstanding[kind] = outstanding[kind][1:]
			if !q.isOpen(pos) {
				t.Fatalf("seed %d: request %d is closed before its completion", seed, pos)
			}
			if id, op := q.take(pos); id != uint64(pos) || op != kinds[kind] {
				t.Fatalf("seed %d: completion of request %d has id %d and operation %v", seed, pos, id, op)
			}
			if q.isOpen(pos) {
				t.Fatalf("seed %d: request %d is open after its completion", seed, pos)
			}
		}
	}
}

// TestQueueSkip leaves a request of ours out of what is given back.
func TestQueueSkip(t *testing.T) {
	var q queue
	q.init(4)
	q.anyOrder()
	q.put(0, 10, verbs.WCRead)
	q.head.Store(1)
	q.skip(1)
	q.head.Store(2)
	if !q.isOpen(0) || q.isOpen(1) {
		t.Errorf("open: %t, %t; want the first one", q.isOpen(0), q.isOpen(1))
	}
	q.take(1)
	if q.tail.Load() != 0 || !q.isOpen(0) {
		t.Error("our write has closed the read before it")
	}
	q.take(0)
	if q.tail.Load() != 2 {
		t.Errorf("tail = %d, want 2", q.tail.Load())
	}
}

// newQueueRig is a queue pair that completions find, on a device that is there.
func newQueueRig(depth int) (*qp, *cq) {
	d := &device{qps: map[uint64]*qp{}, removal: removal{gone: make(chan struct{})}}
	q := &qp{pd: &pd{dev: d}}
	q.token.Store(5)
	d.qps[5] = q
	q.rq.init(depth)
	q.rq.anyOrder()
	return q, &cq{dev: d, bell: make(chan struct{})}
}

// TestFlushBeforeDriver gives a receive back that was posted in ERR before the
// driver has flushed an earlier one: each comes back once, under its own id, and
// neither frees the other's slot.
func TestFlushBeforeDriver(t *testing.T) {
	const depth = 2
	q, c := newQueueRig(depth)
	q.rq.put(0, 100, verbs.WCRecv)
	q.rq.put(1, 101, verbs.WCRecv)
	q.rq.head.Store(2)
	c.addLate(makeToken(kindRecv, 5, 1))
	wc := make([]verbs.WC, depth)
	if n := flushLate(c, wc); n != 1 || wc[0].ID != 101 {
		t.Fatalf("late: %d, id %d; want 101", n, wc[0].ID)
	}
	if q.rq.tail.Load() != 0 {
		t.Error("the slot of the earlier receive is free, and it is not done")
	}
	wc[0] = verbs.WC{Status: verbs.StatusWRFlushErr}
	if !q.complete(kindRecv, 0, &wc[0]) || wc[0].ID != 100 {
		t.Errorf("the driver's: id %d, want 100", wc[0].ID)
	}
	if q.rq.tail.Load() != 2 {
		t.Errorf("tail = %d, want 2", q.rq.tail.Load())
	}
}

// TestDriverTooLate has the driver flush a request that was given back, when the
// slot is another one's: that one is not touched.
func TestDriverTooLate(t *testing.T) {
	q, _ := newQueueRig(2)
	var wc verbs.WC
	size := uint32(len(q.rq.ids))
	for pos := range size {
		q.rq.put(pos, uint64(pos), verbs.WCRecv)
		q.rq.head.Store(pos + 1)
		if !q.flush(kindRecv, pos, &wc) {
			t.Fatalf("%d is not given back", pos)
		}
	}
	q.rq.put(size, 77, verbs.WCRecv)
	q.rq.head.Store(size + 1)
	wc = verbs.WC{Status: verbs.StatusWRFlushErr}
	if q.complete(kindRecv, 0, &wc) {
		t.Errorf("a completion for the second time, with id %d", wc.ID)
	}
	if !q.flush(kindRecv, size, &wc) || wc.ID != 77 || q.flush(kindRecv, size, &wc) {
		t.Error("the request in its slot does not come back once")
	}
}

func flushLate(c *cq, wc []verbs.WC) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lateLocked(wc)
}
