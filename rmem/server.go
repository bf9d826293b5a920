package rmem

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"cinnabar"
)

// Config is what a server lends, and to whom.
type Config struct {
	Provider    uint16         // id of the provider that the server is
	Pool        *cinnabar.Pool // whose workers answer requests; nil: those outside pools
	Quota       int64          // bytes lent in all; 0: 1 GiB
	ClientQuota int64          // bytes lent to one client; 0: Quota
	Largest     int64          // bytes of one region; 0: ClientQuota
	LongestHold time.Duration  // longest lease, to which longer ones are cut; 0: 24 h

	// Grace is how long a client whose connection is lost has to connect again before it counts as dead; 0: 5 s.
	Grace time.Duration

	// Strict has the server make all reads and writes itself, by RPC: slower, but nobody reaches memory that is not lent to
	// them, whatever the network. It is for na+sm, where the kernel lets processes of one user reach each other's memory.
	Strict bool

	Logger *slog.Logger // nil: discard
}

const (
	defaultQuota = 1 << 30
	defaultHold  = 24 * time.Hour
	mapped       = 1 << 20 // regions from this size on get pages of their own
	mostClients  = 1 << 14 // at once
	defaultGrace = 5 * time.Second
)

// Server lends memory of an engine.
type Server struct {
	e        *cinnabar.Engine
	cfg      Config
	provider *cinnabar.Provider
	log      *slog.Logger

	mu sync.Mutex
	// +checklocks:mu
	t table
	// +checklocks:mu
	closed bool
	// +checklocks:mu
	watches map[uint64]watch
}

// watch is how a client's end is seen: its call that is never answered while it lives.
type watch struct {
	call *cinnabar.Call[request, response]
	stop func() bool // forgets it
}

// Serve makes a provider of e that lends memory. e must listen.
func Serve(e *cinnabar.Engine, cfg Config) (*Server, error) {
	if cfg.Quota < 0 || cfg.ClientQuota < 0 || cfg.Largest < 0 || cfg.LongestHold < 0 || cfg.Grace < 0 {
		return nil, fmt.Errorf("rmem: a negative limit in the configuration: Quota %d, ClientQuota %d, Largest %d, LongestHold %v, Grace %v", cfg.Quota, cfg.ClientQuota, cfg.Largest, cfg.LongestHold, cfg.Grace)
	}
	if cfg.Quota == 0 {
		cfg.Quota = defaultQuota
	}
	if cfg.ClientQuota == 0 {
		cfg.ClientQuota = cfg.Quota
	}
	if cfg.Largest == 0 {
		cfg.Largest = cfg.ClientQuota
	}
	cfg.Largest = min(cfg.Largest, math.MaxInt)
	if cfg.LongestHold == 0 {
		cfg.LongestHold = defaultHold
	}
	if cfg.Grace == 0 {
		cfg.Grace = defaultGrace
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	p, err := e.Provider(cfg.Provider, "cinnabar_rmem")
	if err != nil {
		return nil, err
	}
	s := &Server{
		e: e, cfg: cfg, provider: p, log: cfg.Logger,
		t: newTable(cfg.Quota, cfg.ClientQuota, cfg.Largest), watches: map[uint64]watch{},
	}
	if err := s.register(); err != nil {
		_ = p.Close() // the first error says it all
		return nil, err
	}
	return s, nil
}

func (s *Server) register() error {
	var opts []cinnabar.HandleOption
	if s.cfg.Pool != nil {
		opts = append(opts, cinnabar.InPool(s.cfg.Pool))
	}
	if err := rpcRequest.Handle(s.provider, s.handle, opts...); err != nil {
		return err
	}
	return rpcWatch.HandleCall(s.provider, s.watch, opts...)
}

// handle answers a request.
func (s *Server) handle(ctx context.Context, q request) (r response, err error) {
	r.ID = q.ID
	switch op(q.Op) {
	case opHello:
		s.hello(ctx, &r)
	case opBye:
		s.endSession(q.Session, "bye")
	case opAlloc:
		s.alloc(ctx, &q, &r)
	case opFree:
		s.free(&q, &r)
	case opRenew:
		s.renew(&q, &r)
	case opStat:
		s.stat(&q, &r)
	case opCompareAndSwap, opFetchAdd, opRead, opWrite:
		s.access(&q, &r)
	case opCopy:
		s.copy(ctx, &q, &r)
	case opUsage:
		s.usage(&r)
	default:
		return r, cinnabar.CodeOpNotSupported
	}
	return r, nil
}

func (s *Server) hello(ctx context.Context, r *response) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		r.Status = uint32(statusRevoked)
		return
	}
	if len(s.t.sessions) >= mostClients {
		r.Status, r.Limit = uint32(statusClients), mostClients
		return
	}
	id := s.t.open(cinnabar.PeerFrom(ctx).String())
	s.t.sessions[id].grace = time.AfterFunc(s.cfg.Grace, func() { s.endSession(id, "the client is gone") })
	r.Session = id
	r.Limit, r.Left, r.Strict = s.t.largest, s.t.quota-s.t.used, s.cfg.Strict
}

// watch keeps a client's call until its session ends, and ends the session when the client is gone.
func (s *Server) watch(c *cinnabar.Call[request, response]) {
	id := c.In.Session
	s.mu.Lock()
	defer s.mu.Unlock()
	_, watched := s.watches[id]
	session := s.t.sessions[id]
	if session == nil || watched || s.closed {
		go func() { _ = c.Respond(response{Status: uint32(statusSession)}) }() // a caller that is gone needs no answer
		return
	}
	session.grace.Stop()
	s.watches[id] = watch{call: c, stop: context.AfterFunc(c.Context(), func() { s.lose(id, c) })}
}

// lose is called when the connection of a watch is lost: the session goes on for a while, since the client may connect
// again. An access to a region that is gone costs a client its connection, and only that.
func (s *Server) lose(id uint64, c *cinnabar.Call[request, response]) {
	s.mu.Lock()
	lost := s.watches[id].call == c
	if lost {
		delete(s.watches, id)
		s.t.sessions[id].grace.Reset(s.cfg.Grace)
	}
	s.mu.Unlock()
	if lost {
		_ = c.Respond(response{}) // nobody is there, but the call is done with
	}
}

// endSession frees what a client has without a lease. Unknown sessions are none.
func (s *Server) endSession(id uint64, why string) {
	s.mu.Lock()
	w, watched := s.watches[id]
	delete(s.watches, id)
	orphans := s.t.close(id)
	s.mu.Unlock()
	if watched {
		w.stop()
		_ = w.call.Respond(response{Status: uint32(statusSession)}) // the client may be gone
	}
	for _, e := range orphans {
		s.end(e)
	}
	if len(orphans) > 0 {
		s.log.Debug("regions freed with their client", "session", fmt.Sprintf("%016x", id), "regions", len(orphans), "reason", why)
	}
}

// end closes a region that was taken out of the table.
func (s *Server) end(e *entry) {
	if err := e.end(); err != nil {
		s.log.Warn("region not closed", "region", fmt.Sprintf("%016x", e.id), "error", err)
	}
}

// alloc lends memory.
func (s *Server) alloc(ctx context.Context, q *request, r *response) {
	s.mu.Lock()
	c := s.t.sessions[q.Session]
	if !s.t.admit(r, c, q.Size) {
		s.mu.Unlock()
		return
	}
	s.t.reserve(c, q.Size) // before the memory is made, which takes long, so that the quota holds
	s.mu.Unlock()
	e := &entry{id: newID(), size: q.Size, session: q.Session, peer: cinnabar.PeerFrom(ctx).String()}
	err := s.back(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.t.refund(q.Session, q.Size) // enter takes it again
	if err != nil {
		r.Status = uint32(statusServer)
		s.log.Error("no memory to lend", "bytes", q.Size, "error", err)
		return
	}
	if s.t.sessions[q.Session] == nil { // the client has died meanwhile
		r.Status = uint32(statusSession)
		go s.end(e)
		return
	}
	s.enter(e, time.Duration(q.Lease))
	r.ID, r.Secret = e.id, e.secret
	s.describe(r, e)
}

// back gives a region its memory.
func (s *Server) back(e *entry) (err error) {
	fillRandom(e.secret[:])
	if e.size >= mapped {
		if e.bulk, err = s.e.Alloc(cinnabar.ReadWrite, e.size); err == nil {
			e.mem = e.bulk.Bytes()
		}
		return err
	}
	e.mem = make([]byte, e.size)
	e.bulk, err = s.e.Expose(cinnabar.ReadWrite, e.mem)
	return err
}

// enter adds a region to the table.
//
// +checklocks:s.mu
func (s *Server) enter(e *entry, lease time.Duration) {
	c := s.t.sessions[e.session]
	s.t.reserve(c, e.size)
	s.t.regions[e.id], c.regions[e.id] = e, e
	if lease > 0 {
		s.hold(e, lease)
	}
}

// hold sets or renews a lease.
//
// +checklocks:s.mu
func (s *Server) hold(e *entry, lease time.Duration) {
	lease = min(lease, s.cfg.LongestHold)
	e.expires = time.Now().Add(lease)
	if e.timer == nil {
		e.timer = time.AfterFunc(lease, func() { s.expire(e) })
	} else {
		e.timer.Reset(lease)
	}
}

// expire ends a lease, unless it was renewed just now.
func (s *Server) expire(e *entry) {
	s.mu.Lock()
	if left := time.Until(e.expires); left > 0 {
		e.timer.Reset(left)
		s.mu.Unlock()
		return
	}
	ended := s.t.remove(e, statusExpired)
	s.mu.Unlock()
	if ended {
		s.end(e)
	}
}

// left is how long the lease lasts, 0 without one.
func (e *entry) left() time.Duration {
	if e.timer == nil {
		return 0
	}
	return max(time.Until(e.expires), 1)
}

func (s *Server) free(q *request, r *response) {
	s.mu.Lock()
	e := s.t.own(r, q)
	freed := e != nil && s.t.remove(e, statusFreed)
	s.mu.Unlock()
	if freed {
		s.end(e)
	}
}

func (s *Server) renew(q *request, r *response) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.t.own(r, q)
	switch {
	case e == nil:
	case e.timer == nil || q.Lease <= 0:
		r.Status = uint32(statusNoLease)
	default:
		s.hold(e, time.Duration(q.Lease))
		r.Lease = int64(e.left())
	}
}

func (s *Server) stat(q *request, r *response) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.t.find(r, q.ID); e != nil {
		s.describe(r, e)
	}
}

// describe tells what a client needs to use a region.
//
// +checklocks:s.mu
func (s *Server) describe(r *response, e *entry) {
	r.Size, r.Lease, r.Strict = e.size, int64(e.left()), s.cfg.Strict
	if err := r.setBulk(e.bulk.Bound()); err != nil {
		r.Status = uint32(statusServer)
		s.log.Error("no handle for a region", "error", err)
	}
}

// find is table.find with the lock.
func (s *Server) find(r *response, id uint64) *entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.t.find(r, id)
}

// access executes what the server does with a region's memory on behalf of a client.
func (s *Server) access(q *request, r *response) {
	e := s.find(r, q.ID)
	if e == nil {
		return
	}
	switch op(q.Op) {
	case opRead:
		if q.Size > strictChunk {
			r.Status, r.Limit = uint32(statusSize), strictChunk
			return
		}
		e.use(r, q.Offset, q.Size, func(b []byte) { r.Data, r.Length = append([]byte(nil), b...), uint32(len(b)) })
	case opWrite:
		e.use(r, q.Offset, int64(len(q.Data)), func(b []byte) { copy(b, q.Data) })
	default:
		e.atomic(r, q)
	}
}

// copy copies from another region, of this server or of another one.
func (s *Server) copy(ctx context.Context, q *request, r *response) {
	to := s.find(r, q.ID)
	if to == nil {
		return
	}
	if len(q.Source) == 0 {
		from := s.find(r, q.SourceID)
		if from == nil {
			return
		}
		copyWithin(r, to, from, q)
		return
	}
	var source cinnabar.BulkHandle
	owner, err := (*cinnabar.Endpoint)(nil), source.UnmarshalBinary(q.Source)
	if err == nil {
		owner, err = source.Owner(s.e)
	}
	if err != nil {
		r.Status = uint32(statusUnknown)
		return
	}
	to.use(r, q.Offset, q.Size, func(b []byte) {
		n, err := source.On(owner).ReadAtContext(ctx, b, q.SourceOffset)
		if err != nil || int64(n) != q.Size {
			r.Status = uint32(statusServer)
			s.log.Debug("copy from another server fails", "server", owner.String(), "error", err)
		}
	})
}

// copyWithin copies between two regions, or parts of one, which may overlap. Both are held, the one with the smaller
// number first, so that two copies cannot wait for each other through an end that wants the lock.
func copyWithin(r *response, to, from *entry, q *request) {
	if to == from {
		to.use(r, q.Offset, q.Size, func(dst []byte) {
			if q.SourceOffset < 0 || q.SourceOffset > to.size-q.Size {
				r.Status, r.Limit = uint32(statusRange), to.size
				return
			}
			copy(dst, to.mem[q.SourceOffset:q.SourceOffset+q.Size])
		})
		return
	}
	var dst, src []byte
	first, second := func(f func([]byte)) { to.use(r, q.Offset, q.Size, f) }, func(f func([]byte)) { from.use(r, q.SourceOffset, q.Size, f) }
	if to.id > from.id {
		first, second = second, first
	}
	first(func(a []byte) {
		second(func(b []byte) {
			if dst, src = a, b; to.id > from.id {
				dst, src = b, a
			}
			copy(dst, src)
		})
	})
}

// Revoke takes a region back, now: its handles and tokens are worth nothing any more. It reports whether there was one.
func (s *Server) Revoke(id uint64) bool {
	s.mu.Lock()
	e := s.t.regions[id]
	revoked := e != nil && s.t.remove(e, statusRevoked)
	s.mu.Unlock()
	if revoked {
		s.end(e)
	}
	return revoked
}

// RegionInfo describes a region that is lent.
type RegionInfo struct {
	ID    uint64
	Size  int64         // bytes
	Peer  string        // address of who has allocated it
	Lease time.Duration // that is left; 0: none, it goes with its client
}

// Stats is what a server lends.
type Stats struct {
	Quota, Used int64 // bytes
	Clients     int
	Regions     []RegionInfo // in no order
}

// Stats returns what is lent now.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Stats{Quota: s.t.quota, Used: s.t.used, Clients: len(s.t.sessions)}
	for _, e := range s.t.regions {
		st.Regions = append(st.Regions, RegionInfo{ID: e.id, Size: e.size, Peer: e.peer, Lease: e.left()})
	}
	return st
}

// usage tells anybody how much is lent, but not what: regions' numbers are worth something.
func (s *Server) usage(r *response) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.Limit, r.Left, r.Size, r.Value, r.Strict = s.t.quota, s.t.quota-s.t.used, int64(len(s.t.sessions)), uint64(len(s.t.regions)), s.cfg.Strict
}

// Close revokes all regions, also those with a lease, ends all clients' sessions, and takes the provider away.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	var all []*entry
	for _, e := range s.t.regions {
		all = append(all, e)
	}
	for _, e := range all {
		s.t.remove(e, statusRevoked)
	}
	var sessions []uint64
	for id := range s.t.sessions {
		sessions = append(sessions, id)
	}
	s.mu.Unlock()
	for _, id := range sessions {
		s.endSession(id, "the server is closed")
	}
	for _, e := range all {
		s.end(e)
	}
	return s.provider.Close()
}
