package sm

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/internal/shm"
)

// A region has 255 places for clients. They are counted for each process in a Book of the endpoint, and in the Book of the engine like
// connections of other networks, so that one process cannot have all of them. A client claims its place itself and does not wait for a
// response, so a client that is refused, or evicted, gets a notice through its ring; its place is free again when the client has
// released it, or its process has ended. Clients in C do not understand the notice: their place stays taken, and their messages are
// not read.

var (
	errEvicted = errors.New("the server has ended the connection, which was idle, to make room for others")
	errRefused = fmt.Errorf("the server has no connection left for this process: of its %d places one process gets about %d, and the server's MaxConnections and limit of open files may leave fewer: close endpoints of this process that use the server, or raise the server's limits", pairs-1, (pairs-1)*9/16)
)

// hosts returns the host that the resources of a peer are counted for.
func (e *Endpoint) hosts(ident identity, uid uint32) hostquota.Host {
	if e.cfg.hosts != nil {
		return e.cfg.hosts.of(ident, uid)
	}
	return hostOf(ident, uid)
}

// hostOf returns the host of a process. Endpoints of this process are not remote.
func hostOf(ident identity, uid uint32) hostquota.Host {
	if int(ident.pid) == os.Getpid() {
		return hostquota.Host{}
	}
	return hostquota.ProcessHost(uid, ident.pid)
}

// share holds the accounts that count the connection of a client. The poller takes it; any goroutine that tears down the connection
// gives it back.
type share struct {
	mu sync.Mutex
	// place has one of the places of the region; nil: none is held.
	// +checklocks:mu
	place *hostquota.Account
	// engine has one of the connections of the engine.
	// +checklocks:mu
	engine *hostquota.Account
	// handshake is true if engine also has one of the handshakes of the engine, because only the command ring has named the client so
	// far.
	// +checklocks:mu
	handshake bool
}

// accounts returns the accounts that count the connection, nil if none do.
func (s *share) accounts() (place, engine *hostquota.Account) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.place, s.engine
}

// take counts a connection, or returns the cause for refusing it.
func (e *Endpoint) take(c *conn) error {
	h := e.hosts(c.addr.ident, c.addr.uid)
	place, engine := e.places.Account(h), e.cfg.Quota.Account(h)
	if err := place.Take(hostquota.Connections, 1); err != nil {
		return err
	}
	if err := engine.Take(hostquota.Connections, 1); err != nil {
		place.Give(hostquota.Connections, 1)
		return err
	}
	if c.provisional {
		if err := engine.Take(hostquota.Handshakes, 1); err != nil {
			place.Give(hostquota.Connections, 1)
			engine.Give(hostquota.Connections, 1)
			return err
		}
	}
	s := &c.share
	s.mu.Lock()
	defer s.mu.Unlock()
	s.place, s.engine, s.handshake = place, engine, c.provisional
	return nil
}

// give gives back the units that take has counted.
func (s *share) give() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.place == nil {
		return
	}
	s.endHandshakeLocked()
	s.place.Give(hostquota.Connections, 1)
	s.engine.Give(hostquota.Connections, 1)
	s.place, s.engine = nil, nil
}

// endHandshake ends the handshake, because a datagram has come, and the kernel names its sender.
func (s *share) endHandshake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endHandshakeLocked()
}

// +checklocks:s.mu
func (s *share) endHandshakeLocked() {
	if s.handshake {
		s.handshake = false
		s.engine.Give(hostquota.Handshakes, 1)
	}
}

// refuse ends a new connection.
func (c *conn) refuse(cause string, err error) {
	e := c.ep
	e.stats.refused.Add(1)
	e.cfg.Audit.Record(audit.Refused, cause, e.hosts(c.addr.ident, c.addr.uid), slog.String(keyPeer, c.addr.String()), slog.Any(keyError, err))
	c.dismiss(errRefused, typeRefused)
}

// dismiss ends a connection and notifies the client by a message of type kind. The pair stays taken until the client has
// released it, because the client lives and may still write to it.
//
// The notice comes first, because a goroutine that receives from the connection ends it as soon as it sees ending, and notify does nothing
// for a connection that has ended. If the client has left in the meantime, its own ending stays, because its pair is free then.
func (c *conn) dismiss(why error, kind uint8) {
	c.notify(kind)
	c.ending.CompareAndSwap(nil, &ending{kind: na.Unreachable, err: why, keep: true})
	c.fail(na.Unreachable, why)
}

// notify puts a message of that type and without bytes into the ring, if the client is of this package and there is room. A connection
// that another goroutine has ended in the meantime gets none, because its doorbell may be closed, and its descriptor may be that of
// another file.
func (c *conn) notify(kind uint8) {
	if c.ext == nil {
		return
	}
	c.addr.mu.Lock()
	defer c.addr.mu.Unlock()
	if c.addr.conn.Load() != c {
		return
	}
	_ = c.reg.read(func() { // a region that faults has no clients
		if !c.out.full() {
			shm.Publish()
			c.out.push(makeDescriptor(0, 0, 0, kind))
			c.signalPeer(1)
		}
	})
}

// idleLeast is the least time without messages after which a connection may be evicted.
const idleLeast = time.Second

// makeRoom evicts a connection if few places of the region, or few connections of the engine, are left.
func (e *Endpoint) makeRoom(now time.Time) {
	switch {
	case e.places.Near(hostquota.Connections):
		e.evict(now, func(s *share) *hostquota.Account {
			place, _ := s.accounts()
			return place
		})
	case e.cfg.Quota.Near(hostquota.Connections):
		e.evict(now, func(s *share) *hostquota.Account {
			_, engine := s.accounts()
			return engine
		})
	}
}

// evict ends the connection that has been idle for longest, of the process with the most connections, if that has more than its fair
// share.
func (e *Endpoint) evict(now time.Time, account func(*share) *hostquota.Account) {
	var most *hostquota.Account
	for _, c := range e.list() {
		a := account(&c.share)
		if a == nil || a.Host().IsZero() || a.Used(hostquota.Connections) <= a.Fair(hostquota.Connections) {
			continue
		}
		if most == nil || a.Used(hostquota.Connections) > most.Used(hostquota.Connections) {
			most = a
		}
	}
	if most == nil {
		return
	}
	var oldest *conn
	for _, c := range e.list() {
		if account(&c.share) == most && c.evictable(now) && (oldest == nil || c.idleSince.Before(oldest.idleSince)) {
			oldest = c
		}
	}
	if oldest == nil {
		return
	}
	e.stats.evicted.Add(1)
	e.cfg.Audit.Record(audit.Evicted, "idle", most.Host(), slog.String(keyPeer, oldest.addr.String()))
	oldest.dismiss(errEvicted, typeEvicted)
}

// evictable reports whether a connection is idle, and its client can learn that it ends. A connection with unanswered requests is not
// idle as long as any request of the process is being handled; the count alone does not decide, because one-way requests are never
// answered. A connection with a client that has left is about to end, and its pair is free then; an eviction would keep the pair from
// use.
func (c *conn) evictable(now time.Time) bool {
	if c.ext == nil || c.dead.Load() || c.ending.Load() != nil || c.idleSince.IsZero() || now.Sub(c.idleSince) < idleLeast || c.addr.expected.Len() > 0 || c.unread() {
		return false
	}
	return c.unanswered.Load() <= 0 || !busy(c.addr.Account())
}

// busy reports whether requests of a process are being handled.
func busy(a *hostquota.Account) bool {
	for _, r := range [...]hostquota.Resource{hostquota.Handlers, hostquota.Queued, hostquota.Unsent, hostquota.Pulls} {
		if a.Used(r) > 0 {
			return true
		}
	}
	return false
}

// noteIdle records the connections without a message since its last call. The positions of a ring change with each message.
func (e *Endpoint) noteIdle(now time.Time) {
	for _, c := range e.list() {
		if !c.server || c.self {
			continue
		}
		var at uint64
		if c.reg.read(func() {
			tx, rx := c.reg.tx(c.pair), c.reg.rx(c.pair)
			at = uint64(shm.Uint32(tx, offProdTail).Load())<<32 | uint64(shm.Uint32(rx, offProdTail).Load())
		}) != nil {
			continue
		}
		if c.idleSince.IsZero() || at != c.seenAt {
			c.idleSince, c.seenAt = now, at
		}
	}
}
