package hostquota

import (
	"net/netip"
	"slices"
	"testing"
	"time"
)

// TestTurnsOfHosts queues goroutines of three hosts. The next place goes to the host that has used the least time, however many
// goroutines the others have, and a host that comes later gets a place before all goroutines of the others have had one.
func TestTurnsOfHosts(t *testing.T) {
	q := NewTurns()
	q.most = 1
	book := NewBook(Limits{})
	accounts := map[byte]*Account{}
	for i, host := range []string{"127.0.0.2", "127.0.0.3", "127.0.0.4"} {
		accounts['a'+byte(i)] = book.Account(HostOf(netip.MustParseAddr(host)))
	}
	q.Enter(accounts['a'])
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
		q.Leave(accounts[last[0]], took, func() { yields++ })
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
	q := NewTurns()
	q.most = 1
	book := NewBook(Limits{})
	host := func(n int) *Account {
		return book.Account(HostOf(netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})))
	}
	const waiting, turns = 10, 20_000
	busy := host(1 << 20)
	q.Enter(busy)
	type newcomer struct {
		account *Account
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
		q.Leave(last, 50*time.Microsecond, func() {})
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
	book := NewBook(Limits{})
	a := book.Account(HostOf(netip.MustParseAddr("127.0.0.2")))
	b := book.Account(HostOf(netip.MustParseAddr("127.0.0.3")))
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
	turn := ReaderTurn{read: 4000}
	now := time.Now()
	for took, want := range map[time.Duration]time.Duration{
		time.Microsecond: time.Microsecond,
		time.Hour:        turnBase + 1000*turnByte,
	} {
		turn.began = now.Add(-took)
		if got := turn.cost(now, 5000); got != want {
			t.Errorf("a turn of %v with 1000 bytes counts %v, want %v", took, got, want)
		}
	}
}

// TestReaderTurn checks when a goroutine that reads needs a place: not with a single host, and not for a light host with few requests.
func TestReaderTurn(t *testing.T) {
	book := NewBook(Limits{})
	a := book.Account(HostOf(netip.MustParseAddr("127.0.0.2")))
	b := book.Account(HostOf(netip.MustParseAddr("127.0.0.3")))
	yields := 0
	r := NewReaders(book, func() { yields++ })
	var turn ReaderTurn
	check := func(step string, busy int) {
		t.Helper()
		if got := r.Busy(); got != busy {
			t.Errorf("%s: %d places are taken, want %d", step, got, busy)
		}
	}
	if err := a.Take(Connections, 1); err != nil {
		t.Fatal(err)
	}
	r.Burden(a, time.Now().Add(time.Hour))
	r.Enter(&turn, a, 0, 0)
	check("one host", 0)
	if err := b.Take(Connections, 1); err != nil {
		t.Fatal(err)
	}
	r.Enter(&turn, a, 0, 0)
	check("a busy host", 1)
	r.Enter(&turn, a, 0, 0)
	check("the same turn", 1)
	r.Next(&turn, a, 100, 0)
	if check("the next turn", 1); yields != 1 {
		t.Errorf("other goroutines ran %d times between two turns", yields)
	}
	r.Leave(&turn, a, 100)
	r.Leave(&turn, a, 100)
	check("the end", 0)
	r.Enter(&turn, b, 0, 0)
	check("a light host", 0)
	r.Next(&turn, b, 0, lightRequests+1)
	check("a light host with many requests", 1)
	r.Leave(&turn, b, 0)
	check("the end", 0)
	a.Give(Connections, 1)
	b.Give(Connections, 1)
}
