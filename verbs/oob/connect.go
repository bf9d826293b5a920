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

// Config describes how queue pairs of two processes that have a plain socket between
// them are connected, on devices of every transport. Queue pairs of devices with
// CapRawState are driven to RTS by hand with the numbers of the exchange; the others
// listen on one side, send the address in the exchange, and connect through the
// connection manager, which has RC only.
//
// A UD queue pair has no connection: it is driven to RTS too, and the peer's [QPInfo]
// has the numbers that its datagrams need ([Config.AHAttr], QPN and QKey).
type Config struct {
	Active bool // exactly one of the two sides is; it dials, and must be the first to send

	Region   verbs.Region      // a region for the peer to use; zero: none
	Settings map[string]string // options that must be the same on both sides

	// Listen is where the passive side listens, on devices that connect through the
	// connection manager; zero: the socket's own address and a free port.
	Listen netip.AddrPort
	// Param are the wishes for the connection. Its private data is not used.
	Param verbs.ConnParam

	// The rest is for devices that are driven by hand.

	// Access has the rights of the peer on a connected queue pair; 0: all that its
	// type has, as far as the regions permit.
	Access verbs.Access
	// MTU is the size of packets between connected queue pairs, the same on both
	// sides; 0: 1024 bytes.
	MTU verbs.MTU
	// QKey is the key of a UD queue pair; 0: the one that it has, or DefaultQKey.
	QKey uint32
	// Path says how packets leave: PortNum (0: 1), the own GID by its index, SL,
	// TrafficClass, HopLimit. The peer's GID and LID in it are not used: the
	// exchange has them.
	Path verbs.AHAttr
}

// LocalQPInfo returns the QPInfo of qp: its number, the first port's
// LID and GID, a random sequence number, and of a UD queue pair the key.
func LocalQPInfo(qp *verbs.QP) (QPInfo, error) { return Config{}.LocalQPInfo(qp) }

// LocalQPInfo is the function LocalQPInfo for the port, GID and key of o.
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
// peer's. The peer calls it on the other end of sock at the same time. The
// connection is nil on devices that are driven by hand. If one side fails, the
// other learns the reason through sock and fails too; different settings are a
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

// dial is the active side. The private data says which request is ours.
func (o Config) dial(ctx context.Context, qp *verbs.QP, local, remote QPInfo) (*verbs.Conn, error) {
	if !remote.Addr.IsValid() {
		return nil, verbs.Errorf("connect out of band", verbs.ErrInvalid, "the peer does not listen; exactly one side may be Active")
	}
	o.Param.PrivateData = local.appendHead(nil)
	return verbs.Dial(ctx, qp, remote.Addr, o.Param)
}

// listen opens the passive side's listener at the address that the peer can
// reach, since it reached it with the socket.
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

// accept is the passive side. Others may dial the listener as well, so requests
// that do not name the peer's queue pair are refused.
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

// writeStatus sends the peer the result of connecting.
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
