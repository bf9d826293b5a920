package rmem

import (
	"sync"
	"time"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
)

// A host that guesses handles or tokens gets its answers with a growing delay. The first freeRefusals refusals cost no time; each further
// one doubles the delay, from leastDelay to mostDelay. Refusals are forgotten forgetAfter the last of them. While mostDelayed
// answers to a host are delayed, only requests of that host are looked at that cannot be guesses.
const (
	freeRefusals = 8
	leastDelay   = time.Millisecond
	mostDelay    = time.Second
	forgetAfter  = time.Minute
	mostDelayed  = 32
	mostRefused  = 1024 // hosts that are remembered
)

// refusals are the refused requests of each host. The zero value has none.
type refusals struct {
	mu sync.Mutex
	// +checklocks:mu
	hosts map[hostquota.Host]*refused
}

// refused are the refused requests of one host.
type refused struct {
	n       int
	last    time.Time
	delayed int // answers that are delayed now
}

// busy reports whether so many answers to a host are delayed that its requests are not served now.
func (s *refusals) busy(h hostquota.Host) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.hosts[h]
	return of != nil && of.delayed >= mostDelayed
}

// add counts a refusal and returns how long its answer is delayed; if at all, done is called afterwards.
func (s *refusals) add(h hostquota.Host, now time.Time) (d time.Duration, done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.hosts[h]
	if of == nil {
		if s.hosts == nil {
			s.hosts = map[hostquota.Host]*refused{}
		}
		if len(s.hosts) >= mostRefused {
			s.dropLocked(now)
		}
		of = &refused{}
		s.hosts[h] = of
	}
	if now.Sub(of.last) >= forgetAfter {
		of.n = 0
	}
	of.n++
	of.last = now
	if of.n <= freeRefusals {
		return 0, nil
	}
	of.delayed++
	return min(leastDelay<<min(of.n-freeRefusals-1, 20), mostDelay), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		of.delayed--
	}
}

// dropLocked forgets the hosts without a refusal for forgetAfter and, if the table is still full, the one that was refused
// longest ago.
//
// +checklocks:s.mu
func (s *refusals) dropLocked(now time.Time) {
	var oldest hostquota.Host
	first := true
	for h, of := range s.hosts {
		switch {
		case of.delayed > 0:
		case now.Sub(of.last) >= forgetAfter:
			delete(s.hosts, h)
		case first || of.last.Before(s.hosts[oldest].last):
			oldest, first = h, false
		}
	}
	if !first && len(s.hosts) >= mostRefused {
		delete(s.hosts, oldest)
	}
}

// proper reports whether a request is served also while many refusals of its host are delayed: it cannot be a guess, because
// it names no region, or brings the token of the one that it names. Otherwise one user of a host that guesses would keep the
// others from renewing their leases.
func (l *lender) proper(q *request) bool {
	if o := op(q.Op); o == opAlloc || o == opUsage {
		return true
	} else if o == opCopy { // may guess the region that is copied from
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.t.regions[q.ID]
	return e != nil && e.ownedBy(q)
}

// answer serves a request by f, unless its host has too many refusals. The answer to a guess is to be delayed by d; if at all,
// done is called afterwards. The caller sees to the delay, because a worker of a pool must not wait for it.
func (l *lender) answer(q *request, r *response, by *caller, f func()) (d time.Duration, done func()) {
	h := by.account.Host()
	if l.refusals.busy(h) && !l.proper(q) {
		r.Status = uint32(statusBusy)
		return 0, nil
	}
	f()
	cause := ""
	switch status(r.Status) {
	case statusUnknown:
		cause = "unknown region"
	case statusNotOwner:
		cause = "wrong token"
	case statusElsewhere:
		cause = "copy from a server that is not allowed"
	default:
		return 0, nil
	}
	l.trail.Record(audit.Denied, cause, h)
	if h.IsZero() {
		return 0, nil
	}
	return l.refusals.add(h, time.Now())
}
