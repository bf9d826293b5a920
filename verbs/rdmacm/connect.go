package rdmacm

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"cinnabar/identity"
	"cinnabar/verbs"
)

// defaultBacklog is the number of requests that may wait for Get and for an answer if
// the backlog of Listen is 0.
const defaultBacklog = 128

// ResolveAddr looks up hostport, "host:port", and picks an address that the
// device can reach (rdma_resolve_addr). The result is EventAddrResolved or EventAddrError.
// A timeout of 0 means no time limit.
func (id *ID) ResolveAddr(hostport string, timeout time.Duration) error {
	id.mu.Lock()
	defer id.mu.Unlock()
	if err := id.enterLocked("resolve address", idIdle, idResolvingAddr); err != nil {
		return err
	}
	id.spawnLocked(timeout, func(ctx context.Context) { id.resolveAddr(ctx, hostport) })
	return nil
}

func (id *ID) resolveAddr(ctx context.Context, hostport string) {
	addr, err := id.lookUp(ctx, hostport)
	if err != nil {
		id.leave(idIdle, &Event{Type: EventAddrError, Err: err})
		return
	}
	id.mu.Lock()
	id.peer = addr
	id.mu.Unlock()
	id.leave(idAddrResolved, &Event{Type: EventAddrResolved})
}

// lookUp returns the first address of a family that the device has.
func (id *ID) lookUp(ctx context.Context, hostport string) (netip.AddrPort, error) {
	addrs, err := id.resolve(ctx, hostport)
	if err != nil {
		return netip.AddrPort{}, err
	}
	attr, err := id.dev.Query()
	if err != nil {
		return netip.AddrPort{}, err
	}
	for _, a := range addrs {
		if reachable(&attr, a.Addr()) {
			return a, nil
		}
	}
	return netip.AddrPort{}, verbs.Errorf("resolve address", verbs.ErrInvalid, "device %s has no address of the family of %v", attr.Name, addrs)
}

// reachable reports whether the device has an address of a's family. A device
// that lists none is given the benefit of the doubt.
func reachable(attr *verbs.DeviceAttr, a netip.Addr) bool {
	listed := false
	for _, p := range attr.Ports {
		for _, own := range p.Addrs {
			if own.Unmap().Is4() == a.Unmap().Is4() {
				return true
			}
			listed = true
		}
	}
	return !listed
}

// ResolveRoute checks that a port of the device is active (rdma_resolve_route). It looks
// for no route, because IP networks choose it. The result is EventRouteResolved or
// EventRouteError. A timeout of 0 means no time limit.
func (id *ID) ResolveRoute(timeout time.Duration) error {
	id.mu.Lock()
	defer id.mu.Unlock()
	if err := id.enterLocked("resolve route", idAddrResolved, idResolvingRoute); err != nil {
		return err
	}
	id.spawnLocked(timeout, func(context.Context) {
		if err := id.checkRoute(); err != nil {
			id.leave(idAddrResolved, &Event{Type: EventRouteError, Err: err})
			return
		}
		id.leave(idRouteResolved, &Event{Type: EventRouteResolved})
	})
	return nil
}

func (id *ID) checkRoute() error {
	attr, err := id.dev.Query()
	if err != nil {
		return err
	}
	for _, p := range attr.Ports {
		if p.State == verbs.PortActive {
			return nil
		}
	}
	if len(attr.Ports) == 0 {
		return nil
	}
	return verbs.Errorf("resolve route", nil, "no port of device %s is active", attr.Name)
}

// Connect asks the peer for a connection of qp (rdma_connect). The result is
// EventEstablished, EventRejected, EventUnreachable or EventConnectError. After
// EventEstablished, EventDisconnected follows when the connection is over.
func (id *ID) Connect(qp *verbs.QP, p verbs.ConnParam) error {
	const op = "connect"
	if err := id.checkConnect(op, qp, p.Check); err != nil {
		return err
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	if err := id.enterLocked(op, idRouteResolved, idConnecting); err != nil {
		return err
	}
	peer := id.peer
	p.PrivateData = slices.Clone(p.PrivateData) // the caller's again when this returns
	id.spawnLocked(0, func(ctx context.Context) {
		c, err := verbs.Dial(ctx, qp, peer, p)
		if err != nil {
			id.leave(idRouteResolved, dialFailure(err))
			return
		}
		id.watch(ctx, c)
	})
	return nil
}

// checkConnect refuses, by check, parameters with which Dial or Accept would fail, before Connect or Accept begins.
func (id *ID) checkConnect(op string, qp *verbs.QP, check func(op string, attr *verbs.DeviceAttr) error) error {
	if qp == nil {
		return verbs.Errorf(op, verbs.ErrInvalid, "the queue pair is nil; create it before")
	}
	if qp.PD().Device() != id.dev {
		return verbs.Errorf(op, verbs.ErrInvalid, "the queue pair belongs to another device than the identifier")
	}
	attr, err := id.dev.Query()
	if err != nil {
		return err
	}
	return check(op, &attr)
}

// dialFailure sorts the failures of Dial in the manner of the kernel's rdma_cm
// over iWARP: a refusal by the peer's host counts as one by the peer.
func dialFailure(err error) *Event {
	e := &Event{Type: EventConnectError, Err: err}
	rejected, isRejected := errors.AsType[*verbs.RejectedError](err)
	netErr, isNet := errors.AsType[net.Error](err)
	switch {
	case isRejected:
		e.Type, e.Param.PrivateData = EventRejected, rejected.PrivateData
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		e.Type = EventRejected
	case isNet && netErr.Timeout(), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		e.Type = EventUnreachable
	}
	return e
}

// watch reports the beginning and the end of a connection.
func (id *ID) watch(ctx context.Context, c *verbs.Conn) {
	id.mu.Lock()
	id.conn = c
	id.mu.Unlock()
	id.leave(idConnected, &Event{Type: EventEstablished, Param: c.Param()})
	select {
	case <-c.Done():
	case <-ctx.Done():
		return
	}
	e := &Event{Type: EventDisconnected}
	if err := c.Err(); !errors.Is(err, verbs.ErrDisconnected) {
		e.Err = err
	}
	id.leave(idOver, e)
}

// Listen takes connection requests at addr (rdma_bind_addr and rdma_listen).
// Each comes as an EventConnectRequest with an identifier of its own. Backlog of cfg bounds
// the requests that no Get has taken; 0 is 128.
func (id *ID) Listen(addr netip.AddrPort, cfg verbs.ListenConfig) error {
	const op = "listen"
	id.mu.Lock()
	defer id.mu.Unlock()
	if err := id.enterLocked(op, idIdle, idListening); err != nil {
		return err
	}
	l, err := cfg.Listen(id.dev, addr)
	if err != nil {
		id.state = idIdle
		return err
	}
	backlog := cfg.Backlog
	if backlog == 0 {
		backlog = defaultBacklog
	}
	id.lis = l
	slots := make(chan struct{}, backlog)
	id.spawnLocked(0, func(ctx context.Context) { id.accept(ctx, l, slots) })
	return nil
}

// accept turns requests into events. It takes a request from the device only
// when there is a slot, which Get frees, so that peers cannot fill the queue.
func (id *ID) accept(ctx context.Context, l *verbs.Listener, slots chan struct{}) {
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		r, err := l.Accept(ctx)
		switch {
		case err == nil:
			id.request(r, slots)
		case ctx.Err() != nil:
			return
		case errors.Is(err, verbs.ErrClosed):
			id.leave(idOver, &Event{Type: EventDeviceRemoval, Err: err})
			return
		default:
			id.leave(idOver, &Event{Type: EventConnectError, Err: err})
			return
		}
	}
}

// request makes the identifier of a request and posts its event.
func (id *ID) request(r *verbs.ConnRequest, slots chan struct{}) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.closed {
		_ = r.Reject(nil) // the peer may be gone as well
		return
	}
	n, err := id.ch.NewID(id.dev)
	if err != nil { // the channel is closing, and the listener with it
		_ = r.Reject(nil)
		return
	}
	n.mu.Lock()
	n.state, n.req = idRequested, r
	n.mu.Unlock()
	id.postLocked(&Event{Type: EventConnectRequest, ID: n, Listener: id, Param: r.Param(), slot: slots})
}

// Accept establishes the connection that the peer asked for, with qp
// (rdma_accept). The result is EventEstablished or EventConnectError. After
// EventEstablished, EventDisconnected follows when the connection is over.
func (id *ID) Accept(qp *verbs.QP, p verbs.ConnParam) error {
	const op = "accept connection"
	if err := id.checkConnect(op, qp, p.CheckAccept); err != nil {
		return err
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	if err := id.enterLocked(op, idRequested, idConnecting); err != nil {
		return err
	}
	r := id.req
	p.PrivateData = slices.Clone(p.PrivateData) // the caller's again when this returns
	id.spawnLocked(0, func(ctx context.Context) {
		c, err := r.Accept(ctx, qp, p)
		if err != nil {
			id.leave(idOver, &Event{Type: EventConnectError, Err: err})
			return
		}
		id.watch(ctx, c)
	})
	return nil
}

// Reject refuses the request and hands privateData to the peer (rdma_reject).
// It makes no event.
func (id *ID) Reject(privateData []byte) error {
	const op = "reject connection"
	attr, err := id.dev.Query()
	if err != nil {
		return err
	}
	if err := (&verbs.ConnParam{PrivateData: privateData}).Check(op, &attr); err != nil {
		return err
	}
	id.mu.Lock()
	if err := id.enterLocked(op, idRequested, idOver); err != nil {
		id.mu.Unlock()
		return err
	}
	r := id.req
	id.mu.Unlock()
	return r.Reject(privateData)
}

// Disconnect ends the connection in order (rdma_disconnect). The result is
// EventDisconnected, as when the peer disconnects.
func (id *ID) Disconnect() error {
	id.mu.Lock()
	defer id.mu.Unlock()
	if err := id.enterLocked("disconnect", idConnected, idConnected); err != nil {
		return err
	}
	c := id.conn
	id.spawnLocked(0, func(ctx context.Context) {
		_ = c.Disconnect(ctx) // EventDisconnected has the error, which watch reads by Conn.Err
	})
	return nil
}

// LocalAddr returns the address of this side: of the listener, the request or
// the connection; the zero value before there is one (rdma_get_local_addr).
func (id *ID) LocalAddr() netip.AddrPort {
	id.mu.Lock()
	defer id.mu.Unlock()
	switch {
	case id.conn != nil:
		return id.conn.LocalAddr()
	case id.req != nil:
		return id.req.LocalAddr()
	case id.lis != nil:
		return id.lis.Addr()
	}
	return netip.AddrPort{}
}

// RemoteAddr returns the address of the peer: as resolved, of the request or of
// the connection; the zero value before there is one (rdma_get_peer_addr).
func (id *ID) RemoteAddr() netip.AddrPort {
	id.mu.Lock()
	defer id.mu.Unlock()
	switch {
	case id.conn != nil:
		return id.conn.RemoteAddr()
	case id.req != nil:
		return id.req.RemoteAddr()
	}
	return id.peer
}

// Identity returns the facts that are proven about the peer of the request or the connection, as [verbs.Conn.Identity] does; the zero Peer before there is
// one.
func (id *ID) Identity() identity.Peer {
	id.mu.Lock()
	defer id.mu.Unlock()
	switch {
	case id.conn != nil:
		return id.conn.Identity()
	case id.req != nil:
		return id.req.Identity()
	}
	return identity.Peer{}
}

// Conn returns the connection, nil before EventEstablished.
func (id *ID) Conn() *verbs.Conn {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.conn
}
