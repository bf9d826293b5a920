package sched

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"
)

// served has a pool of one worker that is busy given requests, and returns in which order it serves them.
func served(t *testing.T, kind Kind, queue int, rs ...*request) string {
	t.Helper()
	var turns []string
	synctest.Test(t, func(t *testing.T) {
		g := &rig{pool: NewPool(PoolConfig{Workers: 1, Queue: queue, Kind: kind})}
		hold := make(chan struct{})
		g.run(&request{peer: "first", hold: hold})
		synctest.Wait()
		g.log.take()
		for _, r := range rs {
			r.hold = make(chan struct{})
			g.run(r)
		}
		if refused := g.log.take(); refused != "" {
			turns = append(turns, refused, "|")
		}
		close(hold)
		open := slices.Clone(rs)
		for range rs {
			synctest.Wait()
			turn := g.log.take()
			if turn == "" {
				break
			}
			turns = append(turns, turn)
			i := slices.IndexFunc(open, func(r *request) bool { return r.name() == turn })
			close(open[i].hold)
			open = slices.Delete(open, i, i+1)
		}
	})
	return strings.Join(turns, " ")
}

// asked makes a request with a priority.
func asked(peer string, n int, priority int16) *request {
	return &request{peer: peer, n: n, priority: priority}
}

// parity: G78
func TestQueuePriority(t *testing.T) {
	got := served(t, Priority, 100,
		asked("a", 0, 0), asked("a", 1, 5), asked("b", 2, 5), asked("a", 3, 5), asked("a", 4, -1), asked("b", 5, 0))
	if want := "a1 b2 a3 a0 b5 a4"; got != want {
		t.Errorf("order %q, want %q", got, want)
	}
	plain := served(t, FIFO, 100, asked("a", 0, 0), asked("a", 1, 5), asked("b", 2, -5))
	if want := "a0 b2 a1"; plain != want {
		t.Errorf("order of a pool without priorities %q, want %q", plain, want)
	}
}

// TestQueueStarvesNobody has two priorities below one that always has requests.
// parity: G78
func TestQueueStarvesNobody(t *testing.T) {
	rs := []*request{asked("l", 0, -1), asked("m", 0, 0)}
	for i := range 20 {
		rs = append(rs, asked("u", i, 1))
	}
	turns := strings.Fields(served(t, Priority, 100, rs...))
	if low, mid := slices.Index(turns, "l0"), slices.Index(turns, "m0"); low != 7 && mid != 7 || low+mid != 7+15 {
		t.Errorf("turns of the others are %d and %d, want 7 and 15: %v", low, mid, turns)
	}
}

// parity: G78
func TestQueueEarliestFirst(t *testing.T) {
	got := served(t, EarliestFirst, 4,
		asked("a", 0, 0), asked("a", 1, 5), asked("a", 2, 0), asked("b", 3, 9), asked("b", 4, 9))
	if want := "b4! | a0 a1 a2 b3"; got != want {
		t.Errorf("order %q, want %q", got, want)
	}
}

// TestQueueEvictsLowest checks that a full queue makes room for urgent requests, and never at the expense of the
// process's own.
// parity: G78
func TestQueueEvictsLowest(t *testing.T) {
	got := served(t, Priority, 2,
		asked("a", 0, 0), asked("b", 1, 1), asked("c", 2, 2), asked("d", 3, 1), asked("e", 4, 0), asked(Own, 5, 0), asked(Own, 6, 0),
		asked("f", 7, 3))
	if want := "a0! b1! d3! e4! | f7 c2 " + Own + "5 " + Own + "6"; got != want {
		t.Errorf("order %q, want %q", got, want)
	}
}

// TestQueueHistory compares a queue of any kind with what must hold of all: what goes in comes out once.
// parity: G78
func TestQueueHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := queue{kind: Kind(rapid.IntRange(0, 2).Draw(t, "kind"))}
		tenants := []*tenant{{host: hostNumber(1)}, {host: hostNumber(2)}, {}}
		in := map[*Job]bool{}
		out := func(j *Job) {
			if j != nil && !in[j] {
				t.Fatal("what comes out is not in")
			}
			delete(in, j)
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				j := &Job{priority: rapid.Int16Range(-1, 1).Draw(t, "priority")}
				q.push(rapid.SampledFrom(tenants).Draw(t, "host"), rapid.SampledFrom([]string{"a", "b"}).Draw(t, "peer"), j)
				in[j] = true
			},
			"pop": func(t *rapid.T) {
				j := q.pop(func(*tenant, *Job) bool { return true })
				if (j == nil) != (len(in) == 0) {
					t.Fatalf("pop gives %v of %d", j, len(in))
				}
				out(j)
			},
			"evict": func(t *rapid.T) {
				j := &Job{priority: rapid.Int16Range(-1, 2).Draw(t, "for")}
				victim := q.evict(tenants[0], "c", j, rapid.Bool().Draw(t, "has its share"))
				if victim != nil && q.kind == Priority && victim.priority > j.priority {
					t.Fatal("evicted is more urgent")
				}
				out(victim)
			},
			"": func(t *rapid.T) {
				n := 0
				for i, l := range q.levels {
					if q.kind == Priority && l.lanes.queued == 0 || i > 0 && q.levels[i-1].priority <= l.priority {
						t.Fatal("levels are out of order")
					}
					n += l.lanes.queued
				}
				if n != len(in) || q.queued != n {
					t.Fatalf("%d and %d queued, want %d", n, q.queued, len(in))
				}
			},
		})
	})
}

// TestQueueKeepsLevel checks that a pool whose queue is empty now and then does not make it anew each time.
func TestQueueKeepsLevel(t *testing.T) {
	for _, kind := range []Kind{FIFO, EarliestFirst} {
		q := queue{kind: kind}
		j, from := &Job{}, &tenant{host: hostNumber(1)}
		if n := testing.AllocsPerRun(100, func() {
			q.push(from, "a", j)
			q.pop(func(*tenant, *Job) bool { return true })
		}); n > 1 { // the peer's lane
			t.Errorf("%v: %v allocations for each request that waits", kind, n)
		}
	}
}
