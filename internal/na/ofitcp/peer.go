package ofitcp

import (
	"context"
	"errors"
	"net/netip"
	"sync/atomic"
	"time"

	proven "cinnabar/identity"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
	"cinnabar/internal/na/ofiaddr"
	"cinnabar/internal/peerbook"
)

// peer is the address of an endpoint, with the connection to it and the operations that concern it. It implements [na.Addr]. Each
// address has one peer while a reference to that exists. Beside it there are twins: one for each further process that has
// connected under the same address, and one for each connection that a process in C has made to a further address of this host.
type peer struct {
	ep   *Endpoint
	addr netip.AddrPort
	str  string
	name string // of the host, which the certificate of a dialed server must have; empty: the address
	twin bool   // a dial of addr reaches another peer: that of another process, or of another connection of this process

	account    *hostquota.Account // of the host of addr
	annotation atomic.Value       // see Annotation

	conn   atomic.Pointer[conn]   // that messages are sent over; nil if there is none. Changed with mu held.
	last   atomic.Pointer[origin] // of the latest connection, perhaps lost
	member peerbook.Member        // of Endpoint.active

	mu invariants.Mutex
	// +checklocks:mu
	link linkState
	// try is the own attempt under way, or the answering of the peer's.
	// +checklocks:mu
	try *attempt
	// pid and id are those of the peer's process, if link is linkAccepting or linkUp.
	// +checklocks:mu
	pid uint32
	// +checklocks:mu
	id processID
	// local is this host's address of that connection. It is the zero value while an attempt of this side is under way.
	// +checklocks:mu
	local netip.Addr
	// firewalled says that the peer asked not to be dialed.
	// +checklocks:mu
	firewalled bool
	// waiting are messages and transfers until there is a connection.
	// +checklocks:mu
	waiting []item

	expected peerbook.Expected // locked after mu
}

// attempt is the making of a connection, in either direction. It counts for as long as peer.try points to it.
type attempt struct {
	cancel context.CancelFunc
	sent   atomic.Int32  // an own one: attemptQuiet and so on
	done   chan struct{} // an own one: closed when it is over
	failed failures      // of an attempt of this side
}

const (
	attemptQuiet int32 = iota // the connection request is not sent
	attemptSent               // it is, and no answer has come
	attemptGone               // it must not be sent any more
)

// refusalTime is the longest time that abandon waits until the peer refuses an attempt of this side that lost against one of the peer's.
const refusalTime = 100 * time.Millisecond

// abandon ends an own attempt because the peer's is accepted. If the peer has been sent a request it must have refused
// that before it learns that its own is accepted: upstream may compare a request that it finds afterwards with a process
// number that it has not stored yet, and then takes it for one of another process, which replaces the connection.
func (a *attempt) abandon() {
	defer a.cancel()
	if a.done == nil || a.sent.CompareAndSwap(attemptQuiet, attemptGone) {
		return
	}
	timer := time.NewTimer(refusalTime)
	defer timer.Stop()
	select {
	case <-a.done:
	case <-timer.C:
	}
}

func (p *peer) String() string { return p.str }

func (p *peer) Equal(other na.Addr) bool {
	var o *peer
	switch a := other.(type) {
	case *peer:
		o = a
	case *origin:
		o = a.peer
	case *ofiaddr.Named:
		o, _ = a.Reached().(*peer)
	}
	return o != nil && (p == o || p.addr == o.addr && !p.twin && !o.twin)
}

func (p *peer) Done() <-chan struct{} {
	if o := p.last.Load(); o != nil {
		return o.done
	}
	return nil
}

// Annotation implements [na.Annotated].
func (p *peer) Annotation() *atomic.Value { return &p.annotation }

// Account implements [na.Addr].
func (p *peer) Account() *hostquota.Account { return p.account }

// Identity implements [na.Identified], for calls of this process to itself.
func (p *peer) Identity() proven.Peer {
	if p == p.ep.own {
		return proven.Peer{Kind: proven.Self}
	}
	return proven.Peer{}
}

// origin is the [na.Addr] of the requests that have come over one connection. Answers, and transfers of the handlers, go
// over that connection, because another process may have the peer's address when they do. Requests to it go to the peer.
type origin struct {
	peer *peer
	id   processID // of the process at the other end
	done chan struct{}
	conn atomic.Pointer[conn] // nil once it is dead, so that an address that is kept keeps nothing else

	proven proven.Peer  // see Identity
	holds  atomic.Int64 // requests that are being handled
}

// Identity implements [na.Identified].
func (o *origin) Identity() proven.Peer { return o.proven }

// errOrigin is the cause in lostOrigin.
var errOrigin = errors.New("the connection that the request came over is lost")

func (o *origin) String() string { return o.peer.str }

// Equal implements [na.Addr].
func (o *origin) Equal(other na.Addr) bool { return o.peer.Equal(other) }

// Done implements [na.Addr].
func (o *origin) Done() <-chan struct{} { return o.done }

// Account implements [na.Addr].
func (o *origin) Account() *hostquota.Account { return o.peer.account }

// Hold implements [na.Holder].
func (o *origin) Hold(n int64) { o.holds.Add(n) }

// Yield implements [na.Yielder].
func (o *origin) Yield() { o.peer.ep.yield() }

// SoleReader implements [na.SoleReader].
func (o *origin) SoleReader() {}

// route returns the connection for a transfer: that of the request or, if it is lost, a later one of the same process,
// which only its random identity proves. It returns nil if there is none.
func (o *origin) route() *conn {
	if c := o.conn.Load(); c != nil || o.id.isZero() {
		return c
	}
	if c := o.peer.conn.Load(); c != nil && c.origin.id == o.id {
		return c
	}
	return nil
}

// driven returns the connection that a goroutine drives while it waits for a message or transfer of the origin. While own
// requests to the peer wait for an answer, it is the peer's connection, because the answer comes over that.
func (o *origin) driven() *conn {
	if c := o.conn.Load(); c != nil && o.peer.expected.Len() == 0 {
		return c
	}
	return o.peer.conn.Load()
}

// send queues the item it for this connection. If the connection is dead, send completes the item with the error of lostOrigin.
func (c *conn) send(it item) {
	if c.push(it) > 0 {
		c.kick()
		return
	}
	c.peer.giveBack(it, c.peer.lostOrigin(it.what))
}

// lostOrigin is the error of an answer or a transfer after the connection of its request is lost.
func (p *peer) lostOrigin(what string) error {
	if p.ep.closed.Load() {
		return &na.Error{Kind: na.Closed, Op: what, Addr: p.str}
	}
	return &na.Error{Kind: na.Unreachable, Op: what, Addr: p.str, Err: errOrigin}
}

// send queues the item it for the connection to the peer, or until there is a connection.
func (p *peer) send(it item) {
	if c := p.conn.Load(); c != nil && c.push(it) > 0 {
		c.kick()
		return
	}
	c, err := p.sendSlow(it)
	if err != nil {
		p.giveBack(it, err)
	} else if c != nil {
		c.kick()
	}
}

// sendSlow queues the item it until there is a connection. If there is one by now, sendSlow queues the item for that connection and
// returns the connection, which the caller wakes.
func (p *peer) sendSlow(it item) (*conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.conn.Load(); c != nil && c.push(it) > 0 {
		return c, nil
	}
	return nil, p.awaitLocked(it)
}

// awaitLocked queues the item it until there is a connection, and starts an attempt to connect if none is under way.
//
// +checklocks:p.mu
func (p *peer) awaitLocked(it item) error {
	if p.ep.closed.Load() {
		return &na.Error{Kind: na.Closed, Op: it.what, Addr: p.str}
	}
	if p.link == linkIdle {
		if p.firewalled {
			return &na.Error{Kind: na.Firewalled, Op: it.what, Addr: p.str}
		}
		p.activate() // first, so that Close finds the attempt
		if !p.dialLocked() {
			return &na.Error{Kind: na.Closed, Op: it.what, Addr: p.str}
		}
	}
	p.waiting = append(p.waiting, it)
	return nil
}

// giveBack completes an operation that was not begun.
func (p *peer) giveBack(it item, err error) {
	if t := it.t; t != nil {
		*t = transfer{}
		transfers.Put(t)
	}
	it.op.Finish(0, err)
}

// lostLocked records that c is dead, and returns the waiters for messages over it. It returns none if c was idle, because waiters
// that have come since belong to requests for the next connection. The waiters with a tag in but do, too.
//
// +checklocks:p.mu
func (p *peer) lostLocked(c *conn, how endMode, but map[uint32]bool) []peerbook.Waiter {
	if p.conn.Load() != c {
		return nil
	}
	p.conn.Store(nil)
	if p.link == linkUp {
		p.link = linkIdle
	}
	if how == endIdle {
		return nil
	}
	return p.expected.TakeAll(but)
}

// upLocked makes c the connection, and queues the items that wait for one.
//
// +checklocks:p.mu
func (p *peer) upLocked(c *conn, m *cmMessage) {
	p.link, p.try, p.pid, p.id = linkUp, nil, m.pid, m.id
	c.origin.id = m.id // c has not started
	for _, it := range p.waiting {
		if it.joins() {
			defer it.op.Finish(0, nil) // when there is the connection
		} else {
			c.push(it) // c is new, so it is not dead
		}
	}
	clear(p.waiting)
	p.waiting = p.waiting[:0]
	p.last.Store(c.origin)
	p.conn.Store(c)
}

// giveUpLocked ends an attempt and returns the items and waiters that waited for it.
//
// +checklocks:p.mu
func (p *peer) giveUpLocked() ([]item, []peerbook.Waiter) {
	items := p.waiting
	p.link, p.try, p.waiting = linkIdle, nil, nil
	return items, p.expected.TakeAll(nil)
}

// failAll completes the operations that waited for a connection that does not come about.
func (p *peer) failAll(items []item, tags []peerbook.Waiter, kind na.Kind, err error) {
	for _, it := range items {
		p.giveBack(it, &na.Error{Kind: kind, Op: it.what, Addr: p.str, Err: err})
	}
	for _, w := range tags {
		w.Op.Finish(0, &na.Error{Kind: kind, Op: "receive", Addr: p.str, Err: err})
	}
	p.settle()
}

// close ends the attempt and the operations that wait for it, because the endpoint is closed.
func (p *peer) close() {
	p.mu.Lock()
	if p.try != nil {
		p.try.cancel()
	}
	items, tags := p.giveUpLocked()
	p.mu.Unlock()
	p.failAll(items, tags, na.Closed, nil)
}

// cancel completes op with an error of kind na.Canceled if op waits for a connection or for an expected message, and reports whether it
// did. It returns false for an operation that a connection has, because conn.cancel looks for that.
func (p *peer) cancel(op *na.Op) bool {
	if it, ok := p.unqueue(op); ok {
		p.giveBack(it, &na.Error{Kind: na.Canceled, Op: it.what, Addr: p.str})
		return true
	}
	if p.expected.Remove(op) {
		op.Finish(0, &na.Error{Kind: na.Canceled, Op: "receive", Addr: p.str})
		p.settle()
		return true
	}
	return false
}

// unqueue removes op from the items that wait for a connection, and reports whether it was among them.
func (p *peer) unqueue(op *na.Op) (item, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, it := range p.waiting {
		if it.op == op {
			p.waiting = append(p.waiting[:i], p.waiting[i+1:]...)
			return it, true
		}
	}
	return item{}, false
}

// activate enters p into the set of peers with something under way. The caller holds the lock of the operation that it has begun, mu or
// that of expected, so that settle does not undo it.
func (p *peer) activate() { p.ep.active.Add(p, &p.member) }

// settle removes p from that set if p has no connection, no attempt to connect, and no operation that waits.
func (p *peer) settle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.link == linkIdle && len(p.waiting) == 0 {
		p.expected.IfEmpty(func() { p.ep.active.Remove(p, &p.member) })
	}
}
