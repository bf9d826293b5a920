package rdmacm

import (
	"context"
	"errors"
	"net/netip"

	"cinnabar/verbs"
)

// EndpointConfig describes an [Endpoint].
type EndpointConfig struct {
	PD    *verbs.PD       // nil: the endpoint makes one
	QP    verbs.QPConfig  // SendCQ and RecvCQ nil: the endpoint makes two completion queues
	Param verbs.ConnParam // for DialEndpoint
}

// Endpoint is a queue pair with all that it needs, for synchronous programs of a
// few lines: rdma_create_ep and the rdma_verbs.h calls that go with it. All
// methods are safe for concurrent use, except that Connect or Accept is called
// once, before the methods that need the connection.
//
//	ep, err := rdmacm.NewEndpoint(dev, rdmacm.EndpointConfig{})
//	mr, err := ep.RegMsgs(buf)
//	err = ep.PostRecv(0, mr, 0, 16)
//	err = ep.Connect(ctx, addr, verbs.ConnParam{})
//	err = ep.PostSend(0, mr, 16, 16, 0)
//	_, err = ep.SendComp(ctx)
//	wc, err := ep.RecvComp(ctx)
type Endpoint struct {
	dev            *verbs.Device
	pd             *verbs.PD
	sendCQ, recvCQ *verbs.CQ
	qp             *verbs.QP
	ownPD, ownCQs  bool

	req  *verbs.ConnRequest // from GetRequest
	conn *verbs.Conn
}

// NewEndpoint makes an endpoint that is not connected (rdma_create_ep for the
// active side). Receives can be posted at once.
func NewEndpoint(dev *verbs.Device, cfg EndpointConfig) (*Endpoint, error) {
	ep := &Endpoint{dev: dev, pd: cfg.PD, sendCQ: cfg.QP.SendCQ, recvCQ: cfg.QP.RecvCQ}
	if err := ep.build(cfg); err != nil {
		return nil, errors.Join(err, ep.Close())
	}
	return ep, nil
}

// build makes the queue pair, and the objects that the configuration lacks. After an
// error the caller calls Close, which releases them.
func (ep *Endpoint) build(cfg EndpointConfig) (err error) {
	if ep.pd == nil {
		ep.ownPD = true
		if ep.pd, err = ep.dev.AllocPD(); err != nil {
			return err
		}
	}
	if ep.sendCQ == nil && ep.recvCQ == nil {
		ep.ownCQs = true
		if err := ep.makeCQs(cfg); err != nil {
			return err
		}
	}
	if ep.recvCQ == nil {
		ep.recvCQ = ep.sendCQ
	}
	cfg.QP.SendCQ, cfg.QP.RecvCQ = ep.sendCQ, ep.recvCQ
	ep.qp, err = ep.pd.CreateQP(cfg.QP)
	return err
}

// makeCQs makes completion queues that cannot overrun.
func (ep *Endpoint) makeCQs(cfg EndpointConfig) error {
	attr, err := ep.dev.Query()
	if err != nil {
		return err
	}
	full := cfg.QP.WithDefaults(&attr)
	if cfg.QP.SRQ != nil {
		full.MaxRecvWR = cfg.QP.SRQ.Query().MaxWR
	}
	if ep.sendCQ, err = ep.dev.CreateCQ(max(full.MaxSendWR, 1)); err != nil {
		return err
	}
	ep.recvCQ, err = ep.dev.CreateCQ(max(full.MaxRecvWR, 1))
	return err
}

// Connect connects the endpoint to the listener at addr (rdma_connect).
func (ep *Endpoint) Connect(ctx context.Context, addr netip.AddrPort, p verbs.ConnParam) error {
	c, err := verbs.Dial(ctx, ep.qp, addr, p)
	if err != nil {
		return err
	}
	ep.conn = c
	return nil
}

// DialEndpoint makes an endpoint and connects it to hostport, "host:port",
// trying each of its addresses. Receives that must be there before the peer's
// first message are posted between [NewEndpoint] and [Endpoint.Connect] instead.
func DialEndpoint(ctx context.Context, dev *verbs.Device, hostport string, cfg EndpointConfig) (*Endpoint, error) {
	addrs, err := verbs.Resolve(ctx, hostport)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, addr := range addrs {
		ep, err := NewEndpoint(dev, cfg)
		if err != nil {
			return nil, err
		}
		if err = ep.Connect(ctx, addr, cfg.Param); err == nil {
			return ep, nil
		}
		errs = append(errs, err, ep.Close())
	}
	return nil, errors.Join(errs...)
}

// QP returns the queue pair, for work requests that Endpoint has no method for.
func (ep *Endpoint) QP() *verbs.QP { return ep.qp }

// PD returns the protection domain.
func (ep *Endpoint) PD() *verbs.PD { return ep.pd }

// Conn returns the connection, nil before Connect or Accept.
func (ep *Endpoint) Conn() *verbs.Conn { return ep.conn }

// Disconnect ends the connection in order (rdma_disconnect).
func (ep *Endpoint) Disconnect(ctx context.Context) error {
	if ep.conn == nil {
		return verbs.Errorf("disconnect", verbs.ErrInvalid, "the endpoint is not connected")
	}
	return ep.conn.Disconnect(ctx)
}

// Close releases the endpoint and the objects that it has made (rdma_destroy_ep), and
// rejects a request that was not answered. While memory regions of its own protection
// domain are open, Close fails with [verbs.ErrBusy]; call it again after closing them.
func (ep *Endpoint) Close() error {
	if ep.req != nil {
		_ = ep.req.Reject(nil) // answered before, or the peer may be gone: as good
	}
	if ep.qp != nil {
		if err := ep.qp.Close(); err != nil {
			return err
		}
	}
	if ep.ownCQs {
		for _, cq := range []*verbs.CQ{ep.sendCQ, ep.recvCQ} {
			if cq == nil {
				continue
			}
			if err := cq.Close(); err != nil {
				return err
			}
		}
	}
	if ep.ownPD && ep.pd != nil {
		return ep.pd.Close()
	}
	return nil
}

// EndpointListener makes an [Endpoint] of each connection request. All methods
// are safe for concurrent use.
type EndpointListener struct {
	l   *verbs.Listener
	cfg EndpointConfig
}

// ListenEndpoints takes connection requests at addr (rdma_create_ep for the
// passive side, and rdma_listen). Every endpoint is made after cfg.
func ListenEndpoints(dev *verbs.Device, addr netip.AddrPort, cfg EndpointConfig) (*EndpointListener, error) {
	l, err := verbs.Listen(dev, addr)
	if err != nil {
		return nil, err
	}
	return &EndpointListener{l: l, cfg: cfg}, nil
}

// Addr returns the address that peers dial.
func (l *EndpointListener) Addr() netip.AddrPort { return l.l.Addr() }

// GetRequest returns an endpoint for the oldest request, waiting for one
// (rdma_get_request). Receives can be posted before its Accept.
func (l *EndpointListener) GetRequest(ctx context.Context) (*Endpoint, error) {
	r, err := l.l.Accept(ctx)
	if err != nil {
		return nil, err
	}
	ep, err := NewEndpoint(l.l.Device(), l.cfg)
	if err != nil {
		return nil, errors.Join(err, r.Reject(nil))
	}
	ep.req = r
	return ep, nil
}

// Close ends listening. Endpoints go on.
func (l *EndpointListener) Close() error { return l.l.Close() }

// Request returns the request that the endpoint was made for, nil on the active side.
func (ep *Endpoint) Request() *verbs.ConnRequest { return ep.req }

// Accept establishes the connection that the peer asked for (rdma_accept). To
// refuse it, call Reject of [Endpoint.Request], then Close.
func (ep *Endpoint) Accept(ctx context.Context, p verbs.ConnParam) error {
	if ep.req == nil {
		return verbs.Errorf("accept connection", verbs.ErrInvalid, "the endpoint was not made by GetRequest")
	}
	c, err := ep.req.Accept(ctx, ep.qp, p)
	if err != nil {
		return err
	}
	ep.conn = c
	return nil
}
