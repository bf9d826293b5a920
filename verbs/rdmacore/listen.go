//go:build linux

package rdmacore

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"syscall"

	"cinnabar/verbs"
	"cinnabar/verbs/rdmacm"
)

const (
	defaultBacklog = 128
	maxBacklog     = 4096
)

// listener takes connection requests.
type listener struct {
	dev   *device
	ids   []*cmID // one, or one for each family
	addr  netip.AddrPort
	queue chan *connRequest
	done  chan struct{} // closed by Close

	mu sync.Mutex
	// +checklocks:mu
	closed bool
}

// Listen implements verbs.DeviceDriver.
func (d *device) Listen(addr netip.AddrPort, cfg verbs.ListenConfig) (verbs.ListenerDriver, error) {
	const op = "listen"
	if err := d.usable(op); err != nil {
		return nil, err
	}
	backlog := cfg.Backlog
	if backlog <= 0 {
		backlog = defaultBacklog
	}
	backlog = min(backlog, maxBacklog)
	l := &listener{dev: d, queue: make(chan *connRequest, backlog), done: make(chan struct{})}
	if err := l.listen(addr, backlog, cfg.OnlyIPv6); err != nil {
		l.end()
		return nil, err
	}
	d.listeners.Add(1)
	return l, nil
}

// listen begins to listen. A listener on :: takes IPv4 too, unless onlyIPv6 is set; on iWARP that needs
// an identifier of its own: iw_conn_req_handler of the kernel's rdma_cm finds no
// device for an IPv4 address that is mapped into IPv6.
func (l *listener) listen(addr netip.AddrPort, backlog int, onlyIPv6 bool) error {
	both := l.dev.iwarp() && !onlyIPv6 && addr.Addr().Unmap() == netip.IPv6Unspecified()
	if err := l.bind(addr, backlog, both || onlyIPv6); err != nil {
		return err
	}
	local, _ := cmAddrs(l.ids[0].h)
	l.addr = netip.AddrPortFrom(addr.Addr(), local.Port())
	if both {
		return l.bind(netip.AddrPortFrom(netip.IPv4Unspecified(), local.Port()), backlog, false)
	}
	return nil
}

// bind adds an identifier that listens on addr to l.ids.
func (l *listener) bind(addr netip.AddrPort, backlog int, onlyIPv6 bool) error {
	const op = "listen"
	id, err := l.dev.cm.newID(op, l)
	if err != nil {
		return err
	}
	l.ids = append(l.ids, id)
	if onlyIPv6 {
		if err := cmSetOption(id.h, cmOnlyIPv6, 1); err != nil {
			return &verbs.Error{Op: op, Err: err, Detail: addr.String()}
		}
	}
	if err := cmBind(id.h, addr); err != nil {
		e := &verbs.Error{Op: op, Err: err, Detail: addr.String()}
		if errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.EADDRNOTAVAIL) {
			e.Detail += ": " + noDeviceAt
		}
		return e
	}
	if !addr.Addr().IsUnspecified() {
		if err := id.checkDevice(op, addr); err != nil {
			return err
		}
	}
	if err := cmListen(id.h, backlog); err != nil {
		return &verbs.Error{Op: op, Err: err, Detail: addr.String()}
	}
	return nil
}

// request queues r, which the reader of events has read, for Accept. It refuses r if the listener is closed, the queue is full, or r came
// to another device.
func (l *listener) request(r *connRequest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed && cmDevice(r.id.h) == l.dev.name {
		select {
		case l.queue <- r:
			return
		default: // more than the backlog wait
		}
	}
	r.id.destroy()
}

func (l *listener) Addr() netip.AddrPort { return l.addr }

// Accept implements verbs.ListenerDriver.
func (l *listener) Accept(ctx context.Context) (verbs.ConnRequestDriver, error) {
	select {
	case <-l.done:
		return nil, l.closedErr()
	default:
	}
	select {
	case r := <-l.queue:
		return r, nil
	case <-l.done:
		return nil, l.closedErr()
	case <-l.dev.removal.gone:
		return nil, l.dev.removedErr("accept")
	case <-l.dev.cm.deaf:
		return nil, l.dev.cm.commandError("accept", l.dev.cm.failed)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (l *listener) closedErr() error {
	return verbs.Errorf("accept", verbs.ErrClosed, "the listener is closed")
}

// Close implements verbs.ListenerDriver.
func (l *listener) Close() error {
	if l.end() {
		l.dev.listeners.Add(-1)
	}
	return nil
}

// end stops listening, refuses the requests in the queue, and returns true. Further calls do nothing and return false.
func (l *listener) end() bool {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return false
	}
	l.closed = true
	close(l.done)
	l.mu.Unlock()
	for _, id := range l.ids {
		id.destroy()
	}
	for {
		select {
		case r := <-l.queue:
			r.id.destroy()
		default:
			return true
		}
	}
}

// connRequest is a peer's connection request.
type connRequest struct {
	id            *cmID
	local, remote netip.AddrPort
	param         cmParam
}

func (r *connRequest) LocalAddr() netip.AddrPort  { return r.local }
func (r *connRequest) RemoteAddr() netip.AddrPort { return r.remote }

// Param returns the parameters that the peer asks for, from this side's view: a
// program that passes them to Accept grants them.
func (r *connRequest) Param() verbs.ConnParam { return asParam(r.param) }

// asParam returns p as a ConnParam, in which -1 stands for none, because the wire
// has 0 for it.
func asParam(p cmParam) verbs.ConnParam {
	none := func(v uint8) int {
		if v == 0 {
			return -1
		}
		return int(v)
	}
	return verbs.ConnParam{
		PrivateData: p.data, ResponderResources: none(p.responder), InitiatorDepth: none(p.depth),
		RetryCount: none(p.retry), RNRRetry: none(p.rnrRetry),
	}
}

// Accept implements verbs.ConnRequestDriver.
func (r *connRequest) Accept(ctx context.Context, dq verbs.QPDriver, p verbs.ConnParam) (verbs.ConnDriver, error) {
	const op = "accept connection"
	q, ok := dq.(*qp)
	if !ok || q.pd.dev != r.id.cm.dev {
		return nil, verbs.Errorf(op, verbs.ErrInvalid, "the queue pair belongs to another device")
	}
	if p.TypeOfService != 0 {
		return nil, verbs.Unsupported(op, "ConnParam.TypeOfService: on device %s the side that dials chooses the type of service for both directions", q.pd.dev.name)
	}
	ctx, cancel := within(ctx, p.Timeout)
	defer cancel()
	if err := q.begin(op); err != nil {
		r.id.destroy()
		return nil, err
	}
	c, err := r.accept(ctx, q, p)
	q.finish(c)
	if err != nil {
		r.id.destroy()
		return nil, err
	}
	c.start()
	return c, nil
}

func (r *connRequest) accept(ctx context.Context, q *qp, p verbs.ConnParam) (*conn, error) {
	const op = "accept connection"
	if err := r.id.setOptions(op, p); err != nil {
		return nil, err
	}
	answer := q.ask(p)
	answer.responder, answer.depth = min(answer.responder, r.param.responder), min(answer.depth, r.param.depth)
	if q.pd.dev.iwarp() {
		if err := q.step(r.id.h, verbs.StateInit, 0, 0); err != nil {
			return nil, err
		}
	} else if err := q.toRTS(r.id.h, answer); err != nil {
		return nil, err
	}
	if err := cmAccept(r.id.h, answer); err != nil {
		q.giveUp()
		return nil, &verbs.Error{Op: op, Err: err}
	}
	if _, err := r.id.wait(ctx, op, rdmacm.EventEstablished); err != nil {
		q.giveUp()
		return nil, err
	}
	in := answer
	in.data = r.param.data
	return newConn(r.id, q, in), nil
}

// Reject implements verbs.ConnRequestDriver.
func (r *connRequest) Reject(privateData []byte) error { return r.id.reject(privateData) }
