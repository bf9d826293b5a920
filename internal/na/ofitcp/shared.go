package ofitcp

import (
	"hash/maphash"
	"runtime"
	"sync/atomic"
	"time"

	"cinnabar/internal/invariants"
	"cinnabar/internal/sockio"
)

// shared is the reading that all endpoints of a process have in common: a poller with the sockets of all their parked connections, and
// the goroutine that waits in it.
//
// While one connection of the process has all the traffic, a goroutine that waits for it spins on its socket (spinner), which is
// the fastest. As soon as several connections have traffic, the process is crowded: a goroutine that spun on one socket would take the
// processor from the others. Connections then park as soon as nothing is to be read, and the goroutine of the poller alone spins, on
// all of them.
var shared sharedPoller

type sharedPoller struct {
	mu invariants.Mutex
	// users is the number of open endpoints.
	// +checklocks:mu
	users int
	// poller is nil while users is 0.
	// +checklocks:mu
	poller *sockio.Poller
	// done is closed when the goroutine of poller has ended.
	// +checklocks:mu
	done chan struct{}

	spin atomic.Int64 // the longest Config.Spin of the open endpoints, in nanoseconds
	// talker is the conn.pair whose bytes came last. turns grows by crowdTurn when another connection becomes the talker, and shrinks
	// by 1 with each read from the same one.
	talker atomic.Uint64
	turns  atomic.Int32
}

// pairSeed is the seed of pairOf.
var pairSeed = maphash.MakeSeed()

// pairOf returns a number for the two addresses of a connection. It is the same for both ends of a connection within the process,
// which may spin for each other.
func pairOf(sock *sockio.Conn) uint64 {
	return maphash.Comparable(pairSeed, sock.LocalAddr()) ^ maphash.Comparable(pairSeed, sock.RemoteAddr())
}

// The process is crowded after two changes of the talker within crowdTurn reads, and no longer after crowdMost - crowdTurn reads from
// one connection without a change.
const (
	crowdTurn = 16
	crowdMost = 5 * crowdTurn
)

// acquire returns the poller for an endpoint that is being opened. spin is its Config.Spin.
func (s *sharedPoller) acquire(spin time.Duration) (*sockio.Poller, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users == 0 {
		p, err := sockio.NewPoller()
		if err != nil {
			return nil, err
		}
		s.poller, s.done = p, make(chan struct{})
		s.spin.Store(0)
		s.turns.Store(0)
		go s.run(p, s.done)
	}
	s.users++
	s.spin.Store(max(s.spin.Load(), int64(spin)))
	return s.poller, nil
}

// release is called when an endpoint has no connections any more. After the last one it waits until the goroutine has ended.
func (s *sharedPoller) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users--; s.users > 0 {
		return
	}
	_ = s.poller.Close() // an error would lose no data
	<-s.done
	s.poller = nil
}

// heard takes note that bytes of a connection have come.
func (s *sharedPoller) heard(pair uint64) {
	turns := s.turns.Load()
	if s.talker.Load() != pair {
		s.talker.Store(pair)
		s.turns.Store(min(turns+crowdTurn, crowdMost))
	} else if turns > 0 {
		s.turns.Store(turns - 1)
	}
}

// crowded reports whether several connections of the process have traffic.
func (s *sharedPoller) crowded() bool { return s.turns.Load() > crowdTurn }

// run wakes the readers of readable connections until the poller is closed. While the process is crowded it spins for a while
// before it parks.
func (s *sharedPoller) run(p *sockio.Poller, done chan struct{}) {
	defer close(done)
	for {
		if _, err := p.Wait(); err != nil {
			return
		}
		runtime.Gosched() // lets the readers run, and the callers that they wake
		s.spinOn(p)
	}
}

// spinOn looks at the connections until nothing has come for the spin time.
func (s *sharedPoller) spinOn(p *sockio.Poller) {
	spin := time.Duration(s.spin.Load())
	alone := runtime.GOMAXPROCS(0) == 1
	until := time.Time{}
	for rounds := 0; sockio.Direct && s.crowded() && spin > 0; rounds++ {
		switch {
		case p.Poll() > 0:
			runtime.Gosched()
			rounds = 0
		case p.Pending():
			return // because the goroutine that parks leaves a processor to them
		case rounds == 0:
			until = time.Now().Add(spin)
		case rounds%spinRounds == 0 && time.Now().After(until):
			return
		case alone:
			runtime.Gosched()
		}
	}
}
