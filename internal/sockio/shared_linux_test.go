package sockio

import (
	"runtime"
	"testing"
)

// TestSharedPoller checks that the goroutine of a SharedPoller wakes the readers of its connections, that all users have the same Poller, and
// that the last Release closes it.
func TestSharedPoller(t *testing.T) {
	var s SharedPoller
	for range 2 {
		var set [2]*Poller
		for i := range set {
			var err error
			if set[i], err = s.Acquire(); err != nil {
				t.Fatal(err)
			}
		}
		if set[0] != set[1] {
			t.Error("two users have different pollers")
		}
		t.Run("readers", func(t *testing.T) {
			peer, got := parkedReader(t, set[0])
			for range 10 {
				if _, err := peer.TryWritev([][]byte{{1}}); err != nil {
					t.Fatal(err)
				}
				<-got
			}
		})
		s.Release()
		s.Release()
		if s.poller.Load() != nil {
			t.Error("the poller is open after the last Release")
		}
		s.Look(0)
	}
}

// TestLook checks that Look does not poll for one user, polls at every mostRounds-th call for two, and more often after it has found a readable
// connection.
func TestLook(t *testing.T) {
	p := startPoller(t, false)
	peer, got := parkedReader(t, p)
	var s SharedPoller
	s.poller.Store(p)
	if _, err := peer.TryWritev([][]byte{{1}}); err != nil {
		t.Fatal(err)
	}
	s.users.Store(1)
	s.Look(mostRounds)
	s.users.Store(2)
	for n := uint32(1); n < mostRounds; n++ {
		s.Look(n)
	}
	if n := s.rounds.Load(); n != 0 {
		t.Fatalf("Look has polled before call number %d, and has set rounds to %d", mostRounds, n)
	}
	for read := false; !read; runtime.Gosched() { // the reader parks meanwhile, or finds the byte itself
		s.Look(mostRounds)
		select {
		case <-got:
			read = true
		default:
		}
	}
	for range 10 {
		s.Look(mostRounds)
	}
	if n := s.rounds.Load(); n != mostRounds {
		t.Errorf("Look polls at every call number %d after it has found nothing, want %d", n, mostRounds)
	}
}
