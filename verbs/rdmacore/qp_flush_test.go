//go:build rdma && linux && cgo

package rdmacore

import (
	"math/rand/v2"
	"testing"

	"cinnabar/verbs/driver"
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
		kinds := [...]driver.WCOp{driver.WCRead, driver.WCWrite}
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
	q.put(0, 10, driver.WCRead)
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
