package verbs

import (
	"context"
	"net/netip"
	"sync/atomic"

	"cinnabar/identity"
)

// Listen takes connection requests at addr; port 0 picks a free one, an
// unspecified IPv6 address takes both families.
func Listen(dev *Device, addr netip.AddrPort) (*Listener, error) {
	return ListenConfig{}.Listen(dev, addr)
}

// ListenConfig are the options of a listener.
type ListenConfig struct {
	Backlog  int  // requests that may wait for Accept; 0: the device's default
	OnlyIPv6 bool // an unspecified IPv6 address does not take IPv4 too (RDMA_OPTION_ID_AFONLY)
}

// Listen takes connection requests at addr.
func (cfg ListenConfig) Listen(dev *Device, addr netip.AddrPort) (*Listener, error) {
	const op = "listen"
	if cfg.Backlog < 0 {
		return nil, Errorf(op, ErrInvalid, "Backlog is %d, the least is 0", cfg.Backlog)
	}
	if cfg.OnlyIPv6 && !addr.Addr().Is6() {
		return nil, Errorf(op, ErrInvalid, "OnlyIPv6 is set for %v, which is no IPv6 address", addr)
	}
	if err := dev.addDependent(childListener, op, "device"); err != nil {
		return nil, err
	}
	l, err := dev.drv.Listen(addr, cfg)
	if err != nil {
		dev.removeDependent(childListener)
		return nil, err
	}
	return &Listener{dev: dev, drv: l}, nil
}

// Listener takes connection requests. All methods are safe for concurrent use.
type Listener struct {
	dev *Device
	drv ListenerDriver
	dependents
}

// Device returns the device of the listener.
func (l *Listener) Device() *Device { return l.dev }

// Addr returns the address that peers dial, with the port that was picked.
func (l *Listener) Addr() netip.AddrPort { return l.drv.Addr() }

// Accept returns the oldest request, waiting for one until ctx ends or the
// listener is closed ([ErrClosed]). Every request is to be answered.
func (l *Listener) Accept(ctx context.Context) (*ConnRequest, error) {
	r, err := l.drv.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return &ConnRequest{dev: l.dev, drv: r}, nil
}

// Close ends listening and refuses the requests that wait. Connections that were
// accepted go on. A second Close does nothing.
func (l *Listener) Close() error {
	return l.closeUnlessBusy("close listener", func() error {
		if err := l.drv.Close(); err != nil {
			return err
		}
		l.dev.removeDependent(childListener)
		return nil
	})
}

// ConnRequest is a connection request of a peer. It is answered once, by Accept or
// Reject; the peer waits meanwhile. All methods are safe for concurrent use.
type ConnRequest struct {
	dev      *Device
	drv      ConnRequestDriver
	answered atomic.Bool
}

// LocalAddr returns the address that the peer dialled.
func (r *ConnRequest) LocalAddr() netip.AddrPort { return r.drv.LocalAddr() }

// RemoteAddr returns the address of the peer.
func (r *ConnRequest) RemoteAddr() netip.AddrPort { return r.drv.RemoteAddr() }

// Identity returns the facts that are proven about the peer, as [Conn.Identity] does, so that a program can reject it.
func (r *ConnRequest) Identity() identity.Peer { return IdentityOf(r.drv) }

// Param returns the parameters that the peer asked for.
func (r *ConnRequest) Param() ConnParam { return r.drv.Param() }

// PrivateData returns the data that the peer sent. Some transports pad it with zeros.
// It is input from the network.
func (r *ConnRequest) PrivateData() []byte { return r.drv.Param().PrivateData }

// Accept connects qp, which may have receives posted already, and returns when the
// connection is established. Private data over the device's limit is refused, and
// the request can then still be answered.
func (r *ConnRequest) Accept(ctx context.Context, qp *QP, p ConnParam) (*Conn, error) {
	const op = "accept connection"
	if err := checkQP(op, qp); err != nil {
		return nil, err
	}
	if qp.pd.dev != r.dev {
		return nil, Errorf(op, ErrInvalid, "the queue pair belongs to another device than the request")
	}
	if err := checkParam(op, r.dev, p.CheckAccept); err != nil {
		return nil, err
	}
	if err := r.answer(op); err != nil {
		return nil, err
	}
	c, err := r.drv.Accept(ctx, qp.drv, p)
	if err != nil {
		return nil, err
	}
	return &Conn{drv: c, qp: qp}, nil
}

// Reject refuses the connection and hands privateData to the peer, which sees
// it in a [*RejectedError].
func (r *ConnRequest) Reject(privateData []byte) error {
	const op = "reject connection"
	if err := checkParam(op, r.dev, (&ConnParam{PrivateData: privateData}).CheckAccept); err != nil {
		return err
	}
	if err := r.answer(op); err != nil {
		return err
	}
	return r.drv.Reject(privateData)
}

// answer lets one answer through.
func (r *ConnRequest) answer(op string) error {
	if r.answered.Swap(true) {
		return Errorf(op, ErrInvalid, "the request was answered before")
	}
	return nil
}
