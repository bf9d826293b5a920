package ofiverbs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
	"cinnabar/internal/na/ofiaddr"
	"cinnabar/internal/peerbook"
	"cinnabar/internal/progress"
	"cinnabar/internal/rundown"
	"cinnabar/verbs"
)

// Endpoint is a process's presence on the network: a listener of a device, and one connection per peer. It implements [na.Endpoint].
type Endpoint struct {
	cfg   Config // with defaults filled in
	attr  verbs.DeviceAttr
	shape shape // of connections with a receive queue of their own
	// sharedShape is the shape of connections with a shared receive queue; its receives are 0 if there are none.
	sharedShape shape
	queues      sharedQueues
	readers     *hostquota.Readers // limits the goroutines of connections that poll
	askTime     time.Duration      // the constant of that name, except in tests
	evicting    atomic.Bool        // a goroutine ends an idle connection, so that the next one finds room
	made        atomic.Int64       // number of connections from newConn to release
	pd          *verbs.PD
	byteMR      *verbs.MR // a byte that peers read to confirm their writes
	ln          *verbs.Listener
	self        netip.AddrPort // the address for peers
	anyAddr     bool           // it listens on all addresses of the device
	prefix      []byte         // self as it travels in requests
	process     uint32         // every peer learns it
	ownProcess  uint32         // stands for process in the requests of this endpoint to itself; no peer learns it
	own         *peer
	names       ofiaddr.Names

	stats  counters
	lastID atomic.Uint32

	ctx      context.Context // ends when Close begins; of the endpoint's goroutines only
	stop     context.CancelFunc
	shutdown sync.Once
	refusing atomic.Bool // requests and connections
	closed   atomic.Bool
	closing  sync.Once
	finished chan struct{} // closed when the endpoint's own goroutines have ended
	closeErr error         // of the device's objects; written before finished is closed
	wg       sync.WaitGroup
	runners  na.TaskGroup // goroutines that run tasks
	watcher  progress.Watcher

	locals     locals        // memory of this process in its own transfers
	late       lates         // given-up calls, and closed memory that is kept for them
	registered atomic.Int64  // number of regions that regions counts
	regions    rundown.Guard // counts the regions of exposed memory and of transfers; the protection domain is closed after all of them

	book   *peerbook.Book[netip.AddrPort, peer]
	active peerbook.Active[*peer] // peers with something under way

	mu invariants.Mutex // lock order: after those of peers and connections
	// sealed says that no goroutine is started any more.
	// +checklocks:mu
	sealed bool
	// +checklocks:mu
	conns map[*conn]struct{}
	// +checklocks:mu
	memory map[*memory]struct{}
	// +checklocks:mu
	arrivals arrivals
}

var (
	_ na.Endpoint       = (*Endpoint)(nil)
	_ na.PieceRegistrar = (*Endpoint)(nil)
)

// Addr implements [na.Endpoint].
func (e *Endpoint) Addr() na.Addr { return e.own }

// Listening implements [na.Endpoint].
func (e *Endpoint) Listening() bool { return e.cfg.Listen }

// Lookup implements [na.Endpoint], see parseTarget.
func (e *Endpoint) Lookup(s string) (na.Addr, error) {
	host, a, err := parseTarget(s, e.self.Addr())
	if err != nil {
		return nil, &na.Error{Kind: na.Invalid, Op: "lookup", Addr: s, Err: err}
	}
	if host != "" {
		return e.names.New(host, a.Port()), nil
	}
	return e.peer(a), nil
}

// AppendAddr implements [na.Endpoint]: the length in 8 bytes, then the address as it stands in requests.
func (e *Endpoint) AppendAddr(b []byte, a na.Addr) []byte {
	if p, _ := e.resolve(a); p != nil {
		return ofiaddr.AppendSerialized(b, p.addr)
	}
	return b
}

// ParseAddr implements [na.Endpoint].
func (e *Endpoint) ParseAddr(b []byte) (na.Addr, error) {
	a, err := ofiaddr.ParseSerialized(b)
	if err == nil && a.Addr().Is4() != e.self.Addr().Is4() {
		err = fmt.Errorf("%v is not of the family of this endpoint's address, %v", a, e.self)
	}
	if err != nil {
		return nil, &na.Error{Kind: na.Protocol, Op: "read address", Err: err}
	}
	return e.peer(a), nil
}

// peer returns the one peer of an address. For each address that the endpoint listens on that is itself.
func (e *Endpoint) peer(a netip.AddrPort) *peer {
	if e.anyAddr && a.Port() == e.self.Port() && e.ownsAddr(a.Addr()) {
		a = e.self
	}
	return e.book.Get(a, nil, func() *peer {
		host := hostquota.HostOf(a.Addr())
		if a == e.self {
			host = hostquota.Host{} // no remote host
		}
		return &peer{ep: e, addr: a, str: formatAddr(a), account: e.cfg.Quota.Account(host)}
	})
}

// ownsAddr reports whether the device has the address.
func (e *Endpoint) ownsAddr(a netip.Addr) bool {
	for i := range e.attr.Ports {
		for _, own := range e.attr.Ports[i].Addrs {
			if own.Unmap() == a {
				return true
			}
		}
	}
	return false
}

// Limits implements [na.Endpoint].
func (e *Endpoint) Limits() na.Limits {
	return na.Limits{MaxRequest: e.cfg.MaxRequest - len(e.prefix), RequestRoom: len(e.prefix), MaxResponse: e.cfg.MaxResponse}
}

// resolve returns the peer that an address stands for here, nil if it is none of this endpoint's; and the origin, if the
// address is that of a request.
func (e *Endpoint) resolve(a na.Addr) (*peer, *origin) {
	var p *peer
	var o *origin
	switch a := a.(type) {
	case *peer:
		p = a
	case *origin:
		p, o = a.peer, a
	}
	if p == nil || p.ep != e {
		return nil, nil
	}
	return p, o
}

// of starts op and returns the peer and the origin of an address, as resolve does.
func (e *Endpoint) of(op *na.Op, opName string, a na.Addr) (*peer, *origin) {
	op.Begin()
	p, o := e.resolve(a)
	if p == nil {
		op.Finish(0, &na.Error{Kind: na.Invalid, Op: opName, Err: fmt.Errorf("address %v is not one of this endpoint's", a)})
	}
	return p, o
}

// checkSize completes op with an error if a message is too short to hold its room or too long.
func checkSize(op *na.Op, p *peer, opName string, n, room, limit int) bool {
	if n < room {
		op.Finish(0, &na.Error{Kind: na.Invalid, Op: opName, Addr: p.str, Err: fmt.Errorf("a message of %d bytes without the %d for the transport", n, room)})
		return false
	}
	if n > limit {
		op.Finish(0, &na.Error{Kind: na.Truncated, Op: opName, Addr: p.str, Err: fmt.Errorf("%d bytes; the limit is %d", n-room, limit-room)})
		return false
	}
	return true
}

// SendRequest implements [na.Endpoint].
func (e *Endpoint) SendRequest(op *na.Op, to na.Addr, tag uint32, msg []byte) {
	const opName = "send request"
	p, _ := e.of(op, opName, to)
	if p == nil || !checkSize(op, p, opName, len(msg), len(e.prefix), e.cfg.MaxRequest) {
		return
	}
	copy(msg, e.prefix)
	p.send(item{op: op, opName: opName, msg: msg, tag: tag, request: true})
}

// RecvExpected implements [na.Endpoint].
func (e *Endpoint) RecvExpected(op *na.Op, from na.Addr, tag uint32, buf []byte) {
	const opName = "receive"
	p, _ := e.of(op, opName, from)
	if p == nil {
		return
	}
	if !p.expected.Add(tag, peerbook.Waiter{Op: op, Buf: buf}, p.activate) {
		op.Finish(0, &na.Error{Kind: na.Invalid, Op: opName, Addr: p.str, Err: fmt.Errorf("tag %d is waited for already", tag)})
		return
	}
	if e.closed.Load() && p.expected.Remove(op) { // else Close has found it
		op.Finish(0, &na.Error{Kind: na.Closed, Op: opName, Addr: p.str})
	}
}

// SendExpected implements [na.Endpoint]. The message leaves over the connection that the request came over, or not at all, because the
// caller waits for it on that connection. To an address that is not a request's it leaves as a request does.
func (e *Endpoint) SendExpected(op *na.Op, to na.Addr, tag uint32, msg []byte) {
	const opName = "send response"
	p, o := e.of(op, opName, to)
	if p == nil || !checkSize(op, p, opName, len(msg), 0, e.cfg.MaxResponse) {
		return
	}
	it := item{op: op, opName: opName, msg: msg, tag: tag}
	if o == nil {
		p.send(it)
		return
	}
	o.send(it)
}

// Get implements [na.Endpoint].
func (e *Endpoint) Get(op *na.Op, from na.Addr, frags []na.Fragment) {
	e.transfer(op, from, frags, false)
}

// Put implements [na.Endpoint]. Over iWARP to a peer in C it completes when TCP has taken the bytes; see the package documentation.
func (e *Endpoint) Put(op *na.Op, to na.Addr, frags []na.Fragment) { e.transfer(op, to, frags, true) }

func (e *Endpoint) transfer(op *na.Op, a na.Addr, frags []na.Fragment, put bool) {
	opName := "get"
	if put {
		opName = "put"
	}
	p, o := e.of(op, opName, a)
	if p == nil {
		return
	}
	total, err := na.CheckFragments(frags, put, sizeOf)
	if err != nil {
		op.Finish(0, &na.Error{Kind: na.KindOf(err), Op: opName, Addr: p.str, Err: err})
		return
	}
	if total == 0 {
		op.Finish(0, nil)
		return
	}
	it := item{op: op, opName: opName, t: &transfer{op: op, put: put, frags: frags, opName: opName}}
	if o == nil {
		p.send(it)
		return
	}
	o.send(it)
}

// Cancel implements [na.Endpoint]. It looks for op in every peer and connection: operations are found by where they wait, which costs
// those that are never cancelled nothing.
func (e *Endpoint) Cancel(op *na.Op) {
	for range 2 { // again, because a connection that ends may return unsent requests to its peer
		for _, p := range e.active.List() {
			if p.cancel(op) {
				return
			}
		}
		for _, c := range e.connections() {
			if c.cancel(op) {
				return
			}
		}
	}
}

// Drive implements [na.Endpoint].
func (e *Endpoint) Drive(a na.Addr, ev *na.Event) {
	if c := e.connTo(a); c != nil {
		c.drive(ev)
	}
}

var _ na.GroupDriver = (*Endpoint)(nil)

// DriveGroup implements [na.GroupDriver]. It is the same as Drive, which keeps the claim too unless a goroutine may wait without driving.
func (e *Endpoint) DriveGroup(a na.Addr, ev *na.Event) { e.Drive(a, ev) }

// Undriven implements [na.GroupDriver].
func (e *Endpoint) Undriven(a na.Addr) {
	c := e.connTo(a)
	if c == nil {
		return
	}
	c.parked.Store(true) // before the load of wanted, because a driver that leaves after this load finds parked set
	if c.wanted.Load() == 0 && c.claim.Taken() {
		c.handBack()
	}
	c.replace(c.turns.tasks.Begun()) // because the goroutine of the connection may be in the task that waits
}

// DrivesTransfers implements [na.GroupDriver].
func (e *Endpoint) DrivesTransfers(na.Addr) bool { return true }

// connTo returns the connection over which a response or transfer of the peer with address a comes, or nil.
func (e *Endpoint) connTo(a na.Addr) *conn {
	p, o := e.resolve(a)
	if p == nil {
		return nil
	}
	if o != nil && p.expected.Len() == 0 { // otherwise a response to an own request comes over the peer's connection
		return o.conn.Load()
	}
	return p.conn.Load()
}

// Report implements [na.Reporter].
func (e *Endpoint) Report(a na.Addr) string {
	p, _ := e.resolve(a)
	if p == nil {
		return ""
	}
	return p.report()
}

// Conns implements [na.ConnLister].
func (e *Endpoint) Conns(limit int) (list []na.ConnInfo, total int) {
	conns := e.connections()
	up := make(map[*peer]bool, len(conns))
	list = make([]na.ConnInfo, 0, len(conns))
	for _, c := range conns {
		up[c.peer] = true
		info := na.ConnInfo{Peer: c.peer.str, State: na.ConnActive, Inbound: c.inbound.Load(), Received: int64(c.input.Load()), Sent: -1, Report: c.peer.report()}
		switch {
		case c.dead.Load():
			info.State = na.ConnEnding
		case c.idle():
			info.State = na.ConnIdle
		}
		list = append(list, info)
	}
	for _, p := range e.active.List() {
		if up[p] || p == e.own {
			continue
		}
		if step := p.report(); step != "" {
			list = append(list, na.ConnInfo{Peer: p.str, State: na.ConnConnecting, Report: step})
		}
	}
	return na.FirstConns(list, limit), len(list)
}

func (e *Endpoint) connections() []*conn {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := make([]*conn, 0, len(e.conns))
	for c := range e.conns {
		list = append(list, c)
	}
	return list
}

// spawn runs f on a goroutine that Close waits for. False: the endpoint is closed.
func (e *Endpoint) spawn(f func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sealed {
		return false
	}
	e.wg.Go(f)
	return true
}

// adopt enters a connection into the set of those that Close ends and starts its goroutine. False: the endpoint is closed.
func (e *Endpoint) adopt(c *conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sealed {
		return false
	}
	e.conns[c] = struct{}{}
	e.stats.connections.Add(1)
	c.touch() // otherwise the newest connection would count as idle for longest until its first packet
	e.wg.Add(1)
	go c.run(0)
	return true
}

// drop removes a connection that has ended.
func (e *Endpoint) drop(c *conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.conns, c)
}

// Shutdown implements [na.Endpoint].
func (e *Endpoint) Shutdown() {
	e.shutdown.Do(func() {
		e.refusing.Store(true)
		_ = e.ln.Close() // an error would lose no data
	})
}

// Close implements [na.Endpoint].
func (e *Endpoint) Close(ctx context.Context) error {
	e.Shutdown()
	e.closing.Do(e.end)
	<-e.finished
	if err := e.runners.Wait(ctx); err != nil {
		return &na.Error{Kind: na.Closed, Op: "close", Addr: e.own.str, Err: fmt.Errorf("tasks are still running: %w", err)}
	}
	if e.closeErr != nil {
		return &na.Error{Kind: na.Closed, Op: "close", Addr: e.own.str, Err: e.closeErr}
	}
	return nil
}

// end ends everything and waits for the endpoint's own goroutines, which takes moments: the end of a connection has a time limit.
func (e *Endpoint) end() {
	e.mu.Lock()
	e.closed.Store(true)
	e.sealed = true
	e.mu.Unlock()
	e.stop()
	// All attempts that have a goroutine by now are found here: peers are active before they dial.
	for _, p := range e.active.List() {
		p.close()
	}
	for _, c := range e.connections() {
		c.fail(na.Closed, nil)
	}
	e.wg.Wait()
	e.watcher.Close() // after the connections have ended, because it replaces their goroutines until then
	processes.remove(e.process)
	e.closeLate()
	memoryErr := errors.Join(e.closeMemory(), e.locals.close())
	e.regions.Close()
	<-e.regions.Idle()
	e.closeErr = errors.Join(memoryErr, e.byteMR.Close(), e.pd.Close())
	close(e.finished)
}

// Stats counts the connections of an endpoint since it was opened.
type Stats struct {
	Connections uint64 // connections made, in either direction
	Probes      uint64 // reads of no bytes that were posted because a peer was silent
	Open        int    // connections that are open at the moment
}

type counters struct{ connections, probes atomic.Uint64 }

// Stats returns the counters.
func (e *Endpoint) Stats() Stats {
	s := Stats{Connections: e.stats.connections.Load(), Probes: e.stats.probes.Load()}
	for _, c := range e.connections() {
		if !c.dead.Load() {
			s.Open++
		}
	}
	return s
}

// Keys of log lines.
const (
	keyPeer  = "peer"
	keyError = "error"
)

// broken counts and logs that a peer breaks the protocol.
func (e *Endpoint) broken(p *peer, cause string, err error) {
	e.cfg.Audit.Record(audit.Broken, cause, p.account.Host(), slog.String(keyPeer, p.str), errorAttr(err))
}

// errorAttr is the attribute of a log line that carries an error.
func errorAttr(err error) slog.Attr {
	if err == nil {
		return slog.Attr{}
	}
	return slog.String(keyError, err.Error())
}

// trace logs an event of a connection at Debug.
func (e *Endpoint) trace(msg string, p *peer, err error) {
	if e.cfg.Logger.Enabled(context.Background(), slog.LevelDebug) {
		e.cfg.Logger.Debug(msg, keyPeer, p.str, keyError, err)
	}
}
