package ofitcp

import (
	"bytes"
	"fmt"
	"sync"
	"testing"

	"cinnabar/internal/na"
)

// startServer opens an endpoint whose handler has a goroutine for each request.
func startServer(t *testing.T, serve func(e *Endpoint, from na.Addr, tag uint32, data []byte)) *Endpoint {
	t.Helper()
	var e *Endpoint
	var wg sync.WaitGroup
	started := make(chan struct{})
	e = openEndpoint(t, Config{Listen: true, Handler: handlerFunc(func(m *na.Message) na.Task {
		<-started
		from, tag, data := m.From, m.Tag, bytes.Clone(m.Data)
		wg.Go(func() { serve(e, from, tag, data) })
		return nil
	})})
	close(started)
	t.Cleanup(func() {
		closeEndpoint(t, e)
		wg.Wait()
	})
	return e
}

func answer(t *testing.T, e *Endpoint, to na.Addr, tag uint32, data []byte) {
	op := newCall()
	e.SendExpected(&op.op, to, tag, append(make([]byte, e.Limits().ResponseRoom), data...))
	if err := op.wait(t, e, to); err != nil {
		t.Errorf("answer: %v", err)
	}
}

// TestHandlersDrive: handlers on goroutines of their own that read the caller's memory, which drives the connection that
// the background goroutine has stepped aside from; several callers at once, and one.
func TestHandlersDrive(t *testing.T) {
	for _, callers := range []int{1, 5} {
		t.Run(fmt.Sprint(callers), func(t *testing.T) {
			var memory sync.Map // of the callers, by tag
			server := startServer(t, func(e *Endpoint, from na.Addr, tag uint32, _ []byte) {
				m, _ := memory.Load(tag)
				local := make([]byte, 200<<10)
				op := newCall()
				e.Get(&op.op, from, []na.Fragment{{Remote: m.(na.RemoteMemory), Local: local}})
				if err := op.wait(t, e, from); err != nil {
					t.Errorf("get: %v", err)
				}
				answer(t, e, from, tag, local[len(local)-100:])
			})
			cl := openEndpoint(t, Config{})
			to := addrOf(t, cl, server)
			var wg sync.WaitGroup
			for g := range callers {
				b := random(200<<10, uint64(g))
				_, m := expose(t, cl, server, b, na.ReadOnly)
				c := newClient(cl, to, uint32(g)<<20)
				wg.Go(func() {
					for range 50 {
						memory.Store(c.tag+1, m)
						if got, err := c.call(t, nil); err != nil || !bytes.Equal(got, b[len(b)-100:]) {
							t.Errorf("%v, %d bytes", err, len(got))
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// TestHandlersStayAway: the background goroutine has stepped aside for handlers that neither drive nor answer. The
// connection is read all the same, and it learns.
func TestHandlersStayAway(t *testing.T) {
	release := make(chan struct{})
	server := startServer(t, func(e *Endpoint, from na.Addr, tag uint32, data []byte) {
		if string(data) == "stay" {
			<-release
		}
		answer(t, e, from, tag, data)
	})
	r := newRaw(t)
	c, _ := r.dial(server, 1)
	const stay = 20
	for i := range uint32(stay) {
		c.write(r.rawRequest(100+i, []byte("stay")))
		c.write(r.rawRequest(i, []byte("hello")))
		if m, b := c.message(); m.tag != uint64(i) || string(b) != "hello" {
			t.Fatalf("got %+v %q", m, b)
		}
	}
	if n := r.lookup(server).(*peer).conn.Load().role.yieldMisses.Load(); n < 1 || n > 5 {
		t.Errorf("the background has stepped aside %d times in vain for %d requests", n, 2*stay)
	}
	close(release)
	for range stay {
		c.message()
	}
}

// TestQueuedBehindDriver: requests come together, and the handler of the first waits for the peer, which wants to see the
// others answered before.
func TestQueuedBehindDriver(t *testing.T) {
	h := new(echo)
	started := make(chan struct{})
	h.e = openEndpoint(t, Config{Listen: true, Spin: patience, Handler: handlerFunc(func(m *na.Message) na.Task {
		<-started
		if m.Tag != 1 {
			return h.Request(m)
		}
		from := m.From
		return taskFunc(func() {
			local := make([]byte, 4)
			op := newCall()
			h.e.Get(&op.op, from, []na.Fragment{{Remote: &remote{size: 4, access: na.ReadOnly}, Local: local}})
			if err := op.wait(t, h.e, from); err != nil {
				t.Errorf("get: %v", err)
			}
			answer(t, h.e, from, 1, local)
		})
	})})
	close(started)
	r := newRaw(t)
	c, _ := r.dial(h.e, 1)
	for range 5 {
		c.write(bytes.Join([][]byte{r.rawRequest(1, nil), r.rawRequest(2, []byte("x")), r.rawRequest(3, []byte("x"))}, nil))
		seen := map[byte]int{}
		for range 3 {
			m, _ := c.message()
			seen[m.op]++
		}
		if seen[opReadReq] != 1 || seen[opTag] != 2 {
			t.Fatalf("messages %v, want the read and the other answers", seen)
		}
		c.write(append(appendReadRsp(nil, 4), "data"...))
		if m, b := c.message(); m.tag != 1 || string(b) != "data" {
			t.Fatalf("got %+v %q", m, b)
		}
	}
}

// TestLoneDriver: who alone waits for the peer takes the reading over from a background goroutine that reads.
func TestLoneDriver(t *testing.T) {
	server, cl := openEcho(t, Config{}), openEndpoint(t, Config{Spin: patience})
	to := addrOf(t, cl, server)
	c := newClient(cl, to, 0)
	for range 3 {
		c.tag++ // without driving: the background reads this, and spins then
		cl.RecvExpected(&c.recv.op, to, c.tag, c.buf)
		cl.SendRequest(&c.send.op, to, c.tag, c.msg)
		if err := c.recv.park(t); err != nil {
			t.Fatal(err)
		}
		if err := c.send.park(t); err != nil {
			t.Fatal(err)
		}
		role := &to.(*peer).conn.Load().role
		until(t, "resting background", func() bool {
			c.must(t, []byte("x"))
			return role.bg.Load() == bgResting
		})
		until(t, "background that reads again", func() bool { return role.bg.Load() != bgResting })
	}
}

// TestDriverReadsRequest: the background goroutine does not step aside later for a request that a driver has read.
func TestDriverReadsRequest(t *testing.T) {
	server := startServer(t, func(e *Endpoint, from na.Addr, tag uint32, data []byte) { answer(t, e, from, tag, data) })
	r := newRaw(t)
	c, _ := r.dial(server, 1)
	to := r.lookup(server).(*peer)
	until(t, "connection", func() bool { return to.conn.Load() != nil })
	own := to.conn.Load()
	role := &own.role
	role.claim.Take() // as a driver does
	until(t, "the read role", func() bool { return role.held.CompareAndSwap(false, true) })
	c.write(r.rawRequest(1, []byte("hello")))
	s := own.spinner(true)
	defer s.End()
	own.driveHeld(new(na.Event), &s)
	if own.rxBytes.Load() == 0 || own.rx.handed {
		t.Errorf("%d bytes are read, step aside: %t", own.rxBytes.Load(), own.rx.handed)
	}
	own.release()
	own.handBack()
	if m, b := c.message(); m.tag != 1 || string(b) != "hello" {
		t.Errorf("got %+v %q", m, b)
	}
}
