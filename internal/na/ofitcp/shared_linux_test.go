package ofitcp

import (
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"cinnabar/internal/progress"
)

// connTo returns e's end of the connection with peer. It waits for that, because the peer gets the answer to its connection request before.
func connTo(t *testing.T, e *Endpoint, peer *rawConn) (found *conn) {
	t.Helper()
	at := peer.LocalAddr().(*net.TCPAddr).AddrPort()
	until(t, "the connection with "+at.String(), func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		for c := range e.conns {
			if remote := c.sock.RemoteAddr(); remote.Port() == at.Port() && remote.Addr().Unmap() == at.Addr().Unmap() {
				found = c
			}
		}
		return found != nil
	})
	return found
}

// maySpin reports whether a waiter for bytes of c may spin.
func maySpin(c *conn) bool {
	var spins progress.Source
	spins.Init(c.ep.cfg.Progress, progress.Socket)
	s := spinner{Spin: spins.Spin(true), c: c}
	defer s.End()
	return s.begin()
}

// TestCrowd has two peers that take turns. They are a crowd, so waiters do not spin on one connection, and still receive all messages. After
// only one peer has sent for a while, waiters spin again.
func TestCrowd(t *testing.T) {
	for name, others := range map[string]net.IP{"of one host": net.IPv4(127, 0, 0, 1), "of two hosts": net.IPv4(127, 0, 0, 2)} {
		t.Run(name, func(t *testing.T) {
			server := openEcho(t, Config{})
			r, other := newRaw(t), newRawOn(t, others)
			one, _ := r.dial(server, 1)
			two, _ := other.dial(server, 2)
			c := connTo(t, server, one)
			for i := range uint32(20) {
				r.ping(one, 2*i)
				other.ping(two, 2*i+1)
				if i > 1 && maySpin(c) {
					t.Fatal("a waiter may spin while two connections have traffic")
				}
			}
			for i := range uint32(crowdMost) {
				r.ping(one, 100+i)
			}
			if !maySpin(c) {
				t.Errorf("no waiter may spin after %d messages of one connection", crowdMost)
			}
		})
	}
}

// TestCrowdOfOneHost has a host with two busy connections: only waiters of that host do not spin. A host that sends something now and then
// does not change that.
func TestCrowdOfOneHost(t *testing.T) {
	server := openEcho(t, Config{})
	busy, other := newRawOn(t, net.IPv4(127, 0, 0, 2)), newRawOn(t, net.IPv4(127, 0, 0, 2))
	one, _ := busy.dial(server, 1)
	two, _ := other.dial(server, 2)
	theirs := connTo(t, server, one)
	quiet := newRawOn(t, net.IPv4(127, 0, 0, 3))
	three, _ := quiet.dial(server, 3)
	mine := connTo(t, server, three)
	for i := byte(4); mine.host == theirs.host; i++ { // two addresses may have the same place
		quiet = newRawOn(t, net.IPv4(127, 0, 0, i))
		three, _ = quiet.dial(server, uint32(i))
		mine = connTo(t, server, three)
	}
	tag := uint32(0)
	for range 3 {
		quiet.ping(three, tag)
		for range crowdMost {
			tag++
			busy.ping(one, tag)
			other.ping(two, tag)
		}
		if !maySpin(mine) {
			t.Error("no waiter may spin because of the connections of another host")
		}
		if maySpin(theirs) {
			t.Error("a waiter may spin on one of two busy connections with a host")
		}
	}
}

// TestSharedPollerEnds opens and closes endpoints: the poller and its goroutine exist while one is open.
func TestSharedPollerEnds(t *testing.T) {
	for range 3 {
		a, b := openEcho(t, Config{}), openEndpoint(t, Config{})
		newClient(b, addrOf(t, b, a), 0).must(t, []byte("x"))
		closeEndpoint(t, a)
		c := openEcho(t, Config{})
		newClient(b, addrOf(t, b, c), 0).must(t, []byte("x"))
		closeEndpoint(t, b)
		closeEndpoint(t, c)
		shared.mu.Lock()
		if len(shared.users) != 0 || shared.poller != nil {
			t.Errorf("%d users, poller %p", len(shared.users), shared.poller)
		}
		shared.mu.Unlock()
	}
}

// TestSharedPollerPolicy closes the only endpoint that may spin: the goroutine of the poller, which the other one still needs, does
// not spin any more.
func TestSharedPollerPolicy(t *testing.T) {
	spinning, resting := progress.NewFixed(time.Millisecond), progress.NewFixed(0)
	var s sharedPoller
	for _, p := range []*progress.Policy{resting, spinning, spinning} {
		if _, err := s.acquire(p); err != nil {
			t.Fatal(err)
		}
	}
	for left := range 2 {
		if s.spins.Load() == nil {
			t.Errorf("no spins after the close of %d of two endpoints that may spin", left)
		}
		s.release(spinning)
	}
	if s.spins.Load() != nil {
		t.Error("the goroutine spins, and no open endpoint may")
	}
	s.release(resting)
}

// TestPairWithin checks that a goroutine for each end may spin while both ends of a connection are in this process, and only until the
// connection ends.
func TestPairWithin(t *testing.T) {
	if runtime.NumCPU() == 1 {
		t.Skip("one goroutine spins at a time, because the process may use one processor only")
	}
	server, client := openEcho(t, Config{}), openEndpoint(t, Config{})
	bothSpin := func() bool {
		var spins progress.Source
		spins.Init(progress.NewFixed(time.Millisecond), progress.Socket)
		driver, reader := spins.Spin(true), spins.Spin(false)
		defer driver.End()
		defer reader.End()
		return driver.Begin() && reader.Begin()
	}
	to := addrOf(t, client, server)
	newClient(client, to, 0).must(t, []byte("x"))
	until(t, "both ends may spin", bothSpin)
	closeEndpoint(t, client)
	closeEndpoint(t, server)
	if bothSpin() {
		t.Error("two goroutines may spin after the end of the connection")
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if len(shared.ends) != 0 {
		t.Errorf("%d connections are left", len(shared.ends))
	}
}

// TestSharedPollerRaces calls acquire and release of several endpoints at the same time, so that the last release, which closes the poller,
// runs beside the next acquire, which needs one.
func TestSharedPollerRaces(t *testing.T) {
	var s sharedPoller
	var wg sync.WaitGroup
	for range 4 {
		policy := progress.NewFixed(time.Millisecond)
		wg.Go(func() {
			for range 200 {
				p, err := s.acquire(policy)
				if err != nil {
					t.Error(err)
					return
				}
				s.mu.Lock()
				if s.poller != p {
					t.Error("the poller of an open endpoint is not the shared one")
				}
				s.mu.Unlock()
				s.release(policy)
			}
		})
	}
	wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.users) != 0 || s.poller != nil || s.spins.Load() != nil {
		t.Errorf("%d users, poller %p, spins %p after the last release", len(s.users), s.poller, s.spins.Load())
	}
}

// TestParksCounted checks that a wait which ends at the first look does not count as parked, and one that was woken does.
func TestParksCounted(t *testing.T) {
	c := &conn{ep: &Endpoint{cfg: Config{Progress: progress.NewFixed(time.Millisecond)}}}
	c.dead.Store(true)
	for want := range uint64(2) {
		if !c.readable() {
			t.Fatal("the wait of a dead connection does not end")
		}
		if n := c.ep.cfg.Progress.Counters().Parks; n != want {
			t.Errorf("%d parks, want %d", n, want)
		}
	}
}
