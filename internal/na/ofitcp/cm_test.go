package ofitcp

import (
	"bytes"
	"testing"
	"time"

	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
	"cinnabar/internal/na/ofiaddr"
)

// TestAnswers: version 0 is answered to whatever is advertised, the port is the requester's, the number of the process
// the endpoint's own; unknown features are masked.
func TestAnswers(t *testing.T) {
	e := openEcho(t, Config{})
	for i, version := range []byte{0, 1, 5, 0x81} {
		r := newRaw(t)
		c := r.dialOnly(e)
		req := r.request(uint32(100 + i))
		req.version, req.features = version, 0xfe
		c.write(appendCM(nil, req))
		want := cmMessage{typ: cmResponse, version: 0, port: req.port, pid: e.pid, probe: probeLittle}
		if got := c.cm(); got != want {
			t.Errorf("version %d: answer %+v, want %+v", version, got, want)
		}
		r.ping(c, 7)
	}
	if e.pid == 0 {
		t.Error("the process number is 0")
	}
}

// TestFragmentedRequest: a request may come byte by byte, with a message right behind it.
func TestFragmentedRequest(t *testing.T) {
	e, r := openEcho(t, Config{}), newRaw(t)
	c := r.dialOnly(e)
	if err := c.SetNoDelay(true); err != nil {
		t.Fatal(err)
	}
	all := append(appendCM(nil, r.request(1)), r.rawRequest(9, []byte("hello"))...)
	for i := range all {
		c.write(all[i : i+1])
	}
	if m := c.cm(); m.typ != cmResponse {
		t.Fatalf("answer %+v", m)
	}
	if m, b := c.message(); m.tag != 9 || string(b) != "hello" {
		t.Errorf("answer %+v %q", m, b)
	}
}

// TestRefusedRequests: what is not of this protocol costs its connection only.
func TestRefusedRequests(t *testing.T) {
	e, r := openEcho(t, Config{}), newRaw(t)
	good := appendCM(nil, r.request(1))
	with := func(change func(b []byte)) []byte {
		b := bytes.Clone(good)
		change(b)
		return b
	}
	rxm := append(with(func(b []byte) { b[offCMSize+1] = 64 }), make([]byte, 56)...)
	bigEndian := with(func(b []byte) { b[offCMProbe], b[offCMProbe+7] = 0, 1 })
	noPort := with(func(b []byte) { b[offCMPort], b[offCMPort+1] = 0, 0 })
	for name, tc := range map[string]struct{ request, answer []byte }{
		"other control version": {with(func(b []byte) { b[0] = 4 }), nil},
		"a response":            {with(func(b []byte) { b[1] = cmResponse }), nil},
		"too much data":         {with(func(b []byte) { b[offCMSize] = 2 }), nil},
		"garbage":               {bytes.Repeat([]byte("GET / HTTP/1.1\r\n"), 10), nil},
		"tcp;ofi_rxm":           {rxm, nackOf(rxm)},
		"big endian":            {bigEndian, nackOf(bigEndian)},
		"port 0":                {noPort, nackOf(noPort)},
	} {
		c := r.dialOnly(e)
		c.write(tc.request)
		if got := c.closed(); !bytes.Equal(got, tc.answer) {
			t.Errorf("%s: answer % x, want % x", name, got, tc.answer)
		}
	}
	c, _ := r.dial(e, 1)
	r.ping(c, 1)
	if s := e.Stats(); s.Complaints < 7 {
		t.Errorf("%d complaints", s.Complaints)
	}
}

// TestRequestSent: what an endpoint sends when it connects.
func TestRequestSent(t *testing.T) {
	r := newRaw(t)
	for _, firewalled := range []bool{false, true} {
		e := openEndpoint(t, Config{Firewalled: firewalled})
		op := r.send(e, 3, "data")
		c := r.acceptOnly()
		if from := c.RemoteAddr().String(); from[:10] != "127.0.0.1:" {
			t.Errorf("connected from %s, not from the listener's address", from)
		}
		got := c.cm()
		want := cmMessage{typ: cmRequest, version: 0, port: e.self.Port(), pid: e.pid, id: e.id.with(r.addr(), ""), probe: probeLittle}
		if firewalled {
			want.features = featureFirewall
		}
		if got != want {
			t.Errorf("request %+v, want %+v", got, want)
		}
		got.typ, got.pid = cmResponse, 5
		c.write(appendCM(nil, got))
		m, b := c.message()
		if want := append(ofiaddr.Append(nil, e.self), "data"...); m.op != opMsg || m.cqData != 3 || !bytes.Equal(b, want) {
			t.Errorf("message %+v % x, want % x", m, b, want)
		}
		if err := op.park(t); err != nil {
			t.Error(err)
		}
	}
}

// TestBadAnswers: what a server answers that is of another kind fails the call with its reason.
func TestBadAnswers(t *testing.T) {
	r := newRaw(t)
	for name, change := range map[string]func(b []byte){
		"control version": func(b []byte) { b[0] = 2 },
		"a request":       func(b []byte) { b[1] = cmRequest },
		"data size":       func(b []byte) { b[offCMSize+1] = 9 },
		"big endian":      func(b []byte) { b[offCMProbe], b[offCMProbe+7] = 0, 1 },
	} {
		e := openEndpoint(t, Config{})
		op := r.send(e, 1, "")
		c := r.acceptOnly()
		b := c.read(cmLen)
		b[1] = cmResponse
		change(b)
		c.write(b)
		err := op.park(t)
		wantKind(t, err, na.Unreachable)
		t.Logf("%s: %v", name, err)
	}
}

// TestNack: a refused connection is tried again, and an incoming one meanwhile is used.
func TestNack(t *testing.T) {
	t.Run("again", func(t *testing.T) {
		e, r := openEndpoint(t, Config{}), newRaw(t)
		op := r.send(e, 1, "x")
		for range 3 {
			c := r.acceptOnly()
			c.write(nackOf(c.read(cmLen)))
			_ = c.Close()
		}
		c := r.accept(9)
		if m, _ := c.message(); m.cqData != 1 {
			t.Errorf("message %+v", m)
		}
		if err := op.park(t); err != nil {
			t.Error(err)
		}
	})
	t.Run("incoming", func(t *testing.T) {
		e, r := openEndpoint(t, Config{}), newRaw(t)
		for ofiaddr.Compare(r.addr(), e.self) < 0 { // else the endpoint's next attempt may win, and this test accepts no connection
			r = newRaw(t)
		}
		op := r.send(e, 1, "x")
		c := r.acceptOnly()
		c.write(nackOf(c.read(cmLen)))
		in := r.untilAccepted(e, 9)
		if m, _ := in.message(); m.cqData != 1 {
			t.Errorf("message %+v", m)
		}
		if err := op.park(t); err != nil {
			t.Error(err)
		}
	})
	t.Run("for ever", func(t *testing.T) {
		e, r := openEndpoint(t, Config{DialTimeout: 50 * time.Millisecond}), newRaw(t)
		op := r.send(e, 1, "x")
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				c, err := r.ln.Accept()
				if err != nil {
					return
				}
				b := make([]byte, cmLen)
				_, _ = c.Read(b) // one write is one read, on the loopback
				_, _ = c.Write(nackOf(b))
				_ = c.Close()
			}
		}()
		wantKind(t, op.park(t), na.Unreachable)
		_ = r.ln.Close()
		<-done
	})
}

// untilAccepted connects as a peer does whose attempts may be refused.
func (r *raw) untilAccepted(e *Endpoint, pid uint32) *rawConn {
	r.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		c, m := r.dial(e, pid)
		if m.typ == cmResponse {
			return c
		}
		_ = c.Close()
	}
	r.t.Fatal("never accepted")
	return nil
}

// TestPid: the same process is refused a second connection, and another one is refused while the first one's lives.
func TestPid(t *testing.T) {
	e, r := openEcho(t, Config{}), newRaw(t)
	first, _ := r.dial(e, 11)
	r.ping(first, 1)
	again, m := r.dial(e, 11)
	if m.typ != cmNack || m.pid != 11 {
		t.Fatalf("answer %+v, want a refusal", m)
	}
	again.closed()
	r.ping(first, 2)
	other, m := r.dial(e, 12)
	if m.typ != cmNack || m.pid != 12 {
		t.Fatalf("answer %+v, want a refusal, because the first connection lives", m)
	}
	other.closed()
	r.ping(first, 3)
	_ = first.Close()
	r.ping(r.untilAccepted(e, 12), 4) // once the connection is known to be lost
}

// TestPidOfDialed: the process number in an answer counts as well.
func TestPidOfDialed(t *testing.T) {
	e, r := openEndpoint(t, Config{}), newRaw(t)
	op := r.send(e, 1, "x")
	first := r.accept(21)
	first.message()
	if err := op.park(t); err != nil {
		t.Fatal(err)
	}
	if _, m := r.dial(e, 21); m.typ != cmNack {
		t.Errorf("answer %+v, want a refusal", m)
	}
	if _, m := r.dial(e, 22); m.typ != cmNack {
		t.Errorf("answer %+v, want a refusal, because the dialed connection lives", m)
	}
	_ = first.Close()
	r.untilAccepted(e, 22)
}

// TestCollisionOrders has both outcomes of two attempts that cross, seen from an endpoint whose attempt hangs.
func TestCollisionOrders(t *testing.T) {
	seen := map[byte]bool{}
	for range 200 {
		e, r := openEndpoint(t, Config{}), newRaw(t)
		op := r.send(e, 1, "x")
		theirs := r.acceptOnly()
		req := theirs.cm()
		mine, m := r.dial(e, 31)
		want := byte(cmNack)
		if ofiaddr.Compare(r.addr(), e.self) > 0 {
			want = cmResponse
		}
		if m.typ != want {
			t.Fatalf("peer %v, endpoint %v: answer type %d, want %d", r.addr(), e.self, m.typ, want)
		}
		if m.typ == cmNack {
			req.typ, req.pid = cmResponse, 31
			theirs.write(appendCM(nil, req))
			mine = theirs
		} else {
			theirs.closed()
		}
		if m, _ := mine.message(); m.cqData != 1 {
			t.Fatalf("message %+v", m)
		}
		if err := op.park(t); err != nil {
			t.Fatal(err)
		}
		closeEndpoint(t, e)
		if seen[m.typ] = true; len(seen) == 2 {
			return
		}
	}
	t.Skip("the system's ports were always on the same side")
}

// TestRefusedFirst: an endpoint whose attempt loses answers the peer's request after the peer has refused that attempt, or
// has had the time to.
func TestRefusedFirst(t *testing.T) {
	for range 200 {
		e, r := openEndpoint(t, Config{}), newRaw(t)
		if ofiaddr.Compare(r.addr(), e.self) < 0 {
			continue
		}
		op := r.send(e, 1, "x")
		theirs := r.acceptOnly()
		req := theirs.read(cmLen)
		mine := r.dialOnly(e)
		mine.write(appendCM(nil, r.request(31)))
		_ = mine.SetReadDeadline(time.Now().Add(refusalTime / 4))
		if n, err := mine.Read(make([]byte, 1)); err == nil {
			t.Fatalf("%d bytes of an answer before the refusal", n)
		}
		_ = mine.SetReadDeadline(time.Now().Add(patience))
		theirs.write(nackOf(req))
		if m := mine.cm(); m.typ != cmResponse {
			t.Fatalf("answer %+v", m)
		}
		if m, _ := mine.message(); m.cqData != 1 {
			t.Errorf("message %+v", m)
		}
		if err := op.park(t); err != nil {
			t.Error(err)
		}
		return
	}
	t.Skip("the system's ports were always on the same side")
}

// TestFirewalledPeer: who asked not to be dialed is not.
// parity: D15
func TestFirewalledPeer(t *testing.T) {
	from := make(chan na.Addr, 1)
	e := openEndpoint(t, Config{Listen: true, Handler: handlerFunc(func(m *na.Message) na.Task {
		from <- m.From
		return nil
	})})
	r := newRaw(t)
	c := r.dialOnly(e)
	req := r.request(1)
	req.features = featureFirewall
	c.write(appendCM(nil, req))
	if m := c.cm(); m.features != featureFirewall {
		t.Errorf("answer %+v; known features are echoed", m)
	}
	c.write(r.rawRequest(1, nil))
	a := <-from
	_ = c.Close()
	<-a.Done()
	op := newCall()
	e.SendExpected(&op.op, a, 1, make([]byte, e.Limits().ResponseRoom))
	wantKind(t, op.park(t), na.Unreachable) // because the request's connection is lost
	e.SendRequest(&op.op, a, 1, make([]byte, e.Limits().RequestRoom))
	wantKind(t, op.park(t), na.Firewalled)
	if err := r.ln.SetDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if c, err := r.ln.Accept(); err == nil {
		_ = c.Close()
		t.Error("the peer was dialed all the same")
	}
}

// TestSimultaneous has two endpoints begin to send to each other at once, a thousand times: one connection results, and
// every message arrives.
func TestSimultaneous(t *testing.T) {
	rounds := 1000
	if testing.Short() || invariants.Race {
		rounds = 200
	}
	for range rounds {
		a, b := openEcho(t, Config{}), openEcho(t, Config{})
		done := make(chan error, 2)
		start := make(chan struct{})
		for _, pair := range [][2]*Endpoint{{a, b}, {b, a}} {
			go func() {
				to, err := pair[0].Lookup(pair[1].Addr().String())
				if err != nil {
					done <- err
					return
				}
				c := newClient(pair[0], to, 0)
				<-start
				_, err = c.call(t, []byte("hello"))
				done <- err
			}()
		}
		close(start)
		for range 2 {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		if n, m := a.Stats().Open, b.Stats().Open; n != 1 || m != 1 {
			t.Fatalf("%d and %d connections, want 1", n, m)
		}
		closeEndpoint(t, a)
		closeEndpoint(t, b)
	}
}

// TestSelf: an endpoint that sends to itself has one connection with two ends.
// parity: T04 D12
func TestSelf(t *testing.T) {
	e := openEcho(t, Config{})
	c := newClient(e, e.Addr(), 0)
	for i := range 20 {
		c.must(t, bytes.Repeat([]byte{1}, i))
	}
	src, dst := random(1<<20, 3), make([]byte, 1<<20)
	_, from := expose(t, e, e, src, na.ReadOnly)
	op := newCall()
	e.Get(&op.op, e.Addr(), []na.Fragment{{Remote: from, Local: dst}})
	if err := op.park(t); err != nil || !bytes.Equal(src, dst) {
		t.Errorf("get from itself: %v", err)
	}
}
