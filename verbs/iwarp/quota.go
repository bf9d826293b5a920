package iwarp

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/verbs"
)

const (
	connDescriptors = 3 // that a connection has open at most: its socket, and one for each direction that waits
	// handshakePart is the part of Config.MaxConnections, one in so many, that may be unfinished handshakes beside it.
	handshakePart = 8
	minHandshakes = 16
	maxHandshakes = 4096
	// leastStay is how long a handshake may go on before it gives way to another of its host, because otherwise a host
	// that opens connections fast enough would leave none of its handshakes the time to come to an end.
	leastStay = 50 * time.Millisecond
	// mostStand is the longest wait of a newcomer, for the pace of its host and for the leastStay of the oldest handshake.
	// standPart newcomers may wait for each place of a handshake.
	mostStand = 2 * time.Second
	standPart = 4
	// leastIdle is how long a connection must have been idle before it gives way to a newcomer.
	leastIdle = time.Second
	// scanPause is the least time between two searches for idle connections, because each looks at all of them.
	scanPause = 20 * time.Millisecond
	// mostEvicted is how many idle connections give way to one newcomer at most.
	mostEvicted = 16
	// leaveTimeout bounds how long a newcomer waits for the connection that gives way to it.
	leaveTimeout = time.Second
)

// limits returns the device's limits on the resources that all hosts hold together.
func (c Config) limits() hostquota.Limits {
	places := int64(min(max(c.MaxConnections/handshakePart, minHandshakes), maxHandshakes))
	return hostquota.Limits{
		hostquota.Connections: int64(c.MaxConnections),
		hostquota.Handshakes:  places,
		hostquota.Queued:      standPart * places, // newcomers that wait for such a place
		hostquota.Memory:      c.MaxMemory,
	}
}

// pending is a TCP connection before the end of its MPA request.
type pending struct {
	tc      *net.TCPConn
	began   time.Time
	host    hostquota.Host
	account *hostquota.Account
	gone    chan struct{} // closed when the handshake has given way to another
}

// handshakes are the unfinished handshakes of a device's listeners, oldest first.
type handshakes struct {
	leastStay time.Duration // a constant, but for tests

	mu sync.Mutex
	// +checklocks:mu
	list []*pending
}

// newcomer returns the handshake of a connection that has just been accepted. It is not counted yet.
func (d *device) newcomer(tc *net.TCPConn) *pending {
	host := hostquota.HostOf(tcpAddr(tc.RemoteAddr()).Addr())
	return &pending{tc: tc, began: time.Now(), host: host, account: d.book.Account(host), gone: make(chan struct{})}
}

// begin counts a new handshake. Where its host has used up its share, the host's own oldest handshake gives way; where
// the limit of all hosts is reached, the oldest of the host that has most. So a host that opens connections and sends
// nothing displaces its own, and a newcomer need not wait for the time of others to be over. wait > 0 means that the one
// to give way has not had leastStay yet, which begin does not heed with now: begin is then called again after wait.
func (d *device) begin(p *pending, now bool) (wait time.Duration, err error) {
	for {
		var victim *pending
		if victim, wait, err = d.handshakes.add(d.book, p, time.Now(), now); victim == nil {
			return wait, err
		}
		d.dropHandshake(victim)
	}
}

// beginLater calls begin after wait, or earlier when early is closed, and repeats that until p is counted; after mostStand it
// disregards leastStay. It runs on a goroutine of its own, because in the accepting one it would let a host that opens many
// connections delay those of all hosts.
func (d *device) beginLater(ctx context.Context, p *pending, wait time.Duration, early chan struct{}) (err error) {
	defer p.account.Give(hostquota.Queued, 1)
	for end := time.Now().Add(mostStand); wait > 0; early = nil {
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-early:
		case <-ctx.Done():
		}
		t.Stop()
		d.pace.waited(p.host, early)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		wait, err = d.begin(p, time.Now().After(end))
	}
	return err
}

// add puts p on the list. Where there is no room it takes a victim off the list instead, or returns how long the oldest
// handshake is to be waited for, unless force is set.
func (h *handshakes) add(b *hostquota.Book, p *pending, now time.Time, force bool) (victim *pending, wait time.Duration, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err = p.account.Take(hostquota.Handshakes, 1); err == nil {
		p.began = now
		h.list = append(h.list, p)
		return nil, 0, nil
	}
	from := p.account
	if b.Used(hostquota.Handshakes) >= b.Limit(hostquota.Handshakes) {
		from = b.Most(hostquota.Handshakes)
	}
	i := slices.IndexFunc(h.list, func(o *pending) bool { return o.account == from })
	if i < 0 {
		return nil, 0, err
	}
	if wait = h.leastStay - now.Sub(h.list[i].began); wait > 0 && !force {
		return nil, wait, err
	}
	return h.oldestLocked(from), 0, err
}

// oldestLocked takes the oldest handshake of an account off the list; nil: it has none.
//
// +checklocks:h.mu
func (h *handshakes) oldestLocked(a *hostquota.Account) *pending {
	i := slices.IndexFunc(h.list, func(p *pending) bool { return p.account == a })
	if i < 0 {
		return nil
	}
	p := h.list[i]
	h.list = slices.Delete(h.list, i, i+1)
	p.account.Give(hostquota.Handshakes, 1)
	return p
}

// end takes p off the list; false means that it has given way to another.
func (h *handshakes) end(p *pending) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	i := slices.Index(h.list, p)
	if i < 0 {
		return false
	}
	h.list = slices.Delete(h.list, i, i+1)
	p.account.Give(hostquota.Handshakes, 1)
	return true
}

// dropHandshake closes the connection of a handshake that gives way.
func (d *device) dropHandshake(p *pending) {
	d.trail.Record(audit.Evicted, "oldest unfinished handshake", p.host, slog.String("conn", p.tc.RemoteAddr().String()))
	abort(p.tc)
	close(p.gone)
}

// abort resets a connection, so that nothing of it stays in the kernel.
func abort(tc *net.TCPConn) {
	_ = tc.SetLinger(0) // fails only if the connection is gone already
	_ = tc.Close()      // likewise
}

// makeRoom frees a descriptor where it can, because the process has no more: the oldest handshake of the host that has
// most, or else an idle connection.
func (d *device) makeRoom() {
	h := &d.handshakes
	h.mu.Lock()
	var v *pending
	if from := d.book.Most(hostquota.Handshakes); from != nil {
		v = h.oldestLocked(from)
	}
	h.mu.Unlock()
	if v != nil {
		d.dropHandshake(v)
		return
	}
	d.evictIdlest(nil, 1) // the caller tries again in either case
}

// admit counts a connection for its host. Where the limit or the host's share is used up, idle connections give way: those
// of the hosts that have most where the newcomer's host has less than its fair share, and otherwise one of its own.
// Where none may be taken the newcomer is refused with a *hostquota.LimitError.
func (d *device) admit(a *hostquota.Account) error {
	used, limit := d.book.Used(hostquota.Connections), d.book.Limit(hostquota.Connections)
	if used >= limit/2 {
		d.sample(time.Now())
	}
	err := a.Take(hostquota.Connections, 1)
	if err == nil {
		return nil
	}
	only, n := a, 1
	if own := a.Used(hostquota.Connections); own < a.Fair(hostquota.Connections) {
		only = nil
		for used = d.book.Used(hostquota.Connections); n < mostEvicted && !hostquota.Grants(limit, used+1-int64(n), own+1); {
			n++ // because the share grows with the part that is free, one place may not be enough
		}
	}
	victims := d.evictIdlest(only, n)
	if len(victims) == 0 {
		return err
	}
	t := time.NewTimer(leaveTimeout)
	defer t.Stop()
	for _, c := range victims {
		select {
		case <-c.exited:
		case <-t.C:
			return a.Take(hostquota.Connections, 1)
		}
	}
	return a.Take(hostquota.Connections, 1)
}

// activity is the state of one connection in the search for idle connections. The device's scan lock guards it.
type activity struct {
	seen  uint64    // conn.traffic when it was last looked at
	since time.Time // when it was first seen to have this value
}

// sample notes which connections have moved bytes since the last time. It does nothing if that is not long ago, so an
// idle connection may count as idle for a shorter time than it was, never for a longer one.
func (d *device) sample(now time.Time) {
	d.scan.mu.Lock()
	defer d.scan.mu.Unlock()
	d.sampleLocked(now)
}

// +checklocks:d.scan.mu
func (d *device) sampleLocked(now time.Time) {
	if now.Sub(d.scan.last) < scanPause {
		return
	}
	d.scan.last = now
	d.scan.conns = d.appendConns(d.scan.conns[:0])
	for _, c := range d.scan.conns {
		if n := c.traffic.Load(); n != c.activity.seen || c.activity.since.IsZero() {
			c.activity = activity{seen: n, since: now}
		}
	}
}

// scan is the search for idle connections.
type scan struct {
	mu sync.Mutex
	// +checklocks:mu
	last time.Time
	// +checklocks:mu
	searched [2]time.Time // among the connections of all hosts, and of one
	// the connections at the time last
	// +checklocks:mu
	conns []*conn
}

// appendConns appends the connections that are not over to the last goroutine.
func (d *device) appendConns(list []*conn) []*conn {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.conns {
		list = append(list, c)
	}
	return list
}

// evictIdlest ends n connections, or fewer, that give way to a newcomer: those that have been idle for longest of the host that has most
// connections, or of one host only, but none of a host within its fair share, and none with anything posted but receives. It goes on with the
// next one if a connection cannot end, for example because another goroutine reads from it at that moment, and gives up after mostEvicted
// connections more than n, because each attempt reads from a socket.
func (d *device) evictIdlest(only *hostquota.Account, n int) (evicted []*conn) {
	found, spare := d.idlest(only)
	tries := n + mostEvicted
	for _, c := range found {
		if len(evicted) == n || tries == 0 {
			break
		}
		if spare[c.account] <= 0 || !c.quiet() { // quiet reads from no socket, and most connections that are in use fail it
			continue
		}
		tries--
		if d.evict(c) {
			spare[c.account]--
			evicted = append(evicted, c)
		}
	}
	return evicted
}

// idlest returns the idle connections of the hosts with more than their fair share, or of one host only, in the order in which they give
// way, and the number of connections that each host has beyond its fair share. Connections that this side has dialled are not among them.
// Searches among one host's connections have a time of their own, because otherwise a host that is refused again and again would leave
// others no search.
func (d *device) idlest(only *hostquota.Account) (found []*conn, spare map[*hostquota.Account]int64) {
	now := time.Now()
	d.scan.mu.Lock()
	defer d.scan.mu.Unlock()
	searched := &d.scan.searched[0]
	if only != nil {
		searched = &d.scan.searched[1]
	}
	if now.Sub(*searched) < scanPause {
		return nil, nil
	}
	*searched = now
	d.sampleLocked(now)
	spare = map[*hostquota.Account]int64{}
	for _, c := range d.scan.conns {
		if c.active || only != nil && c.account != only || now.Sub(c.activity.since) < d.leastIdle || c.traffic.Load() != c.activity.seen {
			continue
		}
		if _, ok := spare[c.account]; !ok {
			spare[c.account] = c.account.Used(hostquota.Connections) - c.account.Fair(hostquota.Connections)
		}
		if spare[c.account] > 0 {
			found = append(found, c)
		}
	}
	slices.SortFunc(found, func(x, y *conn) int {
		return cmp.Or(cmp.Compare(spare[y.account], spare[x.account]), x.activity.since.Compare(y.activity.since))
	})
	clear(d.scan.conns) // no connection is kept from the garbage collector
	d.scan.conns, d.scan.last = d.scan.conns[:0], time.Time{}
	return found, spare
}

// evict ends an idle connection to make room for another, and reports whether it did. It does not if work has been posted or has
// arrived since the connection was chosen. The peer sees an orderly end of the stream.
func (d *device) evict(c *conn) bool {
	if !c.endIfQuiet(&failure{quiet: true, err: &verbs.Error{Op: "connection ended by this side", Kind: verbs.ErrDisconnected,
		Detail: fmt.Sprintf("it was idle, and the limit of %d connections is near (Config.MaxConnections)", d.cfg.MaxConnections)}}) {
		return false
	}
	d.trail.Record(audit.Evicted, "idle connection", c.host, c.logAttr())
	c.teardown()
	_ = c.sock.CloseWrite() // fails only if the connection is gone already
	_ = c.sock.Close()      // likewise
	return true
}

// quiet reports whether nothing is under way on the connection but receives that wait.
//
// +checklocksignore: it does not know TryLock.
func (c *conn) quiet() bool {
	if c.closed.Load() || c.over() || c.closing.Load() || !c.rxMu.TryLock() {
		return false
	}
	still := c.still(nil)
	c.rxMu.Unlock()
	c.afterRx()
	return still
}

// endIfQuiet ends the connection with f if it is quiet, and reports whether it did; the caller then calls teardown. It reads from
// the socket first, because unread bytes of the peer are work.
//
// +checklocksignore: it does not know TryLock.
func (c *conn) endIfQuiet(f *failure) bool {
	if c.closed.Load() || c.over() || c.closing.Load() || !c.rxMu.TryLock() {
		return false
	}
	before := c.traffic.Load()
	c.receiveLocked(true)
	ended := c.traffic.Load() == before && !c.over() && c.still(f)
	c.rxMu.Unlock()
	c.leftOver()
	c.afterRx()
	return ended
}

// still reports whether nothing is under way. If so, and f is not nil, it ends the connection with f while it holds all locks that
// the begin of work needs, so that no work begins in between.
//
// +checklocks:c.rxMu
func (c *conn) still(f *failure) bool {
	r := &c.rx
	if r.placed || r.got > 0 || r.bound || r.stalled || r.eof || len(r.held) > 0 || len(r.ahead.unread) > 0 {
		return false
	}
	c.txMu.Lock()
	defer c.txMu.Unlock() // a goroutine that wanted to send has set txWant, which the caller checks without rxMu
	c.qp.mu.Lock()
	defer c.qp.mu.Unlock()
	if !c.idleLocked() || c.reads.count > 0 {
		return false
	}
	if f != nil {
		c.fail(f)
	}
	return true
}

// countTraffic notes that bytes have moved.
func (c *conn) countTraffic() { c.traffic.Add(1) }

// hostOf returns the host of a peer's address.
func hostOf(a netip.AddrPort) hostquota.Host { return hostquota.HostOf(a.Addr()) }

// quotaStats adds the figures of the device's book to its counters.
func (d *device) quotaStats(out verbs.Stats) {
	out["handshakes_delayed"] = d.pace.delayed.Load()
	for _, q := range []struct {
		name string
		r    hostquota.Resource
	}{{"connections", hostquota.Connections}, {"handshakes", hostquota.Handshakes}, {"memory", hostquota.Memory}} {
		out["quota_"+q.name] = uint64(d.book.Used(q.r))
		out["quota_"+q.name+"_limit"] = uint64(d.book.Limit(q.r))
		out["quota_"+q.name+"_refused"] = d.book.Refused(q.r)
	}
}

// claim is one unit of an account that is given back once.
type claim struct {
	account  *hostquota.Account
	resource hostquota.Resource
	held     atomic.Bool
}

func (c *claim) take(a *hostquota.Account, r hostquota.Resource) error {
	if err := a.Take(r, 1); err != nil {
		return err
	}
	c.hold(a, r)
	return nil
}

// hold takes over a unit that has been taken.
func (c *claim) hold(a *hostquota.Account, r hostquota.Resource) {
	c.account, c.resource = a, r
	c.held.Store(true)
}

func (c *claim) give() {
	if c.held.Swap(false) {
		c.account.Give(c.resource, 1)
	}
}

// keep ends the claim without giving the unit back, because a connection has taken it over.
func (c *claim) keep() { c.held.Store(false) }
