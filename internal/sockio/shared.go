package sockio

import (
	"runtime"
	"sync/atomic"

	"cinnabar/internal/invariants"
)

// A SharedPoller is a [Poller] that several users have together, with the goroutine that waits in it. Both exist while there are users. The
// zero SharedPoller has none. All methods are safe for concurrent use.
type SharedPoller struct {
	poller atomic.Pointer[Poller] // nil: there are no users
	users  atomic.Int32           // changed with mu held
	rounds atomic.Int32           // number of calls of Look for one call of Poll; 0: mostRounds

	mu invariants.Mutex
	// done is closed when the goroutine has ended.
	// +checklocks:mu
	done chan struct{}
}

// A spinning goroutine polls the other connections at every mostRounds-th look, and more often after it has found some readable.
const (
	leastRounds = 4
	mostRounds  = 64
)

// Acquire counts a user, and returns the Poller that its connection joins. The user closes the connection before it calls Release.
func (s *SharedPoller) Acquire() (*Poller, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.poller.Load()
	if p == nil {
		var err error
		if p, err = NewPoller(); err != nil {
			return nil, err
		}
		s.poller.Store(p)
		s.done = make(chan struct{})
		go run(p, s.done)
	}
	s.users.Add(1)
	return p, nil
}

// Release undoes one Acquire. For the last user it closes the Poller and waits until the goroutine has ended.
func (s *SharedPoller) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users.Add(-1) > 0 {
		return
	}
	_ = s.poller.Swap(nil).Close() // an error would lose no data
	<-s.done
}

// run wakes the readers of readable connections until p is closed.
func run(p *Poller, done chan struct{}) {
	defer close(done)
	for {
		if _, err := p.Wait(); err != nil {
			return
		}
		runtime.Gosched()
		p.Settle()
	}
}

// Look is called by a goroutine that spins on a connection, after look number n in vain. Go's scheduler does not poll the network while goroutines
// spin on all processors. Look therefore calls [Poller.Poll] at some of these calls, and lets the goroutines run that Poll has woken. It does
// nothing while there is one user, because the goroutine then spins on the only connection.
func (s *SharedPoller) Look(n uint32) {
	if s.users.Load() <= 1 {
		return
	}
	rounds := s.rounds.Load()
	if rounds == 0 {
		rounds = mostRounds
	}
	if n%uint32(rounds) != 0 {
		return
	}
	if s.poller.Load().Poll() == 0 {
		s.rounds.Store(min(2*rounds, mostRounds))
		return
	}
	s.rounds.Store(leastRounds)
	runtime.Gosched()
}
