package audit

import (
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/invariants"
)

// Bounds on log lines about remote hosts.
const (
	LinesPerHost = 10          // lines about one host in each Window
	LinesInAll   = 200         // lines about all hosts in each Window
	Window       = time.Minute // after which a host may be written about again
	maxHosts     = 1024        // hosts that are remembered; the number of lines in all bounds the rest
)

// Limiter bounds log lines for each remote host. It is safe for concurrent use.
type Limiter struct {
	mu invariants.Mutex
	// +checklocks:mu
	hosts map[hostquota.Host]*lines
	// +checklocks:mu
	all lines
}

// lines are those about one host, or all.
type lines struct {
	since      time.Time // when the window began
	n          int       // lines in it
	suppressed uint64    // events without a line since the last one
}

// process bounds all trails of this process.
var process = NewLimiter()

// NewLimiter returns a Limiter that has seen no host.
func NewLimiter() *Limiter {
	l := &Limiter{}
	l.Reset()
	return l
}

// Allow reports whether a line about h may be logged now. Then it also returns how many were not since the last one.
func Allow(h hostquota.Host) (suppressed uint64, ok bool) { return process.Allow(h) }

// Reset forgets all hosts of the process, so that a test sees the lines that it provokes.
func Reset() { process.Reset() }

// Allow reports whether a line about h may be logged now. Then it also returns how many were not since the last one.
func (l *Limiter) Allow(h hostquota.Host) (suppressed uint64, ok bool) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.hosts[h]
	if of == nil {
		if len(l.hosts) >= maxHosts {
			clear(l.hosts)
		}
		of = &lines{}
		l.hosts[h] = of
	}
	if !of.room(now, LinesPerHost) || !l.all.room(now, LinesInAll) {
		of.suppressed++
		return 0, false
	}
	of.n++
	l.all.n++
	suppressed, of.suppressed = of.suppressed, 0
	return suppressed, true
}

// room reports whether one more line fits, and begins a new window when the last one is over.
func (w *lines) room(now time.Time, most int) bool {
	if now.Sub(w.since) >= Window {
		w.since, w.n = now, 0
	}
	return w.n < most
}

// Reset forgets all hosts.
func (l *Limiter) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hosts, l.all = map[hostquota.Host]*lines{}, lines{}
}
