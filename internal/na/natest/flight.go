package natest

import (
	"slices"

	"cinnabar/internal/na"
)

// flight is an operation in flight.
type flight struct {
	ep    *Endpoint // the endpoint that has started it
	op    *na.Op
	kind  Kind
	peer  uint16
	tag   uint32
	msg   []byte // the message without room, or the buffer of a receive
	frags []na.Fragment

	seq   uint64 // of the start
	start uint64 // the same, but never reset: it differs between uses of a flight
	taken bool   // the message has left its sender: msg is a copy
	after bool   // the send completes after the arrival
	moved int64  // of a transfer
	over  bool

	link       chan struct{} // the connection that a message travels by
	delivering bool          // the handler reads msg, which is the sender's: only the delivery ends the flight
	note       na.Message    // for the handler
}

// ending is an operation that finish completes, without the lock. It counts as running, so that Close waits for it. The zero ending has
// no operation.
type ending struct {
	ep  *Endpoint
	op  *na.Op
	n   int64
	err error
}

// ending returns the ending of the flight's operation.
func (f *flight) ending(n int64, err error) ending {
	f.ep.running.Add()
	return ending{f.ep, f.op, n, err}
}

func (e ending) finish() {
	if e.op != nil {
		defer e.ep.running.Done()
		e.op.Finish(e.n, e.err)
	}
}

func finishAll(list []ending) {
	for _, e := range list {
		e.finish()
	}
}

// errorOf makes an error about the flight.
func (f *flight) errorOf(kind na.Kind) error {
	return &na.Error{Kind: kind, Op: f.kind.String(), Addr: (&addr{port: f.peer}).String()}
}

// start begins an operation.
func (ep *Endpoint) start(op *na.Op, to na.Addr, proto flight) {
	op.Begin()
	n := ep.net
	n.mu.Lock()
	f := n.takeFlightLocked()
	n.seq++
	proto.ep, proto.op, proto.peer, proto.seq, proto.start = ep, op, to.(*addr).port, n.seq, n.seq
	*f = proto
	n.flights[op] = f
	start := f.start
	e := ep.launchLocked(f)
	n.mu.Unlock()
	e.finish()
	if e.op == nil && proto.kind != kindReceive && n.cfg.Direct {
		n.runDirect(f, start)
	}
}

// launchLocked schedules the first step of a flight, unless it ends at once.
//
// +checklocks:ep.net.mu
func (ep *Endpoint) launchLocked(f *flight) ending {
	n := ep.net
	if ep.closed {
		return n.landLocked(f, 0, f.errorOf(na.Closed))
	}
	if f.kind == kindReceive {
		key := receiveKey{f.peer, f.tag}
		if ep.receives[key] != nil {
			return n.landLocked(f, 0, f.errorOf(na.Invalid))
		}
		ep.receives[key] = f
		return ending{}
	}
	if !ep.connectLocked(f.peer) {
		return n.landLocked(f, 0, f.errorOf(na.Unreachable))
	}
	switch f.kind {
	case KindRequest:
		ep.counts.Requests++
	case KindResponse:
		ep.counts.Responses++
	case KindGet:
		ep.counts.Gets++
	case KindPut:
		ep.counts.Puts++
	case kindReceive:
	}
	f.link = ep.links[f.peer]
	f.after = n.rng.IntN(2) == 0 || n.cfg.Direct
	n.scheduleLocked(f)
	return ending{}
}

// connectLocked makes sure that there is a connection.
//
// +checklocks:ep.net.mu
func (ep *Endpoint) connectLocked(port uint16) bool {
	if ep.links[port] != nil {
		return true
	}
	peer := ep.net.endpoints[port]
	if peer == nil || peer.dead || ep.dead {
		return false
	}
	l := make(chan struct{})
	ep.links[port], peer.links[ep.port] = l, l
	ep.last[port], peer.last[ep.port] = l, l
	return true
}

// +checklocks:n.mu
func (n *Network) takeFlightLocked() *flight {
	if last := len(n.idle) - 1; last >= 0 {
		f := n.idle[last]
		n.idle = n.idle[:last]
		return f
	}
	return new(flight)
}

// landLocked ends a flight. The caller finishes the result without the lock.
//
// +checklocks:n.mu
func (n *Network) landLocked(f *flight, moved int64, err error) ending {
	if f.over {
		return ending{}
	}
	var e ending
	if n.flights[f.op] == f { // otherwise the operation has completed before
		delete(n.flights, f.op)
		e = f.ending(moved, err)
	}
	if key := (receiveKey{f.peer, f.tag}); f.kind == kindReceive && f.ep.receives[key] == f {
		delete(f.ep.receives, key)
	}
	f.over, f.op, f.msg, f.frags = true, nil, nil, nil
	if n.cfg.Direct {
		n.idle = append(n.idle, f)
	}
	return e
}

// runDirect does all steps of a flight.
func (n *Network) runDirect(f *flight, start uint64) {
	for n.step(f, start) {
	}
}

// step does the next step of a flight and reports whether there is another.
func (n *Network) step(f *flight, start uint64) (more bool) {
	n.mu.Lock()
	if f.over || f.start != start {
		n.mu.Unlock()
		return false
	}
	if f.ep.held {
		f.ep.stopped = append(f.ep.stopped, event{f: f, start: start})
		n.mu.Unlock()
		return false
	}
	peer := n.endpoints[f.peer]
	if f.ep.links[f.peer] != f.link { // lost while the message was under way
		e := n.landLocked(f, 0, f.errorOf(na.Unreachable))
		n.mu.Unlock()
		e.finish()
		return false
	}
	if ended, stop := n.faultLocked(f, peer); stop {
		n.mu.Unlock()
		finishAll(ended)
		return false
	}
	if f.kind == KindGet || f.kind == KindPut {
		return n.moveLocked(f, peer)
	}
	return n.carryLocked(f, peer)
}

// faultLocked calls the hook.
//
// +checklocks:n.mu
func (n *Network) faultLocked(f *flight, peer *Endpoint) (ended []ending, stop bool) {
	n.steps++
	if n.cfg.Fault == nil {
		return nil, false
	}
	s := Step{N: n.steps, Kind: f.kind, From: f.ep, To: peer, Tag: f.tag, Arrives: f.taken, Data: f.msg, Offset: f.moved}
	switch n.cfg.Fault(&s) {
	case Proceed:
		return nil, false
	case Lose:
		if f.kind == KindRequest || f.kind == KindResponse {
			return []ending{n.landLocked(f, 0, nil)}, true
		}
		return nil, true // it stays in flight
	case CutLink:
		return n.cutLocked(f.ep, peer), true
	case KillFrom:
		return n.killLocked(f.ep), true
	case KillTo:
		return n.killLocked(peer), true
	}
	return nil, false
}

// carryLocked takes a message from its sender, and in another step brings it to its receiver. It releases the lock.
//
// +checklocksrelease:n.mu
func (n *Network) carryLocked(f *flight, peer *Endpoint) (more bool) {
	if !f.taken {
		f.taken = true
		var e ending
		if !n.cfg.Direct {
			f.msg = append([]byte(nil), f.msg...)
			if !f.after {
				delete(n.flights, f.op)
				e = f.ending(0, nil)
			}
			n.scheduleLocked(f)
		}
		n.mu.Unlock()
		e.finish()
		return true
	}
	peer.counts.Arrived++
	if f.kind == KindResponse {
		e := n.receiveLocked(peer, f)
		own := n.landLocked(f, 0, nil)
		n.mu.Unlock()
		e.finish()
		own.finish()
		return false
	}
	handler := peer.handler
	if peer.shut || peer.dead {
		handler = nil
	}
	f.note = na.Message{From: peer.addrLocked(f.ep.port), Tag: f.tag, Data: f.msg}
	m := &f.note
	var own ending
	if handler == nil || !f.after {
		own = n.landLocked(f, 0, nil)
	}
	late := handler != nil && f.after // the send completes after the handler
	f.delivering = late
	if handler != nil {
		peer.running.Add()
	}
	n.mu.Unlock()
	own.finish()
	if handler != nil {
		peer.deliver(handler, m)
	}
	if late {
		n.mu.Lock()
		f.delivering = false
		own = n.landLocked(f, 0, nil)
		n.mu.Unlock()
		own.finish()
	}
	return false
}

// deliver hands a request to the handler and runs its task.
func (ep *Endpoint) deliver(h na.Handler, m *na.Message) {
	defer ep.running.Done()
	t := h.Request(m)
	switch {
	case t == nil:
	case ep.net.cfg.Direct:
		t.Run()
	default:
		ep.running.Run(t)
	}
}

// arriveLocked brings the responses that have left ep to their receivers.
//
// +checklocks:n.mu
func (n *Network) arriveLocked(ep *Endpoint) (ended []ending) {
	events := append(slices.Clone(n.queue), n.due)
	slices.SortFunc(events, func(a, b event) int { return int(int64(a.seq - b.seq)) })
	for _, e := range events {
		f := e.f
		if f == nil || f.ep != ep || f.over || f.start != e.start || !f.taken || f.kind != KindResponse || ep.links[f.peer] != f.link {
			continue
		}
		peer := n.endpoints[f.peer]
		peer.counts.Arrived++
		ended = append(ended, n.receiveLocked(peer, f), n.landLocked(f, 0, nil))
	}
	return ended
}

// receiveLocked copies an expected message to the receive that waits for it at ep.
//
// +checklocks:n.mu
func (n *Network) receiveLocked(ep *Endpoint, f *flight) ending {
	r := ep.receives[receiveKey{f.ep.port, f.tag}]
	if r == nil {
		ep.counts.Unmatched++
		return ending{}
	}
	if len(f.msg) > len(r.msg) {
		return n.landLocked(r, 0, r.errorOf(na.Truncated))
	}
	return n.landLocked(r, int64(copy(r.msg, f.msg)), nil)
}

// moveLocked moves a part of a transfer. It releases the lock.
//
// +checklocksrelease:n.mu
func (n *Network) moveLocked(f *flight, peer *Endpoint) (more bool) {
	need := na.ReadOnly
	if f.kind == KindPut {
		need = na.WriteOnly
	}
	skip, left := f.moved, n.cfg.Chunk
	for _, frag := range f.frags {
		if skip >= int64(len(frag.Local)) {
			skip -= int64(len(frag.Local))
			continue
		}
		there := peer.rangeLocked(frag, need)
		if there == nil { // a peer ends the connection at an access that it does not allow
			ended := n.cutLocked(f.ep, peer)
			n.mu.Unlock()
			finishAll(ended)
			return false
		}
		part := frag.Local[skip:]
		part = part[:min(len(part), left)]
		if f.kind == KindGet {
			copy(part, there[skip:])
			f.ep.counts.BytesGot += uint64(len(part))
		} else {
			copy(there[skip:], part)
			f.ep.counts.BytesPut += uint64(len(part))
		}
		f.moved += int64(len(part))
		f.op.Progress.Add(int64(len(part)))
		left -= len(part)
		skip = 0
		if left == 0 {
			n.scheduleLocked(f)
			n.mu.Unlock()
			return true
		}
	}
	e := n.landLocked(f, f.moved, nil)
	n.mu.Unlock()
	e.finish()
	return false
}
