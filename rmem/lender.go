package rmem

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/rmem/internal/link"
)

// lender is the part of a server that is the same on all networks.
type lender struct {
	cfg  Config
	log  *slog.Logger
	back func(size int64, wipe bool) (memory, error) // makes memory that clients can reach; to be wiped, it stays when it is closed

	book     *hostquota.Book
	trail    *audit.Trail
	refusals refusals

	mu sync.Mutex
	// +checklocks:mu
	t table
	// +checklocks:mu
	closed bool
}

// memory is the memory of one region.
type memory interface {
	Bytes() []byte
	describe(r *response, by *caller) error // puts into r how a client reaches it
	Close() error                           // ends all access of clients
}

// caller is a client that a request comes from.
type caller struct {
	peer    string             // its address, for logs
	account *hostquota.Account // of its host
	conn    any                // its connection, for link.Memory; nil over an engine
}

// heapMemory is size bytes of the heap that begin at a multiple of 8, which atomics need: Go packs smaller things than 16
// bytes closer, unless their size is a multiple of 8.
func heapMemory(size int64) []byte {
	return make([]byte, (size+7)&^7)[:size:size]
}

func newLender(cfg Config, back func(int64, bool) (memory, error)) lender {
	limits := hostquota.Limits{
		hostquota.Connections: int64(cfg.MaxClients),
		hostquota.Regions:     mostRegions,
		hostquota.Pulls:       mostFetches,
	}
	if cfg.HostQuota == 0 {
		limits[hostquota.Memory] = cfg.Quota
	}
	return lender{cfg: cfg, log: cfg.Logger, back: back, t: newTable(cfg), book: hostquota.NewBook(limits), trail: audit.New(cfg.Logger)}
}

// callerOf returns the client at an address of a host.
func (l *lender) callerOf(peer string, h hostquota.Host) *caller {
	return &caller{peer: peer, account: l.book.Account(h)}
}

// open begins a session of a client, or says in r why not.
func (l *lender) open(r *response, by *caller) (id uint64, ok bool) {
	id, err := l.begin(r, by)
	switch {
	case err != nil:
		l.trail.Record(audit.Refused, "too many clients", by.account.Host(), slog.Any("error", err))
	case id != 0:
		l.trail.Count(audit.Accepted, "client")
	}
	return id, id != 0
}

// begin is open without its record, which is made when the lock is free, because a log can be slow. err is why the client's
// host may have no further session.
func (l *lender) begin(r *response, by *caller) (id uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		r.Status = uint32(statusRevoked)
		return 0, nil
	}
	if err := by.account.Take(hostquota.Connections, 1); err != nil {
		r.Status, r.Limit = uint32(statusClients), int64(l.cfg.MaxClients)
		return 0, err
	}
	id = l.t.begin(by)
	r.Session = id
	r.Limit, r.Left, r.Strict = l.t.maxRegionSize, l.t.quota-l.t.used, l.cfg.Strict
	return id, nil
}

// closeSession frees a client's regions without a lease. It ignores unknown sessions.
func (l *lender) closeSession(id uint64, why string) {
	l.mu.Lock()
	orphans := l.t.close(id)
	l.mu.Unlock()
	for _, e := range orphans {
		l.end(e)
	}
	if len(orphans) > 0 {
		l.log.Debug("regions freed with their client", "session", fmt.Sprintf("%016x", id), "regions", len(orphans), "reason", why)
	}
}

// end closes the memory of region e. If e is in table.ending, end then gives back its bytes, also when the memory could not be closed, which
// is logged.
func (l *lender) end(e *entry) {
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.t.release(e)
	}()
	if err := e.end(); err != nil {
		l.log.Warn("region not closed", "region", fmt.Sprintf("%016x", e.id), "error", err)
	}
}

// serve answers a request that is about regions, and reports whether it was one.
func (l *lender) serve(q *request, r *response, by *caller) bool {
	r.ID = q.ID
	switch op(q.Op) {
	case opAlloc:
		l.alloc(q, r, by)
	case opFree:
		l.free(q, r)
	case opRenew:
		l.renew(q, r)
	case opStat:
		l.stat(q, r, by)
	case opCompareAndSwap, opFetchAdd, opRead, opWrite:
		l.access(q, r)
	case opUsage:
		l.usage(r)
	case opClaim:
		l.claim(q, r, by)
	default:
		return false
	}
	return true
}

// alloc lends memory.
func (l *lender) alloc(q *request, r *response, by *caller) {
	l.mu.Lock()
	c := l.t.sessions[q.Session]
	if !l.t.admit(r, c, q.Size) {
		l.mu.Unlock()
		if r.Status == uint32(statusHostShare) || r.Status == uint32(statusHostQuota) || r.Status == uint32(statusRegions) {
			l.trail.Record(audit.Refused, "the host's share of memory is lent", by.account.Host(), slog.Int64("bytes", q.Size))
		}
		return
	}
	l.t.reserve(c, q.Size) // before the memory is made, which takes long, so that the quota holds
	l.mu.Unlock()
	e := &entry{id: newID(), size: q.Size, session: q.Session, peer: by.peer, account: c.account, once: q.Once, wipe: q.Wipe || l.cfg.Wipe}
	fillRandom(e.secret[:])
	var err error
	if e.mem, err = l.back(q.Size, e.wipe); err == nil {
		if err = e.mem.describe(r, by); err != nil {
			l.end(e)
		}
	}
	if err != nil {
		r.Status = uint32(statusServer)
		l.log.Error("no memory to lend", "bytes", q.Size, "error", err)
	}
	switch {
	case l.settle(q, r, e, err == nil):
	case err == nil:
		l.end(e)
	default:
		discharge(c.account, q.Size)
	}
}

// settle adds the region that was made for an allocation, if made is true, and if its client is still there. Without the client the region is ending,
// and the caller calls end.
func (l *lender) settle(q *request, r *response, e *entry, made bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !made {
		l.t.refund(q.Session, q.Size)
		return false
	}
	if l.closed || l.t.sessions[q.Session] == nil { // the server or the client has ended meanwhile
		r.Status = uint32(statusSession)
		l.t.ending[e] = struct{}{}
		return false
	}
	l.t.refund(q.Session, q.Size) // enter takes it again
	l.enter(e, time.Duration(q.Lease))
	r.ID, r.Secret = e.id, e.secret
	l.outline(r, e)
	return true
}

// claimTime bounds how long the read of a region may take that is read once.
const claimTime = time.Minute

// claim gives a region that can be read once to the first client that claims it: under another name, which only that client
// gets, and for claimTime.
func (l *lender) claim(q *request, r *response, by *caller) {
	own := l.rename(q, r, by)
	if own != nil {
		l.describe(r, own, by)
	}
}

// rename gives a region that can be read once another name, for the client that claims it.
func (l *lender) rename(q *request, r *response, by *caller) *entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.t.find(r, q.ID)
	if e == nil {
		return nil
	}
	if !e.once {
		r.Status = uint32(statusNotOwner)
		return nil
	}
	own := &entry{id: newID(), size: e.size, session: e.session, peer: by.peer, account: e.account, claimed: true, wipe: e.wipe, mem: e.mem}
	e.account = nil // the bytes stay counted for the host that has allocated them
	fillRandom(own.secret[:])
	lease := claimTime
	if left := e.left(); left > 0 {
		lease = min(lease, left)
	}
	l.t.remove(e, statusUsed)
	l.t.release(e) // own goes on with the memory, which is not closed
	e.leave()
	l.enter(own, lease)
	r.ID, r.Secret = own.id, own.secret
	l.outline(r, own)
	return own
}

// enter adds a region to the table.
//
// +checklocks:l.mu
func (l *lender) enter(e *entry, lease time.Duration) {
	l.t.enter(e)
	if lease > 0 {
		l.hold(e, lease)
	}
}

// hold sets or renews a lease.
//
// +checklocks:l.mu
func (l *lender) hold(e *entry, lease time.Duration) {
	lease = min(lease, l.cfg.MaxLease)
	e.expires = time.Now().Add(lease)
	if e.timer == nil {
		e.timer = time.AfterFunc(lease, func() { l.expire(e) })
	} else {
		e.timer.Reset(lease)
	}
}

// expire ends a lease, unless it was renewed just now.
func (l *lender) expire(e *entry) {
	l.mu.Lock()
	if left := time.Until(e.expires); left > 0 {
		if l.t.regions[e.id] == e { // else nothing is to keep its memory
			e.timer.Reset(left)
		}
		l.mu.Unlock()
		return
	}
	ended := l.t.remove(e, statusExpired)
	l.mu.Unlock()
	if ended {
		l.end(e)
	}
}

// left is how long the lease lasts, 0 without one.
func (e *entry) left() time.Duration {
	if e.timer == nil {
		return 0
	}
	return max(time.Until(e.expires), 1)
}

func (l *lender) free(q *request, r *response) {
	l.mu.Lock()
	e := l.t.own(r, q)
	freed := e != nil && l.t.remove(e, statusFreed)
	l.mu.Unlock()
	if freed {
		l.end(e)
	}
}

func (l *lender) renew(q *request, r *response) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.t.own(r, q)
	switch {
	case e == nil:
	case e.timer == nil || e.claimed || q.Lease <= 0: // a claim must not hold on to bytes that count for another host
		r.Status = uint32(statusNoLease)
	default:
		l.hold(e, time.Duration(q.Lease))
		r.Lease = int64(e.left())
	}
}

func (l *lender) stat(q *request, r *response, by *caller) {
	e := l.look(q, r)
	if e != nil && !r.Once {
		l.describe(r, e, by)
	}
}

// look finds a region and outlines it in r.
func (l *lender) look(q *request, r *response) *entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.t.find(r, q.ID)
	if e != nil {
		l.outline(r, e)
		r.Once = e.once && !e.ownedBy(q)
	}
	return e
}

// outline puts into r the size and the lease of a region.
//
// +checklocks:l.mu
func (l *lender) outline(r *response, e *entry) {
	r.Size, r.Lease, r.Strict = e.size, int64(e.left()), l.cfg.Strict
}

// describe puts into r how a client reaches a region. The lender's lock is not held, because registering memory takes long.
func (l *lender) describe(r *response, e *entry, by *caller) {
	switch err := e.mem.describe(r, by); {
	case err == nil:
	case errors.Is(err, link.ErrEnded):
		if l.use(r, &request{ID: e.id, Secret: e.secret}) != nil { // which says why it ended
			r.Status = uint32(statusFreed)
		}
	case errors.Is(err, link.ErrTooManyOpen):
		l.trail.Record(audit.Refused, "too many regions open", by.account.Host())
		r.Status, r.Limit = uint32(statusRegions), mostRegions
	default:
		r.Status = uint32(statusServer)
		l.log.Error("no handle for a region", "error", err)
	}
}

// use is table.open with the lock.
func (l *lender) use(r *response, q *request) *entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.t.open(r, q)
}

// source is table.source with the lock.
func (l *lender) source(r *response, q *request) *entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.t.source(r, q)
}

// access executes an operation of the server on a region's memory on behalf of a client.
func (l *lender) access(q *request, r *response) {
	e := l.use(r, q)
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
