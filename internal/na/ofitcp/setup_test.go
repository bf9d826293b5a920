package ofitcp

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
)

// TestSetupTurns has connections of two hosts wait to be set up. The hosts take turns, however many connections they have.
func TestSetupTurns(t *testing.T) {
	q := newSetupQueue()
	q.most = 1
	book := hostquota.NewBook(hostquota.Limits{})
	a := book.Account(hostquota.HostOf(netip.MustParseAddr("127.0.0.2")))
	b := book.Account(hostquota.HostOf(netip.MustParseAddr("127.0.0.3")))
	if q.enter(a) {
		t.Fatal("the first connection waited")
	}
	names := []string{"a1", "a2", "a3", "b1", "b2"}
	var turns []chan struct{}
	for _, name := range names {
		account := a
		if name[0] == 'b' {
			account = b
		}
		turns = append(turns, q.join(account))
	}
	var order []string
	for range names {
		q.leave()
		for i, turn := range turns {
			select {
			case <-turn:
				order = append(order, names[i])
				turns[i] = nil
			default:
			}
		}
	}
	if want := []string{"a1", "b1", "a2", "b2", "a3"}; len(order) != len(want) || order[1] != want[1] || order[3] != want[3] {
		t.Errorf("order %v, want %v", order, want)
	}
	q.leave()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.busy != 0 || q.hosts.Len() != 0 || len(q.byHost) != 0 {
		t.Errorf("left over: %d, %d, %d", q.busy, q.hosts.Len(), len(q.byHost))
	}
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

// TestTurnLength checks that a reader that is slow reads less in its next turn, and a fast one more.
func TestTurnLength(t *testing.T) {
	a, b := openEcho(t, Config{}), openEcho(t, Config{})
	newClient(a, addrOf(t, a, b), 0).must(t, []byte("x"))
	newClient(a, addrOf(t, a, openEcho(t, Config{})), 0).must(t, []byte("x")) // one connection alone takes no turns
	c := a.peer(b.self).conn.Load()
	now := c.rxBytes.Load()
	slow := turn{from: now - turnBytes, begun: time.Now().Add(-time.Second)}
	for want := turnBytes / 2; want > turnLeast; want /= 2 {
		c.yield(&slow)
		if got := int(c.role.turn.Load()); got != want {
			t.Fatalf("%d bytes after a long turn, want %d", got, want)
		}
		slow = turn{from: now - turnBytes, begun: time.Now().Add(-time.Second)}
	}
	fast := turn{from: now - turnBytes, begun: time.Now().Add(time.Second)}
	c.yield(&fast)
	if got := c.role.turn.Load(); got <= turnLeast {
		t.Errorf("%d bytes after a short turn", got)
	}
	short := turn{from: now}
	if c.yield(&short); !short.begun.IsZero() {
		t.Error("the turn is over although nothing was read")
	}
}
