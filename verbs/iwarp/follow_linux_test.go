package iwarp_test

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"cinnabar/internal/progress"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// TestFollow checks that the reader of a connection spins by the policy of its completion queue, and that the watcher of the queue looks at the
// connection.
func TestFollow(t *testing.T) {
	policy := progress.NewFixed(time.Millisecond)
	var watcher progress.Watcher
	a := newSide(t, iwarp.Config{}, nil)
	b := newSide(t, iwarp.Config{}, nil)
	t.Cleanup(watcher.Close)
	b.cq.Driver().(progress.Follower).Follow(policy, &watcher)
	connect(t, a, b, verbs.ConnParam{}, verbs.ConnParam{})
	src, dst := a.region(t, 64), b.region(t, 64)
	ctx := testContext(t)
	var wc [1]verbs.WC
	for policy.Counters().Spins == 0 && ctx.Err() == nil { // another goroutine of the process may spin, so that the reader may not
		b.recv(t, verbs.RecvWR{ID: 1, SGL: []verbs.SGE{dst.SGE(0, 64)}})
		if err := b.cq.Arm(false); err != nil {
			t.Fatal(err)
		}
		a.send(t, verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{src.SGE(0, 64)}})
		a.want(t, 1, verbs.WCSend, verbs.StatusSuccess)
		<-b.cq.Event()
		if n, err := b.cq.Poll(wc[:]); n != 1 || err != nil {
			t.Fatalf("%d completions, error %v", n, err)
		}
	}
	if ctx.Err() != nil {
		t.Error("the reader has not spun by the policy of the queue")
	}
	for ctx.Err() == nil { // the watcher ends a claim within two intervals
		if n, err := b.cq.Poll(wc[:]); n != 0 || err != nil {
			t.Fatalf("%d completions, error %v", n, err)
		}
		if !watcher.Idle() {
			return
		}
	}
	t.Error("the watcher of the queue does not look at a connection that is polled")
}

// TestPark checks that Park returns for a completion, and for a stop after Unpark.
func TestPark(t *testing.T) {
	a, b := newPair(t, iwarp.Config{}, iwarp.Config{})
	q := b.cq.Driver().(verbs.CQParker)
	src, dst := a.region(t, 64), b.region(t, 64)
	var stop atomic.Bool
	parked := make(chan bool)
	park := func() {
		go func() { parked <- q.Park(stop.Load) }()
		for !iwarp.Seated(b.dev) {
			runtime.Gosched()
		}
	}
	for id := range uint64(3) {
		park()
		b.recv(t, verbs.RecvWR{ID: id, SGL: []verbs.SGE{dst.SGE(0, 64)}})
		a.send(t, verbs.SendWR{ID: id, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{src.SGE(0, 64)}})
		a.want(t, id, verbs.WCSend, verbs.StatusSuccess)
		if !<-parked {
			t.Fatal("Park has returned false with a connection")
		}
		b.want(t, id, verbs.WCRecv, verbs.StatusSuccess)
	}
	park()
	stop.Store(true)
	q.Unpark()
	if !<-parked {
		t.Error("Park has returned false after its stop")
	}
	if err := a.qp.Close(); err != nil {
		t.Fatal(err)
	}
	<-b.conn.Done()
	if stop.Store(false); q.Park(stop.Load) {
		t.Error("Park has returned true without a connection")
	}
}
