package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/verbs"
)

// disconnectTimeout bounds how long the end of a connection may take.
const disconnectTimeout = 3 * time.Second

// linkConfig says how much a link can have outstanding.
type linkConfig struct {
	sends, receives int  // depth of the queues
	oneCQ           bool // completions of both queues go to sendCQ
	inline          int  // bytes that a request can carry

	service verbs.QPType // 0: RC
}

// link is one side of a connection with the objects that it needs. It belongs
// to one goroutine.
type link struct {
	pd             *verbs.PD
	sendCQ, recvCQ *verbs.CQ
	qp             *verbs.QP
	regions        []*verbs.MR
	handles        []verbs.AddressHandle
	conn           *verbs.Conn // nil until connected

	wc [1]verbs.WC
}

// newLink makes the objects on a device that the caller keeps open.
func newLink(dev *verbs.Device, cfg linkConfig) (*link, error) {
	l := &link{}
	if err := l.make(dev, cfg); err != nil {
		return nil, errors.Join(err, l.release())
	}
	return l, nil
}

func (l *link) make(dev *verbs.Device, cfg linkConfig) (err error) {
	if l.pd, err = dev.AllocPD(); err != nil {
		return err
	}
	if cfg.oneCQ {
		if l.sendCQ, err = dev.CreateCQ(cfg.sends + cfg.receives); err != nil {
			return err
		}
		l.recvCQ = l.sendCQ
	} else {
		if l.sendCQ, err = dev.CreateCQ(cfg.sends); err != nil {
			return err
		}
		if l.recvCQ, err = dev.CreateCQ(cfg.receives); err != nil {
			return err
		}
	}
	l.qp, err = l.pd.CreateQP(verbs.QPConfig{
		Type: cfg.service, SendCQ: l.sendCQ, RecvCQ: l.recvCQ,
		MaxSendWR: cfg.sends, MaxRecvWR: cfg.receives, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: cfg.inline,
	})
	return err
}

// alloc registers size bytes of new memory, which the link releases.
func (l *link) alloc(size int, access verbs.Access) (*verbs.MR, error) {
	mr, err := l.pd.AllocMR(size, access)
	if err != nil {
		return nil, err
	}
	l.regions = append(l.regions, mr)
	return mr, nil
}

// dial connects to addr as the active side.
func (l *link) dial(ctx context.Context, addr netip.AddrPort, p verbs.ConnParam) (err error) {
	if l.conn, err = verbs.Dial(ctx, l.qp, addr, p); err != nil {
		return fmt.Errorf("connect to %s: %w", addr, err)
	}
	return nil
}

// accept answers a connect request with the link's queue pair.
func (l *link) accept(ctx context.Context, r *verbs.ConnRequest, p verbs.ConnParam) (err error) {
	if l.conn, err = r.Accept(ctx, l.qp, p); err != nil {
		return fmt.Errorf("accept the connection of %s: %w", r.RemoteAddr(), err)
	}
	return nil
}

// post queues send work requests, all or none of which must be accepted.
func (l *link) post(wrs ...verbs.SendWR) error {
	if n, err := l.qp.PostSend(wrs); err != nil {
		return l.cause(fmt.Errorf("post request %d of %d: %w", n+1, len(wrs), err))
	}
	return nil
}

// postRecv posts receives.
func (l *link) postRecv(wrs ...verbs.RecvWR) error {
	if n, err := l.qp.PostRecv(wrs); err != nil {
		return l.cause(fmt.Errorf("post receive %d of %d: %w", n+1, len(wrs), err))
	}
	return nil
}

// sent waits for the next n completions of the send queue.
func (l *link) sent(ctx context.Context, n int) error {
	for range n {
		if _, err := l.wait(ctx, l.sendCQ); err != nil {
			return err
		}
	}
	return nil
}

// received waits for the next completion of the receive queue, which must be of the given kind.
func (l *link) received(ctx context.Context, want verbs.WCOp) (verbs.WC, error) {
	wc, err := l.wait(ctx, l.recvCQ)
	if err == nil {
		err = checkArrival(&wc, want)
	}
	return wc, err
}

// checkArrival refuses a receive that the peer used up in another way than it was posted for. Only of a message Len counts
// bytes of the receive's memory: of a write with immediate data it counts bytes of the write. No peer has reason to revoke
// a key.
func checkArrival(wc *verbs.WC, want verbs.WCOp) error {
	switch {
	case wc.Op != want || wc.HasImm != (want == verbs.WCRecvRDMAImm):
		return fmt.Errorf("the peer used a receive for %v (immediate data: %t) that was posted for %v", wc.Op, wc.HasImm, want)
	case wc.HasInv:
		return fmt.Errorf("the peer revoked key %#08x, which it has no reason to", wc.InvKey)
	}
	return nil
}

// wait takes one completion. A failed one is an error.
func (l *link) wait(ctx context.Context, cq *verbs.CQ) (verbs.WC, error) {
	if _, err := cq.Wait(ctx, l.wc[:]); err != nil {
		return verbs.WC{}, cli.Reason(ctx, err)
	}
	if err := l.wc[0].Err(); err != nil {
		return verbs.WC{}, l.cause(err)
	}
	return l.wc[0], nil
}

// cause replaces an error that is only a consequence of the connection's end
// by the reason of that end.
func (l *link) cause(err error) error {
	if err == nil || l.conn == nil || !errors.Is(err, verbs.StatusWRFlushErr) && !errors.Is(err, verbs.ErrInvalid) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), disconnectTimeout)
	defer cancel()
	select {
	case <-l.conn.Done():
		return fmt.Errorf("the connection to %s ended: %w", l.conn.RemoteAddr(), l.conn.Err())
	case <-ctx.Done(): // flushed for another reason than the connection's end
		return err
	}
}

// ended reports whether err is the orderly end of the connection.
func ended(err error) bool { return errors.Is(err, verbs.ErrDisconnected) }

// disconnect ends the connection in order, if there is one. It takes its time
// even if ctx has ended.
func (l *link) disconnect(ctx context.Context) error {
	if l.conn == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), disconnectTimeout)
	defer cancel()
	if err := l.conn.Disconnect(ctx); err != nil && !ended(err) {
		return fmt.Errorf("disconnect from %s: %w", l.conn.RemoteAddr(), err)
	}
	return nil
}

// close disconnects and releases everything but the device.
func (l *link) close(ctx context.Context) error {
	return errors.Join(l.disconnect(ctx), l.release())
}

// release closes the objects, users before what they use.
func (l *link) release() error {
	var errs []error
	if l.qp != nil {
		errs = append(errs, l.qp.Close())
	}
	for _, h := range l.handles {
		errs = append(errs, h.Close())
	}
	for _, mr := range l.regions {
		errs = append(errs, mr.Close())
	}
	if l.recvCQ != nil && l.recvCQ != l.sendCQ {
		errs = append(errs, l.recvCQ.Close())
	}
	if l.sendCQ != nil {
		errs = append(errs, l.sendCQ.Close())
	}
	if l.pd != nil {
		errs = append(errs, l.pd.Close())
	}
	return errors.Join(errs...)
}

// checkDataPort returns an error if the port of --data-port cannot be used at the address of a server, because otherwise each of
// its clients would fail. Port 0 stands for a free one.
func checkDataPort(dev *verbs.Device, server net.Addr, port uint16) error {
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
