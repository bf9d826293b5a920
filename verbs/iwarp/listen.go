package iwarp

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar/internal/iwarp/mpa"
	"cinnabar/verbs/driver"
)

// maxHandshakes bounds the peers that have connected by TCP and not yet sent
// their request. Further ones wait in the kernel's queue.
const maxHandshakes = 256

// listener takes TCP connections and reads their MPA requests.
type listener struct {
	dev    *device
	tcp    *net.TCPListener
	queue  chan *connRequest
	slots  chan struct{}   // a place for each unfinished handshake
	ctx    context.Context // ends with the listener; for its own goroutines only
	cancel context.CancelFunc
	wg     sync.WaitGroup
	once   sync.Once
}

// Listen implements driver.Device.
func (d *device) Listen(addr netip.AddrPort, backlog int) (driver.Listener, error) {
	const op = "listen"
	if d.isClosed() {
		return nil, driver.Errorf(op, driver.ErrClosed, "the device is closed")
	}
	if backlog == 0 {
		backlog = defaultBacklog
	}
	if err := checkDepth(op, "backlog", backlog, 1, maxBacklog); err != nil {
		return nil, err
	}
	if !addr.IsValid() {
		return nil, driver.Errorf(op, driver.ErrInvalid, "no address; use one of the host, 0.0.0.0 or [::]")
	}
	tcp, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(addr))
	if err != nil {
		return nil, &driver.Error{Op: op, Err: err}
	}
	l := &listener{dev: d, tcp: tcp, queue: make(chan *connRequest, backlog), slots: make(chan struct{}, maxHandshakes)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	d.listeners.Add(1)
	l.wg.Go(l.acceptLoop)
	return l, nil
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

// acceptLoop ends when the TCP listener is closed.
func (l *listener) acceptLoop() {
	for {
		select {
		case l.slots <- struct{}{}:
		case <-l.ctx.Done():
			return
		}
		tc, err := l.tcp.AcceptTCP()
		if err != nil {
			<-l.slots
			if l.ctx.Err() != nil {
				return
			}
			l.dev.cfg.Logger.Error("accept failed", "addr", l.Addr().String(), "err", err)
			if !l.pause() {
				return
			}
			continue
		}
		l.wg.Go(func() {
			defer func() { <-l.slots }()
			l.handshake(tc)
		})
	}
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

// handshake reads the request on tc and queues it for Accept.
func (l *listener) handshake(tc *net.TCPConn) {
	peer := tc.RemoteAddr().String()
	done := bound(l.ctx, tc, l.dev.cfg.HandshakeTimeout)
	req, err := readFrame(tc)
	if err = done(err); err != nil {
		l.dev.cfg.Logger.Info("connection request failed", "peer", peer, "err", err)
		_ = tc.Close() // nothing was promised
		return
	}
	r := &connRequest{dev: l.dev, tc: tc, req: req, local: unmap(tcpAddr(tc.LocalAddr())), remote: unmap(tcpAddr(tc.RemoteAddr()))}
	if reply, err := r.judge(); err != nil {
		l.dev.cfg.Logger.Info("connection request refused", "peer", peer, "err", err)
		r.refuse(reply)
		return
	}
	l.dev.ask(r)
	select {
	case l.queue <- r:
	default:
		l.dev.cfg.Logger.Warn("connection request rejected: backlog full", "peer", peer, "backlog", cap(l.queue))
		_ = r.Reject(nil) // the peer may be gone; it is rejected either way
	}
}

func tcpAddr(a net.Addr) netip.AddrPort { return a.(*net.TCPAddr).AddrPort() }

func (l *listener) Accept(ctx context.Context) (driver.ConnRequest, error) {
	select {
	case r := <-l.queue:
		return r, nil
	default:
	}
	select {
	case r := <-l.queue:
		return r, nil
	case <-l.ctx.Done():
		return nil, driver.Errorf("accept", driver.ErrClosed, "the listener is closed")
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Close ends the listener and rejects the requests that wait.
func (l *listener) Close() error {
	var err error
	l.once.Do(func() {
		l.cancel()
		err = l.tcp.Close()
		l.wg.Wait()
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
	tc            *net.TCPConn
	req           mpa.Frame
	local, remote netip.AddrPort
	answered      atomic.Bool
}

func (r *connRequest) LocalAddr() netip.AddrPort  { return r.local }
func (r *connRequest) RemoteAddr() netip.AddrPort { return r.remote }

// Param gives what the peer asked for, seen from this side: its ORD is what we
// may be asked to answer.
func (r *connRequest) Param() driver.ConnParam {
	p := driver.ConnParam{PrivateData: append([]byte(nil), r.req.PrivateData...)}
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

// judge finds out whether the request can be accepted at all; if not, reply is
// what to send, if anything.
func (r *connRequest) judge() (reply mpa.Frame, err error) {
	local, err := r.dev.cfg.localFor("accept", driver.ConnParam{})
	if err != nil {
		return reply, err
	}
	local.Revision = mpa.Revision2
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
}

func (r *connRequest) Reject(privateData []byte) error {
	const op = "reject"
	if !r.answered.CompareAndSwap(false, true) {
		return driver.Errorf(op, driver.ErrInvalid, "the request is answered already")
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

// Accept uses the request up, whatever comes of it: where it fails before the peer
// has been answered, the peer is rejected.
func (r *connRequest) Accept(ctx context.Context, dqp driver.QP, p driver.ConnParam) (driver.Conn, error) {
	c, err := r.acceptOn(ctx, dqp, p)
	if err != nil {
		_ = r.Reject(nil) // the error at hand is the one to tell
		return nil, err
	}
	return c, nil
}

func (r *connRequest) acceptOn(ctx context.Context, dqp driver.QP, p driver.ConnParam) (*conn, error) {
	const op = "accept"
	q, ok := dqp.(*qp)
	if !ok || q.pd.dev != r.dev {
		return nil, driver.Errorf(op, driver.ErrInvalid, "the queue pair belongs to another device")
	}
	local, err := r.dev.cfg.localFor(op, p)
	if err != nil {
		return nil, err
	}
	local.Revision = mpa.Revision2 // the highest that is taken; the peer has chosen
	if err := q.reserve(op); err != nil {
		return nil, err
	}
	defer q.release()
	if !r.answered.CompareAndSwap(false, true) {
		return nil, driver.Errorf(op, driver.ErrInvalid, "the request is answered already")
	}
	r.dev.answer(r)
	c, err := r.accept(ctx, q, local, p)
	if err != nil {
		_ = r.tc.Close() // the error at hand is the one to tell
		return nil, err
	}
	return c, nil
}

func (r *connRequest) accept(ctx context.Context, q *qp, local mpa.Local, p driver.ConnParam) (*conn, error) {
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
	limit := p.Timeout
	if limit <= 0 {
		limit = r.dev.cfg.HandshakeTimeout
	}
	done := bound(ctx, r.tc, limit)
	if err := done(writeFrame(r.tc, reply)); err != nil {
		return nil, wrapMPA(op, err)
	}
	return r.dev.start(q, r.tc, h)
}
