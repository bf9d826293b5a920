package ofitcp

import (
	"strings"
	"testing"

	"cinnabar/internal/audit"
	"cinnabar/internal/na"
)

// dialAs connects as a process with an identity of its own, as Go peers do.
func (r *raw) dialAs(e *Endpoint, pid uint32, id processID) (*rawConn, cmMessage) {
	r.t.Helper()
	c := r.dialOnly(e)
	m := r.request(pid)
	m.id = id
	c.write(appendCM(nil, m))
	return c, c.cm()
}

// counted returns how often an event of a cause was recorded.
func counted(e *Endpoint, event audit.Event, cause string) (n uint64) {
	for _, c := range e.cfg.Audit.Counts() {
		if c.Event == event && c.Cause == cause {
			n += c.N
		}
	}
	return n
}

// openHeld opens an endpoint whose requests arrive in a channel. Nothing answers them but the test.
func openHeld(t *testing.T) (*Endpoint, <-chan na.Addr) { return openHeldWith(t, Config{}) }

func openHeldWith(t *testing.T, cfg Config) (*Endpoint, <-chan na.Addr) {
	t.Helper()
	from := make(chan na.Addr, 16)
	cfg.Listen = true
	cfg.Handler = handlerFunc(func(m *na.Message) na.Task {
		from <- m.From
		return nil
	})
	return openEndpoint(t, cfg), from
}

// TestAnswerStaysOnItsConnection: while a request was handled, its connection was lost and another process connected from
// the same address. The answer is dropped: the other process may be an impostor that waits for it.
func TestAnswerStaysOnItsConnection(t *testing.T) {
	e, requests := openHeld(t)
	r := newRaw(t)
	first, _ := r.dial(e, 1)
	first.write(r.rawRequest(7, []byte("the answer is a secret")))
	from := <-requests
	_ = first.Close()
	<-from.Done()
	second := r.untilAccepted(e, 2)
	second.write(r.rawRequest(8, nil))
	later := <-requests
	if !from.Equal(later) || from.String() != later.String() || from == later {
		t.Errorf("addresses %v and %v of two connections", from, later)
	}
	op := newCall()
	e.SendExpected(&op.op, from, 7, append(make([]byte, e.Limits().ResponseRoom), "secret"...))
	wantKind(t, op.park(t), na.Unreachable)
	e.SendExpected(&op.op, later, 8, append(make([]byte, e.Limits().ResponseRoom), "public"...))
	if err := op.park(t); err != nil {
		t.Fatal(err)
	}
	if m, b := second.message(); m.tag != 8 || string(b) != "public" {
		t.Errorf("the second process received tag %d, %q", m.tag, b)
	}
}

// TestTransferStaysOnItsConnection: a handler reads and writes its caller's memory over the connection of the request, and
// over no other unless that is the same process's, as its identity proves.
func TestTransferStaysOnItsConnection(t *testing.T) {
	for name, test := range map[string]struct {
		first, second processID
		want          na.Kind
	}{
		"C":               {processID{}, processID{}, na.Unreachable},
		"another process": {processID{1}, processID{2}, na.Unreachable},
		"the same":        {processID{1}, processID{1}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			e, requests := openHeld(t)
			r := newRaw(t)
			first, _ := r.dialAs(e, 1, test.first)
			first.write(r.rawRequest(7, nil))
			from := <-requests
			_ = first.Close()
			<-from.Done()
			second, m := r.dialAs(e, 2, test.second)
			if m.typ != cmResponse {
				t.Fatalf("answer %+v", m)
			}
			second.write(r.rawRequest(8, nil))
			<-requests
			get, put := newCall(), newCall()
			e.Get(&get.op, from, []na.Fragment{{Remote: &remote{size: 1, access: na.ReadOnly}, Local: make([]byte, 1)}})
			e.Put(&put.op, from, []na.Fragment{{Remote: &remote{size: 1, access: na.WriteOnly}, Local: make([]byte, 1)}})
			if test.want == 0 {
				if m, _ := second.message(); m.op != opReadReq {
					t.Errorf("message %+v, want a read", m)
				}
				second.write(append(appendReadRsp(nil, 1), 1))
				if m, _ := second.message(); m.op != opWrite {
					t.Errorf("message %+v, want a write", m)
				}
				second.write(appendAck(nil))
			}
			if got := na.KindOf(get.park(t)); got != test.want {
				t.Errorf("get: %v", get.op.Err)
			}
			if got := na.KindOf(put.park(t)); got != test.want {
				t.Errorf("put: %v", put.op.Err)
			}
		})
	}
}

// TestImpostorIsRefused: a process that names the port of another one, whose connection lives, neither ends that
// connection nor receives its answers.
func TestImpostorIsRefused(t *testing.T) {
	e, requests := openHeld(t)
	r := newRaw(t)
	honest, _ := r.dial(e, 1)
	honest.write(r.rawRequest(7, nil))
	from := <-requests
	_, m := r.dial(e, 424242)
	if m.typ != cmNack {
		t.Errorf("the impostor's answer is %+v", m)
	}
	op := newCall()
	e.SendExpected(&op.op, from, 7, append(make([]byte, e.Limits().ResponseRoom), "secret"...))
	if m, b := honest.message(); m.tag != 7 || string(b) != "secret" {
		t.Errorf("the honest process received tag %d, %q", m.tag, b)
	}
	if err := op.park(t); err != nil {
		t.Error(err)
	}
	if n := counted(e, audit.Refused, causeTaken); n != 1 {
		t.Errorf("%d refusals are counted, want 1", n)
	}
}

// TestTwoProcessesOfOneAddress: two Go processes behind one address translator have the same address. Both are served, and
// each gets its own answers.
func TestTwoProcessesOfOneAddress(t *testing.T) {
	e, r := openEcho(t, Config{}), newRaw(t)
	var conns [3]*rawConn
	for i := range conns {
		c, m := r.dialAs(e, uint32(i+1), processID{byte(i + 1)})
		if m.typ != cmResponse || m.id != e.id.with(r.addr(), "") {
			t.Fatalf("answer %+v", m)
		}
		conns[i] = c
	}
	for tag := range uint32(20) {
		for i, c := range conns {
			text := strings.Repeat("x", i+1)
			c.write(r.rawRequest(tag, []byte(text)))
			if m, b := c.message(); m.tag != uint64(tag) || string(b) != text {
				t.Fatalf("process %d received tag %d, %q", i, m.tag, b)
			}
		}
	}
	if _, m := r.dialAs(e, 2, processID{2}); m.typ != cmNack {
		t.Errorf("a second connection of the same process: %+v", m)
	}
	if n := e.Stats().Open; n != len(conns) {
		t.Errorf("%d connections are open, want %d", n, len(conns))
	}
}

// TestIdentityIsOneForEachPeer: a peer that knows the identity of a process cannot use it with another peer, where it would
// pass for that process and receive the transfers of handlers. One peer sees the same identity each time.
func TestIdentityIsOneForEachPeer(t *testing.T) {
	e := openEcho(t, Config{})
	seen := map[processID]string{}
	for name, r := range map[string]*raw{"one": newRaw(t), "another": newRaw(t)} {
		op := r.send(e, 1, "x")
		c := r.acceptOnly()
		asked := c.cm()
		asked.typ, asked.pid = cmNack, 0
		c.write(appendCM(nil, asked))
		again := r.acceptOnly().cm()
		_, answer := r.dialAs(e, 1, processID{1})
		if asked.id.isZero() || again.id != asked.id || answer.typ == cmResponse && answer.id != asked.id {
			t.Errorf("%s sees %x, %x and %x", name, asked.id, again.id, answer.id)
		}
		if other := seen[asked.id]; other != "" {
			t.Errorf("%s and %s see the same identity", name, other)
		}
		seen[asked.id] = name
		e.Cancel(&op.op)
		_ = op.park(t)
	}
}

// TestTwinIsNotDialed: a process that shares the address of another one is called over its connection only, because the
// address leads to the other one.
func TestTwinIsNotDialed(t *testing.T) {
	e, requests := openHeld(t)
	r := newRaw(t)
	_, _ = r.dialAs(e, 1, processID{1})
	c, _ := r.dialAs(e, 2, processID{2})
	c.write(r.rawRequest(7, nil))
	from := <-requests
	op := newCall()
	msg := make([]byte, e.Limits().RequestRoom)
	e.SendRequest(&op.op, from, 1, msg)
	if m, _ := c.message(); m.op != opMsg || m.cqData != 1 {
		t.Errorf("message %+v, want the request", m)
	}
	if err := op.park(t); err != nil {
		t.Error(err)
	}
	if main := r.lookup(e); from.Equal(main) || main.Equal(from) {
		t.Error("the second process counts as the one that the address leads to")
	}
	_ = c.Close()
	<-from.Done()
	e.SendRequest(&op.op, from, 1, msg)
	wantKind(t, op.park(t), na.Firewalled)
}

// TestOwnAddressIsRefused: a process of this host that says it is the endpoint itself is refused. The endpoint's own
// connections have no limits.
func TestOwnAddressIsRefused(t *testing.T) {
	e := openEcho(t, Config{})
	c := newRaw(t).dialOnly(e)
	c.write(appendCM(nil, cmMessage{typ: cmRequest, port: e.self.Port(), pid: 5, probe: probeLittle}))
	if m := c.cm(); m.typ != cmNack {
		t.Errorf("answer %+v", m)
	}
	if n := counted(e, audit.Refused, causeOwnAddress); n != 1 {
		t.Errorf("%d refusals are counted, want 1", n)
	}
}
