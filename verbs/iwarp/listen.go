package iwarp

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar/identity"
	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/iwarp/mpa"
	"cinnabar/internal/sockio"
	"cinnabar/internal/tlsio"
	"cinnabar/verbs"
)

// listener takes TCP connections and reads their MPA requests.
type listener struct {
	dev    *device
	tcp    *net.TCPListener
	queue  chan *connRequest
	places *hostquota.Book // of the backlog, by host
	turns  [2]*sockio.Turn // for accepted connections, and for requests on them
	hosts  hostTurns       // for requests, by turns[1]
	ctx    context.Context // ends with the listener; for its own goroutines only
	cancel context.CancelFunc
	wg     sync.WaitGroup
	once   sync.Once
}

// Listen implements verbs.DeviceDriver.
func (d *device) Listen(addr netip.AddrPort, cfg verbs.ListenConfig) (verbs.ListenerDriver, error) {
	const op = "listen"
	backlog := cfg.Backlog
	if d.isClosed() {
		return nil, verbs.Errorf(op, verbs.ErrClosed, "the device is closed")
	}
	if backlog == 0 {
		backlog = defaultBacklog
	}
	if err := checkDepth(op, "backlog", backlog, 1, maxBacklog); err != nil {
		return nil, err
	}
	if !addr.IsValid() {
		return nil, verbs.Errorf(op, verbs.ErrInvalid, "no address; use one of the host, 0.0.0.0 or [::]")
	}
	if d.cfg.TLS != nil && !tlsio.CanServe(d.cfg.TLS) {
		return nil, verbs.Errorf(op, verbs.ErrInvalid, "Config.TLS has no certificate, which a device that listens needs")
	}
	tcp, err := d.listenTCP(addr, cfg.OnlyIPv6)
	if err != nil {
		return nil, netError(op, addr, err)
	}
	l := &listener{dev: d, tcp: tcp, queue: make(chan *connRequest, backlog),
		places: hostquota.NewBook(hostquota.Limits{hostquota.Queued: int64(backlog)})}
	for i := range l.turns {
		if l.turns[i], err = sockio.NewTurn(); err != nil {
			return nil, &verbs.Error{Op: op, Err: errors.Join(err, l.closeTurns(), tcp.Close())}
		}
	}
	l.hosts.turn, l.hosts.wg = l.turns[1], &l.wg
	l.ctx, l.cancel = context.WithCancel(context.Background())
	d.listens(l.Addr())
	d.listeners.Add(1)
	l.wg.Go(l.acceptLoop)
	return l, nil
}

// listenTCP returns Config.Listener if that is at addr and not in use, and a new listener otherwise.
func (d *device) listenTCP(addr netip.AddrPort, onlyIPv6 bool) (*net.TCPListener, error) {
	if l := d.cfg.Listener; l != nil && unmapWildcard(tcpAddr(l.Addr())) == unmapWildcard(addr) && !d.given.Load() {
		if onlyIPv6 {
			return nil, verbs.Errorf("listen", verbs.ErrInvalid,
				"ListenConfig.OnlyIPv6 with Config.Listener, which listens already: open that socket for IPv6 only (BindIPv6Only=ipv6-only of systemd)")
		}
		if d.given.CompareAndSwap(false, true) {
			return l, nil
		}
	}
	network := "tcp"
	if onlyIPv6 {
		network = "tcp6"
	}
	return net.ListenTCP(network, net.TCPAddrFromAddrPort(addr))
}

func (l *listener) closeTurns() (err error) {
	for _, t := range l.turns {
		if t != nil {
			err = errors.Join(err, t.Close())
		}
	}
	return err
}

func (l *listener) Addr() netip.AddrPort {
	return unmapWildcard(l.tcp.Addr().(*net.TCPAddr).AddrPort())
}

// unmapWildcard is unmap, but keeps [::].
func unmapWildcard(a netip.AddrPort) netip.AddrPort {
	if a.Addr().IsUnspecified() {
		return a
	}
	return unmap(a)
}

// acceptTurn is the number of connections that acceptLoop accepts before the goroutines of established connections run. It is more
// than 1 because hosts take turns only in the handshakes, so that a connection of a new host must be accepted soon.
const acceptTurn = 8

// acceptPace calls wait after each acceptTurn accepted connections.
type acceptPace struct {
	n    int
	wait func()
}

// accepted counts a connection. acceptLoop calls it after each connection.
func (p *acceptPace) accepted() {
	if p.n++; p.n == acceptTurn {
		p.n = 0
		p.wait()
	}
}

// acceptLoop accepts connections until the TCP listener is closed. After each acceptTurn connections it waits for a turn, because a
// flood of new connections would otherwise delay the established ones.
func (l *listener) acceptLoop() {
	pace := acceptPace{wait: l.turns[0].Wait}
	for {
		tc, err := l.tcp.AcceptTCP()
		if err != nil {
			if l.ctx.Err() != nil {
				return
			}
			if suppressed, ok := audit.Allow(hostquota.Host{}); ok {
				l.dev.cfg.Logger.Error("accept failed", "addr", l.Addr().String(), "err", err, "suppressed", suppressed)
			}
			l.dev.makeRoom()
			if !l.pause() {
				return
			}
			continue
		}
		l.admitNewcomer(l.dev.newcomer(tc))
		pace.accepted()
	}
}

// admitNewcomer begins the handshake of p, at once or after a wait. If too many newcomers of the host wait already, the host's
// oldest handshake gives way at once.
func (l *listener) admitNewcomer(p *pending) {
	wait, early, few := l.dev.pace.begin(p.host, p.began, mostStand)
	var err error
	if few && wait == 0 {
		wait, err = l.dev.begin(p, false)
	}
	switch {
	case few && wait > 0 && p.account.Take(hostquota.Queued, 1) == nil:
		l.wg.Go(func() {
			if err := l.dev.beginLater(l.ctx, p, wait, early); err != nil {
				l.refuseNewcomer(p, err)
				return
			}
			l.handshake(p)
		})
		return
	case !few || wait > 0:
		l.dev.pace.waited(p.host, early)
		_, err = l.dev.begin(p, true)
	}
	if err != nil {
		l.refuseNewcomer(p, err)
		return
	}
	l.wg.Go(func() { l.handshake(p) })
}

// refuseNewcomer closes a connection for which there is no place among the unfinished handshakes.
func (l *listener) refuseNewcomer(p *pending, err error) {
	if l.ctx.Err() == nil {
		l.dev.trail.Record(audit.Refused, "unfinished handshakes", p.host, slog.Any("err", err))
	}
	abort(p.tc)
}

// acceptPause is how long accepting rests after a failure, which is nearly always
// want of descriptors.
const acceptPause = 50 * time.Millisecond

// pause rests; false means that the listener is closed.
func (l *listener) pause() bool {
	t := time.NewTimer(acceptPause)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-l.ctx.Done():
		return false
	}
}

// handshake reads the request of p and queues it for Accept.
func (l *listener) handshake(p *pending) {
	d := l.dev
	s := &stream{tcp: p.tc}
	req, cause, err := l.receive(p, s)
	turn := true
	if err == nil {
		turn = l.awaitTurn(p.host)
	}
	var r *connRequest
	var reply mpa.Frame
	var unacceptable error
	if err == nil {
		r = &connRequest{dev: d, tc: s, req: req, local: unmap(tcpAddr(p.tc.LocalAddr())), remote: unmap(tcpAddr(p.tc.RemoteAddr())), account: p.account}
		if reply, unacceptable = r.judge(); unacceptable == nil {
			d.pace.succeeded(p.host)
			l.hosts.waitUnless(p.host, p.gone) // before the end of the handshake, so that the limits on handshakes hold for waiting requests
		}
	}
	if !d.handshakes.end(p) {
		return // it has given way to another, which has closed and recorded it
	}
	switch {
	case err != nil:
		if l.ctx.Err() == nil {
			d.trail.Record(audit.Refused, cause, p.host, slog.Any("err", err))
		}
		_ = p.tc.Close() // nothing was promised
		return
	case unacceptable != nil:
		d.trail.Record(audit.Refused, "unacceptable request", p.host, slog.Any("err", unacceptable))
		r.refuse(reply)
		return
	}
	d.ask(r)
	if cause, err := l.enqueue(r, turn); cause != "" {
		d.trail.Record(audit.Refused, cause, p.host, slog.Any("err", err))
		_ = r.Reject(nil) // the peer may be gone; it is rejected either way
	}
}

// enqueue queues r for Accept, or returns the cause of its refusal.
func (l *listener) enqueue(r *connRequest, turn bool) (cause string, err error) {
	if !turn {
		return "too many refused accesses", nil
	}
	if err := l.dev.admit(r.account); err != nil {
		return "limit of connections", err
	}
	r.counted.hold(r.account, hostquota.Connections)
	if err := r.place.take(l.places.Account(r.account.Host()), hostquota.Queued); err != nil {
		return "backlog", err
	}
	select {
	case l.queue <- r:
		return "", nil
	default:
		return "backlog", nil
	}
}

// awaitTurn waits until the host may have another connection; false means that it may not.
func (l *listener) awaitTurn(h hostquota.Host) bool {
	wait, ok := l.dev.brake.turn(h, time.Now())
	if !ok || wait == 0 {
		return ok
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-l.ctx.Done():
		return false
	}
}

// requestCause returns the cause by which the audit counts a request that did not come.
func requestCause(err error) string {
	switch {
	case errors.Is(err, errTLSHello):
		return causeTLSHello
	case errors.Is(err, errTokenHello):
		return causeTokenHello
	}
	if _, ok := errors.AsType[*mpa.Error](err); ok {
		return "no MPA request"
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "no request in time"
	}
	return "no request"
}

func tcpAddr(a net.Addr) netip.AddrPort { return a.(*net.TCPAddr).AddrPort() }

func (l *listener) Accept(ctx context.Context) (verbs.ConnRequestDriver, error) {
	select {
	case r := <-l.queue:
		r.place.give()
		return r, nil
	default:
	}
	select {
	case r := <-l.queue:
		r.place.give()
		return r, nil
	case <-l.ctx.Done():
		return nil, verbs.Errorf("accept", verbs.ErrClosed, "the listener is closed")
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Close ends the listener and rejects the requests that wait.
func (l *listener) Close() error {
	var err error
	l.once.Do(func() {
		l.cancel()
		err = errors.Join(l.tcp.Close(), l.closeTurns())
		l.wg.Wait()
		l.dev.listensNoMore(l.Addr())
		l.dev.listeners.Add(-1)
		for {
			select {
			case r := <-l.queue:
				_ = r.Reject(nil) // its peer may be gone; it is rejected either way
			default:
				return
			}
		}
	})
	return err
}

// connRequest is a peer's request, not yet answered.
type connRequest struct {
	dev           *device
	tc            *stream
	req           mpa.Frame
	local, remote netip.AddrPort
	account       *hostquota.Account // of the peer's host
	counted       claim              // among the connections
	place         claim              // in the backlog
	answered      atomic.Bool
}

func (r *connRequest) LocalAddr() netip.AddrPort  { return r.local }
func (r *connRequest) RemoteAddr() netip.AddrPort { return r.remote }

// Identity implements [verbs.Identified].
func (r *connRequest) Identity() identity.Peer {
	return r.tc.identify(r.remote.Addr(), r.dev.cfg.Token)
}

// Param returns the peer's parameters, seen from this side: its ORD is the number of
// requests that this side may have to answer at a time.
func (r *connRequest) Param() verbs.ConnParam {
	p := verbs.ConnParam{PrivateData: append([]byte(nil), r.req.PrivateData...)}
	if r.req.Enhanced {
		p.ResponderResources, p.InitiatorDepth = asParam(r.req.Setup.ORD), asParam(r.req.Setup.IRD)
	}
	return p
}

// asParam translates a depth of a request into ConnParam's words, so that it can
// be given back to Accept.
func asParam(depth uint16) int {
	switch depth {
	case mpa.NoNegotiation:
		return 0 // ours to choose
	case 0:
		return -1 // none
	}
	return min(int(depth), maxDepth)
}

// judge returns an error if the request cannot be accepted with any parameters, and the
// reply to send then, which may be none.
func (r *connRequest) judge() (reply mpa.Frame, err error) {
	local, err := r.dev.cfg.localFor("accept", verbs.ConnParam{})
	if err != nil {
		return reply, err
	}
	local.Revision, local.CRC = mpa.Revision2, r.dev.cfg.asksCRC(r.local.Addr(), r.remote.Addr())
	reply, _, err = mpa.Respond(r.req, local)
	return reply, err
}

// refuse sends reply, if it is one, and closes.
func (r *connRequest) refuse(reply mpa.Frame) {
	r.dev.stats.rejects.Add(1)
	if reply.Reply {
		done := bound(context.Background(), r.tc, r.dev.cfg.HandshakeTimeout)
		_ = done(writeFrame(r.tc, reply)) // the peer may be gone; it is refused either way
	}
	_ = r.tc.Close() // see above
	r.place.give()
	r.counted.give()
}

func (r *connRequest) Reject(privateData []byte) error {
	const op = "reject"
	if !r.answered.CompareAndSwap(false, true) {
		return verbs.Errorf(op, verbs.ErrInvalid, "the request is answered already")
	}
	reply, err := mpa.Rejection(r.req, privateData)
	if err != nil {
		r.answered.Store(false)
		return wrapMPA(op, err)
	}
	r.dev.answer(r)
	r.refuse(reply)
	return nil
}

// Accept uses the request up, also if it fails. If it fails before the peer has been
// answered, the peer is rejected.
func (r *connRequest) Accept(ctx context.Context, dqp verbs.QPDriver, p verbs.ConnParam) (verbs.ConnDriver, error) {
	c, err := r.acceptOn(ctx, dqp, p)
	if err != nil {
		_ = r.Reject(nil) // the caller receives the error of acceptOn
		return nil, err
	}
	return c, nil
}

func (r *connRequest) acceptOn(ctx context.Context, dqp verbs.QPDriver, p verbs.ConnParam) (*conn, error) {
	const op = "accept"
	q, ok := dqp.(*qp)
	if !ok || q.pd.dev != r.dev {
		return nil, verbs.Errorf(op, verbs.ErrInvalid, "the queue pair belongs to another device")
	}
	local, err := r.dev.cfg.localFor(op, p)
	if err != nil {
		return nil, err
	}
	local.Revision, local.CRC = mpa.Revision2, r.dev.cfg.asksCRC(r.local.Addr(), r.remote.Addr()) // Revision2 is the highest revision that this side accepts; the peer has chosen the one in use
	if err := q.reserve(op); err != nil {
		return nil, err
	}
	defer q.release()
	if !r.answered.CompareAndSwap(false, true) {
		return nil, verbs.Errorf(op, verbs.ErrInvalid, "the request is answered already")
	}
	r.dev.answer(r)
	c, err := r.accept(ctx, q, local, p)
	if err != nil {
		_ = r.tc.Close() // the caller receives the error of accept
		r.counted.give()
		return nil, err
	}
	return c, nil
}

func (r *connRequest) accept(ctx context.Context, q *qp, local mpa.Local, p verbs.ConnParam) (*conn, error) {
	op := "accept " + r.remote.String()
	reply, agreed, err := mpa.Respond(r.req, local)
	if err != nil {
		return nil, wrapMPA(op, err)
	}
	h, err := r.dev.cfg.settle(op, false, agreed, p)
	if err != nil {
		if rejection, rerr := mpa.Rejection(r.req, nil); rerr == nil {
			r.refuse(rejection)
		}
		return nil, err
	}
	if err := setTypeOfService(r.tc.tcp, r.remote.Addr(), p.TypeOfService); err != nil {
		return nil, &verbs.Error{Op: op, Err: err, Detail: "set ConnParam.TypeOfService"}
	}
	limit := p.Timeout
	if limit <= 0 {
		limit = r.dev.cfg.HandshakeTimeout
	}
	done := bound(ctx, r.tc, limit)
	if err := done(writeFrame(r.tc, reply)); err != nil {
		return nil, wrapMPA(op, err)
	}
	r.counted.keep() // the connection gives it back
	c, err := r.dev.start(q, r.tc, h)
	if err != nil {
		r.counted.hold(r.account, hostquota.Connections)
		return nil, err
	}
	r.dev.trail.Record(audit.Accepted, "connection request", c.host, c.logAttr())
	return c, nil
}
