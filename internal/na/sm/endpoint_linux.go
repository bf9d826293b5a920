package sm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/internal/peerbook"
	"cinnabar/internal/progress"
	"cinnabar/internal/shm"
)

// Endpoint is the presence of a process in shared memory: the region that peers connect to, if it listens, and one connection per
// peer. It implements [na.Endpoint].
type Endpoint struct {
	cfg   Config // with defaults filled in
	ident identity
	own   *Addr // also the destination of requests to oneself

	transfers transfers
	mem       memories

	region      *region // that peers connect to; nil without Listen
	private     *region // for messages to oneself without Listen; made when needed
	sock        int     // datagrams to servers, and from clients
	bound       bool    // the socket has its place
	sockDir     int     // the directory of the socket, -1 without Listen; the poller's while it runs
	files       struct{ region, socket shm.File }
	notify      int // inotify descriptor, -1 if there is none
	poll        *poller
	watch       progress.Watcher
	places      *hostquota.Book // the region's
	maintenance maintenance
	stats       counters

	offenders offenders // the poller's

	handed atomic.Bool // a goroutine has got a request since the last handOver

	refusing atomic.Bool     // set by Shutdown: connections and requests are refused
	life     context.Context // ends with Shutdown
	endLife  context.CancelFunc

	identifying bool          // the poller's: it runs awaitIdentity
	closed      atomic.Bool   // set by Close: no operation starts any more
	ended       atomic.Bool   // the poller is to end
	closing     sync.Once     // calls Endpoint.end
	stop        chan struct{} // closed by Close: connecting ends
	pollEnd     chan struct{} // closed when the poller has ended, and has left runners
	finished    chan struct{} // closed when all goroutines but those of tasks have ended
	wg          sync.WaitGroup
	teardowns   sync.WaitGroup // counts the conns that are not torn down yet
	runners     na.TaskGroup   // goroutines that run tasks, and pollers that are in one

	addrs  *peerbook.Book[string, Addr] // by URI
	active peerbook.Active[*Addr]

	conns atomic.Pointer[[]*conn] // replaced as a whole, with mu held

	beside atomic.Uint64 // see SetBeside; 0: none

	mu sync.Mutex
	// sealed is true when no more goroutines may start.
	// +checklocks:mu
	sealed bool
	// recovering is true while the region is made anew, during which the endpoint does not connect to itself.
	// +checklocks:mu
	recovering bool
	// pairs holds the conns of clients, also those that have failed and keep their pair taken.
	// +checklocks:mu
	pairs [pairs]*conn
	// byID holds conns by the numbers that epoll events carry.
	// +checklocks:mu
	byID map[int32]*conn
	// nextID is the number of the next conn.
	// +checklocks:mu
	nextID int32
}

var (
	_ na.Endpoint    = (*Endpoint)(nil)
	_ na.GroupDriver = (*Endpoint)(nil)
)

// Open opens an endpoint, which lives until Close. Before that it removes the regions and sockets that dead processes have left, which may take
// long if there are many. If ctx ends meanwhile, Open returns an error of kind [na.Canceled] that wraps the cause.
func Open(ctx context.Context, cfg Config) (na.Endpoint, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, &na.Error{Kind: na.Invalid, Op: "open", Err: err}
	}
	name, err := parseInit(cfg.Address)
	if err != nil {
		return nil, &na.Error{Kind: na.Invalid, Op: "open", Addr: cfg.Address, Err: err}
	}
	for tries := 1; ; tries++ {
		e, err := openAs(ctx, cfg, name)
		if err == nil {
			return e, nil
		}
		if name != "" || !isForeign(err) && na.KindOf(err) != na.InUse || tries == maxNumbers {
			return nil, err
		}
		// Another user has the names of that number, or a process with the same PID in another PID namespace has them.
	}
}

// openAs opens an endpoint with the next number of this process.
func openAs(ctx context.Context, cfg Config, name string) (*Endpoint, error) {
	id, err := takeNumber()
	if err != nil {
		return nil, &na.Error{Kind: na.NotAvailable, Op: "open", Addr: cfg.Address, Err: err}
	}
	e := &Endpoint{
		cfg: cfg, ident: identity{int32(os.Getpid()), id}, sock: -1, sockDir: -1, notify: -1,
		stop: make(chan struct{}), pollEnd: make(chan struct{}), finished: make(chan struct{}), addrs: peerbook.NewBook[string, Addr](),
		byID: make(map[int32]*conn), places: hostquota.NewBook(hostquota.Limits{hostquota.Connections: pairs - 1}),
	}
	e.life, e.endLife = context.WithCancel(context.Background())
	e.conns.Store(new([]*conn))
	if name == "" {
		name = e.ident.uri()
	}
	e.own = e.newAddr(e.ident, name)
	if err := e.establish(ctx); err != nil {
		e.undo()
		e.endLife()
		if na.KindOf(err) != 0 {
			return nil, err
		}
		return nil, &na.Error{Kind: na.NotAvailable, Op: "open", Addr: e.own.String(), Err: err}
	}
	e.transfers.init()
	allowAttach()
	e.runners.Add()
	go e.poll.run(0)
	return e, nil
}

// establish creates the resources of the endpoint outside this process.
func (e *Endpoint) establish(ctx context.Context) (err error) {
	if err := reclaimAll(ctx, &e.cfg); err != nil {
		return &na.Error{Kind: na.Canceled, Op: "open", Addr: e.own.String(), Err: err}
	}
	if e.sock, err = openSocket(); err != nil {
		return err
	}
	if e.poll, err = newPoller(e); err != nil || !e.cfg.Listen {
		return err
	}
	if err := e.createRegion(); err != nil {
		return err
	}
	e.keepSpare(e.cfg.objectPath(e.own.uri), e.cfg.spareObject(e.own.uri), e.files.region)
	if err := e.bindSocket(); err != nil {
		return err
	}
	sock := pathOf(e.sockDir) + "/" + sockName
	if e.files.socket, err = lstat(sock); err != nil {
		return err
	}
	e.keepSpare(sock, e.cfg.spareSocket(e.own.uri), e.files.socket)
	e.openNotify()
	return nil
}

// undo closes the resources of an endpoint, also after establish has failed.
func (e *Endpoint) undo() {
	e.removeObjects()
	returnNumber(e.ident.id)
	closeAll(e.sock, e.sockDir, e.notify)
	if e.poll != nil {
		_ = e.poll.set.Close() // nothing is written through it
	}
	for _, r := range [...]*region{e.region, e.private} {
		if r != nil {
			_ = r.Close() // no goroutine uses it any more
		}
	}
}

// Addr implements [na.Endpoint].
func (e *Endpoint) Addr() na.Addr { return e.own }

// Listening implements [na.Endpoint].
func (e *Endpoint) Listening() bool { return e.cfg.Listen }

// takesRequests reports whether requests are handed on: without Listen too, if there is a handler, which refuses them.
func (e *Endpoint) takesRequests() bool { return e.cfg.Handler != nil && !e.refusing.Load() }

// Limits implements [na.Endpoint]: messages have no header.
func (e *Endpoint) Limits() na.Limits {
	return na.Limits{MaxRequest: bufferSize, MaxResponse: bufferSize}
}

// of starts op and returns the Addr of this endpoint that a is; if it is none, of completes op with an error and returns nil.
func (e *Endpoint) of(op *na.Op, opName string, a na.Addr) *Addr {
	op.Begin()
	p, ok := a.(*Addr)
	if !ok || p.ep != e {
		op.Finish(0, &na.Error{Kind: na.Invalid, Op: opName, Err: fmt.Errorf("address %v is not one of this endpoint's", a)})
		return nil
	}
	return p
}

// SendRequest implements [na.Endpoint].
func (e *Endpoint) SendRequest(op *na.Op, to na.Addr, tag uint32, msg []byte) {
	e.send(op, to, item{op: op, kind: typeUnexpected, tag: tag, msg: msg})
}

// SendExpected implements [na.Endpoint].
func (e *Endpoint) SendExpected(op *na.Op, to na.Addr, tag uint32, msg []byte) {
	e.send(op, to, item{op: op, kind: typeExpected, tag: tag, msg: msg})
}

func (e *Endpoint) send(op *na.Op, to na.Addr, it item) {
	a := e.of(op, it.opName(), to)
	if a == nil {
		return
	}
	if len(it.msg) > bufferSize {
		op.Finish(0, &na.Error{Kind: na.Truncated, Op: it.opName(), Addr: a.String(), Err: fmt.Errorf("%d bytes; the limit is %d", len(it.msg), bufferSize)})
		return
	}
	if a == e.own && a.conn.Load() == nil {
		if err := e.connectSelf(); err != nil {
			op.Finish(0, &na.Error{Kind: na.Unreachable, Op: it.opName(), Addr: a.String(), Err: err})
			return
		}
	}
	a.send(it)
}

// RecvExpected implements [na.Endpoint].
func (e *Endpoint) RecvExpected(op *na.Op, from na.Addr, tag uint32, buf []byte) {
	const opName = "receive"
	a := e.of(op, opName, from)
	if a == nil {
		return
	}
	if !a.expected.Add(tag, peerbook.Waiter{Op: op, Buf: buf}, a.activate) {
		op.Finish(0, &na.Error{Kind: na.Invalid, Op: opName, Addr: a.String(), Err: fmt.Errorf("tag %d is waited for already", tag)})
		return
	}
	e.poll.await()
	if e.closed.Load() { // else Close finds it
		if _, ok := a.unexpect(op); ok {
			op.Finish(0, &na.Error{Kind: na.Closed, Op: opName, Addr: a.String()})
		}
	}
}

// Cancel implements [na.Endpoint]. It searches all lists for op: an operation has no reference to its list, so that operations that
// are never cancelled cost nothing.
func (e *Endpoint) Cancel(op *na.Op) {
	for _, a := range e.active.List() {
		if a.cancel(op) {
			return
		}
	}
	e.transfers.cancel(op)
}

// connectSelf makes the connection to oneself, over the pair that is reserved for it. Without Listen the rings are in memory of this
// process.
func (e *Endpoint) connectSelf() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.sealed:
		return errClosing
	case e.recovering:
		return errRebuilt
	}
	if e.own.conn.Load() != nil {
		return nil
	}
	r := e.region
	if r == nil {
		m, err := shm.Private(extendedSize)
		if err != nil {
			return err
		}
		r = newRegion(m)
		r.init(e.ident, 0)
		e.private = r
	}
	c := &conn{
		ep: e, addr: e.own, reg: r, pair: ownPair, server: true, self: true, pid: e.ident.pid, recvEvent: -1, pidfd: -1,
		done: make(chan struct{}), scratch: make([]byte, bufferSize),
	}
	if err := c.attach(); err != nil {
		return err
	}
	e.addConnLocked(c)
	e.own.last.Store(c)
	e.own.conn.Store(c)
	e.active.Add(e.own, &e.own.member)
	return nil
}

// list returns the present conns. The caller must not change the slice.
func (e *Endpoint) list() []*conn { return *e.conns.Load() }

// Conns implements [na.ConnLister]. Shared memory has no count of bytes.
func (e *Endpoint) Conns(limit int) (list []na.ConnInfo, total int) {
	conns := e.list()
	list = make([]na.ConnInfo, 0, len(conns))
	for _, c := range conns {
		if c.self {
			continue
		}
		info := na.ConnInfo{Peer: c.addr.String(), State: na.ConnOpen, Inbound: c.server, Received: -1, Sent: -1}
		if c.dead.Load() || c.ending.Load() != nil {
			info.State = na.ConnEnding
		}
		list = append(list, info)
	}
	return na.FirstConns(list, limit), len(list)
}

// addConn adds c to the conns that the poller visits. It returns false if the endpoint is closing.
func (e *Endpoint) addConn(c *conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sealed {
		return false
	}
	e.addConnLocked(c)
	return true
}

// +checklocks:e.mu
func (e *Endpoint) addConnLocked(c *conn) {
	c.spins.Init(e.cfg.Progress, progress.Memory)
	c.role.watch.Init(c)
	if c.withinProcess() {
		e.cfg.Progress.AddPair()
	}
	e.nextID++
	c.id = e.nextID
	c.serial = serials.Add(1)
	e.byID[c.id] = c
	if c.server {
		e.pairs[c.pair] = c
	}
	e.teardowns.Add(1)
	e.stats.connections.Add(1)
	list := append(slices.Clone(e.list()), c)
	e.conns.Store(&list)
}

// dropConn removes a conn that has failed from those that the poller visits.
func (e *Endpoint) dropConn(c *conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(e.list()), func(o *conn) bool { return o == c })
	e.conns.Store(&list)
}

// tornDown counts the teardown of a conn, for which end waits.
func (e *Endpoint) tornDown(c *conn) {
	if c.withinProcess() {
		e.cfg.Progress.RemovePair()
	}
	e.teardowns.Done()
}

// withinProcess reports whether the peer is another endpoint of this process.
func (c *conn) withinProcess() bool { return !c.self && c.pid == c.ep.ident.pid }

// connOf returns the conn with that number, also one that has failed and keeps its pair, or nil.
func (e *Endpoint) connOf(id int32) *conn {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.byID[id]
}

// clientOf returns the conn of a pair, or nil.
func (e *Endpoint) clientOf(pair int) *conn {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pairs[pair]
}

// spawn runs f on a goroutine that Close waits for. It returns false if the endpoint is closing.
func (e *Endpoint) spawn(f func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sealed {
		return false
	}
	e.wg.Go(f)
	return true
}

// runTask runs a task on a goroutine of its own. The caller has a conn's receive role, so Close does not wait for runners yet.
func (e *Endpoint) runTask(t na.Task) { e.runners.Run(t) }

// Shutdown implements [na.Endpoint].
func (e *Endpoint) Shutdown() {
	first := !e.refusing.Swap(true)
	e.endLife()
	if !first || e.region == nil {
		return
	}
	_ = e.region.read(func() { e.region.setClosing(closingRefuses) }) // a region that faults refuses anyway
}

// Close implements [na.Endpoint]. It returns when its context has ended, or after some seconds if that has no deadline, even
// if the kernel still works on a transfer that it cannot interrupt; the endpoint closes when that ends.
func (e *Endpoint) Close(ctx context.Context) error {
	e.Shutdown()
	e.closing.Do(func() { go e.end() })
	if !e.waitFinished(ctx) {
		return &na.Error{Kind: na.Closed, Op: "close", Addr: e.own.String(), Err: errHeldUp}
	}
	if err := e.runners.Wait(ctx); err != nil {
		return &na.Error{Kind: na.Closed, Op: "close", Addr: e.own.String(), Err: fmt.Errorf("tasks are still running: %w", err)}
	}
	return nil
}

// Close waits for the endpoint's own goroutines until closeGrace after its context has ended, and for closeLimit if the
// context has no deadline. They end within moments, unless the kernel waits for a peer: for memory of the peer that a
// third process provides, for example.
const (
	closeLimit = 5 * time.Second
	closeGrace = time.Second
)

// waitFinished waits for the goroutines of the endpoint other than those of tasks, and reports whether they have ended.
func (e *Endpoint) waitFinished(ctx context.Context) bool {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, closeLimit-closeGrace)
		defer cancel()
	}
	select {
	case <-e.finished:
		return true
	case <-ctx.Done():
	}
	limit := time.NewTimer(closeGrace)
	defer limit.Stop()
	select {
	case <-e.finished:
		return true
	case <-limit.C:
		return false
	}
}

var errHeldUp = errors.New("the kernel has not finished a transfer from or to a peer's memory; the endpoint closes as soon as it has")

// end ends all operations and connections and waits for the goroutines of the endpoint, which takes moments: servers are given
// lingerTime to read the messages that they were sent.
func (e *Endpoint) end() {
	e.closed.Store(true)
	close(e.stop)
	e.transfers.close()
	e.mem.close()
	for _, a := range e.active.List() {
		items, tags := a.stopDialing()
		a.failAll(items, tags, na.Closed, nil)
	}
	e.linger()
	e.endConns()
	e.mu.Lock()
	e.sealed = true
	e.mu.Unlock()
	e.wg.Wait()
	e.endConns() // those that were made in the meantime
	e.teardowns.Wait()
	e.freeKept()
	e.ended.Store(true)
	e.poll.wake()
	<-e.pollEnd
	e.watch.Close()
	e.undo()
	close(e.finished)
}

// freeKept frees the pairs of clients that have broken the protocol and still live.
func (e *Endpoint) freeKept() {
	e.mu.Lock()
	kept := e.pairs
	e.mu.Unlock()
	for _, c := range kept {
		if c != nil {
			e.freePair(c)
		}
	}
}

// lingerTime is the longest time that Close waits for peers to read the messages that they were sent.
const lingerTime = 100 * time.Millisecond

// linger waits until peers have read all messages, for lingerTime at most, because the last response of a server that ends itself
// would be lost otherwise.
func (e *Endpoint) linger() {
	end := time.NewTimer(lingerTime)
	defer end.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for slices.ContainsFunc(e.list(), (*conn).unread) {
		select {
		case <-tick.C:
		case <-end.C:
			return
		}
	}
}

// unread reports whether the peer has messages to read.
func (c *conn) unread() (yes bool) {
	a := c.addr
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.self || a.conn.Load() != c {
		return false
	}
	err := c.reg.read(func() { yes = c.out.waiting() > 0 })
	return yes && err == nil && !ended(c.pidfd)
}

// endConns ends all connections. It wakes the clients of this package, which find in the region that the server has closed.
func (e *Endpoint) endConns() {
	if e.region != nil {
		_ = e.region.read(func() { e.region.setClosing(closingDone) }) // a region that faults has no clients
	}
	for _, c := range e.list() {
		c.addr.mu.Lock()
		if c.server && c.ext != nil && c.addr.conn.Load() == c {
			c.signalPeer(1)
		}
		c.addr.mu.Unlock()
		c.fail(na.Closed, nil)
	}
}

// counters holds the statistics of an endpoint.
type counters struct {
	connections, unmatched, dropped, violations, checks, restores, refused, evicted atomic.Uint64
}

// reportViolation counts and logs a violation of the protocol by a peer. The audit bounds the number of lines.
func (e *Endpoint) reportViolation(a *Addr, err error) {
	e.stats.violations.Add(1)
	cause := causeMessage
	if v, ok := errors.AsType[*violation](err); ok {
		cause = v.cause
	}
	e.cfg.Audit.Record(audit.Broken, cause, e.hosts(a.ident, a.uid), slog.String(keyPeer, a.String()), slog.Any(keyError, err))
}

// mayLog reports whether the log may have a line about a peer.
func (e *Endpoint) mayLog(a *Addr) bool {
	_, ok := audit.Allow(e.hosts(a.ident, a.uid))
	return ok
}

// Keys of log lines.
const (
	keyPeer  = "peer"
	keyError = "error"
)

// trace logs an event of a connection at Debug.
func (e *Endpoint) trace(msg string, a *Addr, err error) {
	if e.cfg.Logger.Enabled(context.Background(), slog.LevelDebug) {
		e.cfg.Logger.Debug(msg, keyPeer, a.String(), keyError, err)
	}
}
