// Package link connects two processes of the command by a queue pair. Exchange is the plain TCP connection by which they find each
// other, and Link one side of the connection with the objects that it needs.
package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/internal/grace"
	"cinnabar/verbs"
)

// disconnectTimeout bounds how long the end of a connection may take.
const disconnectTimeout = 3 * time.Second

// Config says how much a link can have outstanding.
type Config struct {
	Sends, Receives int  // depth of the queues
	OneCQ           bool // completions of both queues go to sendCQ
	Inline          int  // bytes that a request can carry

	Service verbs.QPType // 0: RC
}

// Link is one side of a connection with the objects that it needs. It belongs
// to one goroutine.
type Link struct {
	PD             *verbs.PD
	SendCQ, recvCQ *verbs.CQ
	QP             *verbs.QP
	Regions        []*verbs.MR
	Handles        []verbs.AddressHandle
	Conn           *verbs.Conn // nil until connected

	wc [1]verbs.WC
}

// New makes the objects on a device that the caller keeps open.
func New(dev *verbs.Device, cfg Config) (*Link, error) {
	l := &Link{}
	if err := l.make(dev, cfg); err != nil {
		return nil, errors.Join(err, l.Release())
	}
	return l, nil
}

func (l *Link) make(dev *verbs.Device, cfg Config) (err error) {
	if l.PD, err = dev.AllocPD(); err != nil {
		return err
	}
	if cfg.OneCQ {
		if l.SendCQ, err = dev.CreateCQ(cfg.Sends + cfg.Receives); err != nil {
			return err
		}
		l.recvCQ = l.SendCQ
	} else {
		if l.SendCQ, err = dev.CreateCQ(cfg.Sends); err != nil {
			return err
		}
		if l.recvCQ, err = dev.CreateCQ(cfg.Receives); err != nil {
			return err
		}
	}
	l.QP, err = l.PD.CreateQP(verbs.QPConfig{
		Type: cfg.Service, SendCQ: l.SendCQ, RecvCQ: l.recvCQ,
		MaxSendWR: cfg.Sends, MaxRecvWR: cfg.Receives, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: cfg.Inline,
	})
	return err
}

// Alloc registers size bytes of new memory, which the link releases.
func (l *Link) Alloc(size int, access verbs.Access) (*verbs.MR, error) {
	mr, err := l.PD.AllocMR(size, access)
	if err != nil {
		return nil, err
	}
	l.Regions = append(l.Regions, mr)
	return mr, nil
}

// Dial connects to addr as the active side.
func (l *Link) Dial(ctx context.Context, addr netip.AddrPort, p verbs.ConnParam) (err error) {
	if l.Conn, err = verbs.Dial(ctx, l.QP, addr, p); err != nil {
		return fmt.Errorf("connect to %s: %w", addr, err)
	}
	return nil
}

// Accept answers a connect request with the link's queue pair.
func (l *Link) Accept(ctx context.Context, r *verbs.ConnRequest, p verbs.ConnParam) (err error) {
	if l.Conn, err = r.Accept(ctx, l.QP, p); err != nil {
		return fmt.Errorf("accept the connection of %s: %w", r.RemoteAddr(), err)
	}
	return nil
}

// Post queues send work requests, all or none of which must be accepted.
func (l *Link) Post(wrs ...verbs.SendWR) error {
	if n, err := l.QP.PostSend(wrs); err != nil {
		return l.Cause(fmt.Errorf("post request %d of %d: %w", n+1, len(wrs), err))
	}
	return nil
}

// PostRecv posts receives.
func (l *Link) PostRecv(wrs ...verbs.RecvWR) error {
	if n, err := l.QP.PostRecv(wrs); err != nil {
		return l.Cause(fmt.Errorf("post receive %d of %d: %w", n+1, len(wrs), err))
	}
	return nil
}

// Sent waits for the next n completions of the send queue.
func (l *Link) Sent(ctx context.Context, n int) error {
	for range n {
		if _, err := l.wait(ctx, l.SendCQ); err != nil {
			return err
		}
	}
	return nil
}

// Received waits for the next completion of the receive queue, which must be of the given kind.
func (l *Link) Received(ctx context.Context, want verbs.WCOp) (verbs.WC, error) {
	wc, err := l.wait(ctx, l.recvCQ)
	if err == nil {
		err = CheckArrival(&wc, want)
	}
	return wc, err
}

// CheckArrival refuses a receive that the peer used up in another way than it was posted for. Only of a message Len counts
// bytes of the receive's memory: of a write with immediate data it counts bytes of the write. No peer has reason to revoke
// a key.
func CheckArrival(wc *verbs.WC, want verbs.WCOp) error {
	switch {
	case wc.Op != want || wc.HasImm != (want == verbs.WCRecvRDMAImm):
		return fmt.Errorf("the peer used a receive for %v (immediate data: %t) that was posted for %v", wc.Op, wc.HasImm, want)
	case wc.HasInv:
		return fmt.Errorf("the peer revoked key %#08x, which it has no reason to", wc.InvKey)
	}
	return nil
}

// wait takes one completion. A failed one is an error.
func (l *Link) wait(ctx context.Context, cq *verbs.CQ) (verbs.WC, error) {
	if _, err := cq.Wait(ctx, l.wc[:]); err != nil {
		return verbs.WC{}, cli.Reason(ctx, err)
	}
	if err := l.wc[0].Err(); err != nil {
		return verbs.WC{}, l.Cause(err)
	}
	return l.wc[0], nil
}

// Cause replaces an error that is only a consequence of the connection's end
// by the reason of that end.
func (l *Link) Cause(err error) error {
	if err == nil || l.Conn == nil || !errors.Is(err, verbs.StatusWRFlushErr) && !errors.Is(err, verbs.ErrInvalid) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), disconnectTimeout)
	defer cancel()
	select {
	case <-l.Conn.Done():
		return fmt.Errorf("the connection to %s ended: %w", l.Conn.RemoteAddr(), l.Conn.Err())
	case <-ctx.Done(): // flushed for another reason than the connection's end
		return err
	}
}

// Ended reports whether err is the orderly end of the connection.
func Ended(err error) bool { return errors.Is(err, verbs.ErrDisconnected) }

// Disconnect ends the connection in order, if there is one. It takes at most
// disconnectTimeout, or grace.Interrupted once ctx has ended.
func (l *Link) Disconnect(ctx context.Context) error {
	if l.Conn == nil {
		return nil
	}
	ctx, cancel := grace.Period(ctx, disconnectTimeout)
	defer cancel()
	if err := l.Conn.Disconnect(ctx); err != nil && !Ended(err) {
		return fmt.Errorf("disconnect from %s: %w", l.Conn.RemoteAddr(), err)
	}
	return nil
}

// Close disconnects and releases everything but the device.
func (l *Link) Close(ctx context.Context) error {
	return errors.Join(l.Disconnect(ctx), l.Release())
}

// Abandon ends the connection without waiting for the peer, for use after a failure, and releases everything but the device.
func (l *Link) Abandon() error {
	if l.Conn != nil {
		ended, end := context.WithCancel(context.Background())
		end()
		_ = l.Conn.Disconnect(ended) // an error, because the peer takes no part within a context that has ended
	}
	return l.Release()
}

// Release closes the objects, each before the objects that it uses.
func (l *Link) Release() error {
	var errs []error
	if l.QP != nil {
		errs = append(errs, l.QP.Close())
	}
	for _, h := range l.Handles {
		errs = append(errs, h.Close())
	}
	for _, mr := range l.Regions {
		errs = append(errs, mr.Close())
	}
	if l.recvCQ != nil && l.recvCQ != l.SendCQ {
		errs = append(errs, l.recvCQ.Close())
	}
	if l.SendCQ != nil {
		errs = append(errs, l.SendCQ.Close())
	}
	if l.PD != nil {
		errs = append(errs, l.PD.Close())
	}
	return errors.Join(errs...)
}

// CheckDataPort returns an error if the port of --data-port cannot be used at the address of a server, because otherwise each of
// its clients would fail. Port 0 stands for a free one.
func CheckDataPort(dev *verbs.Device, server net.Addr, port uint16) error {
	at, ok := server.(*net.TCPAddr)
	if !ok || port == 0 {
		return nil
	}
	l, err := verbs.Listen(dev, netip.AddrPortFrom(at.AddrPort().Addr().Unmap(), port))
	if err != nil {
		return fmt.Errorf("--data-port %d: %w", port, err)
	}
	return l.Close()
}
