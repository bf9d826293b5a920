package ofiverbs

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

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

// takeConnection counts a connection for a host. If the limit, or the host's share of it, is used up, idle connections give way first. If little
// is left of the limit afterwards, a goroutine ends one more idle connection, so that the next caller need not wait for the answer of a peer.
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
	if err == nil && e.cfg.Quota.Near(hostquota.Connections) && !e.evicting.Swap(true) {
		if !e.spawn(func() {
			e.evictIdle(false)
			e.evicting.Store(false)
		}) {
			e.evicting.Store(false)
		}
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

// evictIdle ends the connection that has been idle for longest, of the host that has most connections, and returns it. It returns nil if there is
// none. If all is false, a host that has no more than its fair share loses no connection.
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

// askTime is the time that a peer has to end its idle connection, or to answer that something is under way, after a question.
const askTime = 250 * time.Millisecond

// ending is the state of two questions, that of this side to the peer and that of the peer: may the idle connection end?
type ending struct {
	asked  bool          // the peer was asked and has not answered; no request leaves, and no transfer begins
	since  time.Time     // of the question, or of the beginning of the connection
	over   chan struct{} // closed when the peer answers that something is under way; nil: the peer was not asked
	heard  bool          // a packet has come since the question
	answer bool          // the peer has asked, and askNot is still to be sent
}

// evict ends the connection if it is idle, and reports whether it has. A request of the peer may be under way. Therefore evict asks a peer that is
// a program of this package to end the connection. Such a peer ends it unless something is under way, so no request of the peer is lost.
// A peer that is silent for askTime may be stopped, or hostile, and loses the connection, and so does one that has sent other packets and is asked again.
//
// A request that this side begins after the question waits, and goes over another connection when this one has ended. If the end begins without a
// question, the request finds the connection dead and goes over another one too, because the type peer keeps the operation that waits for the response.
func (c *conn) evict() bool {
	if c.tryPoll() > 0 { // a request of the peer may have come
		return false
	}
	over, idle := c.ask()
	if !idle {
		return false // now, and not by endNow, because a connection that becomes idle after ask must not end without a question
	}
	if over != nil {
		timer := time.NewTimer(c.ep.askTime)
		defer timer.Stop()
		select {
		case <-c.gone:
			return true
		case <-over:
			return false
		case <-timer.C:
		}
		c.tryPoll()
		c.mu.Lock()
		heard := c.ending.heard
		c.mu.Unlock()
		if heard {
			return false
		}
	}
	q := c.ep.cfg.Quota
	return c.endNow(na.Unreachable, &gaveWay{fmt.Sprintf("the connection was idle and gave way to another one, because %d of %d connections are in use (Config.MaxConnections), or device %s has no room for more; raise the limit, or close connections",
		q.Used(hostquota.Connections), q.Limit(hostquota.Connections), c.ep.attr.Name)}, true)
}

// ask asks the peer to end the connection if it is idle, and returns a channel that is closed when the peer answers that it does not. over is nil if
// the idle connection may end without a question: the peer is a program in C, which does not understand the question, was asked before, or has not made
// it possible to send a packet.
func (c *conn) ask() (over chan struct{}, idle bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.idleLocked() {
		return nil, false
	}
	if !c.native || c.ending.asked || !c.canAskLocked() {
		return nil, true
	}
	c.ending = ending{asked: true, since: time.Now(), over: make(chan struct{}), answer: c.ending.answer}
	c.postAskLocked(askEnd)
	c.postBatchLocked()
	return c.ending.over, true
}

// canAskLocked reports whether a question can be sent.
//
// +checklocks:c.mu
func (c *conn) canAskLocked() bool { return c.open && (!c.flow || c.credits > 1) && len(c.free) > 0 }

// postAskLocked adds a question or an answer to batch. There is a free slot.
//
// +checklocks:c.mu
func (c *conn) postAskLocked(asks uint64) {
	slot := c.takeSlotLocked()
	c.slot(slot).putAsk(c.peerIndex, asks)
	c.postLocked(slot, headerLen)
}

// questioned processes a question or an answer of the peer. The caller calls flush.
func (c *conn) questioned(asks uint64) {
	switch asks {
	case askEnd:
		if c.endNow(na.Unreachable, &gaveWay{"the peer has asked for the end of the idle connection, because it has too many connections"}, true) {
			return
		}
		c.mu.Lock()
		c.ending.answer = true
		c.mu.Unlock()
	case askNot:
		c.mu.Lock()
		if c.ending.asked {
			c.ending.asked = false
			close(c.ending.over)
		}
		c.mu.Unlock()
	}
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
	if c.native && (c.ending.asked || !c.canAskLocked()) && time.Since(c.ending.since) < c.ep.askTime {
		return false // because the peer may still answer, or a packet may come that makes it possible to ask
	}
	if c.ending.asked { // what waits is for the next connection
		return c.end == nil && c.responses == 0
	}
	return c.end == nil && len(c.queue) == c.head && c.sentLocked() && c.moves.idle()
}

// idle reports whether there is no transfer, and the device works on no read or write.
func (m *oneSided) idle() bool { return len(m.queue) == 0 && len(m.free) == len(m.slots) }
