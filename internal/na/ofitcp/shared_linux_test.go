package ofitcp

import (
	"testing"
	"time"

	"cinnabar/internal/progress"
)

// TestCrowd has two peers that take turns: the process is crowded, so waiters do not spin on one connection, and what comes is found
// all the same. After one peer has had the traffic for a while, waiters spin again.
func TestCrowd(t *testing.T) {
	server := openEcho(t, Config{})
	r, other := newRaw(t), newRaw(t)
	one, _ := r.dial(server, 1)
	two, _ := other.dial(server, 2)
	maySpin := func() bool {
		var spins progress.Source
		spins.Init(server.cfg.Progress, progress.Socket)
		s := spinner{Spin: spins.Spin(true), ep: server}
		defer s.End()
		return s.begin()
	}
	for i := range uint32(20) {
		r.ping(one, 2*i)
		other.ping(two, 2*i+1)
		if i > 1 && maySpin() {
			t.Fatal("a waiter may spin while two connections have traffic")
		}
	}
	for i := range uint32(crowdMost) {
		r.ping(one, 100+i)
	}
	if !maySpin() {
		t.Errorf("no waiter may spin after %d messages of one connection", crowdMost)
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
