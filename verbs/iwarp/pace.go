package iwarp

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar/internal/hostquota"
)

// A failed handshake takes as much processor time as a successful one, and a host may begin handshakes at any rate. The limits on
// unfinished handshakes do not bound that rate, because each handshake that ends makes room for another. Therefore each host has
// a budget of failures: a handshake takes one from it, and gives it back if it succeeds. A handshake beyond the budget waits.
const (
	// failureRate is the number of handshakes that may fail each second, shared equally by the hosts with failures.
	failureRate = 1000
	// freeFailures is the full budget of a host: failed and unfinished handshakes that cause no wait.
	freeFailures = 32
	// maxPaced is the number of hosts with a budget of their own. Further hosts are not paced; only the limits on unfinished
	// handshakes apply to them.
	maxPaced = 4096
	// paceSweep is the least time between two searches for hosts with a full budget.
	paceSweep = 100 * time.Millisecond
)

// pace delays the handshakes of hosts that have many failed handshakes.
type pace struct {
	delayed atomic.Uint64 // number of handshakes that waited

	mu sync.Mutex
	// +checklocks:mu
	hosts map[hostquota.Host]*budget
	// +checklocks:mu
	swept time.Time
}

// budget is the remaining budget of failures of a host.
type budget struct {
	left    float64         // at most freeFailures; negative while handshakes wait
	at      time.Time       // when left was computed
	waiting []chan struct{} // one for each waiting handshake, in the order of their begin
}

func (b *budget) refill(now time.Time, rate float64) {
	b.left = min(b.left+now.Sub(b.at).Seconds()*rate, freeFailures)
	b.at = now
}

// begin takes a failure from the budget of h and returns how long the handshake must wait; the wait ends earlier if early is
// closed, because another handshake of h has succeeded. If the wait is longer than limit, begin takes nothing and returns false.
func (p *pace) begin(h hostquota.Host, now time.Time, limit time.Duration) (wait time.Duration, early chan struct{}, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sweepLocked(now)
	b := p.hosts[h]
	if b == nil {
		if len(p.hosts) >= maxPaced {
			return 0, nil, true
		}
		if p.hosts == nil {
			p.hosts = map[hostquota.Host]*budget{}
		}
		b = &budget{left: freeFailures, at: now}
		p.hosts[h] = b
	}
	rate := failureRate / float64(len(p.hosts))
	b.refill(now, rate)
	if b.left < 1 {
		wait = time.Duration((1 - b.left) / rate * float64(time.Second))
	}
	if wait > limit {
		return 0, nil, false
	}
	if wait > 0 {
		p.delayed.Add(1)
		early = make(chan struct{})
		b.waiting = append(b.waiting, early)
	}
	b.left--
	return wait, early, true
}

// succeeded returns the failure that begin has taken to the budget of h, and ends the wait of the handshake that has waited for
// longest. Hosts with successful handshakes therefore do not wait, even when the hosts share a small rate.
func (p *pace) succeeded(h hostquota.Host) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.hosts[h]
	if b == nil {
		return
	}
	b.left = min(b.left+1, freeFailures)
	if len(b.waiting) > 0 {
		close(b.waiting[0])
		b.waiting = b.waiting[1:]
	}
}

// waited ends the wait of a handshake of h, for which begin has returned early.
func (p *pace) waited(h hostquota.Host, early chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b := p.hosts[h]; b != nil {
		if i := slices.Index(b.waiting, early); i >= 0 {
			b.waiting = slices.Delete(b.waiting, i, i+1)
		}
	}
}

// sweepLocked removes the hosts that have a full budget.
//
// +checklocks:p.mu
func (p *pace) sweepLocked(now time.Time) {
	if now.Sub(p.swept) < paceSweep {
		return
	}
	p.swept = now
	rate := failureRate / float64(max(len(p.hosts), 1))
	maps.DeleteFunc(p.hosts, func(_ hostquota.Host, b *budget) bool {
		b.refill(now, rate)
		return b.left >= freeFailures
	})
}
