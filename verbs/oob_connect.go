package verbs

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"
)

// OOB connects queue pairs of two processes that have a plain socket between
// them, whatever the devices' transport. Queue pairs of devices with CapRawState
// are driven to RTS by hand with what the exchange says; the others listen on one
// side, tell the address in the exchange, and connect through the connection
// manager, which does RC only.
//
// A UD queue pair has no connection: it is driven to RTS too, and the peer's Info
// has what its datagrams need ([OOB.AHAttr], QPN and QKey).
type OOB struct {
	Active bool // exactly one of the two sides is; it dials, and must be the first to send

	Region   Region            // a region to tell the peer, if any
	Settings map[string]string // options that must be the same on both sides

	// Listen is where the passive side listens, on devices that connect through the
	// connection manager; zero: the socket's own address and a free port.
	Listen netip.AddrPort
	// Param are the wishes for the connection. Its private data is not used.
	Param ConnParam

	// What follows is for devices that are driven by hand.

	// Access is what the peer may do through a connected queue pair; 0: all that its
	// type has, as far as the regions permit.
	Access Access
	// MTU is the size of packets between connected queue pairs, the same on both
	// sides; 0: 1024 bytes.
	MTU MTU
	// QKey is the key of a UD queue pair; 0: the one that it has, or DefaultQKey.
	QKey uint32
	// Path says how packets leave: PortNum (0: 1), the own GID by its index, SL,
	// TrafficClass, HopLimit. The peer's GID and LID in it are not used: the
	// exchange tells them.
	Path AHAttr
}

// LocalInfo returns what identifies qp to a peer: its number, the first port's
// LID and GID, a random sequence number, and of a UD queue pair the key.
func LocalInfo(qp *QP) (Info, error) { return OOB{}.LocalInfo(qp) }

// LocalInfo is the function LocalInfo for the port, GID and key of o.
func (o OOB) LocalInfo(qp *QP) (Info, error) {
	if err := checkQP("connect out of band", qp); err != nil {
		return Info{}, err
	}
	attr, err := qp.pd.dev.Query()
	if err != nil {
		return Info{}, err
	}
	var psn [4]byte
	rand.Read(psn[:]) // never fails
	in := Info{QPN: qp.Num(), PSN: binary.BigEndian.Uint32(psn[:]) & 0xffffff}
	if qp.cfg.Type == UD {
		in.QKey = o.qkey(qp)
	}
	if len(attr.Ports) == 0 {
		return in, nil
	}
	if port := int(o.port()); port > len(attr.Ports) {
		return Info{}, errorf("connect out of band", ErrInvalid, "Path.PortNum is %d, device %s has %d ports", port, attr.Name, len(attr.Ports))
	}
	p := &attr.Ports[o.port()-1]
	in.LID = p.LID
	in.GID, err = o.ownGID(p)
	return in, err
}

// Connect exchanges what the two sides must know, connects qp and returns the
// peer's Info. The peer calls it on the other end of sock at the same time. The
// connection is nil on devices that are driven by hand. If one side fails, the
// other learns the reason through sock and fails too; different settings are a
// [*MismatchError] on both sides.
func (o OOB) Connect(ctx context.Context, sock net.Conn, qp *QP) (*Conn, Info, error) {
	local, err := o.LocalInfo(qp)
	if err != nil {
		return nil, Info{}, err
	}
	local.Region, local.Settings = o.Region, o.Settings
	attr, err := qp.pd.dev.limits()
	if err != nil {
		return nil, Info{}, err
	}
	if attr.Caps.Has(CapRawState) {
		remote, err := o.exchangeAndDrive(ctx, sock, qp, local)
		return nil, remote, err
	}
	return o.connectManaged(ctx, sock, qp, local)
}

// connectManaged connects through the connection manager.
func (o OOB) connectManaged(ctx context.Context, sock net.Conn, qp *QP, local Info) (c *Conn, remote Info, err error) {
	if o.Active {
		if remote, err = Exchange(ctx, sock, local); err != nil {
			return nil, remote, err
		}
		err = together(ctx, sock, func(ctx context.Context) (err error) {
			c, err = o.dial(ctx, qp, local, remote)
			return err
		})
		return c, remote, err
	}
	l, err := o.listen(qp, sock)
	if err != nil {
		return nil, Info{}, err
	}
	defer func() { _ = l.Close() }() // it has served its only connection
	local.Addr = l.Addr()
	if remote, err = Exchange(ctx, sock, local); err != nil {
		return nil, remote, err
	}
	err = together(ctx, sock, func(ctx context.Context) (err error) {
		c, err = o.accept(ctx, l, qp, remote)
		return err
	})
	return c, remote, err
}

// dial is the active side. The private data says which request is ours.
func (o OOB) dial(ctx context.Context, qp *QP, local, remote Info) (*Conn, error) {
	if !remote.Addr.IsValid() {
		return nil, errorf("connect out of band", ErrInvalid, "the peer does not listen; exactly one side may be Active")
	}
	o.Param.PrivateData = local.appendHead(nil)
	return Dial(ctx, qp, remote.Addr, o.Param)
}

// listen opens the passive side's listener at the address that the peer can
// reach, since it reached it with the socket.
func (o OOB) listen(qp *QP, sock net.Conn) (*Listener, error) {
	addr := o.Listen
	if !addr.IsValid() {
		tcp, ok := sock.LocalAddr().(*net.TCPAddr)
		if !ok {
			return nil, errorf("connect out of band", ErrInvalid, "the socket is no TCP connection, so its address is of no use; set OOB.Listen")
		}
		addr = netip.AddrPortFrom(tcp.AddrPort().Addr().Unmap(), 0)
	}
	return Listen(qp.pd.dev, addr)
}

// accept is the passive side. Others may dial the listener as well, so requests
// that do not name the peer's queue pair are refused.
func (o OOB) accept(ctx context.Context, l *Listener, qp *QP, remote Info) (*Conn, error) {
	if remote.Addr.IsValid() {
		return nil, errorf("connect out of band", ErrInvalid, "the peer listens too; exactly one side must be Active")
	}
	o.Param.PrivateData = nil
	want := remote.appendHead(nil)
	for {
		r, err := l.Accept(ctx)
		if err != nil {
			return nil, err
		}
		if bytes.HasPrefix(r.PrivateData(), want) {
			return r.Accept(ctx, qp, o.Param)
		}
		_ = r.Reject(nil) // a stranger; whether it hears us does not matter
	}
}

// Limits and words of the line with which each side ends the connecting.
const (
	maxStatusLine = 512
	statusReady   = "ready"
	statusFailed  = "failed "
)

// together runs connect on both sides of sock and makes its failure on one side
// a failure of both: each side sends a line that says how it went, and the peer's
// failure ends the context of connect.
func together(ctx context.Context, sock net.Conn, connect func(ctx context.Context) error) error {
	return interruptible(ctx, sock, func() error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		peer := make(chan error, 1)
		go func() {
			err := readStatus(sock)
			if err != nil {
				cancel(err)
			}
			peer <- err
		}()
		err := connect(ctx)
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx) // the peer's reason is better than "canceled"
		}
		if werr := writeStatus(sock, err); err == nil {
			err = werr
		}
		if err != nil {
			_ = sock.SetReadDeadline(time.Unix(1, 0)) // the reader must not outlive the call
		}
		if perr := <-peer; err == nil {
			err = perr
		}
		return err
	})
}

// writeStatus tells the peer how connecting went.
func writeStatus(w io.Writer, err error) error {
	line := statusReady
	if err != nil {
		line = statusFailed + strings.ReplaceAll(err.Error(), "\n", "; ")
		line = line[:min(len(line), maxStatusLine-1)]
	}
	_, werr := io.WriteString(w, line+"\n")
	return exchangeError(werr)
}

// readStatus returns nil if the peer says that it is ready.
func readStatus(r io.Reader) error {
	line, err := readLine(r, maxStatusLine)
	if err != nil {
		return exchangeError(err)
	}
	if line == statusReady {
		return nil
	}
	reason, ok := strings.CutPrefix(line, statusFailed)
	if !ok {
		return exchangeError(fmt.Errorf("the peer's line %.64q is not understood", line))
	}
	return exchangeError(errors.New("the peer failed: " + strings.ToValidUTF8(reason, "?")))
}
