package iwarp

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar/internal/hostquota"
)

// A handshake that fails takes as much of the processor as one that succeeds, and a host may begin them at any rate. Limits
// on what is unfinished at a time do not bound that rate, because each that ends makes room for another. So failures
// have a budget, which a host draws on for each handshake and gets back for one that succeeds. Beyond it the
// host's newcomers wait.
const (
	// failureRate is how many handshakes may fail a second. The hosts that have failures share it equally.
	failureRate = 1000
	// freeFailures is how many handshakes a host may have failed, or have under way, without a wait.
	freeFailures = 32
	// maxPaced bounds the hosts that are remembered. Others are not paced, and the limits on what is unfinished hold for them.
	maxPaced = 4096
	// paceSweep is the least time between two searches for hosts whose budget is full again.
	paceSweep = 100 * time.Millisecond
)

// pace spaces out the handshakes of hosts whose handshakes fail.
type pace struct {
	delayed atomic.Uint64 // handshakes that were made to wait

	mu sync.Mutex
	// +checklocks:mu
	hosts map[hostquota.Host]*budget
	// +checklocks:mu
	swept time.Time
}

// budget is what a host has left of freeFailures. It is negative if handshakes wait.
type budget struct {
	left    float64
	at      time.Time       // when left was right
	waiting []chan struct{} // of the handshakes that wait, the first first
}

func (b *budget) refill(now time.Time, rate float64) {
	b.left = min(b.left+now.Sub(b.at).Seconds()*rate, freeFailures)
	b.at = now
}

// begin draws on the budget of h and returns how long its handshake has to wait, unless early is closed before, because another
// handshake of h has succeeded. If that is longer than limit it draws nothing and reports false.
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

// succeeded gives back what begin has drawn, to the handshake that has waited for longest if there is one. So hosts whose
// handshakes succeed do not wait because others have left them little to draw on.
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

// sweepLocked forgets the hosts whose budget is full.
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
