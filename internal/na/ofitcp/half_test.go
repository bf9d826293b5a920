package ofitcp

import (
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"cinnabar/internal/hostquota"
)

// arrivalsOf returns a table with n connections of each host whose handshake has not begun, and the connections by host.
func arrivalsOf(t *testing.T, n int, hosts ...*hostquota.Account) (*halves, map[*hostquota.Account][]*halfOpen) {
	t.Helper()
	s := newHalves()
	of := map[*hostquota.Account][]*halfOpen{}
	for _, a := range hosts {
		for range n {
			h := &halfOpen{account: a}
			if !s.add(h) {
				t.Fatal("the table takes no connection")
			}
			s.arrive(h)
			of[a] = append(of[a], h)
		}
	}
	return &s, of
}

// TestArrivalsTakeTurns checks that the handshakes of hosts begin in turn, those of one host in order, and none that was evicted.
func TestArrivalsTakeTurns(t *testing.T) {
	book := hostquota.NewBook(hostquota.Limits{})
	flood, newcomer := book.Account(hostquota.HostOf(netip.MustParseAddr("10.0.0.1"))), book.Account(hostquota.HostOf(netip.MustParseAddr("10.0.0.2")))
	s, of := arrivalsOf(t, 10, flood)
	if h := s.next(); h != of[flood][0] {
		t.Fatal("the first handshake is not that of the oldest connection")
	}
	h := &halfOpen{account: newcomer}
	if !s.add(h) {
		t.Fatal("the table takes no connection of another host")
	}
	s.arrive(h)
	evicted := of[flood][1]
	if !s.remove(evicted) || evicted.waits {
		t.Error("an evicted connection still arrives")
	}
	if got := s.next(); got != of[flood][2] {
		t.Error("after an eviction the handshake of the next connection does not begin")
	}
	if got := s.next(); got != h {
		t.Error("a host with one connection waits for more than one connection of a host with many")
	}
	for i := 3; i < 10; i++ {
		if got := s.next(); got != of[flood][i] {
			t.Errorf("connection %d is out of order", i)
		}
	}
	if s.next() != nil || s.arrivals.Len() != 0 || s.arrivals.Hosts() != 0 {
		t.Error("hosts without arrivals are left")
	}
	if s.n != 10 {
		t.Errorf("the table counts %d connections, want the 10 whose handshake is under way", s.n)
	}
}

// waitHalves waits until the table of half-open connections of e is as the test wants it.
func waitHalves(t *testing.T, e *Endpoint, as func(*halves) bool) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		e.mu.Lock()
		ok := as(&e.half)
		e.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the table of half-open connections does not become as expected")
		}
		runtime.Gosched()
	}
}

// TestFloodBeforeNewcomer checks that the handshakes of one host beyond directHandshakes wait, that each of them ends, and that a
// connection of another host does not wait for them.
func TestFloodBeforeNewcomer(t *testing.T) {
	const flood = 40
	e := openEcho(t, Config{})
	e.mu.Lock()
	e.half.starting = true // no goroutine begins handshakes until the test does
	e.mu.Unlock()
	var kept []net.Conn
	for range flood {
		kept = append(kept, on(t, 2).dialOnly(e))
	}
	// A connection enters the table before it enters the arrivals, so the test waits for both numbers.
	waitHalves(t, e, func(s *halves) bool { return s.n == flood && s.arrivals.Len() == flood-directHandshakes })
	e.mu.Lock()
	if n := e.half.arrivals.Hosts(); n != 1 {
		t.Errorf("%d hosts wait, want 1", n)
	}
	e.mu.Unlock()
	newcomer := on(t, 3)
	c, _ := newcomer.dial(e, 1)
	newcomer.ping(c, 1)
	for _, k := range kept {
		_ = k.Close() // so that the handshakes end
	}
	e.startArrivals()
	waitHalves(t, e, func(s *halves) bool { return s.n == 0 && !s.starting })
}

// TestCloseWithArrivals checks that Close ends connections whose handshake has not begun.
func TestCloseWithArrivals(t *testing.T) {
	e := openEcho(t, Config{})
	e.mu.Lock()
	e.half.starting = true
	e.mu.Unlock()
	var kept []*rawConn
	for range 2 * directHandshakes {
		kept = append(kept, on(t, 2).dialOnly(e))
	}
	waitHalves(t, e, func(s *halves) bool { return s.n == 2*directHandshakes && s.arrivals.Hosts() == 1 })
	if err := e.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, k := range kept {
		k.closed()
	}
}
