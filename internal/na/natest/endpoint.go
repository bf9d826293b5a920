package natest

import (
	"context"
	"time"

	"cinnabar/internal/na"
)

// Endpoint is a process's presence on the network. It implements [na.Endpoint].
type Endpoint struct {
	net     *Network
	port    uint16
	handler na.Handler

	// All of it is guarded by net.mu.
	held     bool
	stopped  []event
	dead     bool // vanished, or closed
	closed   bool
	shut     bool
	addrs    map[uint16]*addr
	links    map[uint16]chan struct{} // connections by the peer's port; closed when lost
	last     map[uint16]chan struct{} // also lost ones
	lastDue  map[uint16]time.Time
	receives map[receiveKey]*flight
	memory   map[uint64]*memory
	key      uint64
	counts   Counts

	running na.TaskGroup // goroutines that run handlers, tasks and completions of the endpoint
}

// receiveKey identifies the receive of an expected message.
type receiveKey struct {
	peer uint16
	tag  uint32
}

// Counts are the counters of an endpoint.
type Counts struct {
	Requests, Responses, Gets, Puts uint64 // operations started
	BytesGot, BytesPut              uint64
	Arrived, Unmatched              uint64 // messages that came, and expected ones without a receive
}

// Open adds an endpoint. handler takes the requests; if it is nil the endpoint does not listen.
func (n *Network) Open(handler na.Handler) *Endpoint {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.port++
	return n.openLocked(n.port, handler)
}

// Reopen adds an endpoint at the address of one that is dead, as if another process took the address.
func (n *Network) Reopen(ep *Endpoint, handler na.Handler) *Endpoint {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.openLocked(ep.port, handler)
}

// +checklocks:n.mu
func (n *Network) openLocked(port uint16, handler na.Handler) *Endpoint {
	ep := &Endpoint{
		net: n, port: port, handler: handler, addrs: map[uint16]*addr{}, links: map[uint16]chan struct{}{}, last: map[uint16]chan struct{}{},
		lastDue: map[uint16]time.Time{}, receives: map[receiveKey]*flight{}, memory: map[uint64]*memory{},
	}
	n.endpoints[port] = ep
	return ep
}

// Counts returns the counters of the endpoint.
func (ep *Endpoint) Counts() Counts {
	ep.net.mu.Lock()
	defer ep.net.mu.Unlock()
	return ep.counts
}

// Addr implements [na.Endpoint].
func (ep *Endpoint) Addr() na.Addr { return ep.addrOf(ep.port) }

// Listening implements [na.Endpoint].
func (ep *Endpoint) Listening() bool { return ep.handler != nil }

// Limits implements [na.Endpoint].
func (ep *Endpoint) Limits() na.Limits {
	return na.Limits{
		MaxRequest: ep.net.cfg.MaxRequest, MaxResponse: ep.net.cfg.MaxResponse, RequestRoom: requestRoom, ResponseRoom: responseRoom,
	}
}

// SendRequest implements [na.Endpoint].
func (ep *Endpoint) SendRequest(op *na.Op, to na.Addr, tag uint32, msg []byte) {
	ep.start(op, to, flight{kind: KindRequest, tag: tag, msg: msg[requestRoom:]})
}

// SendExpected implements [na.Endpoint].
func (ep *Endpoint) SendExpected(op *na.Op, to na.Addr, tag uint32, msg []byte) {
	ep.start(op, to, flight{kind: KindResponse, tag: tag, msg: msg[responseRoom:]})
}

// RecvExpected implements [na.Endpoint].
func (ep *Endpoint) RecvExpected(op *na.Op, from na.Addr, tag uint32, buf []byte) {
	ep.start(op, from, flight{kind: kindReceive, tag: tag, msg: buf})
}

// Get implements [na.Endpoint].
func (ep *Endpoint) Get(op *na.Op, from na.Addr, frags []na.Fragment) {
	ep.start(op, from, flight{kind: KindGet, frags: frags})
}

// Put implements [na.Endpoint].
func (ep *Endpoint) Put(op *na.Op, to na.Addr, frags []na.Fragment) {
	ep.start(op, to, flight{kind: KindPut, frags: frags})
}

// Cancel implements [na.Endpoint].
func (ep *Endpoint) Cancel(op *na.Op) {
	n := ep.net
	n.mu.Lock()
	f := n.flights[op]
	if f == nil || f.ep != ep || f.delivering {
		n.mu.Unlock()
		return
	}
	e := n.landLocked(f, f.moved, f.errorOf(na.Canceled))
	n.mu.Unlock()
	e.finish()
}

// Drive implements [na.Endpoint]. It does nothing, because the network's goroutine makes progress.
func (ep *Endpoint) Drive(na.Addr, *na.Event) {}

// Shutdown implements [na.Endpoint].
func (ep *Endpoint) Shutdown() {
	ep.net.mu.Lock()
	defer ep.net.mu.Unlock()
	ep.shut = true
}

// Close implements [na.Endpoint]. The responses that the network has taken arrive before the connections end, because TCP delivers the data of a
// stream before its end.
func (ep *Endpoint) Close(ctx context.Context) error {
	n := ep.net
	n.mu.Lock()
	ep.closed = true
	ended := n.arriveLocked(ep)
	ended = append(ended, n.endLocked(na.Closed, func(f *flight) bool { return f.ep == ep })...)
	ended = append(ended, n.killLocked(ep)...)
	n.mu.Unlock()
	finishAll(ended)
	return ep.running.Wait(ctx)
}
