package iwarp

import (
	"errors"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"testing"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/iwarp/mpa"
	"cinnabar/internal/sockio"
	"cinnabar/verbs"
)

// TestHostsHaveTurns has one host with many requests, and two with one or two that come later: these wait for one request of each
// other host before each of theirs.
func TestHostsHaveTurns(t *testing.T) {
	var turns hostTurns
	hosts := map[chan struct{}]byte{}
	add := func(host byte, n int) {
		for range n {
			c := make(chan struct{})
			hosts[c] = host
			turns.add(hostquota.HostOf(netip.AddrFrom4([4]byte{192, 0, 2, host})), c)
		}
	}
	add(1, 5)
	add(2, 1)
	add(3, 2)
	var got []byte
	for c := turns.next(); c != nil; c = turns.next() {
		got = append(got, hosts[c])
		delete(hosts, c)
	}
	if want := []byte{1, 2, 3, 1, 3, 1, 1, 1}; !slices.Equal(got, want) {
		t.Errorf("the turns are of hosts %v, want %v", got, want)
	}
	turns.mu.Lock()
	defer turns.mu.Unlock()
	if len(turns.waiting) != 0 || len(turns.order) != 0 {
		t.Errorf("%v and %v are left", turns.waiting, turns.order)
	}
}

func (t *hostTurns) add(h hostquota.Host, mine chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.addLocked(h, mine)
}

func (t *hostTurns) next() chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.nextLocked()
}

// holdTurns keeps requests from having their turn until dispatch runs.
func (t *hostTurns) holdTurns() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running = true
}

// count returns how many requests wait.
func (t *hostTurns) count() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, q := range t.waiting {
		n += len(q)
	}
	return n
}

// TestTurnsEnd has many requests wait, also when the turns end.
func TestTurnsEnd(t *testing.T) {
	turn, err := sockio.NewTurn()
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	turns := hostTurns{turn: turn, wg: &wg}
	for i := range byte(64) {
		wg.Go(func() { turns.wait(hostquota.HostOf(netip.AddrFrom4([4]byte{192, 0, 2, i % 3}))) })
	}
	if err := turn.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

// TestRequestsThatWaitForTurnsAreCounted lets requests come while none has its turn. They count as unfinished handshakes until
// then, and so no host can have more of them than of these.
func TestRequestsThatWaitForTurnsAreCounted(t *testing.T) {
	dev, err := Open(Config{})
	if err != nil {
		t.Fatal(err)
	}
	d := dev.Driver().(*device)
	dl, err := d.Listen(netip.MustParseAddrPort("127.0.0.1:0"), 0)
	if err != nil {
		t.Fatal(err)
	}
	l := dl.(*listener)
	turns := &l.hosts
	turns.holdTurns()
	const requests = 5
	for range requests {
		tc, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(l.Addr()))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tc.Close() }()
		if err := writeFrame(tc, mpa.Frame{Revision: mpa.Revision2, Enhanced: true, CRC: true, Setup: mpa.Setup{IRD: 16, ORD: 16}}); err != nil {
			t.Fatal(err)
		}
	}
	for turns.count() < requests {
		runtime.Gosched()
	}
	if n := d.book.Used(hostquota.Handshakes); n != requests {
		t.Errorf("%d handshakes are counted while %d requests wait for their turn", n, requests)
	}
	turns.wg.Go(turns.dispatch)
	for range requests {
		r, err := l.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Reject(nil); err != nil {
			t.Error(err)
		}
	}
	if n := d.book.Used(hostquota.Handshakes); n != 0 {
		t.Errorf("%d handshakes are counted in the end", n)
	}
	if err := errors.Join(l.Close(), dev.Close()); err != nil {
		t.Error(err)
	}
}

// TestAcceptPace checks that acceptTurn connections are accepted in each turn, because a connection in the system's queue waits for all
// before it, of whatever host.
func TestAcceptPace(t *testing.T) {
	const turns = 4
	waits := 0
	pace := acceptPace{wait: func() { waits++ }}
	for n := range turns * acceptTurn {
		if want := n / acceptTurn; waits != want {
			t.Fatalf("%d waits after %d connections, want %d", waits, n, want)
		}
		pace.accepted()
	}
	if waits != turns {
		t.Errorf("%d waits, want %d", waits, turns)
	}
}

// TestNextWaiter takes the connections that wait for a receive of a shared queue off its list: those that may have one, in order.
func TestNextWaiter(t *testing.T) {
	one, other := hostquota.HostOf(netip.MustParseAddr("192.0.2.1")), hostquota.HostOf(netip.MustParseAddr("192.0.2.2"))
	s := &srq{unfinished: map[hostquota.Host]int{}}
	s.q.init(&pd{}, 16, 1)
	first, second, third, whole := &conn{host: one}, &conn{host: one}, &conn{host: other}, &conn{host: one}
	for _, c := range []*conn{first, second, third, whole} {
		s.wait(c, c == whole)
	}
	next := func() (c *conn, refused bool, waiting int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		c = s.nextLocked()
		return c, s.refused, len(s.waiting)
	}
	if c, refused, _ := next(); c != nil || refused {
		t.Error("a connection is next though no receive is posted")
	}
	for range 4 {
		if err := s.q.post(&verbs.RecvWR{}); err != nil {
			t.Fatal(err)
		}
	}
	if c, _, _ := next(); c != first {
		t.Error("the first connection is not next")
	}
	for range 8 {
		s.begun(one)
	}
	if c, refused, _ := next(); c != third || !refused {
		t.Error("the connection of the other host is not next")
	}
	if c, _, _ := next(); c != whole {
		t.Error("the connection with a whole message is not next")
	}
	if c, _, waiting := next(); c != nil || waiting != 1 {
		t.Error("the host has a receive beyond its share")
	}
	for range 8 {
		s.ended(one)
	}
	if !s.due.Load() {
		t.Error("the end of a message wakes no connection")
	}
	if c, _, _ := next(); c != second {
		t.Error("the second connection is not next")
	}
}
