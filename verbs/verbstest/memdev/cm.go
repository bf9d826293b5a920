package memdev

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"syscall"

	"cinnabar/verbs"
)

// listener takes connection requests under a port number of the device.
type listener struct {
	dev  *Device
	addr netip.AddrPort
	// onlyIPv6 is ListenConfig.OnlyIPv6.
	onlyIPv6 bool
	queue    chan *request // its capacity is the backlog
	closed   chan struct{}
}

// request is a dialled connection that waits for an answer. The answer is
// written once, under the device's mutex, before answered is closed.
type request struct {
	lis      *listener
	from     *qp
	to       netip.AddrPort // as dialled
	param    verbs.ConnParam
	answered chan struct{}
	done     bool
	conn     *conn
	err      error
}

// conn is one side's view of a connection.
type conn struct {
	qp            *qp
	local, remote netip.AddrPort
	param         verbs.ConnParam
	other         *conn
	done          chan struct{}
	err           error // set before done is closed, guarded by the device's mutex
}

// Listen claims a port.
func (d *Device) Listen(addr netip.AddrPort, cfg verbs.ListenConfig) (verbs.ListenerDriver, error) {
	backlog := cfg.Backlog
	if backlog <= 0 {
		backlog = defaultBacklog
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	port := addr.Port()
	if port == 0 {
		for d.listeners[d.nextPort] != nil {
			d.nextPort++
		}
		port = d.nextPort
		d.nextPort++
	}
	if d.listeners[port] != nil {
		return nil, &verbs.Error{Op: "listen", Detail: addr.String(), Err: syscall.EADDRINUSE}
	}
	l := &listener{dev: d, onlyIPv6: cfg.OnlyIPv6, addr: netip.AddrPortFrom(addr.Addr(), port), queue: make(chan *request, backlog), closed: make(chan struct{})}
	d.listeners[port] = l
	return l, nil
}

func (l *listener) Addr() netip.AddrPort { return l.addr }

// Accept waits for a request.
func (l *listener) Accept(ctx context.Context) (verbs.ConnRequestDriver, error) {
	for {
		select {
		case <-l.closed:
			return nil, verbs.Errorf("accept", verbs.ErrClosed, "the listener")
		case r := <-l.queue:
			l.dev.mu.Lock()
			alive := !r.done
			l.dev.mu.Unlock()
			if alive {
				return r, nil
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Close refuses waiting requests and frees the port.
func (l *listener) Close() error {
	d := l.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.listeners[l.addr.Port()] != l {
		return nil
	}
	delete(d.listeners, l.addr.Port())
	close(l.closed)
	for {
		select {
		case r := <-l.queue:
			r.answer(nil, refused(l.addr))
		default:
			return nil
		}
	}
}

func refused(addr netip.AddrPort) error {
	return &verbs.Error{Op: "dial", Detail: addr.String(), Err: syscall.ECONNREFUSED}
}

// Dial asks the listener at addr's port.
func (d *Device) Dial(ctx context.Context, dq verbs.QPDriver, addr netip.AddrPort, p verbs.ConnParam) (verbs.ConnDriver, error) {
	q, ok := dq.(*qp)
	if !ok {
		return nil, verbs.Errorf("dial", verbs.ErrInvalid, "a queue pair of another device")
	}
	if err := checkParam("dial", p); err != nil {
		return nil, err
	}
	p.PrivateData = slices.Clone(p.PrivateData)
	r, err := d.ask(q, addr, p)
	if err != nil {
		return nil, err
	}
	select {
	case <-r.answered:
	case <-ctx.Done():
		d.mu.Lock()
		defer d.mu.Unlock()
		if r.done { // answered at the same moment
			return r.result()
		}
		r.answer(nil, &verbs.Error{Op: "dial", Detail: addr.String(), Err: ctx.Err()})
		return nil, r.err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return r.result()
}

func (r *request) result() (verbs.ConnDriver, error) {
	if r.err != nil {
		return nil, r.err
	}
	return r.conn, nil
}

// ask queues a request at the listener.
func (d *Device) ask(q *qp, addr netip.AddrPort, p verbs.ConnParam) (*request, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := q.connectable("dial"); err != nil {
		return nil, err
	}
	l := d.listeners[addr.Port()]
	if l == nil || !l.serves(addr.Addr()) {
		return nil, refused(addr)
	}
	if err := d.checkSource(addr, p); err != nil {
		return nil, err
	}
	r := &request{lis: l, from: q, to: addr, param: p, answered: make(chan struct{})}
	select {
	case l.queue <- r:
		return r, nil
	default:
		return nil, &verbs.Error{Op: "dial", Detail: addr.String() + ": the listener's backlog is full", Err: syscall.ECONNREFUSED}
	}
}

// checkSource refuses a source that is not an address of the device, has another family than to, or has a port in use. The caller holds mu.
func (d *Device) checkSource(to netip.AddrPort, p verbs.ConnParam) error {
	own := p.Source
	if own.IsValid() && (!own.Addr().IsLoopback() || own.Addr().Is4() != to.Addr().Is4()) {
		return &verbs.Error{Op: "dial", Detail: "from " + own.String(), Err: syscall.EADDRNOTAVAIL}
	}
	if own.Port() == 0 {
		return nil
	}
	taken := d.listeners[own.Port()] != nil
	for _, q := range d.qps {
		if c := q.conn; c != nil && c.err == nil && c.local == own && !(c.param.ReuseSource && p.ReuseSource) {
			taken = true
		}
	}
	if taken {
		return &verbs.Error{Op: "dial", Detail: "from " + own.String(), Err: syscall.EADDRINUSE}
	}
	return nil
}

func (l *listener) serves(a netip.Addr) bool {
	own := l.addr.Addr()
	return !own.IsValid() || own == netip.IPv6Unspecified() && !(l.onlyIPv6 && a.Unmap().Is4()) || own == a.Unmap() || own == netip.IPv4Unspecified() && a.Unmap().Is4()
}

func (q *qp) connectable(op string) error {
	if q.gone {
		return verbs.Errorf(op, verbs.ErrClosed, "the queue pair")
	}
	if q.state != verbs.StateInit {
		return verbs.Errorf(op, verbs.ErrInvalid, "the queue pair is in %v; it must be in INIT", q.state)
	}
	return nil
}

func checkParam(op string, p verbs.ConnParam) error {
	if len(p.PrivateData) > maxPrivateData {
		return verbs.Errorf(op, verbs.ErrInvalid, "%d bytes of private data; the device carries %d", len(p.PrivateData), maxPrivateData)
	}
	if p.RNRRetry > verbs.MaxRNRRetry || p.RetryCount > 7 {
		return verbs.Errorf(op, verbs.ErrInvalid, "retry counts %d and %d; both go to 7", p.RetryCount, p.RNRRetry)
	}
	return nil
}

// answer settles the request once. The caller holds the device's mutex.
func (r *request) answer(c *conn, err error) {
	if !r.done {
		r.done, r.conn, r.err = true, c, err
		close(r.answered)
	}
}

func (r *request) LocalAddr() netip.AddrPort { return r.to }
func (r *request) RemoteAddr() netip.AddrPort {
	a := r.from.addr(r.to.Addr())
	if own := r.param.Source; own.IsValid() {
		a = netip.AddrPortFrom(own.Addr(), or(own.Port(), a.Port()))
	}
	return a
}

// or returns port, or def if port is 0.
func or(port, def uint16) uint16 {
	if port == 0 {
		return def
	}
	return port
}

// addr names a dialling queue pair: a host of the dialled address's family and its number as port.
func (q *qp) addr(like netip.Addr) netip.AddrPort {
	host := netip.IPv6Loopback()
	if like.Is4() {
		host = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.AddrPortFrom(host, uint16(q.num))
}

func (r *request) Param() verbs.ConnParam {
	p := r.param
	p.PrivateData = slices.Clone(p.PrivateData)
	return p
}

// Accept connects the two queue pairs.
func (r *request) Accept(ctx context.Context, dq verbs.QPDriver, p verbs.ConnParam) (verbs.ConnDriver, error) {
	q, ok := dq.(*qp)
	if !ok {
		return nil, verbs.Errorf("accept", verbs.ErrInvalid, "a queue pair of another device")
	}
	if err := checkParam("accept", p); err != nil {
		return nil, err
	}
	d := r.lis.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := q.connectable("accept"); err != nil {
		return nil, err
	}
	if r.done || r.from.connectable("accept") != nil {
		r.answer(nil, refused(r.to))
		return nil, verbs.Errorf("accept", verbs.ErrDisconnected, "the peer has gone")
	}
	active := &conn{qp: r.from, local: r.RemoteAddr(), remote: r.to, param: joined(r.param, p), done: make(chan struct{})}
	passive := &conn{qp: q, local: r.to, remote: r.RemoteAddr(), param: joined(p, r.param), done: make(chan struct{})}
	active.other, passive.other = passive, active
	active.start(q, r.param)
	passive.start(r.from, p)
	r.answer(active, nil)
	return passive, nil
}

// joined returns the parameters in force for a side that asked for own.
func joined(own, peer verbs.ConnParam) verbs.ConnParam {
	own.PrivateData = slices.Clone(peer.PrivateData)
	own.InitiatorDepth, own.ResponderResources = maxRead, maxRead
	return own
}

// start moves the side's queue pair to RTS.
func (c *conn) start(peer *qp, asked verbs.ConnParam) {
	q := c.qp
	q.peer, q.conn, q.state = peer, c, verbs.StateRTS
	switch {
	case asked.RNRRetry < 0:
		q.attr.RNRRetry = 0
	case asked.RNRRetry > 0:
		q.attr.RNRRetry = uint8(asked.RNRRetry)
	}
}

// Reject refuses the request.
func (r *request) Reject(privateData []byte) error {
	if len(privateData) > maxPrivateData {
		return verbs.Errorf("reject", verbs.ErrInvalid, "%d bytes of private data; the device carries %d", len(privateData), maxPrivateData)
	}
	r.lis.dev.mu.Lock()
	defer r.lis.dev.mu.Unlock()
	if r.done {
		return verbs.Errorf("reject", verbs.ErrDisconnected, "the peer has gone")
	}
	r.answer(nil, &verbs.RejectedError{PrivateData: slices.Clone(privateData)})
	return nil
}

func (c *conn) LocalAddr() netip.AddrPort  { return c.local }
func (c *conn) RemoteAddr() netip.AddrPort { return c.remote }
func (c *conn) Param() verbs.ConnParam     { return c.param }
func (c *conn) Done() <-chan struct{}      { return c.done }

// Err returns why the connection ended.
func (c *conn) Err() error {
	c.qp.pd.dev.mu.Lock()
	defer c.qp.pd.dev.mu.Unlock()
	return c.err
}

// end closes both views. The caller holds mu.
func (c *conn) end(cause error) {
	for _, side := range []*conn{c, c.other} {
		if side.err != nil {
			continue
		}
		side.err = cause
		if side != c && errors.Is(cause, verbs.ErrDisconnected) {
			side.err = verbs.Errorf("connection", verbs.ErrDisconnected, "the peer ended it")
		}
		close(side.done)
	}
}

// Disconnect ends the connection. Everything posted has been carried out, or waits
// for a receive that the peer did not post.
func (c *conn) Disconnect(ctx context.Context) error {
	c.qp.pd.dev.mu.Lock()
	defer c.qp.pd.dev.mu.Unlock()
	c.qp.fail(verbs.Errorf("connection", verbs.ErrDisconnected, "we ended it"))
	return nil
}
