package ofitcp

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
	"cinnabar/internal/na/ofiaddr"
	"cinnabar/internal/peerbook"
	"cinnabar/internal/progress"
	"cinnabar/internal/sockio"
	"cinnabar/internal/tokenproof"
)

// Endpoint is a process's presence on the network: a listener and one connection per peer. It implements [na.Endpoint].
type Endpoint struct {
	cfg         Config           // with defaults filled in
	tls         *tls.Config      // nil over ofi+tcp
	scheme      string           // begin of addresses
	ln          *net.TCPListener // nil if the endpoint is firewalled
	reserved    *os.File         // reserves the port of a firewalled endpoint; nil where the system cannot
	self        netip.AddrPort   // the advertised address
	local       netip.AddrPort   // source address of its connections, with the port that it listens on
	binds       []netip.Addr     // listening addresses: one, or all addresses that the interfaces had at Open
	all         bool             // it listens on 0.0.0.0 or [::]
	poller      *sockio.Poller   // finds readable connections with parked readers
	own         *peer
	names       ofiaddr.Names
	prefix      int // bytes of an address in requests; 0 for peers that are no Mercury's, in tests
	prefixBytes []byte
	pid         uint32
	id          identity
	spare       spare              // the accepting goroutine's
	setups      *hostquota.Turns   // limits the goroutines that set up connections
	readers     *hostquota.Readers // limits the background goroutines that read
	setupWork   atomic.Int64       // nanoseconds of setups since the last pause of setup.end
	mem         memoryTable
	late        lates
	stats       counters
	watch       progress.Watcher

	nonces tokenproof.Nonces // of the dials that prove the token

	shutdown sync.Once
	shut     chan struct{}   // closed by Shutdown
	life     context.Context // ends with Shutdown
	endLife  context.CancelFunc
	refusing atomic.Bool // so are requests
	closed   atomic.Bool
	closing  sync.Once
	ended    chan struct{} // closed when Close begins
	finished chan struct{} // closed when the endpoint's own goroutines have ended
	wg       sync.WaitGroup
	runners  na.TaskGroup // goroutines that run tasks and nothing else

	peers  *peerbook.Book[peerKey, peer]
	active peerbook.Active[*peer]

	mu invariants.Mutex
	// sealed says that no goroutine is started any more.
	// +checklocks:mu
	sealed bool
	// +checklocks:mu
	conns map[*conn]struct{}
	// claimed are the connections of conns that peers have made over ofi+tcps, by the addresses that the peers claim.
	// +checklocks:mu
	claimed map[netip.AddrPort][]*conn
	// half are connections that have not been decided about.
	// +checklocks:mu
	half halves
}

// peerKey is the key of a peer in Endpoint.peers. The peer that a dial of an address reaches has addr alone. A process that
// connected while another process had a connection under the same addr has its id as well. A process in C sends no id: if it has
// a connection and makes another one to a further address of this host, the key of the latter has that address in at.
// Over ofi+tcps the key of a peer that was looked up by the name of its host has the name, because the peer's certificate must contain it.
type peerKey struct {
	addr netip.AddrPort
	id   processID
	at   netip.Addr
	name string
}

var _ na.Endpoint = (*Endpoint)(nil)

// Addr implements [na.Endpoint].
func (e *Endpoint) Addr() na.Addr { return e.own }

// Listening implements [na.Endpoint].
func (e *Endpoint) Listening() bool { return e.cfg.Listen }

// takesRequests reports whether requests are handed on.
func (e *Endpoint) takesRequests() bool { return e.cfg.Handler != nil && !e.refusing.Load() }

// Lookup implements [na.Endpoint], see parseTarget.
func (e *Endpoint) Lookup(s string) (na.Addr, error) {
	host, a, err := e.parseTarget(s)
	if err != nil {
		kind := na.KindOf(err)
		if kind == 0 {
			return nil, &na.Error{Kind: na.Invalid, Op: "lookup", Addr: s, Err: err}
		}
		return nil, err
	}
	if host != "" {
		return e.names.New(host, a.Port()), nil
	}
	return e.peerNamed(a, e.localName(s)), nil
}

// AppendAddr implements [na.Endpoint]: the length in 8 bytes, then the address as it stands in requests.
func (e *Endpoint) AppendAddr(b []byte, a na.Addr) []byte {
	p, _ := e.resolve(a)
	if p == nil {
		return b
	}
	return ofiaddr.AppendSerialized(b, p.addr)
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

// peer returns the one peer that a dial of address a reaches. For each address that the endpoint listens on that is itself.
func (e *Endpoint) peer(a netip.AddrPort) *peer {
	loopback := e.all && a.Addr().Is4() && a.Addr().IsLoopback() // all of 127.0.0.0/8
	if a.Port() == e.local.Port() && (loopback || slices.Contains(e.binds, a.Addr())) {
		a = e.self
	}
	return e.peerAt(peerKey{addr: a})
}

// peerNamed returns the peer of an address that was found by the name of a host. Over ofi+tcps this is not the peer that the function peer returns,
// because the server must prove the name.
func (e *Endpoint) peerNamed(a netip.AddrPort, name string) *peer {
	p := e.peer(a)
	if e.tls == nil || e.tls.ServerName != "" || name == "" || p == e.own {
		return p
	}
	return e.peerAt(peerKey{addr: a, name: name})
}

// twin returns the separate peer of a caller from an address that already has a connection.
func (e *Endpoint) twin(k *caller) *peer {
	key := peerKey{addr: k.addr, id: k.m.id}
	if key.id.isZero() {
		key.at = k.local
	}
	return e.peerAt(key)
}

func (e *Endpoint) peerAt(k peerKey) *peer {
	return e.peers.Get(k, nil, func() *peer { return newPeer(e, k) })
}

// newPeer returns a new peer. A twin is never dialed, because a dial of its address reaches the other peer.
func newPeer(e *Endpoint, k peerKey) *peer {
	p := &peer{ep: e, addr: k.addr, str: e.scheme + k.addr.String(), name: k.name, twin: !k.id.isZero() || k.at.IsValid(), account: e.cfg.Quota.Account(e.hostOf(k.addr))}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.firewalled = p.twin
	return p
}

// hostOf returns the host that the resources of a peer are counted for. The endpoint's own address is no remote host.
func (e *Endpoint) hostOf(a netip.AddrPort) hostquota.Host {
	if a == e.self {
		return hostquota.Host{}
	}
	return hostquota.HostOf(a.Addr())
}

// Limits implements [na.Endpoint].
func (e *Endpoint) Limits() na.Limits {
	return na.Limits{
		MaxRequest: e.cfg.MaxRequest - e.prefix, RequestRoom: requestHeader + e.prefix,
		MaxResponse: e.cfg.MaxResponse, ResponseRoom: expectedHeader, Sealed: e.tls != nil,
	}
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
func (e *Endpoint) of(op *na.Op, what string, a na.Addr) (*peer, *origin) {
	op.Begin()
	p, o := e.resolve(a)
	if p == nil {
		op.Finish(0, &na.Error{Kind: na.Invalid, Op: what, Err: fmt.Errorf("address %v is not one of this endpoint's", a)})
	}
	return p, o
}

// checkSize completes op with an error if a message is too short to hold its room or too long.
func checkSize(op *na.Op, p *peer, what string, n, room, limit int) bool {
	if n < room {
		op.Finish(0, &na.Error{Kind: na.Invalid, Op: what, Addr: p.str, Err: fmt.Errorf("a message of %d bytes without the %d for the transport", n, room)})
		return false
	}
	if n-room > limit {
		op.Finish(0, &na.Error{Kind: na.Truncated, Op: what, Addr: p.str, Err: fmt.Errorf("%d bytes; the limit is %d", n-room, limit)})
		return false
	}
	return true
}

// SendRequest implements [na.Endpoint].
func (e *Endpoint) SendRequest(op *na.Op, to na.Addr, tag uint32, msg []byte) {
	const what = "send request"
	p, _ := e.of(op, what, to)
	if p == nil || !checkSize(op, p, what, len(msg), requestHeader+e.prefix, e.cfg.MaxRequest-e.prefix) {
		return
	}
	header(msg).putRequest(tag, len(msg))
	copy(msg[requestHeader:], e.prefixBytes)
	e.stats.requestsSent.Add(1)
	it := item{op: op, what: what, msg: msg, request: true}
	if p.expected.Len() > gatherFrom {
		if c := p.conn.Load(); c != nil && c.gather(it) {
			return
		}
	}
	p.send(it)
}

// RecvExpected implements [na.Endpoint].
func (e *Endpoint) RecvExpected(op *na.Op, from na.Addr, tag uint32, buf []byte) {
	const what = "receive"
	p, _ := e.of(op, what, from)
	if p == nil {
		return
	}
	if !p.expected.Add(tag, peerbook.Waiter{Op: op, Buf: buf}, p.activate) {
		op.Finish(0, &na.Error{Kind: na.Invalid, Op: what, Addr: p.str, Err: fmt.Errorf("tag %d is waited for already", tag)})
		return
	}
	if e.closed.Load() && p.expected.Remove(op) { // else Close has found it
		op.Finish(0, &na.Error{Kind: na.Closed, Op: what, Addr: p.str})
	}
}

// SendExpected implements [na.Endpoint]. The message leaves over the connection that the request came over, or not at all,
// because another connection of the same address may be another process's. To an address that is not a request's it
// leaves as a request does.
func (e *Endpoint) SendExpected(op *na.Op, to na.Addr, tag uint32, msg []byte) {
	const what = "send response"
	p, o := e.of(op, what, to)
	if p == nil || !checkSize(op, p, what, len(msg), expectedHeader, e.cfg.MaxResponse) {
		return
	}
	header(msg).putExpected(tag, len(msg))
	e.stats.expectedSent.Add(1)
	it := item{op: op, what: what, msg: msg, answer: true}
	c := p.conn.Load()
	if o != nil {
		c = o.conn.Load()
	}
	switch {
	case c == nil && o == nil:
		p.send(it)
		return
	case c == nil:
		p.giveBack(it, p.lostOrigin(what))
		return
	}
	if c.role.yielded.Load() {
		c.handBack()
	}
	if err := c.unread(); err != nil {
		e.cfg.Audit.Record(audit.Broken, causeUnread, p.account.Host(), slog.String(keyPeer, p.str))
		c.fail(na.Unreachable, err)
		op.Finish(0, &na.Error{Kind: na.Unreachable, Op: what, Addr: p.str, Err: err})
		return
	}
	if c.corked.Load() && c.collect(msg) {
		op.Finish(int64(len(msg)), nil)
		return
	}
	c.send(it)
}

// collect copies a small message behind others that will leave together, if that is wanted at the moment.
func (c *conn) collect(msg []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.corked.Load() || c.down != nil || c.queue.len() > 0 || len(c.cork)+len(msg) > corkBytes {
		return false
	}
	n := len(c.cork)
	c.cork = append(c.cork, msg...)
	c.number(c.cork[n:])
	return true
}

// Get implements [na.Endpoint].
func (e *Endpoint) Get(op *na.Op, from na.Addr, frags []na.Fragment) {
	e.transfer(op, from, frags, false)
}

// Put implements [na.Endpoint].
func (e *Endpoint) Put(op *na.Op, to na.Addr, frags []na.Fragment) { e.transfer(op, to, frags, true) }

func (e *Endpoint) transfer(op *na.Op, a na.Addr, frags []na.Fragment, put bool) {
	what := "get"
	if put {
		what = "put"
	}
	p, o := e.of(op, what, a)
	if p == nil {
		return
	}
	total, err := na.CheckFragments(frags, put, sizeOf)
	if err != nil {
		op.Finish(0, &na.Error{Kind: na.KindOf(err), Op: what, Addr: p.str, Err: err})
		return
	}
	if total == 0 {
		op.Finish(0, nil)
		return
	}
	t, _ := transfers.Get().(*transfer)
	*t = transfer{op: op, put: put, frags: frags, total: total}
	t.start()
	it := item{op: op, what: what, t: t}
	if o == nil {
		p.send(it)
	} else if c := o.route(); c != nil {
		c.send(it)
	} else {
		p.giveBack(it, p.lostOrigin(what))
	}
}

// sizeOf returns the size and the access of remote memory, as [na.CheckFragments] needs it.
func sizeOf(m na.RemoteMemory) (size uint64, access na.Access, ok bool) {
	r, ok := m.(*remote)
	if !ok {
		return 0, 0, false
	}
	return r.size, r.access, true
}

// Cancel implements [na.Endpoint]. It looks for op in every connection: operations are found by where they wait, which
// costs those that are never cancelled nothing.
func (e *Endpoint) Cancel(op *na.Op) {
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
	for _, p := range e.active.List() { // again, because a connection that ends may return unsent requests to its peer
		if p.cancel(op) {
			return
		}
	}
}

// Drive implements [na.Endpoint].
func (e *Endpoint) Drive(a na.Addr, ev *na.Event) {
	if c := e.connTo(a); c != nil {
		c.drive(ev, false)
	}
}

// DriveGroup implements [na.GroupDriver].
func (e *Endpoint) DriveGroup(a na.Addr, ev *na.Event) {
	if c := e.connTo(a); c != nil && !ev.IsSet() {
		c.drive(ev, true)
	}
}

// Undriven implements [na.GroupDriver].
func (e *Endpoint) Undriven(a na.Addr) {
	if c := e.connTo(a); c != nil {
		c.role.undriven.Store(true)
		c.handBack()
		c.takeOver(c.role.tasks.Begun()) // because the background goroutine may be in the task that waits
	}
}

// DrivesTransfers implements [na.GroupDriver].
func (e *Endpoint) DrivesTransfers(na.Addr) bool { return true }

// connTo returns the connection to the peer with address a, or nil if there is none.
func (e *Endpoint) connTo(a na.Addr) *conn {
	p, o := e.resolve(a)
	switch {
	case p == nil:
		return nil
	case o != nil:
		return o.driven()
	}
	return p.conn.Load()
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

// adopt enters a connection into the set of those that Close ends, and counts its background goroutine. False: the
// endpoint is closed, or a peer with another certificate has taken the place meanwhile.
func (e *Endpoint) adopt(c *conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sealed || c.inbound && e.claimantLocked(c.peer.addr, c.sock.Identity()) != nil {
		return false
	}
	e.wg.Add(1)
	e.conns[c] = struct{}{}
	if e.tls != nil && c.inbound {
		e.claimed[c.peer.addr] = append(e.claimed[c.peer.addr], c)
	}
	c.used.Store(e.stats.connections.Add(1))
	return true
}

// dropConn is the end of a connection.
func (e *Endpoint) dropConn(c *conn) {
	shared.ended(c)
	e.mu.Lock()
	delete(e.conns, c)
	e.unclaimLocked(c)
	e.mu.Unlock()
	c.peer.settle()
}

// spawn runs f on a goroutine that Close waits for. False: it is too late.
func (e *Endpoint) spawn(f func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sealed {
		return false
	}
	e.wg.Go(f)
	return true
}

// runTask runs a task on a goroutine of its own. The caller has a connection's read role, which that connection's
// background goroutine waits for before it ends: so Close does not wait for runners yet.
func (e *Endpoint) runTask(t na.Task) { e.runners.Run(t) }

// yield lets other goroutines run, also readers of connections that have just become readable. It polls the network itself, because
// Go's scheduler polls it only every 10 ms while goroutines are runnable.
func (e *Endpoint) yield() {
	e.poller.Poll()
	runtime.Gosched()
}

// Shutdown implements [na.Endpoint].
func (e *Endpoint) Shutdown() {
	e.shutdown.Do(func() {
		e.refusing.Store(true)
		close(e.shut)
		e.endLife()
		if e.ln != nil {
			_ = e.ln.Close() // an error would lose no data
		}
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
	return nil
}

// end ends everything and waits for the endpoint's own goroutines, which takes moments: only the seeing off of peers
// that do not close their side has a time limit.
func (e *Endpoint) end() {
	e.mu.Lock()
	e.closed.Store(true)
	e.sealed = true
	close(e.ended)
	for _, of := range e.half.hosts {
		for at := of.Front(); at != nil; at = at.Next() {
			_ = at.Value.(*halfOpen).end.Close() // nothing was sent
		}
	}
	e.mu.Unlock()
	// All attempts that have a goroutine by now are found here: peers are active before they dial.
	for _, p := range e.active.List() {
		p.close()
	}
	for _, c := range e.connections() {
		c.part()
	}
	e.wg.Wait()
	e.late.close()
	e.release()
	e.watch.Close()
	e.mem.close()
	close(e.finished)
}

// broken counts and logs that a peer breaks the protocol.
func (e *Endpoint) broken(p *peer, event audit.Event, cause string, err error) {
	e.stats.complaints.Add(1)
	e.cfg.Audit.Record(event, cause, p.account.Host(), slog.String(keyPeer, p.str), errorAttr(err))
}

// Keys of log lines.
const (
	keyPeer  = "peer"
	keyError = "error"
)

// trace logs an event of a connection at Debug.
func (e *Endpoint) trace(msg string, p *peer, err error) {
	if e.cfg.Logger.Enabled(context.Background(), slog.LevelDebug) {
		e.cfg.Logger.Debug(msg, keyPeer, p.str, keyError, err)
	}
}

func (e *Endpoint) traceVerdict(p *peer, v verdict) {
	if e.cfg.Logger.Enabled(context.Background(), slog.LevelDebug) {
		e.cfg.Logger.Debug("connection request", keyPeer, p.str, "verdict", v.String())
	}
}
