package sm

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar/internal/na"
	"cinnabar/internal/peerbook"
)

// peer is the part of an [Addr] for messages: its connection, the messages that wait to be sent over it, and the operations that wait
// for messages from it. The zero value has none of these. Lock order: mu, expected, Endpoint.active.
type peer struct {
	conn   atomic.Pointer[conn] // the connection to send over; changed with mu held
	last   atomic.Pointer[conn] // the latest connection, perhaps lost
	member peerbook.Member      // of Endpoint.active

	mu sync.Mutex
	// waiting holds messages until there is a connection, or room.
	// +checklocks:mu
	waiting []item
	// dialing is true while a goroutine connects.
	// +checklocks:mu
	dialing bool
	// since is the time at which the first message of waiting found no room.
	// +checklocks:mu
	since time.Time
	// connectErr is the error of the latest attempt to connect.
	// +checklocks:mu
	connectErr error

	expected peerbook.Expected // locked after mu
}

// item is a message that waits.
type item struct {
	op   *na.Op
	kind uint8
	tag  uint32
	msg  []byte
}

func (it *item) opName() string {
	if it.kind == typeUnexpected {
		return "send request"
	}
	return "send response"
}

// done is [na.Addr.Done].
func (a *Addr) done() <-chan struct{} {
	if c := a.last.Load(); c != nil {
		return c.done
	}
	return nil
}

// alive returns an error of kind Unreachable if the peer's process is known to have ended.
func (a *Addr) alive() error {
	c := a.conn.Load()
	if c == nil {
		c = a.last.Load()
	}
	if c == nil || !c.dead.Load() {
		return nil
	}
	if p := c.ending.Load(); p != nil && errors.Is(p.err, errDied) {
		return &na.Error{Kind: na.Unreachable, Op: "reach memory", Addr: a.String(), Err: errDied}
	}
	return nil
}

// addrOf returns the one Addr of a URI. Conns of clients have Addrs of their own.
func (e *Endpoint) addrOf(ident identity, uri string) *Addr {
	if ident == e.ident || uri == e.own.uri {
		return e.own
	}
	fits := func(a *Addr) bool { return a.ident == ident } // else another endpoint has taken the name
	return e.addrs.Get(uri, fits, func() *Addr { return e.newAddr(ident, uri) })
}

// send sends a message, or adds it to those that wait.
func (a *Addr) send(it item) {
	a.mu.Lock()
	c := a.conn.Load()
	if c != nil && len(a.waiting) == 0 {
		ok, err := c.send(it.kind, it.tag, it.msg)
		if ok || err != nil && !a.ep.cutOff(c, err) {
			a.mu.Unlock()
			a.sent(c, &it, err)
			return
		}
	}
	err := a.waitLocked(c, it)
	a.mu.Unlock()
	if err != nil {
		it.op.Finish(0, err)
	}
}

// sent completes the operation of a message that is in the region, or that failed with its connection.
func (a *Addr) sent(c *conn, it *item, err error) {
	if err == nil {
		it.op.Finish(int64(len(it.msg)), nil)
		return
	}
	c.fail(na.Unreachable, err)
	it.op.Finish(0, &na.Error{Kind: na.Unreachable, Op: it.opName(), Addr: a.String(), Err: err})
}

// waitLocked adds a message to those that wait. The poller sends it when c has room, or, if c is nil, the goroutine that connects
// does.
//
// +checklocks:a.mu
func (a *Addr) waitLocked(c *conn, it item) error {
	e := a.ep
	if e.closed.Load() {
		return &na.Error{Kind: na.Closed, Op: it.opName(), Addr: a.String()}
	}
	if c == nil && it.kind == typeExpected { // only the client with the lost connection waits for it
		return &na.Error{Kind: na.Unreachable, Op: it.opName(), Addr: a.String(), Err: errAsker}
	}
	if len(a.waiting) == 0 {
		a.since = time.Now()
	}
	a.waiting = append(a.waiting, it)
	a.activate()
	if c != nil {
		e.poll.block(a)
		return nil
	}
	if !a.dialing {
		a.dialing = true
		a.connectErr = nil
		if !e.spawn(func() { e.dial(a) }) {
			a.dialing = false
			a.waiting = a.waiting[:len(a.waiting)-1]
			return &na.Error{Kind: na.Closed, Op: it.opName(), Addr: a.String()}
		}
	}
	return nil
}

// flushBatch is the number of messages that flush sends before it completes their operations.
const flushBatch = 64

// flush sends the messages that wait, as far as there is room. It reports whether it sent any, and whether any still wait.
func (a *Addr) flush() (sent, left bool) {
	var over [flushBatch]item
	for {
		n, c, err := a.flushSome(over[:])
		for i := range n {
			over[i].op.Finish(int64(len(over[i].msg)), nil)
		}
		if err != nil {
			c.fail(na.Unreachable, err)
			return true, false
		}
		sent = sent || n > 0
		if n < len(over) {
			a.mu.Lock()
			left = len(a.waiting) > 0 && a.conn.Load() != nil
			a.mu.Unlock()
			return sent, left
		}
	}
}

// flushSome sends messages and moves them to over, of which the caller completes the operations.
func (a *Addr) flushSome(over []item) (n int, c *conn, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c = a.conn.Load()
	if c == nil {
		return 0, nil, nil
	}
	for n < len(over) && n < len(a.waiting) {
		it := &a.waiting[n]
		ok, err := c.send(it.kind, it.tag, it.msg)
		if err != nil && !a.ep.cutOff(c, err) {
			a.waiting = dropItems(a.waiting, n)
			return n, c, err
		}
		if !ok {
			break
		}
		over[n] = *it
		n++
	}
	if n > 0 {
		a.waiting = dropItems(a.waiting, n)
		a.since = time.Now()
	}
	return n, c, nil
}

// dropItems removes the first n items.
func dropItems(list []item, n int) []item {
	left := copy(list, list[n:])
	clear(list[left:])
	return list[:left]
}

// overdue removes and returns the messages that wait for room if none of them could be sent for limit.
func (a *Addr) overdue(now time.Time, limit time.Duration) []item {
	a.mu.Lock()
	defer a.mu.Unlock()
	if limit < 0 || len(a.waiting) == 0 || a.dialing || now.Sub(a.since) < limit {
		return nil
	}
	items := a.waiting
	a.waiting = nil
	return items
}

// detach removes the dead connection c, and returns the messages and operations that waited for it.
func (a *Addr) detach(c *conn) ([]item, []peerbook.Waiter) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.conn.Load() != c {
		return nil, nil
	}
	a.conn.Store(nil)
	items := a.waiting
	a.waiting = nil
	return items, a.expected.TakeAll(nil)
}

// stopDialing ends the connecting, and returns the messages and operations that waited for it.
func (a *Addr) stopDialing() ([]item, []peerbook.Waiter) {
	a.mu.Lock()
	defer a.mu.Unlock()
	items := a.waiting
	a.waiting, a.dialing = nil, false
	return items, a.expected.TakeAll(nil)
}

// failAll completes the operations of messages and of waiters with an error.
func (a *Addr) failAll(items []item, tags []peerbook.Waiter, kind na.Kind, err error) {
	for i := range items {
		items[i].op.Finish(0, &na.Error{Kind: kind, Op: items[i].opName(), Addr: a.String(), Err: err})
	}
	for _, w := range tags {
		w.Op.Finish(0, &na.Error{Kind: kind, Op: "receive", Addr: a.String(), Err: err})
	}
	a.settle()
}

// cancel cancels op if it waits, and reports whether it did. The error of op contains the cause of the waiting, if that is not only
// that the peer has sent no message.
func (a *Addr) cancel(op *na.Op) bool {
	if it, why, ok := a.unqueue(op); ok {
		op.Finish(0, &na.Error{Kind: na.Canceled, Op: it.opName(), Addr: a.String(), Err: why})
		a.settle()
		return true
	}
	if why, ok := a.unexpect(op); ok {
		op.Finish(0, &na.Error{Kind: na.Canceled, Op: "receive", Addr: a.String(), Err: why})
		a.settle()
		return true
	}
	return false
}

// unqueue removes the message of op from those that wait, and returns the cause of the waiting.
func (a *Addr) unqueue(op *na.Op) (item, error, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, it := range a.waiting {
		if it.op == op {
			a.waiting = append(a.waiting[:i], a.waiting[i+1:]...)
			return it, a.waitCause(), true
		}
	}
	return item{}, nil, false
}

// waitCause returns the cause for which messages wait.
//
// +checklocks:a.mu
func (a *Addr) waitCause() error {
	if a.connectErr != nil || a.conn.Load() == nil {
		return a.connectErr
	}
	return errNoRoom
}

// errAsker is the error of a response to a client with a lost connection.
var errAsker = errors.New("the connection that the request came by is lost")

var errNoRoom = errors.New("the peer leaves no room for messages")

// unexpect removes op from the operations that wait for messages, and returns the error of connecting, if the endpoint is connecting.
func (a *Addr) unexpect(op *na.Op) (why error, ok bool) {
	a.mu.Lock()
	if a.dialing {
		why = a.connectErr
	}
	a.mu.Unlock()
	return why, a.expected.Remove(op)
}

// activate adds a to the set of peers with operations under way. The caller holds the lock of the state that it has changed, mu or
// that of expected, so that settle does not remove a.
func (a *Addr) activate() { a.ep.active.Add(a, &a.member) }

// settle removes a from that set if it has neither connection nor operations.
func (a *Addr) settle() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.conn.Load() == nil && !a.dialing && len(a.waiting) == 0 {
		a.expected.IfEmpty(func() { a.ep.active.Remove(a, &a.member) })
	}
}
