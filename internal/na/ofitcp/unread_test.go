package ofitcp

import (
	"strings"
	"testing"

	"cinnabar/internal/na"
)

// TestTooManyUnread: a peer that leaves too many answers unread loses its connection, and so does one of a host that
// does so over several; others keep theirs, also of that host.
func TestTooManyUnread(t *testing.T) {
	const conns = 4
	for name, asIfWaiting := range map[string]func(c *conn, sign int32){
		"the peer": func(c *conn, sign int32) { c.answers.Add(sign * maxAnswers) },
		"the peer's host": func(c *conn, sign int32) {
			c.answers.Add(sign * maxHostAnswers / conns)
			c.host.answers.Add(sign * maxHostAnswers)
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := openEcho(t, Config{})
			var raws [conns]*raw
			var dialed [conns]*rawConn
			for i := range raws {
				raws[i] = newRaw(t)
				dialed[i], _ = raws[i].dial(e, 1)
				raws[i].ping(dialed[i], 1)
			}
			to, neighbour := raws[0].lookup(e), raws[1].lookup(e).(*peer).conn.Load()
			own := to.(*peer).conn.Load()
			asIfWaiting(own, 1)
			neighbour.answers.Add(1)
			raws[1].ping(dialed[1], 2)
			op := newCall()
			e.SendExpected(&op.op, to, 2, make([]byte, e.Limits().ResponseRoom))
			err := op.park(t)
			wantKind(t, err, na.Unreachable)
			if !strings.Contains(err.Error(), name+" has left") || !strings.Contains(err.Error(), "limit") {
				t.Errorf("error that does not tell why: %v", err)
			}
			if b := dialed[0].closed(); len(b) > 0 {
				t.Errorf("got % x", b)
			}
			asIfWaiting(own, -1)
			neighbour.answers.Add(-1)
			for i := 1; i < conns; i++ {
				raws[i].ping(dialed[i], 3)
			}
		})
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
	if n := own.answers.Load(); n != waiting-1 || own.host.answers.Load() != n {
		t.Errorf("%d wait, and %d of the host, after one of %d was cancelled", n, own.host.answers.Load(), waiting)
	}
	_ = c.Close()
	for _, op := range ops[:len(ops)-1] {
		_ = op.park(t)
	}
	if n := own.answers.Load(); n != 0 || own.host.answers.Load() != 0 {
		t.Errorf("%d wait, and %d of the host", n, own.host.answers.Load())
	}
}

// TestAnswersToTheUnreachable: as many wait for a connection, and no more.
func TestAnswersToTheUnreachable(t *testing.T) {
	e, r := openEndpoint(t, Config{}), newRaw(t) // which never answers the connection request
	to := r.lookup(e)
	ops := make([]call, maxAnswers+1)
	msg := make([]byte, e.Limits().ResponseRoom)
	for i := range ops {
		ops[i].op.Done = &ops[i]
		e.SendExpected(&ops[i].op, to, 1, msg)
	}
	err := ops[maxAnswers].park(t)
	wantKind(t, err, na.Unreachable)
	if !strings.Contains(err.Error(), "wait for a connection") {
		t.Error(err)
	}
	closeEndpoint(t, e)
	wantKind(t, ops[0].park(t), na.Closed)
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
