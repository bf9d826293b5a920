package rmem

import (
	"context"
	"sync"
	"time"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/internal/hostquota"
)

// Server lends memory of an engine.
type Server struct {
	lender
	e        *cinnabar.Engine
	provider *cinnabar.Provider
	stall    time.Duration // copyStall, which tests shorten

	watching sync.Mutex // before the lender's lock
	// +checklocks:watching
	watches map[uint64]watch
}

// exposed is memory that the engine's peers reach.
type exposed struct {
	*cinnabar.Bulk
	mem []byte
}

func (x *exposed) Bytes() []byte { return x.mem }

func (x *exposed) describe(r *response, _ *caller) error { return r.setBulk(x.Bound()) }

// watch is how a client's end is seen: its call that is never answered while it lives.
type watch struct {
	call *cinnabar.Call[request, response]
	stop func() bool // forgets it
}

// Serve makes a provider of e that lends memory. e must listen.
func Serve(e *cinnabar.Engine, cfg Config) (*Server, error) {
	cfg, err := cfg.filled()
	if err != nil {
		return nil, err
	}
	p, err := e.NewProvider(cfg.Provider, "cinnabar_rmem")
	if err != nil {
		return nil, err
	}
	s := &Server{e: e, provider: p, stall: copyStall, watches: map[uint64]watch{}}
	s.lender = newLender(cfg, s.expose)
	if err := s.register(); err != nil {
		_ = p.Close() // the first error says it all
		return nil, err
	}
	return s, nil
}

func (s *Server) register() error {
	var opts []cinnabar.HandleOption
	if s.cfg.Pool != nil {
		opts = append(opts, cinnabar.WithPool(s.cfg.Pool))
	}
	if err := rpcRequest.HandleCall(s.provider, s.handle, opts...); err != nil {
		return err
	}
	return rpcWatch.HandleCall(s.provider, s.watch, opts...)
}

// expose makes memory.
func (s *Server) expose(size int64, wipe bool) (memory, error) {
	if size >= mapped && !wipe {
		b, err := s.e.Alloc(cinnabar.ReadWrite, size)
		if err != nil {
			return nil, err
		}
		return &exposed{b, b.Bytes()}, nil
	}
	mem := heapMemory(size)
	b, err := s.e.Expose(cinnabar.ReadWrite, mem)
	return &exposed{b, mem}, err
}

// handle answers a request. The answer to a guess is sent later, after handle has returned.
func (s *Server) handle(c *cinnabar.Call[request, response]) {
	ctx := c.Context()
	by := s.callerOf(cinnabar.InfoFrom(ctx).Peer.String(), hostquota.FromContext(ctx))
	r, delay, done, err := s.execute(ctx, &c.In, by)
	switch {
	case err != nil:
		s.unsent(c.Fail(err), by)
	case delay > 0:
		later := sync.OnceFunc(func() {
			done()
			s.unsent(c.Respond(c.Context(), r), by)
		})
		stop := context.AfterFunc(ctx, later) // the caller is gone, or the engine is being closed
		time.AfterFunc(delay, func() {
			stop()
			later()
		})
	default:
		s.unsent(c.Respond(c.Context(), r), by)
	}
}

// execute executes a request. With delay > 0 the caller must send the response after that time, and then call done.
func (s *Server) execute(ctx context.Context, q *request, by *caller) (r response, delay time.Duration, done func(), err error) {
	switch op(q.Op) {
	case opHello:
		s.hello(&r, by)
	case opBye:
		s.endSession(q.Session, "bye")
	default:
		delay, done = s.answer(q, &r, by, func() {
			if op(q.Op) == opCopy {
				s.copy(ctx, q, &r, by)
			} else if !s.serve(q, &r, by) {
				err = codes.OpNotSupported
			}
		})
	}
	return r, delay, done, err
}

// unsent logs that an answer was not sent.
func (s *Server) unsent(err error, by *caller) {
	if err != nil {
		s.log.Debug("answer not sent", "peer", by.peer, "error", err)
	}
}

// hello begins a session, which ends if the client does not ask to be watched.
func (s *Server) hello(r *response, by *caller) {
	id, ok := s.open(r, by)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if session := s.t.sessions[id]; session != nil { // unless the server is being closed
		session.grace = time.AfterFunc(s.cfg.Grace, func() { s.endSession(id, "the client is gone") })
	}
}

// watch keeps a client's call until its session ends. A second call takes the place of the first, because a client calls again
// after it has lost its connection, which the server may not have noticed yet.
func (s *Server) watch(c *cinnabar.Call[request, response]) {
	id := c.In.Session
	s.watching.Lock()
	defer s.watching.Unlock()
	if !s.graceOver(id) {
		go respond(c, statusSession)
		return
	}
	if old, watched := s.watches[id]; watched {
		old.stop()
		go respond(old.call, statusOK)
	}
	s.watches[id] = watch{call: c, stop: context.AfterFunc(c.Context(), func() { s.lose(id, c) })}
}

// graceOver stops the clock of a session and reports whether there is one.
func (s *Server) graceOver(id uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	session := s.t.sessions[id]
	if session == nil || s.closed {
		return false
	}
	session.grace.Stop()
	return true
}

// respond answers a watch. The client may be gone, and needs no answer then.
func respond(c *cinnabar.Call[request, response], s status) {
	_ = c.Respond(c.Context(), response{Status: uint32(s)})
}

// lose is called when the connection of a watch is lost: the session goes on for a while, since the client may connect
// again. An access to a region that is gone costs a client its connection, and only that.
func (s *Server) lose(id uint64, c *cinnabar.Call[request, response]) {
	s.watching.Lock()
	defer s.watching.Unlock()
	if s.watches[id].call != c {
		return
	}
	delete(s.watches, id)
	go respond(c, statusOK) // the peer has gone, but the call must be ended
	s.mu.Lock()
	defer s.mu.Unlock()
	if session := s.t.sessions[id]; session != nil {
		session.grace.Reset(s.cfg.Grace)
	}
}

// endSession frees a client's regions without a lease, and answers its waiting call.
func (s *Server) endSession(id uint64, why string) {
	s.watching.Lock()
	w, watched := s.watches[id]
	delete(s.watches, id)
	s.watching.Unlock()
	s.closeSession(id, why)
	if watched {
		w.stop()
		respond(w.call, statusSession)
	}
}

// Revoke takes a region back, now: its handles and tokens are worth nothing any more. It reports whether there was one.
func (s *Server) Revoke(id uint64) bool { return s.revoke(id) }

// Stats returns a snapshot of the quota, the clients and the regions.
func (s *Server) Stats() Stats { return s.stats() }

// Close revokes all regions, also those with a lease, ends all clients' sessions, and takes the provider away.
func (s *Server) Close() error {
	for _, id := range s.closeAll() {
		s.endSession(id, "the server is closed")
	}
	return s.provider.Close()
}
