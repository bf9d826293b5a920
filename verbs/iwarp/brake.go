package iwarp

import (
	"maps"
	"math"
	"sync"
	"time"

	"cinnabar/internal/hostquota"
)

// Keys have 32 bits, and a wrong guess ends only the connection that it was made on. So a host that guesses would find a
// key among many after some minutes, if it could connect anew at any rate. The brake bounds that rate: it counts the
// refused accesses of each host, and beyond Config.DeniedLimit the host's new connections are spaced out.
const (
	firstDelay = 50 * time.Millisecond // between two connections, doubled by each further refused access
	maxDelay   = 30 * time.Second
	// maxWait is how long a connection request is kept waiting for its turn; where more would be due it is refused.
	maxWait = time.Second
	// halfTime is after which time the count of a host is halved.
	halfTime = time.Minute
	// mostOver is how far the count of a host goes beyond the limit: as far as the delay grows. A bound is needed, because a
	// host that has many connections open could otherwise make so many refused accesses that its other users are refused
	// for hours.
	mostOver = 10
	// maxSuspects bounds the hosts that are remembered.
	maxSuspects = 1024
)

// brake counts refused accesses to memory for each host.
type brake struct {
	limit int // Config.DeniedLimit

	mu sync.Mutex
	// +checklocks:mu
	hosts map[hostquota.Host]*suspect
}

// suspect is a host with refused accesses.
type suspect struct {
	denied int
	halved time.Time // when denied was last halved, or begun
	turn   time.Time // from when on the next connection may come
}

// decay halves the count for each halfTime that is over.
func (s *suspect) decay(now time.Time) {
	for s.denied > 0 && now.Sub(s.halved) >= halfTime {
		s.denied /= 2
		s.halved = s.halved.Add(halfTime)
	}
}

// delay returns the time between two connections of the host.
func (s *suspect) delay(limit int) time.Duration {
	over := s.denied - limit
	if limit < 0 || over < 0 {
		return 0
	}
	d := firstDelay
	for ; over > 0 && d < maxDelay; over-- {
		d *= 2
	}
	return min(d, maxDelay)
}

// deny counts a refused access.
func (b *brake) deny(h hostquota.Host, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.hosts[h]
	if s == nil {
		if b.hosts == nil {
			b.hosts = map[hostquota.Host]*suspect{}
		}
		if len(b.hosts) >= maxSuspects {
			b.forgetLocked(now)
		}
		s = &suspect{halved: now}
		b.hosts[h] = s
	}
	s.decay(now)
	if s.denied == 0 {
		s.halved = now
	}
	s.denied = min(s.denied+1, max(b.limit, 0)+mostOver)
}

// forgetLocked forgets the hosts that have become innocent, or else the one with the fewest refused accesses.
//
// +checklocks:b.mu
func (b *brake) forgetLocked(now time.Time) {
	maps.DeleteFunc(b.hosts, func(_ hostquota.Host, s *suspect) bool {
		s.decay(now)
		return s.denied == 0
	})
	if len(b.hosts) < maxSuspects {
		return
	}
	var least hostquota.Host
	fewest := math.MaxInt
	for h, s := range b.hosts {
		if s.denied < fewest {
			least, fewest = h, s.denied
		}
	}
	delete(b.hosts, least)
}

// turn returns how long a new connection of h has to wait; false means that it is refused.
func (b *brake) turn(h hostquota.Host, now time.Time) (wait time.Duration, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.hosts[h]
	if s == nil {
		return 0, true
	}
	s.decay(now)
	d := s.delay(b.limit)
	if d == 0 {
		return 0, true
	}
	if wait = max(0, s.turn.Sub(now)); wait > maxWait {
		return 0, false
	}
	s.turn = now.Add(wait + d)
	return wait, true
}
