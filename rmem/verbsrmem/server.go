package verbsrmem

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/rmem"
	"cinnabar/rmem/internal/link"
	"cinnabar/verbs"
	"cinnabar/verbs/flow"
)

// Server lends memory of a verbs device. A client is a connection: its regions without a lease are freed with it.
type Server struct {
	lender link.Lender[rmem.Stats]
	l      *flow.Listener
	log    *slog.Logger

	stop context.CancelFunc
	wg   sync.WaitGroup // the goroutine that accepts, and one for each client
}

// Listen lends memory to every peer that connects to addr with [Dial]; port 0 picks one. It ignores cfg.Provider,
// Pool, Grace and Strict, because the device checks every access, and a client ends with its connection. It ends a client also
// if the client's device has not answered for [rmem.Config].Silence, as that of a host that has vanished or stands still.
func Listen(dev *verbs.Device, addr netip.AddrPort, cfg rmem.Config) (*Server, error) {
	lender, cfg, err := network.NewLender(cfg, func(b []byte) link.Memory { return &lentMemory{buf: b} })
	if err != nil {
		return nil, err
	}
	flowing := records
	flowing.Logger, flowing.KeepAlive = cfg.Logger, max(cfg.Silence, 0)
	l, err := flow.Listen(dev, addr, flowing)
	if err != nil {
		return nil, err
	}
	s := &Server{lender: lender, l: l, log: cfg.Logger}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.wg.Go(func() { s.accept(ctx) })
	return s, nil
}

// Addr returns where the server listens.
func (s *Server) Addr() netip.AddrPort { return s.l.Addr() }

// accept takes clients until ctx ends.
func (s *Server) accept(ctx context.Context) {
	for rest := link.LeastPause; ; {
		c, err := s.l.Accept(ctx)
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = c.Close() // the loop that serves connections is over
			}
			return
		case err == nil:
			rest = link.LeastPause
			s.wg.Go(func() { s.client(ctx, c) })
		case errors.Is(err, verbs.ErrClosed):
			s.log.Error("no more clients are accepted", "error", err)
			return
		default:
			s.log.Warn("client not accepted", "error", err)
			link.Pause(ctx, rest)
			rest = min(2*rest, link.MostPause)
		}
	}
}

// client serves a connection until it ends.
func (s *Server) client(ctx context.Context, c *flow.Conn) {
	host := hostquota.HostOf(c.RemoteAddr().Addr())
	session := s.lender.NewSession(c.RemoteAddr().String(), host)
	conn := newOpener(c.PD(), session.Account())
	hello, ok, err := session.Begin(conn)
	if err == nil {
		err = c.Send(ctx, hello)
	}
	for ok && err == nil {
		err = serve(ctx, c, session)
	}
	var broken error
	if errors.Is(err, flow.ErrPeer) || errors.Is(err, link.ErrUnreadable) {
		broken = err
	}
	session.End(broken)
	if err := errors.Join(conn.close(), c.Close()); err != nil {
		if suppressed, ok := audit.Allow(host); ok {
			s.log.Warn("connection not closed", "peer", c.RemoteAddr().String(), "error", err, "suppressed", suppressed)
		}
	}
	s.log.Debug("client gone", "peer", c.RemoteAddr().String(), "reason", err)
}

// serve serves one request.
func serve(ctx context.Context, c *flow.Conn, session link.Session) error {
	rec, err := c.Recv(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(session.Decode(rec.Bytes()), rec.Release()); err != nil {
		return err
	}
	response, delay, done, err := session.Serve()
	if delay > 0 {
		link.Pause(ctx, delay)
		done()
	}
	if err != nil {
		return err
	}
	return c.Send(ctx, response)
}

// Revoke takes a region back, now. A client that uses it all the same loses its connection, and all that it has without a
// lease. It reports whether there was one.
func (s *Server) Revoke(id uint64) bool { return s.lender.Revoke(id) }

// Stats returns a snapshot of the quota, the clients and the regions.
func (s *Server) Stats() rmem.Stats { return s.lender.Stats() }

// Close revokes all regions, ends all connections, and stops listening.
func (s *Server) Close() error {
	s.lender.Close()
	s.stop()
	err := s.l.Close()
	s.wg.Wait()
	return err
}
