// Package querylimit bounds how often peers may ask a process to describe itself, because each description costs the process some of its
// time.
//
// A [Limiter] has three bounds: a rate for each host, a rate for all hosts together, and a number of descriptions that are made at the same
// time. A host that keeps to its rate is refused only if one of the other two bounds is reached.
package querylimit

import (
	"errors"
	"fmt"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/invariants"
)

// Bounds of a [Limiter].
const (
	HostRate  = 10 // questions of one host in a second
	TotalRate = 40 // questions of all hosts in a second
	Seconds   = 2  // burst: so many seconds' questions may come at once
	Together  = 4  // descriptions that are made at the same time
	maxHosts  = 1024
)

// Errors of [Limiter.Begin].
var (
	ErrTooOften = fmt.Errorf("asked too often: at most %d times a second for each host, and %d for all hosts together", HostRate, TotalRate)
	ErrBusy     = fmt.Errorf("%d descriptions are being made already", Together)
)

// Refused reports whether err is an error of [Limiter.Begin].
func Refused(err error) bool { return errors.Is(err, ErrTooOften) || errors.Is(err, ErrBusy) }

// Limiter is safe for concurrent use.
type Limiter struct {
	mu invariants.Mutex
	// +checklocks:mu
	hosts map[hostquota.Host]*bucket
	// +checklocks:mu
	total bucket
	// +checklocks:mu
	underWay int // descriptions
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

// New returns a Limiter that has seen no host.
func New() *Limiter {
	l := &Limiter{}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hosts = map[hostquota.Host]*bucket{}
	return l
}

// Begin begins a description for host h. If it returns no error, the caller calls end once the description is made.
func (l *Limiter) Begin(h hostquota.Host) (end func(), err error) { return l.begin(h, time.Now()) }

func (l *Limiter) begin(h hostquota.Host, now time.Time) (end func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.hosts[h]
	if b == nil {
		l.makeRoomLocked(now)
		b = &bucket{}
		l.hosts[h] = b
	}
	b.fill(HostRate, now)
	l.total.fill(TotalRate, now)
	switch {
	case b.left < 1 || l.total.left < 1:
		return nil, ErrTooOften
	case l.underWay >= Together:
		return nil, ErrBusy
	}
	b.left--
	l.total.left--
	l.underWay++
	return l.end, nil
}

// makeRoomLocked removes the hosts whose buckets are full again, because a new bucket is full too. If there are none, it removes all hosts; the
// rate of all hosts together still bounds the questions then.
//
// +checklocks:l.mu
func (l *Limiter) makeRoomLocked(now time.Time) {
	if len(l.hosts) < maxHosts {
		return
	}
	for h, b := range l.hosts {
		if now.Sub(b.at) >= Seconds*time.Second {
			delete(l.hosts, h)
		}
	}
	if len(l.hosts) >= maxHosts {
		clear(l.hosts)
	}
}

func (l *Limiter) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.underWay--
}
