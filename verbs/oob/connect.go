package oob

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

	"cinnabar/verbs"
)

// Config describes how [Config.Connect] connects the queue pairs of two processes that have
// a plain socket between them, on devices of every transport. If the device has CapRawState,
// Connect moves the queue pair to RTS with the numbers of the exchange ("by hand"). On other
// devices one side listens and sends its address in the exchange, and the other side dials
// through the connection manager. The connection manager connects only RC queue pairs.
//
// Connect moves a UD queue pair to RTS too, although it has no connection. The peer's [QPInfo]
// has the numbers that datagrams to the peer need ([Config.AHAttr], QPN and QKey).
type Config struct {
	Active bool // true on exactly one of the two sides, which dials and must post the first send

	Region   verbs.Region      // a region for the peer to use; zero: none
	Settings map[string]string // options that must be the same on both sides

	// Listen is where the passive side listens, on devices that connect through the
	// connection manager; zero: the socket's own address and a free port.
	Listen netip.AddrPort
	// Param are the parameters of the connection. Its private data is not used.
	Param verbs.ConnParam

	// The following fields are for devices with CapRawState.

	// Access has the rights of the peer on a connected queue pair, which a region may
	// restrict further; 0: all rights that the queue pair's type has.
	Access verbs.Access
	// MTU is the size of packets between connected queue pairs, the same on both
	// sides; 0: 1024 bytes.
	MTU verbs.MTU
	// QKey is the key of a UD queue pair; 0: the one that it has, or DefaultQKey.
	QKey uint32
	// Path has the local part of the path: PortNum (0: 1), the index of the own GID, SL,
	// TrafficClass and HopLimit. Its GID and LID are not used, because the exchange has
	// those of the peer.
	Path verbs.AHAttr
}

// LocalQPInfo returns the QPInfo of qp: its number, the first port's
// LID and GID, a random sequence number, and of a UD queue pair the key.
func LocalQPInfo(qp *verbs.QP) (QPInfo, error) { return Config{}.LocalQPInfo(qp) }

// LocalQPInfo returns the QPInfo of qp, as the function LocalQPInfo does, for the port, GID and QKey of o.
func (o Config) LocalQPInfo(qp *verbs.QP) (QPInfo, error) {
	if err := checkQP(qp); err != nil {
		return QPInfo{}, err
	}
	attr, err := qp.PD().Device().Query()
	if err != nil {
		return QPInfo{}, err
	}
	var psn [4]byte
	rand.Read(psn[:]) // never fails
	in := QPInfo{QPN: qp.Num(), PSN: binary.BigEndian.Uint32(psn[:]) & 0xffffff}
	if qp.Type() == verbs.UD {
		in.QKey = o.qkey(qp)
	}
	if len(attr.Ports) == 0 {
		return in, nil
	}
	if port := int(o.port()); port > len(attr.Ports) {
		return QPInfo{}, verbs.Errorf("connect out of band", verbs.ErrInvalid, "Path.PortNum is %d, device %s has %d ports", port, attr.Name, len(attr.Ports))
	}
	p := &attr.Ports[o.port()-1]
	in.LID = p.LID
	in.GID, err = o.ownGID(p)
	return in, err
}

// Connect exchanges the QPInfos of the two sides, connects qp and returns the
// peer's QPInfo. The peer calls Connect on the other end of sock at the same time. The
// connection is nil on devices with CapRawState. If one side fails, it sends the reason
// through sock and the other side fails too. If the settings differ, the error is a
// [*SettingsError] on both sides.
func (o Config) Connect(ctx context.Context, sock net.Conn, qp *verbs.QP) (*verbs.Conn, QPInfo, error) {
	local, err := o.LocalQPInfo(qp)
	if err != nil {
		return nil, QPInfo{}, err
	}
	local.Region, local.Settings = o.Region, o.Settings
	attr, err := qp.PD().Device().Query()
	if err != nil {
		return nil, QPInfo{}, err
	}
	if attr.Caps.Has(verbs.CapRawState) {
		remote, err := o.exchangeAndDrive(ctx, sock, qp, local)
		return nil, remote, err
	}
	return o.connectManaged(ctx, sock, qp, local)
}

// checkQP refuses a nil queue pair.
func checkQP(qp *verbs.QP) error {
	if qp == nil {
		return verbs.Errorf("connect out of band", verbs.ErrInvalid, "the queue pair is nil; create it before")
	}
	return nil
}

// connectManaged connects through the connection manager.
func (o Config) connectManaged(ctx context.Context, sock net.Conn, qp *verbs.QP, local QPInfo) (c *verbs.Conn, remote QPInfo, err error) {
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
		return nil, QPInfo{}, err
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

// dial connects the active side. The private data identifies its request to the passive side.
func (o Config) dial(ctx context.Context, qp *verbs.QP, local, remote QPInfo) (*verbs.Conn, error) {
	if !remote.Addr.IsValid() {
		return nil, verbs.Errorf("connect out of band", verbs.ErrInvalid, "the peer does not listen; exactly one side may be Active")
	}
	o.Param.PrivateData = local.appendHead(nil)
	return verbs.Dial(ctx, qp, remote.Addr, o.Param)
}

// listen opens the passive side's listener. The default address is the socket's own,
// because the peer has reached it.
func (o Config) listen(qp *verbs.QP, sock net.Conn) (*verbs.Listener, error) {
	addr := o.Listen
	if !addr.IsValid() {
		tcp, ok := sock.LocalAddr().(*net.TCPAddr)
		if !ok {
			return nil, verbs.Errorf("connect out of band", verbs.ErrInvalid, "the socket is no TCP connection, so its address is of no use; set Config.Listen")
		}
		addr = netip.AddrPortFrom(tcp.AddrPort().Addr().Unmap(), 0)
	}
	return verbs.Listen(qp.PD().Device(), addr)
}

// accept connects the passive side. It refuses requests that do not name the peer's
// queue pair, because any process may dial the listener.
func (o Config) accept(ctx context.Context, l *verbs.Listener, qp *verbs.QP, remote QPInfo) (*verbs.Conn, error) {
	if remote.Addr.IsValid() {
		return nil, verbs.Errorf("connect out of band", verbs.ErrInvalid, "the peer listens too; exactly one side must be Active")
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
		_ = r.Reject(nil) // another process; its connection does not matter, so neither does the error
	}
}

// Limit and texts of the status line that each side sends at the end of Connect.
const (
	maxStatusLine = 512
	statusReady   = "ready"
	statusFailed  = "failed "
)

// together runs connect and makes a failure on one side of sock a failure of both. Each
// side sends a status line with its result, and a failure in the peer's line cancels the
// context of connect.
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

// writeStatus sends the status line for err, the result of connect.
func writeStatus(w io.Writer, err error) error {
	line := statusReady
	if err != nil {
		line = statusFailed + strings.ReplaceAll(err.Error(), "\n", "; ")
		line = line[:min(len(line), maxStatusLine-1)]
	}
	_, werr := io.WriteString(w, line+"\n")
	return exchangeError(werr)
}

// readStatus reads the peer's status line and returns nil if it is statusReady.
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
