// Package askgate bounds how often peers may ask a process to describe itself, because each description costs the process some of its
// time.
//
// A [Gate] has three bounds: a rate for each host, a rate for all hosts together, and a number of descriptions that are made at the same
// time. A host that keeps to its rate is refused only if one of the other two bounds is reached.
package askgate

import (
	"errors"
	"fmt"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/invariants"
)

// Bounds of a [Gate].
const (
	HostRate  = 10 // questions of one host in a second
	TotalRate = 40 // questions of all hosts in a second
	Seconds   = 2  // burst: so many seconds' questions may come at once
	Together  = 4  // descriptions that are made at the same time
	maxHosts  = 1024
)

// Errors of [Gate.Enter].
var (
	ErrTooOften = fmt.Errorf("asked too often: at most %d times a second for each host, and %d for all hosts together", HostRate, TotalRate)
	ErrBusy     = fmt.Errorf("%d descriptions are being made already", Together)
)

// Refused reports whether err is an error of [Gate.Enter].
func Refused(err error) bool { return errors.Is(err, ErrTooOften) || errors.Is(err, ErrBusy) }

// Gate is safe for concurrent use.
type Gate struct {
	mu invariants.Mutex
	// +checklocks:mu
	hosts map[hostquota.Host]*bucket
	// +checklocks:mu
	total bucket
	// +checklocks:mu
	inside int
}

// bucket is a token bucket: left is the number of questions that may still come now.
type bucket struct {
	left float64
	at   time.Time // when left was computed; zero: never, so the bucket is full
}

// fill adds the questions that rate permits for the time since the last call.
func (b *bucket) fill(rate float64, now time.Time) {
	if b.at.IsZero() {
		b.left = rate * Seconds
	}
	b.left = min(rate*Seconds, b.left+rate*max(0, now.Sub(b.at).Seconds()))
	b.at = now
}

// New returns a Gate that has seen no host.
func New() *Gate {
	g := &Gate{}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hosts = map[hostquota.Host]*bucket{}
	return g
}

// Enter begins a description for host h. If it returns no error, the caller calls leave once the description is made.
func (g *Gate) Enter(h hostquota.Host) (leave func(), err error) { return g.enter(h, time.Now()) }

func (g *Gate) enter(h hostquota.Host, now time.Time) (leave func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.hosts[h]
	if b == nil {
		g.makeRoomLocked(now)
		b = &bucket{}
		g.hosts[h] = b
	}
	b.fill(HostRate, now)
	g.total.fill(TotalRate, now)
	switch {
	case b.left < 1 || g.total.left < 1:
		return nil, ErrTooOften
	case g.inside >= Together:
		return nil, ErrBusy
	}
	b.left--
	g.total.left--
	g.inside++
	return g.leave, nil
}

// makeRoomLocked removes the hosts whose buckets are full again, because a new bucket is full too. If there are none, it removes all hosts; the
// rate of all hosts together still bounds the questions then.
//
// +checklocks:g.mu
func (g *Gate) makeRoomLocked(now time.Time) {
	if len(g.hosts) < maxHosts {
		return
	}
	for h, b := range g.hosts {
		if now.Sub(b.at) >= Seconds*time.Second {
			delete(g.hosts, h)
		}
	}
	if len(g.hosts) >= maxHosts {
		clear(g.hosts)
	}
}

func (g *Gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
}
