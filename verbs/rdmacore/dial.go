//go:build linux

package rdmacore

import (
	"context"
	"net/netip"
	"time"

	"cinnabar/verbs"
	"cinnabar/verbs/rdmacm"
)

const (
	resolveTime  = 2000 // milliseconds for ARP and for the route
	defaultDepth = 16   // outstanding reads and atomics that are asked for if the program does not say
	defaultRetry = 7
	// maxMPAData is the private data in bytes that iWARP's connection managers carry:
	// siw counts the 4 bytes of RFC 6581's IRD and ORD with it, in 8 bits (siw_send_mpareqrep).
	maxMPAData = 251
)

// Dial implements verbs.DeviceDriver.
func (d *device) Dial(ctx context.Context, dq verbs.QPDriver, addr netip.AddrPort, p verbs.ConnParam) (verbs.ConnDriver, error) {
	const op = "connect"
	q, ok := dq.(*qp)
	if !ok || q.pd.dev != d {
		return nil, verbs.Errorf(op, verbs.ErrInvalid, "the queue pair belongs to another device")
	}
	if err := d.usable(op); err != nil {
		return nil, err
	}
	ctx, cancel := within(ctx, p.Timeout)
	defer cancel()
	if err := q.begin(op); err != nil {
		return nil, err
	}
	c, err := d.dial(ctx, q, addr, p)
	q.finish(c)
	if err != nil {
		return nil, err
	}
	c.start()
	return c, nil
}

// within limits the time for an answer; 0 leaves it to the connection manager.
func within(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if limit <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, limit)
}

func (d *device) dial(ctx context.Context, q *qp, addr netip.AddrPort, p verbs.ConnParam) (*conn, error) {
	const op = "connect"
	id, err := d.cm.newID(op, nil)
	if err != nil {
		return nil, err
	}
	c, err := id.dial(ctx, q, addr, p)
	if err != nil {
		id.abandon(ctx, q)
		return nil, d.withTrouble(err)
	}
	return c, nil
}

// abandon gives up an attempt that has failed. On iWARP the kernel blocks a
// destroy before the peer's answer until that comes, 10 s with siw
// (iw_destroy_cm_id), and keeps the queue pair with it: then it happens in the
// background, and the queue pair cannot be used again.
func (id *cmID) abandon(ctx context.Context, q *qp) {
	if ctx.Err() == nil || !id.cm.dev.iwarp() {
		id.destroy()
		return
	}
	q.giveUp()
	id.cm.wg.Go(id.destroy)
}

// dial goes through the steps of rdma_cm(7) for the active side.
func (id *cmID) dial(ctx context.Context, q *qp, addr netip.AddrPort, p verbs.ConnParam) (*conn, error) {
	const op = "connect"
	id.peer = addr.String() + ": "
	if err := id.setOptions(op, p); err != nil {
		return nil, err
	}
	if err := cmResolveAddr(id.h, p.Source, addr, resolveTime); err != nil {
		e := &verbs.Error{Op: op, Err: err, Detail: "resolve " + addr.String() + ": no RDMA device reaches the address"}
		if p.Source.IsValid() {
			e.Detail = "resolve " + addr.String() + " from " + p.Source.String() + ": the source address is in use, or no RDMA device with that source address reaches the destination"
		}
		return nil, e
	}
	if _, err := id.wait(ctx, op, rdmacm.EventAddrResolved); err != nil {
		return nil, err
	}
	if err := id.checkDevice(op, addr); err != nil {
		return nil, err
	}
	if err := cmResolveRoute(id.h, resolveTime); err != nil {
		e := &verbs.Error{Op: op, Err: err, Detail: "resolve the route to " + addr.String()}
		if addr.Addr().IsLoopback() {
			e.Detail += ": " + noDeviceAt
		}
		return nil, e
	}
	if _, err := id.wait(ctx, op, rdmacm.EventRouteResolved); err != nil {
		return nil, err
	}
	if err := q.step(id.h, verbs.StateInit, 0, 0); err != nil {
		return nil, err
	}
	ask := q.ask(p)
	if err := cmConnect(id.h, ask); err != nil {
		return nil, id.refused(op, err)
	}
	ev, err := id.wait(ctx, op, rdmacm.EventConnectResponse, rdmacm.EventEstablished)
	if err != nil {
		return nil, err
	}
	granted := ev.param
	granted.responder, granted.depth = min(ask.responder, granted.responder), min(ask.depth, granted.depth)
	if ev.typ == rdmacm.EventConnectResponse { // not on iWARP, where the kernel does this
		if err := q.toRTS(id.h, granted); err != nil {
			return nil, err
		}
		if err := cmEstablish(id.h); err != nil {
			q.giveUp()
			return nil, &verbs.Error{Op: op, Err: err}
		}
	} else {
		granted.responder, granted.depth = ask.responder, ask.depth
	}
	return newConn(id, q, granted), nil
}

// setOptions sets the options of the identifier that p asks for.
func (id *cmID) setOptions(op string, p verbs.ConnParam) error {
	reuse := 0
	if p.ReuseSource {
		reuse = 1
	}
	for _, o := range []struct {
		option cmOption
		name   string
		value  int
	}{
		{cmTypeOfService, "type of service", int(p.TypeOfService)},
		{cmAckTimeout, "acknowledge timeout", int(p.AckTimeout)},
		{cmReuseAddr, "reuse of the source address", reuse},
	} {
		if o.value == 0 {
			continue
		}
		if err := cmSetOption(id.h, o.option, o.value); err != nil {
			return &verbs.Error{Op: op, Err: err, Detail: "set the " + o.name}
		}
	}
	return nil
}

// ask translates a program's wishes.
func (q *qp) ask(p verbs.ConnParam) cmParam {
	a := &q.pd.dev.attr
	return cmParam{
		data: p.PrivateData, qpn: q.num, srq: q.srq != nil,
		responder: orDefault(p.ResponderResources, min(defaultDepth, a.MaxQPRDAtom), a.MaxQPRDAtom),
		depth:     orDefault(p.InitiatorDepth, min(defaultDepth, a.MaxQPInitRDAtom), a.MaxQPInitRDAtom),
		retry:     orDefault(p.RetryCount, defaultRetry, defaultRetry),
		rnrRetry:  orDefault(p.RNRRetry, verbs.MaxRNRRetry, verbs.MaxRNRRetry),
	}
}

// orDefault resolves a wish: 0 means def, a negative one 0.
func orDefault(v, def, limit int) uint8 {
	switch {
	case v < 0:
		return 0
	case v == 0:
		return uint8(def)
	}
	return uint8(min(v, limit))
}

// toRTS connects the queue pair as the two connection managers have agreed.
func (q *qp) toRTS(id cmHandle, p cmParam) error {
	for _, s := range []verbs.QPState{verbs.StateInit, verbs.StateRTR, verbs.StateRTS} {
		if err := q.step(id, s, p.responder, p.depth); err != nil {
			q.giveUp()
			return err
		}
	}
	return nil
}

// giveUp leaves a queue pair in ERR after its connection failed on the way to RTS.
func (q *qp) giveUp() {
	q.mu.Lock()
	defer q.mu.Unlock()
	attr := verbs.QPAttr{Mask: verbs.AttrState, State: verbs.StateErr}
	_ = modifyQP(q.h, &attr, 0) // it refuses only when the device is gone
	q.state.Store(uint32(verbs.StateErr))
}
