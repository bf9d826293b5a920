package ofitcp

import (
	"hash/maphash"
	"runtime"
	"slices"
	"sync/atomic"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/invariants"
	"cinnabar/internal/progress"
	"cinnabar/internal/sockio"
)

// shared is the reading that all endpoints of a process have in common: a poller with the sockets of all their parked connections, and
// the goroutine that waits in it.
//
// While one connection of the process has all the traffic, a goroutine that waits for it spins on its socket (spinner), because that is the
// fastest way. Several connections that have traffic at the same time are a crowd. A goroutine that spun on the socket of one of them would
// take the processor from the others. In a crowd the reader of a connection therefore parks as soon as there is nothing to read, and only
// the goroutine of the poller spins, on all sockets. If all connections of the crowd are with one host, only the readers of these park,
// so that a host with two busy connections does not keep the callers of other hosts from spinning.
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

	// ends holds the number of ends of each connection that are in this process, by conn.pair. It is 2 if the peer is in this process.
	// +checklocks:mu
	ends map[uint64]int

	// policy is the one of spins.
	// +checklocks:mu
	policy *progress.Policy
	// spins is the waits of the goroutine of poller; nil: no open endpoint may spin.
	spins atomic.Pointer[progress.Source]
	parks atomic.Uint32 // number of times that a reader was about to park while its connection was in a crowd

	between talkers             // finds crowds of several hosts; a talker is a conn.host
	within  [crowdHosts]talkers // finds crowds of connections with the same host; a talker is a conn.pair
}

// crowdHosts is the number of places of hosts in sharedPoller.within. Two hosts with the same place count as one.
const crowdHosts = 256

// pairSeed is the seed of pairOf.
var pairSeed = maphash.MakeSeed()

// pairOf returns a number for the two addresses of a connection. It is the same for both ends of a connection within the process,
// because their messages to each other are the traffic of one connection, and no crowd.
func pairOf(sock *sockio.Conn) uint64 {
	return maphash.Comparable(pairSeed, sock.LocalAddr()) ^ maphash.Comparable(pairSeed, sock.RemoteAddr())
}

// hostOf returns the place in sharedPoller.within of the host that a connection is with. Like pairOf, it is the same for both ends of a
// connection within the process.
func hostOf(sock *sockio.Conn) uint64 {
	local, remote := hostquota.HostOf(sock.LocalAddr().Addr()), hostquota.HostOf(sock.RemoteAddr().Addr())
	return (maphash.Comparable(pairSeed, local) ^ maphash.Comparable(pairSeed, remote)) % crowdHosts
}

// talkers decides from the order of reads whether several connections, or several hosts, have traffic at the same time. A talker is the
// number of a connection or a host.
type talkers struct {
	// talker is the talker of the latest read. turns grows by crowdTurn with a read from another talker, and shrinks by 1 with a read from
	// the same one.
	talker atomic.Uint64
	turns  atomic.Int32
}

// There is a crowd after two changes of the talker within crowdTurn reads, and no longer after crowdMost - crowdTurn reads from one
// talker without a change.
const (
	crowdTurn = 16
	crowdMost = 5 * crowdTurn
)

// heard records a read from talker.
func (c *talkers) heard(talker uint64) {
	turns := c.turns.Load()
	if c.talker.Load() != talker {
		c.talker.Store(talker)
		c.turns.Store(min(turns+crowdTurn, crowdMost))
	} else if turns > 0 {
		c.turns.Store(turns - 1)
	}
}

func (c *talkers) crowded() bool { return c.turns.Load() > crowdTurn }

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
		s.between.turns.Store(0)
		for i := range s.within {
			s.within[i].turns.Store(0)
		}
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

// began records that c begins. If this process has both ends of the connection, began calls [progress.Policy.AddPair], so that one goroutine
// may spin for each end.
func (s *sharedPoller) began(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ends == nil {
		s.ends = map[uint64]int{}
	}
	if s.ends[c.pair]++; s.ends[c.pair] == 2 {
		c.ep.cfg.Progress.AddPair()
	}
}

// ended undoes the effect of began, because c has ended.
func (s *sharedPoller) ended(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ends[c.pair]--
	switch s.ends[c.pair] {
	case 0:
		delete(s.ends, c.pair)
	case 1:
		c.ep.cfg.Progress.RemovePair()
	}
}

// heard records a read from c.
func (s *sharedPoller) heard(c *conn) {
	s.between.heard(c.host)
	s.within[c.host].heard(c.pair)
}

// crowded reports whether c is in a crowd: several hosts have traffic, or several connections with the host of c.
func (s *sharedPoller) crowded(c *conn) bool {
	return s.between.crowded() || s.within[c.host].crowded()
}

// anyCrowded reports whether the connection of the latest read is in a crowd.
func (s *sharedPoller) anyCrowded() bool {
	return s.between.crowded() || s.within[s.between.talker.Load()].crowded()
}

// run wakes the readers of readable connections until the poller is closed. While there is a crowd it spins for a while before it
// parks.
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
	for s.anyCrowded() {
		if p.Poll() > 0 {
			spin.Found()
			spin.End() // so that another goroutine may spin while letRun waits
			letRun(p)
		} else if !spin.Vain() {
			return
		}
	}
}

// parkYield is the number of parkings (about 50 µs of work) after which a thread gives its processor to other threads while there is a
// crowd. Otherwise the kernel would take the processor away after some milliseconds, perhaps from a thread for which many connections wait.
const parkYield = 8

// parking is called by the reader of c when it is about to park.
func (s *sharedPoller) parking(c *conn) {
	if s.crowded(c) && s.parks.Add(1)%parkYield == 0 {
		c.ep.cfg.Progress.Yield()
	}
}
