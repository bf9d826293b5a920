package iwarp

import (
	"bytes"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/iwarp/mpa"
	"cinnabar/internal/sockio"
	"cinnabar/internal/tlstest"
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

// wait waits for the turn of a request that is not given up.
func (t *hostTurns) wait(h hostquota.Host) { t.waitUnless(h, nil) }

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
	dl, err := d.Listen(netip.MustParseAddrPort("127.0.0.1:0"), verbs.ListenConfig{})
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

// TestGivenUpRequestsLeaveTheTurns has one host make more handshakes than it may have while none has its turn, so that the oldest ones give way. These
// must end then, because a host could otherwise make handshakes wait faster than they have turns, and fill the memory.
func TestGivenUpRequestsLeaveTheTurns(t *testing.T) {
	var request bytes.Buffer
	if err := writeFrame(&request, mpa.Frame{Revision: mpa.Revision2, Enhanced: true, CRC: true, Setup: mpa.Setup{IRD: 16, ORD: 16}}); err != nil {
		t.Fatal(err)
	}
	secure := tlstest.NewCA(t).Local(t)
	for name, tt := range map[string]struct {
		tls   *tls.Config
		first []byte
	}{"plain": {nil, request.Bytes()}, "TLS": {secure, hello(t, secure)}} {
		t.Run(name, func(t *testing.T) {
			dev, err := Open(Config{TLS: tt.tls, MaxConnections: 64})
			if err != nil {
				t.Fatal(err)
			}
			d := dev.Driver().(*device)
			d.handshakes.leastStay = 0
			dl, err := d.Listen(netip.MustParseAddrPort("127.0.0.1:0"), verbs.ListenConfig{})
			if err != nil {
				t.Fatal(err)
			}
			l := dl.(*listener)
			turns := &l.hosts
			turns.holdTurns()
			const limit = time.Minute // only a defect reaches it
			end := time.Now().Add(limit)
			for n := range 24 {
				tc, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(l.Addr()))
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = tc.Close() }()
				if _, err := tc.Write(tt.first); err != nil {
					t.Fatal(err)
				}
				for {
					waiting, evicted := turns.count(), int(dev.Stats()["audit_evicted"])
					if waiting+evicted == n+1 && waiting == int(d.book.Used(hostquota.Handshakes)) {
						break
					}
					if time.Now().After(end) {
						t.Fatalf("of %d handshakes %d wait and %d have given way, with places for %d", n+1, waiting, evicted, d.book.Limit(hostquota.Handshakes))
					}
					runtime.Gosched()
				}
			}
			if dev.Stats()["audit_evicted"] == 0 {
				t.Error("no handshake has given way")
			}
			turns.wg.Go(turns.dispatch)
			if err := errors.Join(l.Close(), dev.Close()); err != nil {
				t.Error(err)
			}
		})
	}
}

// hello returns the first bytes of a client with TLS.
func hello(t *testing.T, cfg *tls.Config) []byte {
	t.Helper()
	a, b := net.Pipe()
	cfg = cfg.Clone()
	cfg.ServerName, cfg.NextProtos = "127.0.0.1", []string{tlsProtocol}
	var wg sync.WaitGroup
	wg.Go(func() { _ = tls.Client(a, cfg).Handshake() }) // the end of the pipe ends it
	buf := make([]byte, 16<<10)
	n, err := b.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = a.Close(), b.Close()
	wg.Wait()
	return buf[:n]
}

// TestIsSelf checks which dials reach a listener of the device.
func TestIsSelf(t *testing.T) {
	for _, tt := range []struct {
		listener, dialed string
		want             bool
	}{
		{"127.0.0.1:7", "127.0.0.1:7", true}, {"127.0.0.1:7", "[::ffff:127.0.0.1]:7", true}, {"127.0.0.1:7", "127.0.0.1:8", false}, {"127.0.0.1:7", "127.0.0.2:7", false},
		{"0.0.0.0:7", "127.0.0.2:7", true}, {"0.0.0.0:7", "0.0.0.0:7", true}, {"0.0.0.0:7", "192.0.2.1:7", false}, {"0.0.0.0:7", "[::1]:7", false}, {"0.0.0.0:7", "[::]:7", false},
		{"[::]:7", "127.0.0.1:7", true}, {"[::]:7", "[::1]:7", true}, {"[::]:7", "[2001:db8::1]:7", false},
	} {
		var d device
		d.listens(netip.MustParseAddrPort(tt.listener))
		if got := d.isSelf(netip.MustParseAddrPort(tt.dialed)); got != tt.want {
			t.Errorf("a dial of %s with a listener at %s: %v", tt.dialed, tt.listener, got)
		}
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
