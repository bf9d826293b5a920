package ofitcp

import (
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/internal/progress"
)

// TestTurnsOfHosts queues goroutines of three hosts. The next place goes to the host that has used the least time, however many
// goroutines the others have, and a host that comes later gets a place before all goroutines of the others have had one.
func TestTurnsOfHosts(t *testing.T) {
	q := newTurns()
	q.most = 1
	book := hostquota.NewBook(hostquota.Limits{})
	accounts := map[byte]*hostquota.Account{}
	for i, host := range []string{"127.0.0.2", "127.0.0.3", "127.0.0.4"} {
		accounts['a'+byte(i)] = book.Account(hostquota.HostOf(netip.MustParseAddr(host)))
	}
	q.enter(accounts['a'])
	waiting := map[string]chan struct{}{}
	join := func(names ...string) {
		for _, name := range names {
			waiting[name] = q.join(accounts[name[0]])
		}
	}
	order := []string{"a0"}
	yields := 0
	leave := func(took time.Duration) {
		last := order[len(order)-1]
		q.leave(accounts[last[0]], took, func() { yields++ })
		for name, turn := range waiting {
			select {
			case <-turn:
				delete(waiting, name)
				order = append(order, name)
			default:
			}
		}
	}
	join("a1", "a2", "a3", "b1", "b2", "b3")
	leave(50 * time.Microsecond)  // a0
	leave(200 * time.Microsecond) // b1
	leave(50 * time.Microsecond)  // a1
	leave(time.Hour)              // a2, which counts as turnMost
	join("c1")
	leave(0) // b2
	join("c2")
	leave(time.Hour) // c1
	for len(waiting) > 0 {
		n := len(order)
		if leave(0); len(order) != n+1 {
			t.Fatalf("%d goroutines got the place of one: %v", len(order)-n, order)
		}
	}
	if want := []string{"a0", "b1", "a1", "a2", "b2", "c1", "b3", "c2", "a3"}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
	if yields == 0 {
		t.Error("the place was never handed over behind other goroutines")
	}
	leave(0)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.busy != 0 || len(q.waiting) != 0 || len(q.byHost) != 0 || q.full.Load() || q.crowded.Load() {
		t.Errorf("left over: %d, %d, %d, %v, %v", q.busy, len(q.waiting), len(q.byHost), q.full.Load(), q.crowded.Load())
	}
}

// TestTurnsOfNewHosts adds a new host in every turn. A waiting host comes before later hosts that have not used less time, a host
// that has used time gets a place too, and byHost does not keep hosts that have left.
func TestTurnsOfNewHosts(t *testing.T) {
	q := newTurns()
	q.most = 1
	book := hostquota.NewBook(hostquota.Limits{})
	host := func(n int) *hostquota.Account {
		return book.Account(hostquota.HostOf(netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})))
	}
	const waiting, turns = 10, 20_000
	busy := host(1 << 20)
	q.enter(busy)
	type newcomer struct {
		account *hostquota.Account
		turn    chan struct{}
	}
	var queue []newcomer
	come := func(n int) { queue = append(queue, newcomer{host(n), q.join(host(n))}) }
	for n := range waiting {
		come(n)
	}
	last, again, served := busy, (chan struct{})(nil), 0
	for n := range turns {
		if last == busy {
			again = q.join(busy)
		} else {
			come(waiting + n)
		}
		q.leave(last, 50*time.Microsecond, func() {})
		select {
		case <-queue[0].turn:
			last, queue = queue[0].account, queue[1:]
		case <-again:
			last = busy
			served++
		default:
			t.Fatalf("after %d turns neither the new host that waits for longest nor the busy one gets the place", n)
		}
	}
	if fair := turns / (waiting + 1); served < fair/4 || served > fair {
		t.Errorf("a host that waits all the time got %d of %d places, and %d others wait", served, turns, waiting)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := len(q.byHost); n > turns/10 {
		t.Errorf("%d hosts are remembered after %d turns, and %d wait", n, turns, waiting)
	}
}

// TestLightHosts checks that a host is light exactly as long as it uses little more than its share, and that hosts without debt are
// forgotten.
func TestLightHosts(t *testing.T) {
	u := newLightUse()
	u.rate = 1
	book := hostquota.NewBook(hostquota.Limits{})
	a := book.Account(hostquota.HostOf(netip.MustParseAddr("127.0.0.2")))
	b := book.Account(hostquota.HostOf(netip.MustParseAddr("127.0.0.3")))
	remembered := func() int {
		u.mu.Lock()
		defer u.mu.Unlock()
		return len(u.hosts)
	}
	now := time.Now()
	if !u.add(a, 0, now, 3) || remembered() != 0 {
		t.Error("a host that has used nothing is not light, or is remembered")
	}
	for range 1000 { // a tenth of the time, where an eighth is half of its share
		now = now.Add(time.Millisecond)
		if !u.add(a, 100*time.Microsecond, now, 3) {
			t.Fatal("a host that uses less than its share is not light")
		}
	}
	if !u.add(a, time.Hour, now, 3) {
		t.Error("a host is not light after a long turn, which counts as turnMost")
	}
	n := 0
	for u.add(b, 400*time.Microsecond, now, 3) {
		now = now.Add(400 * time.Microsecond)
		n++
	}
	if n < 4 || n > 10 {
		t.Errorf("a host that takes all of the time is light for %d turns of %v", n, 400*time.Microsecond)
	}
	now = now.Add(time.Minute)
	if !u.add(b, 0, now, 3) || remembered() > 1 {
		t.Errorf("after a minute the host is not light, or %d hosts are remembered", remembered())
	}
}

// TestTurnCost checks that a turn counts its time, but at most the time that its bytes need.
func TestTurnCost(t *testing.T) {
	var c conn
	c.rxBytes.Store(5000)
	c.role.read = 4000
	now := time.Now()
	for took, want := range map[time.Duration]time.Duration{
		time.Microsecond: time.Microsecond,
		time.Hour:        turnBase + 1000*turnByte,
	} {
		c.role.began = now.Add(-took)
		if got := c.turnCost(now); got != want {
			t.Errorf("a turn of %v with 1000 bytes counts %v, want %v", took, got, want)
		}
	}
}

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
	for range e.readers.most {
		e.readers.enter(e.own.account)
	}
	for _, r := range []*raw{a, b} {
		makeBusy(e, e.peer(r.addr()).account)
	}
	before := e.Stats().RequestsReceived
	ca.write(a.rawRequest(2, []byte("hello")))
	cb.write(b.rawRequest(2, []byte("hello")))
	until(t, "the readers wait", func() bool {
		e.readers.mu.Lock()
		defer e.readers.mu.Unlock()
		return len(e.readers.waiting) == 2
	})
	if n := e.Stats().RequestsReceived; n != before {
		t.Errorf("%d requests were read out of turn", n-before)
	}
	for range e.readers.most {
		e.readers.leave(e.own.account, 0, e.yield)
	}
	for _, c := range []*rawConn{ca, cb} {
		if m, data := c.message(); m.tag != 2 || string(data) != "hello" {
			t.Errorf("answer %+v %q", m, data)
		}
	}
	until(t, "the readers have left", func() bool {
		e.readers.mu.Lock()
		defer e.readers.mu.Unlock()
		return e.readers.busy == 0
	})
}

// makeBusy lets the host of an account count as one that has used much for the rest of the test.
func makeBusy(e *Endpoint, a *hostquota.Account) {
	for until := time.Now().Add(time.Hour); e.light.add(a, turnMost, until, 2); {
	}
}

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
					for range e.readers.most {
						e.readers.enter(e.own.account)
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
		e.readers.mu.Lock()
		defer e.readers.mu.Unlock()
		return len(e.readers.waiting) == 1
	})
	free.Store(true)
	for range e.readers.most {
		e.readers.leave(e.own.account, 0, e.yield)
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
		e.readers.mu.Lock()
		defer e.readers.mu.Unlock()
		if e.readers.busy < 0 {
			t.Fatalf("%d places are taken", e.readers.busy)
		}
		return e.readers.busy == 0 && len(e.readers.waiting) == 0
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
// the right to spin at the end of a turn.
func TestTurnLength(t *testing.T) {
	a, b := openEcho(t, Config{}), openEcho(t, Config{})
	newClient(a, addrOf(t, a, b), 0).must(t, []byte("x"))
	newClient(a, addrOf(t, a, openEcho(t, Config{})), 0).must(t, []byte("x")) // one connection alone takes no turns
	c := a.peer(b.self).conn.Load()
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
