package rmem

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"sync"
	"time"

	"cinnabar/codec"
	"cinnabar/codec/hgproc"
	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/verbs"
	"cinnabar/verbs/flow"
)

// VerbsServer lends memory of a verbs device. A client is a connection: its regions without a lease are freed with it.
type VerbsServer struct {
	lender
	l *flow.Listener

	stop context.CancelFunc
	wg   sync.WaitGroup // the goroutine that accepts, and one for each client
}

// plans are how requests and responses are written into records.
var plans = sync.OnceValue(func() (p struct{ request, response codec.Plan }) {
	for _, t := range []struct {
		to   *codec.Plan
		from reflect.Type
	}{{&p.request, reflect.TypeFor[request]()}, {&p.response, reflect.TypeFor[response]()}} {
		plan, err := hgproc.Codec{}.Plan(t.from)
		if err != nil {
			panic(err) // the types are ours
		}
		*t.to = plan
	}
	return p
})

// records bounds the requests that a client may have under way, on both sides.
var records = flow.Config{Records: 16, Bytes: 4096, Inline: 2048, KeepAlive: defaultSilence}

// ListenVerbs lends memory to every peer that connects to addr with [DialVerbs]; port 0 picks one. It ignores cfg.Provider,
// Pool, Grace and Strict, because the device checks every access, and a client ends with its connection. It ends a client also
// if the client's device has not answered for Config.Silence, as that of a host that has vanished or stands still.
func ListenVerbs(dev *verbs.Device, addr netip.AddrPort, cfg Config) (*VerbsServer, error) {
	cfg, err := cfg.filled()
	if err != nil {
		return nil, err
	}
	flowing := records
	flowing.Logger, flowing.KeepAlive = cfg.Logger, max(cfg.Silence, 0)
	l, err := flow.Listen(dev, addr, flowing)
	if err != nil {
		return nil, err
	}
	s := &VerbsServer{l: l}
	cfg.Strict = false
	s.lender = newLender(cfg, newLentMemory)
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.wg.Go(func() { s.accept(ctx) })
	return s, nil
}

// Addr returns where the server listens.
func (s *VerbsServer) Addr() netip.AddrPort { return s.l.Addr() }

// Pauses between attempts to connect, and after a connection that could not be accepted.
const (
	leastRest = 10 * time.Millisecond
	mostRest  = time.Second
)

// accept takes clients until ctx ends.
func (s *VerbsServer) accept(ctx context.Context) {
	for rest := leastRest; ; {
		c, err := s.l.Accept(ctx)
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = c.Close() // the loop that serves connections is over
			}
			return
		case err == nil:
			rest = leastRest
			s.wg.Go(func() { s.client(ctx, c) })
		case errors.Is(err, verbs.ErrClosed):
			s.log.Error("no more clients are accepted", "error", err)
			return
		default:
			s.log.Warn("client not accepted", "error", err)
			pause(ctx, rest)
			rest = min(2*rest, mostRest)
		}
	}
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// client serves a connection until it ends.
func (s *VerbsServer) client(ctx context.Context, c *flow.Conn) {
	by := s.callerOf(c.RemoteAddr().String(), hostquota.HostOf(c.RemoteAddr().Addr()))
	by.conn = newOpener(c.PD(), by.account)
	var hello response
	session, ok := s.open(&hello, by)
	err := s.respond(ctx, c, &hello)
	for ok && err == nil {
		err = s.request(ctx, c, session, by)
	}
	s.closeSession(session, "its connection has ended")
	host := by.account.Host()
	if errors.Is(err, flow.ErrPeer) || errors.Is(err, errUnreadable) {
		s.trail.Record(audit.Broken, "connection ended", host, slog.Any("error", err))
	}
	if err := errors.Join(by.conn.close(), c.Close()); err != nil {
		if suppressed, ok := audit.Allow(host); ok {
			s.log.Warn("connection not closed", "peer", by.peer, "error", err, "suppressed", suppressed)
		}
	}
	s.log.Debug("client gone", "peer", by.peer, "reason", err)
}

// errUnreadable ends a connection after its client has sent a message that is not a valid request.
var errUnreadable = errors.New("a request that cannot be read")

// request serves one request.
func (s *VerbsServer) request(ctx context.Context, c *flow.Conn, session uint64, by *caller) error {
	rec, err := c.Recv(ctx)
	if err != nil {
		return err
	}
	var q request
	_, err = plans().request.Decode(rec.Bytes(), &q)
	if err := errors.Join(err, rec.Release()); err != nil {
		return fmt.Errorf("%w: %w", errUnreadable, err)
	}
	q.Session = session // a connection is a client, so the session in the request is ignored
	var r response
	delay, done := s.answer(&q, &r, by, func() {
		switch {
		case op(q.Op) == opCopy:
			s.copyHere(&q, &r)
		case op(q.Op) == opRead || op(q.Op) == opWrite || !s.serve(&q, &r, by):
			r.Status = uint32(statusServer)
		}
	})
	if delay > 0 {
		pause(ctx, delay)
		done()
	}
	return s.respond(ctx, c, &r)
}

func (s *VerbsServer) respond(ctx context.Context, c *flow.Conn, r *response) error {
	b, err := plans().response.Append(nil, r)
	if err != nil {
		return err
	}
	return c.Send(ctx, b)
}

// copyHere copies between regions of this server.
func (s *VerbsServer) copyHere(q *request, r *response) {
	to, from := s.use(r, q), s.source(r, q)
	if to != nil && from != nil {
		copyWithin(r, to, from, q)
	}
}

// Revoke takes a region back, now. A client that uses it all the same loses its connection, and all that it has without a
// lease. It reports whether there was one.
func (s *VerbsServer) Revoke(id uint64) bool { return s.revoke(id) }

// Stats returns a snapshot of the quota, the clients and the regions.
func (s *VerbsServer) Stats() Stats { return s.stats() }

// Close revokes all regions, ends all connections, and stops listening.
func (s *VerbsServer) Close() error {
	s.closeAll()
	s.stop()
	err := s.l.Close()
	s.wg.Wait()
	return err
}
