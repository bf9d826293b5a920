package rdmacm

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"cinnabar/verbs"
)

// idState is where an identifier stands.
//
//	idle ── ResolveAddr ──> addr resolved ── ResolveRoute ──> route resolved ── Connect ──> connecting ──> connected ──> over
//	idle ── Listen ──> listening
//	requested (made by a listener) ── Accept ──> connecting; ── Reject ──> over
//
// After a failure the identifier returns to the state before the call, but a requested one is over.
type idState uint8

const (
	idIdle idState = iota
	idResolvingAddr
	idAddrResolved
	idResolvingRoute
	idRouteResolved
	idListening
	idRequested
	idConnecting
	idConnected
	idOver
)

var idStateNames = [...]string{
	"idle", "resolving its address", "with an address", "resolving its route", "with a route",
	"listening", "a request to answer", "connecting", "connected", "over",
}

// String names the state as it fits behind "the identifier is".
func (s idState) String() string { return idStateNames[s] }

// ID is a connection identifier of an [EventChannel] (struct rdma_cm_id): one
// connection, from before it is made, or one listener. A method returns at once, with an
// error if the operation cannot begin. Otherwise an [Event] reports the operation's result.
// All methods are safe for concurrent use.
type ID struct {
	dev     *verbs.Device
	resolve func(ctx context.Context, hostport string) ([]netip.AddrPort, error) // [verbs.Resolve], except in tests

	mu     sync.Mutex    // taken before EventChannel.mu, and a listener's before its requests'
	ch     *EventChannel // +checklocks:mu
	state  idState       // +checklocks:mu
	closed bool          // +checklocks:mu
	// From ResolveAddr.
	peer   netip.AddrPort     // +checklocks:mu
	lis    *verbs.Listener    // +checklocks:mu
	req    *verbs.ConnRequest // +checklocks:mu
	conn   *verbs.Conn        // +checklocks:mu
	nextOp uint64             // +checklocks:mu
	// Of the goroutines that run.
	cancels map[uint64]context.CancelFunc // +checklocks:mu

	ops sync.WaitGroup // the goroutines; Add only under mu and before closed
}

// spawnLocked runs f in a goroutine that ends, by its context, with the timeout (0:
// none) or with the identifier.
//
// +checklocks:id.mu
func (id *ID) spawnLocked(timeout time.Duration, f func(ctx context.Context)) {
	ctx, cancel := opContext(timeout)
	n := id.nextOp
	id.nextOp++
	id.cancels[n] = cancel
	id.ops.Go(func() {
		f(ctx)
		cancel()
		id.mu.Lock()
		defer id.mu.Unlock()
		delete(id.cancels, n)
	})
}

// opContext returns a context that ends after timeout, if there is one.
func opContext(timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout > 0 {
		return context.WithTimeout(context.Background(), timeout)
	}
	return context.WithCancel(context.Background())
}

// enterLocked moves to state to if the identifier is in state from.
//
// +checklocks:id.mu
func (id *ID) enterLocked(op string, from, to idState) error {
	if id.closed {
		return verbs.Errorf(op, verbs.ErrClosed, "the identifier was closed")
	}
	if id.state != from {
		return verbs.Errorf(op, verbs.ErrInvalid, "the identifier is %v, not %v", id.state, from)
	}
	id.state = to
	return nil
}

// leave moves to a state and posts the event that says so, unless the identifier
// was closed meanwhile.
func (id *ID) leave(to idState, e *Event) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.closed {
		return
	}
	id.state = to
	id.postLocked(e)
}

// postLocked sends an event of this identifier to its channel.
//
// +checklocks:id.mu
func (id *ID) postLocked(e *Event) {
	e.owner = id
	if e.ID == nil {
		e.ID = id
	}
	id.ch.push(e)
}

// ackEvent implements Event.Ack. It needs no channel but id.ch, because Migrate refuses while an event is not acknowledged.
func (id *ID) ackEvent(e *Event) {
	id.mu.Lock()
	defer id.mu.Unlock()
	id.ch.ack(e)
}

// WriteEvent adds an event of the given kind, as if it had happened
// (rdma_write_cm_event). Nothing else follows from it.
func (id *ID) WriteEvent(t EventType, cause error) error {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.closed {
		return verbs.Errorf("write event", verbs.ErrClosed, "the identifier was closed")
	}
	id.postLocked(&Event{Type: t, Err: cause})
	return nil
}

// Migrate moves the identifier, and its events that were not taken, to
// another channel (rdma_migrate_id). It fails with [verbs.ErrBusy] while taken events
// are not acknowledged.
func (id *ID) Migrate(to *EventChannel) error {
	const op = "migrate identifier"
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.closed {
		return verbs.Errorf(op, verbs.ErrClosed, "the identifier was closed")
	}
	if id.ch == to {
		return nil
	}
	if err := to.adopt(id); err != nil {
		return err
	}
	events, err := id.ch.release(id, op)
	if err != nil {
		_, _ = to.release(id, op) // nothing came there yet
		return err
	}
	id.ch = to
	for _, e := range events {
		if e.ID != id { // a request not taken yet goes with its listener
			_ = e.ID.Migrate(to) // only a closed one refuses
		}
		to.push(e)
	}
	return nil
}

// Close releases the identifier (rdma_destroy_id). It cancels the identifier's operations,
// drops its events that no Get has taken, and rejects a request that was not answered.
// It fails with [verbs.ErrBusy] while taken events are not acknowledged. An
// established connection stays with its queue pair: disconnect first, or close the
// queue pair. A second Close does nothing.
func (id *ID) Close() error {
	id.mu.Lock()
	if id.closed {
		id.mu.Unlock()
		return nil
	}
	events, err := id.ch.release(id, "close identifier")
	if err != nil {
		id.mu.Unlock()
		return err
	}
	id.markClosedLocked()
	id.mu.Unlock()
	err = id.cleanUp()
	for _, e := range events {
		if e.ID != id {
			_ = e.ID.Close() // the program has not seen the request, so it misses no error
		}
	}
	return err
}

// end is Close for a channel that is closing and has forgotten the identifier.
func (id *ID) end() error {
	id.mu.Lock()
	id.markClosedLocked()
	id.mu.Unlock()
	return id.cleanUp()
}

// markClosedLocked refuses new operations and cancels those that run.
//
// +checklocks:id.mu
func (id *ID) markClosedLocked() {
	id.closed = true
	for _, cancel := range id.cancels {
		cancel()
	}
}

// cleanUp waits for the goroutines and releases the objects that they used.
func (id *ID) cleanUp() error {
	id.ops.Wait()
	id.mu.Lock()
	lis, req := id.lis, id.req
	id.mu.Unlock()
	if req != nil {
		_ = req.Reject(nil) // answered before, or the peer may be gone: as good
	}
	if lis != nil {
		return lis.Close()
	}
	return nil
}
