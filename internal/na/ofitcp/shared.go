package ofitcp

import (
	"hash/maphash"
	"runtime"
	"slices"
	"sync/atomic"

	"cinnabar/internal/invariants"
	"cinnabar/internal/progress"
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
	// users are the policies of the open endpoints.
	// +checklocks:mu
	users []*progress.Policy
	// poller is nil while there are no users.
	// +checklocks:mu
	poller *sockio.Poller
	// done is closed when the goroutine of poller has ended.
	// +checklocks:mu
	done chan struct{}

	// policy is the one of spins.
	// +checklocks:mu
	policy *progress.Policy
	// spins is the waits of the goroutine of poller; nil: no open endpoint may spin.
	spins atomic.Pointer[progress.Source]
	parks atomic.Uint32 // number of times that a reader was about to park while the process was crowded
	// talker is the conn.pair of the latest read. turns grows by crowdTurn when another connection becomes the talker, and shrinks
	// by 1 with each read from the same one.
	talker atomic.Uint64
	turns  atomic.Int32
}

// pairSeed is the seed of pairOf.
var pairSeed = maphash.MakeSeed()

// pairOf returns a number for the two addresses of a connection. It is the same for both ends of a connection within the process,
// because their messages to each other are the traffic of one connection, and no crowd.
func pairOf(sock *sockio.Conn) uint64 {
	return maphash.Comparable(pairSeed, sock.LocalAddr()) ^ maphash.Comparable(pairSeed, sock.RemoteAddr())
}

// The process is crowded after two changes of the talker within crowdTurn reads, and no longer after crowdMost - crowdTurn reads from
// one connection without a change.
const (
	crowdTurn = 16
	crowdMost = 5 * crowdTurn
)

// acquire returns the poller for an endpoint that is being opened. policy is its Config.Progress.
func (s *sharedPoller) acquire(policy *progress.Policy) (*sockio.Poller, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.users) == 0 {
		p, err := sockio.NewPoller()
		if err != nil {
			return nil, err
		}
		s.poller, s.done = p, make(chan struct{})
		s.turns.Store(0)
		go s.run(p, s.done)
	}
	s.users = append(s.users, policy)
	s.chooseLocked()
	return s.poller, nil
}

// chooseLocked sets spins to waits by the policy of the first endpoint that may spin.
//
// +checklocks:s.mu
func (s *sharedPoller) chooseLocked() {
	i := slices.IndexFunc(s.users, (*progress.Policy).MaySpin)
	if i < 0 {
		s.policy = nil
		s.spins.Store(nil)
		return
	}
	if s.policy != s.users[i] {
		s.policy = s.users[i]
		spins := new(progress.Source)
		spins.Init(s.policy, progress.Socket)
		s.spins.Store(spins)
	}
}

// release is called with the policy of an endpoint that has no connections any more. After the last one it waits until the goroutine
// has ended.
func (s *sharedPoller) release(policy *progress.Policy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.users, policy)
	s.users = slices.Delete(s.users, i, i+1)
	s.chooseLocked()
	if len(s.users) > 0 {
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
		letRun(p)
		s.spinOn(p)
	}
}

// letRun lets the readers run that p has woken, and the callers that they wake.
func letRun(p *sockio.Poller) {
	runtime.Gosched()
	p.Settle()
}

// spinOn looks at the connections until nothing has come for the time of a spin.
func (s *sharedPoller) spinOn(p *sockio.Poller) {
	spins := s.spins.Load()
	if spins == nil || !sockio.Direct {
		return
	}
	spin := spins.Spin(false)
	defer spin.End()
	for s.crowded() {
		if p.Poll() > 0 {
			spin.Found()
			letRun(p)
		} else if !spin.Vain() {
			return
		}
	}
}

// parkYield is the number of parkings after which a thread gives its processor to other threads while the process is crowded: about 50
// µs of work. Otherwise the kernel takes the processor away after some milliseconds, from a thread that many connections wait for.
const parkYield = 8

// parking is called by a reader that is about to park.
func (s *sharedPoller) parking(policy *progress.Policy) {
	if s.crowded() && s.parks.Add(1)%parkYield == 0 {
		policy.Yield()
	}
}
