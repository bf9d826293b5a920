package verbs

import (
	"context"
	"net/netip"
	"time"

	"cinnabar/identity"
)

// ConnParam are the parameters of one side of a connection (struct
// rdma_conn_param). The zero value asks for the device's defaults.
type ConnParam struct {
	PrivateData        []byte        // sent to the peer; DeviceAttr.MaxPrivateData limits its size
	ResponderResources int           // inbound reads and atomics (IRD); 0: device's default, negative: none
	InitiatorDepth     int           // outbound reads and atomics (ORD); 0: device's default, negative: none
	RetryCount         int           // 0: device's default, negative: none, at most 7
	RNRRetry           int           // 0: 7, which waits for ever; negative: none; 1..6
	Timeout            time.Duration // how long the peer may take to answer; 0: device's default

	// Source is the address, and the port, that [Dial] connects from (the src_addr of rdma_resolve_addr); port 0 picks a free one, and the
	// zero value leaves the choice of both to the system's routes. Accept refuses a Source, because the dial of the peer has fixed the local address.
	Source netip.AddrPort
	// ReuseSource lets several connections, to different peers, have the port of Source (RDMA_OPTION_ID_REUSEADDR). Each of them must set it.
	ReuseSource bool
	// TypeOfService is the octet of the type of service in the IPv4 headers, or of the traffic class in the IPv6 headers, of the packets
	// of the connection (RDMA_OPTION_ID_TOS): the DSCP in the upper six bits. 0 is the system's default. Over TCP the system itself sets the lower two
	// bits, which are those of congestion notification. Devices without [CapTypeOfService] refuse other values than 0. On InfiniBand and RoCE the side
	// that dials chooses it for both directions, so Accept refuses it there; on the software device each side chooses for the packets that it sends.
	TypeOfService uint8
	// AckTimeout is an exponent: the queue pair waits 4.096 µs × 2^AckTimeout for an acknowledgement before it sends again
	// (RDMA_OPTION_ID_ACK_TIMEOUT). The range is 1 to 31, and 0 is the device's default. Devices without [CapAckTimeout] refuse other values than 0.
	AckTimeout uint8
}

// Check refuses parameters over the limits of a device with these attributes. The error matches [ErrInvalid] and names
// op, the parameter and the limit; for a parameter that the device does not have it matches [errors.ErrUnsupported] and names the parameter
// and the device. [Dial] checks its parameters itself; a program calls Check to learn the error before it connects.
func (p *ConnParam) Check(op string, attr *DeviceAttr) error {
	if len(p.PrivateData) > attr.MaxPrivateData {
		return Errorf(op, ErrInvalid, "%d bytes of private data are over the device's limit of %d (DeviceAttr.MaxPrivateData)", len(p.PrivateData), attr.MaxPrivateData)
	}
	if p.RetryCount > maxRetryCount {
		return Errorf(op, ErrInvalid, "RetryCount is %d, the most is %d", p.RetryCount, maxRetryCount)
	}
	if p.RNRRetry > MaxRNRRetry {
		return Errorf(op, ErrInvalid, "RNRRetry is %d, the most is %d", p.RNRRetry, MaxRNRRetry)
	}
	if p.AckTimeout > maxAckTimeout {
		return Errorf(op, ErrInvalid, "AckTimeout is %d, the most is %d", p.AckTimeout, maxAckTimeout)
	}
	if p.TypeOfService != 0 && !attr.Caps.Has(CapTypeOfService) {
		return Unsupported(op, "ConnParam.TypeOfService: device %s does not set the type of service of a connection", attr.Name)
	}
	if p.AckTimeout != 0 && !attr.Caps.Has(CapAckTimeout) {
		return Unsupported(op, "ConnParam.AckTimeout: device %s does not set the acknowledge timeout of a connection", attr.Name)
	}
	if p.ReuseSource && p.Source.Port() == 0 {
		return Errorf(op, ErrInvalid, "ReuseSource is set, but Source has no port to share")
	}
	// A limit of 0 means that the device states none.
	if limit := attr.MaxQPRDAtom; limit > 0 && p.ResponderResources > limit {
		return Errorf(op, ErrInvalid, "ResponderResources is %d, over the device's limit of %d (DeviceAttr.MaxQPRDAtom)", p.ResponderResources, limit)
	}
	if limit := attr.MaxQPInitRDAtom; limit > 0 && p.InitiatorDepth > limit {
		return Errorf(op, ErrInvalid, "InitiatorDepth is %d, over the device's limit of %d (DeviceAttr.MaxQPInitRDAtom)", p.InitiatorDepth, limit)
	}
	return nil
}

// CheckAccept is Check for the side that accepts, whose parameters have no Source.
func (p *ConnParam) CheckAccept(op string, attr *DeviceAttr) error {
	if p.Source.IsValid() || p.ReuseSource {
		return Errorf(op, ErrInvalid, "ConnParam.Source and ConnParam.ReuseSource are for Dial only: the dial of the peer has fixed the address of this side")
	}
	return p.Check(op, attr)
}

// maxRetryCount is the most that the 3 bits of a retry count hold.
const maxRetryCount = 7

// maxAckTimeout is the largest exponent that the 5 bits of an acknowledge timeout hold.
const maxAckTimeout = 31

// MaxRNRRetry is the RNR retry count that means for ever.
const MaxRNRRetry = 7

// Dial connects qp to the listener at addr and moves it to RTS. Receives may be
// posted before. It fails with a [*RejectedError] when the peer refuses, and with
// the context's error when ctx ends first. Private data over the device's limit
// is refused.
func Dial(ctx context.Context, qp *QP, addr netip.AddrPort, p ConnParam) (*Conn, error) {
	const op = "connect"
	if err := checkQP(op, qp); err != nil {
		return nil, err
	}
	if err := checkParam(op, qp.pd.dev, p.Check); err != nil {
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
		return Errorf(op, ErrInvalid, "the queue pair is nil; create it before")
	}
	return nil
}

// checkParam refuses parameters by check, which is [ConnParam.Check] or [ConnParam.CheckAccept].
func checkParam(op string, dev *Device, check func(op string, attr *DeviceAttr) error) error {
	attr, err := dev.limits()
	if err != nil {
		return err
	}
	return check(op, attr)
}

// Conn is an established connection of a queue pair. All methods are safe for
// concurrent use.
type Conn struct {
	drv ConnDriver
	qp  *QP
}

// QP returns the queue pair that is connected.
func (c *Conn) QP() *QP { return c.qp }

// LocalAddr returns the address of this side.
func (c *Conn) LocalAddr() netip.AddrPort { return c.drv.LocalAddr() }

// RemoteAddr returns the address of the peer.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.drv.RemoteAddr() }

// Identity returns the facts that are proven about the peer: on the software device with TLS the verified certificate, and with a token that the peer has
// proven it; on other devices the address.
func (c *Conn) Identity() identity.Peer { return IdentityOf(c.drv) }

// Param returns the parameters in force, with the peer's private data.
func (c *Conn) Param() ConnParam { return c.drv.Param() }

// PrivateData returns the data that the peer sent when it asked for or accepted the
// connection. Some transports pad it with zeros. The caller may not change it.
func (c *Conn) PrivateData() []byte { return c.drv.Param().PrivateData }

// Disconnect ends the connection in order: work that was posted before is sent, then
// the queue pairs of both sides go to ERR and flush. It returns when that is done
// here, or when ctx ends. The queue pair stays, to be closed.
func (c *Conn) Disconnect(ctx context.Context) error { return c.drv.Disconnect(ctx) }

// Done returns a channel that is closed when the connection is over, for any reason.
func (c *Conn) Done() <-chan struct{} { return c.drv.Done() }

// Err returns the reason why the connection is over: [ErrDisconnected] for an orderly end, nil
// before Done.
func (c *Conn) Err() error { return c.drv.Err() }
