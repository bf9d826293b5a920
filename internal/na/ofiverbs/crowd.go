package ofiverbs

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/verbs"
)

const (
	// mostEvicted is the number of idle connections that give way to one new connection at most.
	mostEvicted = 4
	// maxResponses is the number of responses in the queue of a connection at which the connection ends. A peer that grants no credits
	// sends no more than two windows of requests. One that grants a few again and again can send many for each response that it takes.
	maxResponses = 8192
)

// takeConnection counts a connection for a host. If the limit, or the host's share of it, is used up, idle connections give way first; one
// does so, too, when little is left.
func (e *Endpoint) takeConnection(a *hostquota.Account) error {
	err := a.Take(hostquota.Connections, 1)
	for try := 0; err != nil && try < mostEvicted; try++ {
		c := e.evictIdle(false)
		if c == nil {
			return err
		}
		<-c.gone // the wait is bounded, because the end of a connection has a time limit
		err = a.Take(hostquota.Connections, 1)
	}
	if err == nil && e.cfg.Quota.Near(hostquota.Connections) {
		e.evictIdle(false)
	}
	return err
}

// makeConn is newConn. If the device or the process has no room for another connection, idle connections give way.
func (e *Endpoint) makeConn(ctx context.Context, p *peer, account *hostquota.Account, share bool) (*conn, error) {
	for try := 0; ; try++ {
		c, err := newConn(p, account, share)
		if err == nil || try == mostEvicted || !outOfRoom(err) {
			return c, err
		}
		victim := e.evictIdle(true)
		if victim == nil {
			return nil, err
		}
		select {
		case <-victim.gone:
		case <-ctx.Done():
			return nil, err
		}
	}
}

// outOfRoom reports whether an error says that the device, or the process, can have no more objects of some kind.
func outOfRoom(err error) bool {
	for _, full := range []error{errRegions, verbs.ErrLockLimit, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE} {
		if errors.Is(err, full) {
			return true
		}
	}
	return false
}

// evictIdle ends the connection that has been idle for longest, of the host that has most of them, and returns it. It returns nil if there is
// none. If all is false, a host that has no more than its fair share loses none.
func (e *Endpoint) evictIdle(all bool) *conn {
	for range mostEvicted { // a connection that is found may be in use by now
		worst := e.longestIdle(all)
		if worst == nil {
			return nil
		}
		if worst.evict() {
			e.cfg.Audit.Record(audit.Evicted, causeIdle, worst.account.Host())
			return worst
		}
	}
	return nil
}

// longestIdle returns the connection that gives way next, nil if there is none.
func (e *Endpoint) longestIdle(all bool) (worst *conn) {
	for _, c := range e.connections() {
		a := c.account
		if a.Host().IsZero() || !all && a.Used(hostquota.Connections) <= a.Fair(hostquota.Connections) {
			continue
		}
		if (worst == nil || c.before(worst)) && c.idle() {
			worst = c
		}
	}
	return worst
}

// before reports whether c gives way before d: its host has more connections, or as many, and c has been idle for longer.
func (c *conn) before(d *conn) bool {
	m, n := c.account.Used(hostquota.Connections), d.account.Used(hostquota.Connections)
	return m > n || m == n && c.touched.Load() < d.touched.Load()
}

// touch records that the connection is in use. The endpoint's clock is the number of connections made, so that no time is read.
func (c *conn) touch() {
	if now := c.ep.stats.connections.Load(); c.touched.Load() != now {
		c.touched.Store(now)
	}
}

// gaveWay is the cause of the end of an idle connection. No call was under way on it, so no waiter for a response belongs to it.
type gaveWay struct{ text string }

func (g *gaveWay) Error() string { return g.text }

func hasGivenWay(err error) bool {
	_, ok := errors.AsType[*gaveWay](err)
	return ok
}

// evict ends the connection if it is idle, and reports whether it has. A call that begins at the same time goes over another connection, because
// its request finds this one dead, and the peer keeps the operation that waits for the response.
func (c *conn) evict() bool {
	if c.tryPoll() > 0 { // a request of the peer may have come
		return false
	}
	q := c.ep.cfg.Quota
	return c.endNow(na.Unreachable, &gaveWay{fmt.Sprintf("the connection was idle and gave way to another one, because %d of %d connections are in use (Config.MaxConnections), or device %s has no room for more; raise the limit, or close connections",
		q.Used(hostquota.Connections), q.Limit(hostquota.Connections), c.ep.attr.Name)}, true)
}

// idle reports whether nothing is under way on the connection: no call, no request that is being handled, no transfer, and no message.
func (c *conn) idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.idleLocked()
}

// idleLocked is idle for a caller that holds the lock.
//
// +checklocks:c.mu
func (c *conn) idleLocked() bool {
	if c.origin.holds.Load() > 0 || c.moving.Load() > 0 || c.turns.tasks.Pending() || c.turns.tasks.Waiting() > 0 ||
		c.peer.expected.Len() > 0 && c.peer.conn.Load() == c {
		return false
	}
	return c.end == nil && len(c.queue) == c.head && len(c.free) == c.shape.slots && c.moves.idle()
}

// idle reports whether there is no transfer, and the device works on no read or write.
func (m *oneSided) idle() bool { return len(m.queue) == 0 && len(m.free) == len(m.slots) }
