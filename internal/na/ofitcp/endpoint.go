package ofitcp

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"cinnabar/internal/na"
)

// Endpoint is a process's presence on the network: a listener and one connection per peer. It implements [na.Endpoint].
type Endpoint struct {
	cfg         Config // with defaults filled in
	ln          *net.TCPListener
	self        netip.AddrPort
	own         *peer
	prefix      int // bytes of an address in requests; 0 for peers that are no Mercury's, in tests
	prefixBytes []byte
	pid         uint32
	mem         memoryTable
	stats       counters
	watch       watcher
	spinning    atomic.Int32 // background goroutines that spin,
	driving     atomic.Int32 // and drivers
	maxSpin     int32
	alone       bool // there is one processor for this process

	shutdown sync.Once
	shut     chan struct{} // closed by Shutdown
	refusing atomic.Bool   // so are requests
	closed   atomic.Bool
	closing  sync.Once
	finished chan struct{} // closed when the endpoint's own goroutines have ended
	wg       sync.WaitGroup
	runners  na.Runners // goroutines that run tasks and nothing else

	mu sync.Mutex
	// sealed says that no goroutine is started any more.
	// +checklocks:mu
	sealed bool
	// peers finds the one peer of each address while anybody holds it.
	// +checklocks:mu
	peers map[netip.AddrPort]weak.Pointer[peer]
	// active are the peers with something under way.
	// +checklocks:mu
	active map[*peer]struct{}
	// +checklocks:mu
	conns map[*conn]struct{}
	// hosts are those that conns lead to.
	// +checklocks:mu
	hosts map[netip.Addr]*hostUse
	// half are connections without a complete request, by age.
	// +checklocks:mu
	half map[*net.TCPConn]uint64
	// +checklocks:mu
	halfSeq uint64
	// complaints is when each host was last complained about.
	// +checklocks:mu
	complaints map[netip.Addr]time.Time
}

var _ na.Endpoint = (*Endpoint)(nil)

// Addr implements [na.Endpoint].
func (e *Endpoint) Addr() na.Addr { return e.own }

// Listening implements [na.Endpoint].
func (e *Endpoint) Listening() bool { return e.cfg.Listen }

// takesRequests reports whether requests are handed on.
func (e *Endpoint) takesRequests() bool { return e.cfg.Handler != nil && !e.refusing.Load() }

// Lookup implements [na.Endpoint]. It takes numeric addresses and localhost, see parseTarget.
func (e *Endpoint) Lookup(s string) (na.Addr, error) {
	a, err := parseTarget(s, e.self.Addr())
	if err != nil {
		kind := na.KindOf(err)
		if kind == 0 {
			return nil, &na.Error{Kind: na.Invalid, Op: "lookup", Addr: s, Err: err}
		}
		return nil, err
	}
	return e.peer(a), nil
}

// AppendAddr implements [na.Endpoint]: the length in 8 bytes, then the address as it stands in requests.
func (e *Endpoint) AppendAddr(b []byte, a na.Addr) []byte {
	p, ok := a.(*peer)
	if !ok {
		return b
	}
	return appendSerialized(b, p.addr)
}

// ParseAddr implements [na.Endpoint].
func (e *Endpoint) ParseAddr(b []byte) (na.Addr, error) {
	a, err := parseSerialized(b)
	if err == nil && a.Addr().Is4() != e.self.Addr().Is4() {
		err = fmt.Errorf("%v is not of the family of this endpoint's address, %v", a, e.self)
	}
	if err != nil {
		return nil, &na.Error{Kind: na.Protocol, Op: "read address", Err: err}
	}
	return e.peer(a), nil
}

// peer returns the one peer of an address.
func (e *Endpoint) peer(a netip.AddrPort) *peer {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p := e.peers[a].Value(); p != nil {
		return p
	}
	p := &peer{ep: e, addr: a, str: formatAddr(a)}
	e.peers[a] = weak.Make(p)
	if a != e.self { // which the endpoint itself holds
		runtime.AddCleanup(p, e.forget, a)
	}
	return p
}

// forget removes a peer that nobody holds, unless there is a new one of its address.
func (e *Endpoint) forget(a netip.AddrPort) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if w, ok := e.peers[a]; ok && w.Value() == nil {
		delete(e.peers, a)
	}
}

// Limits implements [na.Endpoint].
func (e *Endpoint) Limits() na.Limits {
	return na.Limits{
		MaxRequest: e.cfg.MaxRequest - e.prefix, RequestRoom: requestHeader + e.prefix,
		MaxResponse: e.cfg.MaxResponse, ResponseRoom: expectedHeader,
	}
}

// of returns the peer that an address stands for here, and starts op.
func (e *Endpoint) of(op *na.Op, what string, a na.Addr) *peer {
	op.Begin()
	p, ok := a.(*peer)
	if !ok || p.ep != e {
		op.Finish(0, &na.Error{Kind: na.Invalid, Op: what, Err: fmt.Errorf("address %v is not one of this endpoint's", a)})
		return nil
	}
	return p
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
	p := e.of(op, what, to)
	if p == nil || !checkSize(op, p, what, len(msg), requestHeader+e.prefix, e.cfg.MaxRequest-e.prefix) {
		return
	}
	header(msg).putRequest(tag, len(msg))
	copy(msg[requestHeader:], e.prefixBytes)
	e.stats.requestsSent.Add(1)
	it := item{op: op, what: what, msg: msg}
	if p.awaits.Load() > gatherFrom {
		if c := p.conn.Load(); c != nil && c.gather(it) {
			return
		}
	}
	p.send(it)
}

// RecvExpected implements [na.Endpoint].
func (e *Endpoint) RecvExpected(op *na.Op, from na.Addr, tag uint32, buf []byte) {
	const what = "receive"
	p := e.of(op, what, from)
	if p == nil {
		return
	}
	if !p.expect(op, tag, buf) {
		op.Finish(0, &na.Error{Kind: na.Invalid, Op: what, Addr: p.str, Err: fmt.Errorf("tag %d is waited for already", tag)})
		return
	}
	if e.closed.Load() && p.unexpect(op) { // else Close has found it
		op.Finish(0, &na.Error{Kind: na.Closed, Op: what, Addr: p.str})
	}
}

// SendExpected implements [na.Endpoint].
func (e *Endpoint) SendExpected(op *na.Op, to na.Addr, tag uint32, msg []byte) {
	const what = "send response"
	p := e.of(op, what, to)
	if p == nil || !checkSize(op, p, what, len(msg), expectedHeader, e.cfg.MaxResponse) {
		return
	}
	header(msg).putExpected(tag, len(msg))
	e.stats.expectedSent.Add(1)
	if c := p.conn.Load(); c != nil {
		if c.role.aside.Load() {
			c.handBack()
		}
		if err := c.unread(); err != nil {
			c.fail(na.Unreachable, err)
			op.Finish(0, &na.Error{Kind: na.Unreachable, Op: what, Addr: p.str, Err: err})
			return
		}
		if c.collect(msg) {
			op.Finish(int64(len(msg)), nil)
			return
		}
	}
	p.send(item{op: op, what: what, msg: msg, answer: true})
}

// collect copies a small message behind others that will leave together, if that is wanted at the moment.
func (c *conn) collect(msg []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.corked || c.down != nil || c.queue.len() > 0 || len(c.cork)+len(msg) > corkBytes {
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
	p := e.of(op, what, a)
	if p == nil {
		return
	}
	total, err := checkFragments(frags, put)
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
	p.send(item{op: op, what: what, t: t})
}

// checkFragments checks the pieces of a transfer and adds up their lengths.
func checkFragments(frags []na.Fragment, put bool) (total uint64, err error) {
	need := na.ReadOnly
	if put {
		need = na.WriteOnly
	}
	for i := range frags {
		f := &frags[i]
		r, ok := f.Remote.(*remote)
		n := uint64(len(f.Local))
		switch {
		case !ok:
			return 0, &na.Error{Kind: na.Invalid, Op: fmt.Sprintf("fragment %d", i), Err: fmt.Errorf("its memory is not of this network")}
		case f.Offset > r.size || n > r.size-f.Offset:
			return 0, &na.Error{Kind: na.Denied, Op: fmt.Sprintf("fragment %d", i), Err: fmt.Errorf("%d bytes at offset %d of memory of %d bytes", n, f.Offset, r.size)}
		case r.access&need == 0:
			return 0, &na.Error{Kind: na.Denied, Op: fmt.Sprintf("fragment %d", i), Err: fmt.Errorf("its memory is registered with access %d, which does not allow it", r.access)}
		}
		total += n
	}
	return total, nil
}

// Cancel implements [na.Endpoint]. It looks for op in every connection: operations are found by where they wait, which
// costs those that are never cancelled nothing.
func (e *Endpoint) Cancel(op *na.Op) {
	for _, p := range e.activePeers() {
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

// Drive implements [na.Endpoint].
func (e *Endpoint) Drive(a na.Addr, ev *na.Event) {
	p, ok := a.(*peer)
	if !ok || p.ep != e {
		return
	}
	if c := p.conn.Load(); c != nil {
		c.drive(ev)
	}
}

func (e *Endpoint) activePeers() []*peer {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := make([]*peer, 0, len(e.active))
	for p := range e.active {
		list = append(list, p)
	}
	return list
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
// endpoint is closed.
func (e *Endpoint) adopt(c *conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sealed {
		return false
	}
	e.wg.Add(1)
	e.conns[c] = struct{}{}
	e.enterHost(c)
	e.stats.connections.Add(1)
	return true
}

// dropConn is the end of a connection.
func (e *Endpoint) dropConn(c *conn) {
	e.mu.Lock()
	delete(e.conns, c)
	e.leaveHost(c)
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

// replace runs f on a goroutine that takes the place of another in the count of those that Close waits for without limit:
// the other one runs a task and is counted as such from now on.
func (e *Endpoint) replace(f func()) {
	e.runners.Add()
	go f()
}

// runTask runs a task on a goroutine of its own. The caller has a connection's read role, which that connection's
// background goroutine waits for before it ends: so Close does not wait for runners yet.
func (e *Endpoint) runTask(t na.Task) { e.runners.Run(t) }

// Shutdown implements [na.Endpoint].
func (e *Endpoint) Shutdown() {
	e.shutdown.Do(func() {
		e.refusing.Store(true)
		close(e.shut)
		_ = e.ln.Close() // nothing is lost with it
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
	for t := range e.half {
		_ = t.Close() // nothing was sent
	}
	e.mu.Unlock()
	// What has a goroutine by now is found here: peers are active before they dial.
	for _, p := range e.activePeers() {
		p.close()
	}
	for _, c := range e.connections() {
		c.part()
	}
	e.wg.Wait()
	e.watch.close()
	e.mem.close()
	close(e.finished)
}

// complain logs that a peer breaks the protocol, not more than once a minute for each host.
func (e *Endpoint) complain(from netip.AddrPort, err error) {
	e.stats.complaints.Add(1)
	if e.mayLog(from.Addr()) {
		e.cfg.Logger.Warn("peer breaks the protocol", keyPeer, from.String(), keyError, err)
	}
}

// mayLog reports whether a host is due for a line in the log.
func (e *Endpoint) mayLog(host netip.Addr) bool {
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	if last, seen := e.complaints[host]; seen && now.Sub(last) < complainEvery {
		return false
	}
	if len(e.complaints) >= maxComplaints {
		clear(e.complaints)
	}
	e.complaints[host] = now
	return true
}

const (
	complainEvery = time.Minute
	maxComplaints = 1024 // hosts that are remembered
)

// Keys of log lines.
const (
	keyPeer  = "peer"
	keyError = "error"
)

// trace logs at Debug what happens to a connection.
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
