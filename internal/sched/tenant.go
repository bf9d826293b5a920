package sched

import (
	"sync/atomic"

	"cinnabar/internal/hostquota"
)

// tenant counts the handlers and the waiting requests of one host in a pool.
type tenant struct {
	host   hostquota.Host
	alive  int // handlers that have begun and not returned
	queued int // requests that wait for one

	leaving atomic.Int32 // the part of Pool.leaving that is of this host

	// peers are the handlers of each peer, by its name; nil while the host holds so few that no peer can have too many.
	peers map[string]int
}

// left counts the end of a handler of a peer, and counts peers no longer when the host holds less than few handlers.
func (t *tenant) left(peer func() string, few int) {
	if t.peers == nil {
		return
	}
	if t.alive < few {
		t.peers = nil
		return
	}
	name := peer()
	if t.peers[name]--; t.peers[name] <= 0 {
		delete(t.peers, name)
	}
}

// tenants finds the tenant of a host. Those that have nothing in the pool are kept for a while, because the next request
// is likely to be of the same hosts.
type tenants struct {
	byHost  map[hostquota.Host]*tenant
	last    *tenant // that was found last
	sweepAt int
}

// maxIdleTenants is at how many tenants those that have nothing are forgotten.
const maxIdleTenants = 1024

// of returns the tenant of a host.
func (ts *tenants) of(h hostquota.Host) *tenant {
	if ts.last != nil && ts.last.host == h {
		return ts.last
	}
	t := ts.byHost[h]
	if t == nil {
		t = &tenant{host: h}
		if ts.byHost == nil {
			ts.byHost = map[hostquota.Host]*tenant{}
		}
		ts.byHost[h] = t
		ts.sweep(t)
	}
	ts.last = t
	return t
}

// sweep forgets tenants that have nothing but keep, when there are twice as many tenants as the last sweep has left.
func (ts *tenants) sweep(keep *tenant) {
	if len(ts.byHost) < max(maxIdleTenants, ts.sweepAt) {
		return
	}
	for h, t := range ts.byHost {
		if t.alive == 0 && t.queued == 0 && t != keep {
			delete(ts.byHost, h)
		}
	}
	ts.sweepAt = 2 * len(ts.byHost)
}
