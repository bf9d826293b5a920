package ofiverbs

import (
	"context"
	"errors"
	"net/netip"
	"slices"
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
// address has one peer while a reference to that exists.
type peer struct {
	ep   *Endpoint
	addr netip.AddrPort
	str  string

	account    *hostquota.Account // of the host of addr
	annotation atomic.Value       // see Annotation

	conn atomic.Pointer[conn]   // that messages are sent over; nil if there is none. Changed with mu held.
	last atomic.Pointer[origin] // of the latest connection, perhaps lost

	member   peerbook.Member   // of the endpoint's peers with something under way
	expected peerbook.Expected // operations that wait for expected messages

	mu invariants.Mutex
	// +checklocks:mu
	link linkState
	// try is the own attempt under way, or the answering of the peer's.
	// +checklocks:mu
	try *attempt
	// process is the number of the peer's process, if link is linkAccepting or linkUp.
	// +checklocks:mu
	process uint32
	// waiting are messages and transfers until there is a connection.
	// +checklocks:mu
	waiting []item
	// unused is the number of connections in a row that ended before they had sent anything, although requests waited.
	// +checklocks:mu
	unused int
}

// linkState is the state between an endpoint and a peer:
//
//	            own attempt                       established
//	idle -------------------------> dialing --------------------------> up
//	  ^ |                            |  ^ |                              |
//	  | | request of the peer        |  | | request of a higher peer     | the connection ends
//	  | v        refused because of  v  | v                              v
//	  | accepting  another one   refused  accepting ---> up             idle
//	  | |
//	  +-+ the answering fails
//
// A request of the peer is accepted in refused, too.
type linkState uint8

const (
	linkIdle      linkState = iota // nothing, or a lost connection
	linkDialing                    // an own attempt that is not decided
	linkRefused                    // an own attempt was refused and will be repeated
	linkAccepting                  // a request of the peer is being answered
	linkUp                         // a connection
)

// attempt is the making of a connection, in either direction. It counts for as long as peer.try points to it.
type attempt struct{ cancel context.CancelFunc }

// item is a message or a transfer until it is sent.
type item struct {
	op      *na.Op
	opName  string // name of the operation in errors
	msg     []byte
	tag     uint32
	request bool
	t       *transfer // nil for a message
}

// String implements [na.Addr].
func (p *peer) String() string { return p.str }

// Equal implements [na.Addr].
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
	return o != nil && p.addr == o.addr
}

// Done implements [na.Addr].
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

// origin is the [na.Addr] of the requests that have come over one connection. Responses, and transfers of the handlers, go over that
// connection, because the caller waits for them there. Requests to it go to the peer.
type origin struct {
	peer *peer
	done chan struct{}
	conn atomic.Pointer[conn] // nil once it is dead, so that an address that is kept keeps nothing else

	holds atomic.Int64 // requests that are being handled

	id proven.Peer // set when the connection is made, before a request of it is read
}

// errOrigin is the cause in lostOrigin.
var errOrigin = errors.New("the connection that the request came over is lost")

// String implements [na.Addr].
func (o *origin) String() string { return o.peer.str }

// Equal implements [na.Addr].
func (o *origin) Equal(other na.Addr) bool { return o.peer.Equal(other) }

// Done implements [na.Addr].
func (o *origin) Done() <-chan struct{} { return o.done }

// Account implements [na.Addr].
func (o *origin) Account() *hostquota.Account { return o.peer.account }

// Identity implements [na.Identified].
func (o *origin) Identity() proven.Peer {
	if o.peer == o.peer.ep.own {
		return proven.Peer{Kind: proven.Self}
	}
	return o.id
}

// Identity implements [na.Identified], for calls of this process to itself.
func (p *peer) Identity() proven.Peer {
	if p == p.ep.own {
		return proven.Peer{Kind: proven.Self}
	}
	return proven.Peer{}
}

// Hold implements [na.Holder].
func (o *origin) Hold(n int64) { o.holds.Add(n) }

// SoleReader implements [na.SoleReader].
func (o *origin) SoleReader() {}

// send queues it for the origin's connection, or completes it with an error if that is lost.
func (o *origin) send(it item) {
	c := o.conn.Load()
	if c == nil || !c.push(it) {
		it.op.Finish(0, o.peer.lostOrigin(it.opName))
		return
	}
	if it.t == nil && c.yielded.on.Load() {
		c.handBack()
	}
}

// lostOrigin is the error of a response or a transfer after the connection of its request is lost.
func (p *peer) lostOrigin(opName string) error {
	if p.ep.closed.Load() {
		return &na.Error{Kind: na.Closed, Op: opName, Addr: p.str}
	}
	return &na.Error{Kind: na.Unreachable, Op: opName, Addr: p.str, Err: errOrigin}
}

// send sends it over the connection, or as soon as there is one.
func (p *peer) send(it item) {
	if c := p.conn.Load(); c != nil && c.push(it) {
		return
	}
	p.mu.Lock()
	c := p.conn.Load()
	var err error
	if c == nil || !c.enqueue(it) {
		c, err = nil, p.awaitLocked(it)
	}
	p.mu.Unlock()
	if c != nil {
		c.flush()
	} else if err != nil {
		it.op.Finish(0, err)
	}
}

// awaitLocked queues it until there is a connection, and starts an attempt to connect if none is under way.
//
// +checklocks:p.mu
func (p *peer) awaitLocked(it item) error {
	if p.ep.closed.Load() {
		return &na.Error{Kind: na.Closed, Op: it.opName, Addr: p.str}
	}
	p.activate() // first, so that Close finds the attempt
	if p.link == linkIdle && !p.dialLocked(0) {
		return &na.Error{Kind: na.Closed, Op: it.opName, Addr: p.str}
	}
	p.waiting = append(p.waiting, it) // if link is linkUp, the connection is dead, and lost starts an attempt
	return nil
}

// takeWaitersLocked removes and returns the waiters for expected messages, except those of the requests in waiting.
//
// +checklocks:p.mu
func (p *peer) takeWaitersLocked() []peerbook.Waiter {
	unsent := make(map[uint32]bool, len(p.waiting))
	for i := range p.waiting {
		if p.waiting[i].request {
			unsent[p.waiting[i].tag] = true
		}
	}
	return p.expected.TakeAll(unsent)
}

// upLocked makes c, which is adopted, the connection, and queues the items that wait for one. The caller calls c.flush when it has released
// the lock. It has held the lock since before [Endpoint.adopt], so that lost comes behind upLocked if c ends at once.
//
// +checklocks:p.mu
func (p *peer) upLocked(c *conn, process uint32) {
	p.link, p.try, p.process = linkUp, nil, process
	if c.twoEnds = p.within(process); c.twoEnds {
		p.ep.cfg.Progress.AddPair()
	}
	n := 0
	for ; n < len(p.waiting); n++ {
		if it := p.waiting[n]; it.joins() {
			defer it.op.Finish(0, nil) // after p.conn is set
		} else if !c.enqueue(it) {
			break
		}
	}
	p.waiting = slices.Delete(p.waiting, 0, n) // the rest waits for lost, because c is dead
	p.last.Store(c.origin)
	p.conn.Store(c)
}

// lost records that c is dead, and completes the operations that wait for messages over c, unless c was idle. unsent are the requests that c has
// not sent, and the transfers that it has not begun. They wait for another connection, unless the endpoint is closed or the peer is unresponsive:
// then lost completes them too.
func (p *peer) lost(c *conn, unsent []item, idle bool, kind na.Kind, err error) {
	p.mu.Lock()
	if c.twoEnds { // undone here and not at the end of run, because run may end before upLocked
		c.twoEnds = false
		p.ep.cfg.Progress.RemovePair()
	}
	if p.conn.Load() != c { // a reflected connection of the endpoint with itself, or one that was replaced
		p.mu.Unlock()
		failItems(p, unsent, kind, err)
		return
	}
	p.conn.Store(nil)
	if p.link == linkUp { // otherwise a request of another process is being answered
		p.link = linkIdle
	}
	if kind != na.Closed && !isUnresponsive(err) {
		p.waiting = append(unsent, p.waiting...)
		unsent = nil
	}
	var waiters []peerbook.Waiter
	if !idle { // otherwise the waiters belong to requests for the next connection
		waiters = p.takeWaitersLocked()
	}
	var dropped []item
	if p.link == linkIdle && len(p.waiting) > 0 && !p.dialLocked(p.pauseLocked(c)) {
		dropped, p.waiting = p.waiting, nil
	}
	p.mu.Unlock()
	failItems(p, unsent, kind, err)
	failItems(p, dropped, na.Closed, nil)
	p.failWaiters(waiters, kind, err)
	p.settle()
}

// pauseLocked returns the pause before the connection behind c, which has ended. There is one if c and others before it have sent nothing,
// because a peer that ends each connection would otherwise keep a processor busy for as long as a request waits.
//
// +checklocks:p.mu
func (p *peer) pauseLocked(c *conn) time.Duration {
	c.mu.Lock()
	used := c.used
	c.mu.Unlock()
	if used {
		p.unused = 0
		return 0
	}
	if p.unused++; p.unused == 1 {
		return 0
	}
	return min(ofiaddr.RetryFirst<<min(p.unused, 10), ofiaddr.RetryMax)
}

// failItems completes the operations of items that are not sent.
func failItems(p *peer, items []item, kind na.Kind, err error) {
	for _, it := range items {
		it.op.Finish(0, &na.Error{Kind: kind, Op: it.opName, Addr: p.str, Err: err})
	}
}

func (p *peer) failWaiters(list []peerbook.Waiter, kind na.Kind, err error) {
	for _, w := range list {
		w.Op.Finish(0, &na.Error{Kind: kind, Op: "receive", Addr: p.str, Err: about("receive", err)})
	}
}

// giveUp ends the attempt try, if it counts still, and fails the operations that waited for it.
func (p *peer) giveUp(try *attempt, kind na.Kind, err error) {
	p.mu.Lock()
	if p.try != try {
		p.mu.Unlock()
		return
	}
	items := p.waiting
	p.link, p.try, p.waiting = linkIdle, nil, nil
	waiters := p.takeWaitersLocked()
	p.mu.Unlock()
	failItems(p, items, kind, err)
	p.failWaiters(waiters, kind, err)
	p.settle()
}

// close ends the attempt and the operations that wait for it, because the endpoint is closed.
func (p *peer) close() {
	p.mu.Lock()
	if p.try != nil {
		p.try.cancel()
	}
	items := p.waiting
	p.waiting, p.try = nil, nil
	if p.link != linkUp {
		p.link = linkIdle
	}
	waiters := p.takeWaitersLocked()
	p.mu.Unlock()
	failItems(p, items, na.Closed, nil)
	p.failWaiters(waiters, na.Closed, nil)
}

// cancel gives op up if it waits for a connection or a message.
func (p *peer) cancel(op *na.Op) bool {
	if it, ok := p.unqueue(op); ok {
		it.op.Finish(0, &na.Error{Kind: na.Canceled, Op: it.opName, Addr: p.str})
		return true
	}
	if p.expected.Remove(op) {
		op.Finish(0, &na.Error{Kind: na.Canceled, Op: "receive", Addr: p.str})
		p.settle()
		return true
	}
	return false
}

// unqueue removes op from the items that wait for a connection.
func (p *peer) unqueue(op *na.Op) (item, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, it := range p.waiting {
		if it.op == op {
			p.waiting = slices.Delete(p.waiting, i, i+1)
			return it, true
		}
	}
	return item{}, false
}

// activate enters p into the set of peers with something under way. The caller holds the lock of the operation that it has begun, so
// that settle does not undo it.
func (p *peer) activate() { p.ep.active.Add(p, &p.member) }

// settle takes p out of that set if there is nothing.
func (p *peer) settle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.link == linkIdle && len(p.waiting) == 0 {
		p.expected.IfEmpty(func() { p.ep.active.Remove(p, &p.member) })
	}
}

// report returns the present step of connecting, or the reason why the connection sends nothing, or "".
func (p *peer) report() string {
	p.mu.Lock()
	link := p.link
	p.mu.Unlock()
	switch link {
	case linkDialing:
		return "waiting for the answer to the connection request"
	case linkRefused:
		return "the peer has refused a connection or ended several at once; the next attempt follows, unless the peer connects itself"
	case linkAccepting:
		return "answering the peer's connection request"
	case linkIdle, linkUp:
	}
	if c := p.conn.Load(); c != nil {
		return c.report()
	}
	return ""
}
