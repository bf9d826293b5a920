package ofitcp

import (
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/internal/progress"
)

// TestReadersTakeTurns floods an endpoint from two hosts while all places of readers are taken. The endpoint reads no request. When
// the places are free again, it reads all.
func TestReadersTakeTurns(t *testing.T) {
	e := openEcho(t, Config{Address: "ofi+tcp://0.0.0.0:0", Subnet: netip.MustParsePrefix("127.0.0.0/8")})
	a, b := newRaw(t), newRawOn(t, net.IPv4(127, 0, 0, 2))
	ca, _ := a.dialAt(e, "127.0.0.1", 1)
	cb, _ := b.dialAt(e, "127.0.0.1", 2)
	a.ping(ca, 1)
	b.ping(cb, 1)
	parked := func(r *raw) bool { return e.peer(r.addr()).conn.Load().role.bg.Load() == bgParked }
	until(t, "the readers are parked", func() bool { return parked(a) && parked(b) })
	for range e.readers.Most() {
		e.readers.Turns.Enter(e.own.account)
	}
	for _, r := range []*raw{a, b} {
		makeBusy(e, e.peer(r.addr()).account)
	}
	before := e.Stats().RequestsReceived
	ca.write(a.rawRequest(2, []byte("hello")))
	cb.write(b.rawRequest(2, []byte("hello")))
	until(t, "the readers wait", func() bool {
		return e.readers.Hosts() == 2
	})
	if n := e.Stats().RequestsReceived; n != before {
		t.Errorf("%d requests were read out of turn", n-before)
	}
	for range e.readers.Most() {
		e.readers.Turns.Leave(e.own.account, 0, e.yield)
	}
	for _, c := range []*rawConn{ca, cb} {
		if m, data := c.message(); m.tag != 2 || string(data) != "hello" {
			t.Errorf("answer %+v %q", m, data)
		}
	}
	until(t, "the readers have left", func() bool {
		return e.readers.Busy() == 0
	})
}

// makeBusy lets the host of an account count as one that has used much for the rest of the test.
func makeBusy(e *Endpoint, a *hostquota.Account) { e.readers.Burden(a, time.Now().Add(time.Hour)) }

// TestTurnAfterTask has a task take the places of all readers while the next request is there. It is not read before there is a place.
func TestTurnAfterTask(t *testing.T) {
	var e *Endpoint
	var free atomic.Bool
	ready := make(chan struct{})
	answer := func(m *na.Message) {
		op := newCall()
		e.SendExpected(&op.op, m.From, m.Tag, make([]byte, e.Limits().ResponseRoom))
	}
	e = openEndpoint(t, Config{Address: "ofi+tcp://0.0.0.0:0", Subnet: netip.MustParsePrefix("127.0.0.0/8"), Listen: true,
		MaxRequest: turnBytes, Handler: handlerFunc(func(m *na.Message) na.Task {
			<-ready
			if m.Tag == 2 && !free.Load() {
				t.Error("a request was read although there was no place")
			}
			from, tag := m.From, m.Tag
			return taskFunc(func() {
				if tag == 1 {
					for range e.readers.Most() {
						e.readers.Turns.Enter(e.own.account)
					}
				}
				answer(&na.Message{From: from, Tag: tag})
			})
		})})
	a, b := newRaw(t), newRawOn(t, net.IPv4(127, 0, 0, 2))
	ca, _ := a.dialAt(e, "127.0.0.1", 1)
	cb, _ := b.dialAt(e, "127.0.0.1", 2)
	makeBusy(e, e.peer(a.addr()).account)
	two := a.rawRequest(2, make([]byte, 2*turnBytes/3))
	ca.write(append(a.rawRequest(1, make([]byte, turnBytes/2)), two...)) // more than one read
	close(ready)
	if m, _ := ca.message(); m.tag != 1 {
		t.Fatalf("answer %+v", m)
	}
	until(t, "the reader waits", func() bool {
		return e.readers.Hosts() == 1
	})
	free.Store(true)
	for range e.readers.Most() {
		e.readers.Turns.Leave(e.own.account, 0, e.yield)
	}
	if m, _ := ca.message(); m.tag != 2 {
		t.Fatalf("answer %+v", m)
	}
	cb.write(b.rawRequest(3, nil))
	if m, _ := cb.message(); m.tag != 3 {
		t.Fatalf("answer %+v", m)
	}
}

// TestTurnsOfReplaced replaces the goroutine of a connection whenever it is in a task. No place is given back twice or kept.
func TestTurnsOfReplaced(t *testing.T) {
	e := openEcho(t, Config{Address: "ofi+tcp://0.0.0.0:0", Subnet: netip.MustParsePrefix("127.0.0.0/8")})
	a, b := newRaw(t), newRawOn(t, net.IPv4(127, 0, 0, 2))
	ca, _ := a.dialAt(e, "127.0.0.1", 1)
	_, _ = b.dialAt(e, "127.0.0.1", 2)
	a.ping(ca, 1)
	p := e.peer(a.addr())
	own := p.conn.Load()
	makeBusy(e, p.account)
	var over atomic.Bool
	var replacing sync.WaitGroup
	replacing.Go(func() {
		for ; !over.Load(); runtime.Gosched() {
			own.takeOver(own.role.tasks.Begun())
		}
	})
	for tag := range uint32(300) {
		a.ping(ca, tag)
	}
	over.Store(true)
	replacing.Wait()
	until(t, "no reader has a place", func() bool {
		if e.readers.Busy() < 0 {
			t.Fatalf("%d places are taken", e.readers.Busy())
		}
		return e.readers.Busy() == 0 && e.readers.Hosts() == 0
	})
}

// TestAnswersOfOneRead sends requests together that the handler answers at once. The answers are collected, and all arrive.
func TestAnswersOfOneRead(t *testing.T) {
	const requests = 100
	var e *Endpoint
	var most atomic.Int64
	answer := func(m *na.Message) na.Task {
		c := m.From.(*origin).conn.Load()
		op := newCall()
		e.SendExpected(&op.op, m.From, m.Tag, append(make([]byte, e.Limits().ResponseRoom), "no"...))
		c.mu.Lock()
		defer c.mu.Unlock()
		most.Store(max(most.Load(), int64(len(c.cork))))
		return nil
	}
	e = openEndpoint(t, Config{Listen: true, Handler: handlerFunc(answer)})
	r := newRaw(t)
	k, _ := r.dial(e, 1)
	var all []byte
	for tag := range uint32(requests) {
		all = append(all, r.rawRequest(tag, []byte("x"))...)
	}
	k.write(all)
	for tag := range uint64(requests) {
		if m, data := k.message(); m.op != opTag || m.tag&0xffffffff != tag || string(data) != "no" {
			t.Fatalf("message %+v %q, want the answer to request %d", m, data, tag)
		}
	}
	if most.Load() < 2*expectedHeader {
		t.Errorf("at most %d bytes of answers were collected", most.Load())
	}
}

// TestTurnLength checks that a slow turn makes the reader's next turn shorter, and a fast turn makes it longer, and that the reader gives back
// the right to spin at the end of a turn. The connection has ended, because its own reader sets the length of the turn each time that it wakes.
func TestTurnLength(t *testing.T) {
	a, b := openEcho(t, Config{}), openEcho(t, Config{})
	newClient(a, addrOf(t, a, b), 0).must(t, []byte("x"))
	for range 2 { // because an endpoint with only one connection takes no turns
		newClient(a, addrOf(t, a, openEcho(t, Config{})), 0).must(t, []byte("x"))
	}
	c := a.peer(b.self).conn.Load()
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "the connection's reader has ended", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		_, there := a.conns[c]
		return !there
	})
	defer c.leaveTurn()
	now := c.rxBytes.Load()
	var source progress.Source
	source.Init(progress.NewFixed(time.Millisecond), progress.Socket)
	spin, other := spinner{Spin: source.Spin(true)}, source.Spin(true)
	defer other.End()
	until(t, "the reader may spin", spin.Begin)
	slow := turn{from: now - turnBytes, begun: time.Now().Add(-time.Second)}
	for want := turnBytes / 2; want > turnLeast; want /= 2 {
		c.yield(&slow, &spin)
		if got := int(c.role.turn.Load()); got != want {
			t.Fatalf("%d bytes after a long turn, want %d", got, want)
		}
		slow = turn{from: now - turnBytes, begun: time.Now().Add(-time.Second)}
	}
	fast := turn{from: now - turnBytes, begun: time.Now().Add(time.Second)}
	until(t, "another goroutine may spin after the end of the turn", other.Begin)
	c.yield(&fast, &spin)
	if got := c.role.turn.Load(); got <= turnLeast {
		t.Errorf("%d bytes after a short turn", got)
	}
	short := turn{from: now}
	if c.yield(&short, &spin); !short.begun.IsZero() {
		t.Error("the turn is over although nothing was read")
	}
}
