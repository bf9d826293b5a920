package rmem

import (
	"time"

	"cinnabar/internal/audit"
)

// revoke takes a region back, now: its handles and tokens are worth nothing any more. It reports whether there was one.
func (l *lender) revoke(id uint64) bool {
	l.mu.Lock()
	e := l.t.regions[id]
	revoked := e != nil && l.t.remove(e, statusRevoked)
	l.mu.Unlock()
	if revoked {
		l.end(e)
	}
	return revoked
}

// RegionInfo describes a region that is lent.
type RegionInfo struct {
	ID    uint64
	Size  int64         // bytes
	Peer  string        // address of the client that has allocated it
	Lease time.Duration // the time that is left of the lease; 0: the region has none and is freed with its client
}

// Stats is a snapshot of a server: its quota, its clients and its regions. Used and Regions include regions that have ended until their memory
// is closed, because clients may reach it until then.
type Stats struct {
	Quota, Used int64 // bytes
	Clients     int
	Regions     []RegionInfo // in no order

	// Since the server began.
	Accepted uint64 // clients
	Refused  uint64 // clients, regions and copies, because a host has its share, or the server its limit
	Denied   uint64 // requests for regions that do not exist, with wrong tokens, or to copy from a server that is not allowed
	Broken   uint64 // connections that ended because the client broke the protocol
}

// info describes the region. The lender's lock is held.
func (e *entry) info() RegionInfo {
	return RegionInfo{ID: e.id, Size: e.size, Peer: e.peer, Lease: e.left()}
}

// stats returns a snapshot of the quota, the clients and the regions.
func (l *lender) stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	st := Stats{Quota: l.t.quota, Used: l.t.used, Clients: len(l.t.sessions)}
	for _, e := range l.t.regions {
		st.Regions = append(st.Regions, e.info())
	}
	for e := range l.t.ending {
		st.Regions = append(st.Regions, e.info())
	}
	for _, c := range l.trail.Counts() {
		switch c.Event {
		case audit.Accepted:
			st.Accepted += c.N
		case audit.Refused:
			st.Refused += c.N
		case audit.Denied:
			st.Denied += c.N
		case audit.Broken:
			st.Broken += c.N
		case audit.Replaced, audit.Evicted, audit.Invalidated, audit.Shutdown, audit.Failed, audit.Queried: // no events of a lender
		}
	}
	return st
}

// usage reports the totals to any peer, but no region, because the number of a region gives access to it.
func (l *lender) usage(r *response) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.Limit, r.Left, r.Size, r.Value, r.Strict = l.t.quota, l.t.quota-l.t.used, int64(len(l.t.sessions)), uint64(len(l.t.regions)+len(l.t.ending)), l.cfg.Strict
}

// closeAll revokes all regions, also those with a lease, and returns the sessions, which are to be ended. It waits until the memory of all regions is
// closed, also of those that other goroutines end.
func (l *lender) closeAll() (sessions []uint64) {
	l.mu.Lock()
	l.closed = true
	var all []*entry
	for _, e := range l.t.regions {
		all = append(all, e)
	}
	for _, e := range all {
		l.t.remove(e, statusRevoked)
	}
	for id := range l.t.sessions {
		sessions = append(sessions, id)
	}
	l.mu.Unlock()
	for _, e := range all {
		l.end(e)
	}
	l.awaitEnds()
	return sessions
}

// awaitEnds returns when no region is ending.
func (l *lender) awaitEnds() {
	l.mu.Lock()
	if len(l.t.ending) == 0 {
		l.mu.Unlock()
		return
	}
	if l.t.ended == nil {
		l.t.ended = make(chan struct{})
	}
	ended := l.t.ended
	l.mu.Unlock()
	<-ended
}
