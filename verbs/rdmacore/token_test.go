//go:build linux

package rdmacore

import (
	"math"
	"testing"

	"cinnabar/verbs"
)

func TestToken(t *testing.T) {
	for _, kind := range []uint64{kindSend, kindRecv, kindShared, kindMarker} {
		for _, serial := range []uint64{1, serialMask} {
			for _, pos := range []uint32{0, 1, math.MaxUint32} {
				if k, s, p := splitToken(makeToken(kind, serial, pos)); k != kind || s != serial || p != pos {
					t.Errorf("token of %d, %d, %d came back as %d, %d, %d", kind, serial, pos, k, s, p)
				}
			}
		}
	}
}

// A completion retires the requests before it that made none, also where the
// counters wrap around.
func TestQueueRetires(t *testing.T) {
	var q queue
	q.init(5)
	q.head.Store(math.MaxUint32 - 2)
	q.tail.Store(math.MaxUint32 - 2)
	for i := range uint64(5) {
		pos := q.head.Load()
		q.put(pos, 100+i, verbs.WCOp(i))
		q.head.Store(pos + 1)
	}
	if id, op := q.take(q.tail.Load() + 3); id != 103 || op != 3 {
		t.Errorf("got id %d, operation %d; want 103, 3", id, op)
	}
	if left := q.head.Load() - q.tail.Load(); left != 1 {
		t.Errorf("%d requests are outstanding, want 1", left)
	}
}
