package ofitcp

import (
	"strings"
	"testing"

	"cinnabar/internal/na"
)

// TestTooManyUnread: a peer that leaves too many answers unread loses its connection; others keep theirs, also of that
// host.
func TestTooManyUnread(t *testing.T) {
	const conns = 4
	e := openEcho(t, Config{})
	var raws [conns]*raw
	var dialed [conns]*rawConn
	for i := range raws {
		raws[i] = newRaw(t)
		dialed[i], _ = raws[i].dial(e, 1)
		raws[i].ping(dialed[i], 1)
	}
	to := raws[0].lookup(e)
	own := to.(*peer).conn.Load()
	own.answers.Add(maxAnswers)
	raws[1].ping(dialed[1], 2)
	op := newCall()
	e.SendExpected(&op.op, to, 2, make([]byte, e.Limits().ResponseRoom))
	err := op.park(t)
	wantKind(t, err, na.Unreachable)
	if !strings.Contains(err.Error(), "the peer has left") || !strings.Contains(err.Error(), "limit") {
		t.Errorf("error without its reason: %v", err)
	}
	if b := dialed[0].closed(); len(b) > 0 {
		t.Errorf("got % x", b)
	}
	own.answers.Add(-maxAnswers)
	for i := 1; i < conns; i++ {
		raws[i].ping(dialed[i], 3)
	}
}

// TestUnreadOfDead: what waits for a connection that ends, or is cancelled, counts no more.
func TestUnreadOfDead(t *testing.T) {
	e, r := openEndpoint(t, Config{}), newRaw(t)
	to := r.lookup(e)
	first := r.send(e, 1, "")
	c := r.accept(1)
	if err := first.park(t); err != nil {
		t.Fatal(err)
	}
	own := to.(*peer).conn.Load()
	var ops []*call
	for len(ops) < 3000 && own.answers.Load() < 100 {
		op := newCall()
		ops = append(ops, op)
		e.SendExpected(&op.op, to, uint32(len(ops)), make([]byte, e.Limits().ResponseRoom+e.Limits().MaxResponse))
	}
	waiting := own.answers.Load()
	if waiting == 0 {
		t.Fatal("none waits")
	}
	last := ops[len(ops)-1]
	e.Cancel(&last.op)
	wantKind(t, last.park(t), na.Canceled)
	if n := own.answers.Load(); n != waiting-1 {
		t.Errorf("%d wait after one of %d was cancelled", n, waiting)
	}
	_ = c.Close()
	for _, op := range ops[:len(ops)-1] {
		_ = op.park(t)
	}
	if n := own.answers.Load(); n != 0 {
		t.Errorf("%d wait", n)
	}
}

// TestAbandonedReads: reads that were given up count until they are answered, so that their number is bounded.
func TestAbandonedReads(t *testing.T) {
	e, r := openEndpoint(t, Config{}), newRaw(t)
	to := r.lookup(e)
	first := r.send(e, 1, "")
	c := r.accept(1)
	c.message()
	if err := first.park(t); err != nil {
		t.Fatal(err)
	}
	own := to.(*peer).conn.Load()
	local := make([]byte, 1)
	get := func() *call {
		op := newCall()
		e.Get(&op.op, to, []na.Fragment{{Remote: &remote{size: 1, access: na.ReadOnly}, Local: local}})
		return op
	}
	remembered := func() int {
		op := get()
		e.Cancel(&op.op) // before it was sent, perhaps
		wantKind(t, op.park(t), na.Canceled)
		own.mu.Lock()
		defer own.mu.Unlock()
		return own.reads.len()
	}
	until(t, "as many reads as there may be", func() bool { return remembered() >= maxExpects })
	for range 100 {
		if n := remembered(); n != maxExpects {
			t.Fatalf("%d reads are remembered, want at most %d", n, maxExpects)
		}
	}
	last := get() // goes when there is room
	for i := range maxExpects + 1 {
		if m, _ := c.message(); m.op != opReadReq {
			t.Fatalf("message %d: %+v", i, m)
		}
		c.write(append(appendReadRsp(nil, 1), byte(i)))
	}
	if err := last.park(t); err != nil || local[0] != byte(maxExpects&0xff) {
		t.Errorf("%v, got %d", err, local[0])
	}
}
