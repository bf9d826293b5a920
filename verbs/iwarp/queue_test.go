package iwarp

import (
	"math/rand/v2"
	"testing"

	"cinnabar/verbs"
)

// TestSendQueueGrows posts and completes requests at random. Entries must keep their address and their content while the ring grows, and the
// ring must not grow beyond the depth. A queue without posted requests shrinks to its first entries.
func TestSendQueueGrows(t *testing.T) {
	const depth = 37
	r := rand.New(rand.NewPCG(1, 2))
	var q sendQueue
	q.init(depth, 2, 8)
	if len(q.ring) > firstEntries {
		t.Errorf("a new queue has memory for %d entries", len(q.ring))
	}
	var posted []*sendWQE
	for id := range uint64(10_000) {
		if r.IntN(2) == 0 && len(posted) < depth {
			w := q.free()
			w.id = id
			w.segs, w.inline = append(w.segs[:0], seg{n: int(id)}, seg{}), append(w.inline[:0], 1, 2, 3, 4, 5, 6, 7, byte(id))
			if cap(w.segs) != 2 || cap(w.inline) != 8 {
				t.Fatalf("an entry has room for %d pieces and %d bytes", cap(w.segs), cap(w.inline))
			}
			q.head++
			posted = append(posted, w)
		} else if len(posted) > 0 {
			w := posted[0]
			if got := q.at(q.tail); got != w || w.segs[0].n != int(w.id) || w.inline[7] != byte(w.id) {
				t.Fatalf("request %d is at another place, or has changed", w.id)
			}
			q.tail++
			posted = posted[1:]
		} else if q.shrink(); len(q.ring) > firstEntries {
			t.Fatalf("an empty queue has memory for %d entries after shrink", len(q.ring))
		}
	}
	for len(posted) < depth {
		posted = append(posted, q.free())
		q.head++
	}
	if len(q.ring) != depth {
		t.Errorf("the ring has %d entries when %d are in use", len(q.ring), depth)
	}
}

func overrun(q *cq) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.overrun
}

func ringLen(q *cq) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.ring)
}

// TestCompletionQueueGrows adds and takes completions at random. They must keep their order while the ring grows up to the depth. One more
// completion is lost and reported as an overrun. An empty queue shrinks to its first entries, and no other queue shrinks.
func TestCompletionQueueGrows(t *testing.T) {
	const depth = 29
	r := rand.New(rand.NewPCG(3, 4))
	var slots recvQueue
	q := newCQ(&device{}, depth, nil)
	added, taken := uint64(0), uint64(0)
	add := func() {
		q.add(cqe{wc: verbs.WC{ID: added}, slots: &slots.used, n: 1}, false)
		added++
	}
	wc := make([]verbs.WC, 5)
	for range 10_000 {
		if r.IntN(4) > 0 && added-taken < depth {
			add()
			continue
		}
		n, err := q.take(wc[:1+r.IntN(len(wc))])
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range wc[:n] {
			if c.ID != taken {
				t.Fatalf("completion %d, want %d", c.ID, taken)
			}
			taken++
		}
		before := ringLen(q)
		if q.shrink(); added > taken && ringLen(q) != before || added == taken && ringLen(q) > firstEntries {
			t.Fatalf("shrink has left %d of %d entries, and %d are in use", ringLen(q), before, added-taken)
		}
	}
	for added-taken < depth {
		add()
	}
	if overrun(q) || q.Depth() != depth {
		t.Errorf("overrun %v with %d completions in a queue of depth %d", overrun(q), depth, q.Depth())
	}
	if err := q.Resize(depth - 1); err == nil {
		t.Error("a full queue was made shorter")
	}
	if err := q.Resize(2 * depth); err != nil {
		t.Fatal(err)
	}
	for added-taken < 2*depth {
		add()
	}
	if overrun(q) {
		t.Error("overrun before the new depth")
	}
}
