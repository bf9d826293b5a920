package verbs

import (
	"context"
	"net/netip"

	"cinnabar/verbs/driver"
)

// Dial connects qp to the listener at addr and moves it to RTS. Receives may be
// posted before. It fails with a [*RejectedError] when the peer refuses, and with
// the context's error when ctx ends first. Private data over the device's limit
// is refused.
func Dial(ctx context.Context, qp *QP, addr netip.AddrPort, p ConnParam) (*Conn, error) {
	const op = "connect"
	if err := checkQP(op, qp); err != nil {
		return nil, err
	}
	if err := checkParam(op, qp.pd.dev, &p); err != nil {
		return nil, err
	}
	c, err := qp.pd.dev.drv.Dial(ctx, qp.drv, addr, p)
	if err != nil {
		return nil, err
	}
	return &Conn{drv: c, qp: qp}, nil
}

// checkQP refuses a nil queue pair, which C programmers pass to mean another thing.
func checkQP(op string, qp *QP) error {
	if qp == nil {
		return errorf(op, ErrInvalid, "the queue pair is nil; create it before")
	}
	return nil
}

// checkParam refuses a request that the device cannot fulfil, with an error that names the limit.
func checkParam(op string, dev *Device, p *ConnParam) error {
	attr, err := dev.limits()
	if err != nil {
		return err
	}
	return p.Check(op, attr)
}

// Conn is an established connection of a queue pair. All methods are safe for
// concurrent use.
type Conn struct {
	drv driver.Conn
	qp  *QP
}

// QP returns the queue pair that is connected.
func (c *Conn) QP() *QP { return c.qp }

// LocalAddr returns the address of this side.
func (c *Conn) LocalAddr() netip.AddrPort { return c.drv.LocalAddr() }

// RemoteAddr returns the address of the peer.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.drv.RemoteAddr() }

// Param returns what is in force, with the peer's private data.
func (c *Conn) Param() ConnParam { return c.drv.Param() }

// PrivateData returns what the peer said when it asked for or accepted the
// connection. Some transports pad it with zeros. The caller may not change it.
func (c *Conn) PrivateData() []byte { return c.drv.Param().PrivateData }

// Disconnect ends the connection in order: what was posted before is sent, then
// the queue pairs of both sides go to ERR and flush. It returns when that is done
// here, or when ctx ends. The queue pair stays, to be closed.
func (c *Conn) Disconnect(ctx context.Context) error { return c.drv.Disconnect(ctx) }

// Done is closed when the connection is over, for whatever reason.
func (c *Conn) Done() <-chan struct{} { return c.drv.Done() }

// Err tells why the connection is over: [ErrDisconnected] for an orderly end, nil
// before Done.
func (c *Conn) Err() error { return c.drv.Err() }
