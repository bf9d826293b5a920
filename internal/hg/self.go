package hg

import (
	"cinnabar/codes"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/invariants"
)

// selfCalls are the calls to the own address in flight, which the endpoint does not know and does not end.
type selfCalls struct {
	mu invariants.Mutex
	// +checklocks:mu
	active map[*Call]struct{}
}

func (s *selfCalls) add(k *Call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active[k] = struct{}{}
}

func (s *selfCalls) remove(k *Call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.active, k)
}

// cancelAll ends them. A call that ends by itself meanwhile may be in use again: it began after the Class was closed and
// fails in any case.
func (s *selfCalls) cancelAll() {
	s.mu.Lock()
	calls := make([]*Call, 0, len(s.active))
	for k := range s.active {
		calls = append(calls, k)
	}
	s.mu.Unlock()
	for _, k := range calls {
		k.abort(codes.Canceled, errClosed)
	}
}

// startSelf is a call to the own address (hg_core_forward_self): the request goes to the dispatcher without the network.
// Its payload is copied, since a call may be cancelled while the handler reads it. Nothing overflows.
func (k *Call) startSelf(payload []byte) {
	if k.c.cfg.NoLoopback {
		k.fail(codes.OpNotSupported, errNoLoopback)
		return
	}
	k.c.count.selfCalls.Add(1)
	f := wire.Request{ID: uint64(k.id)}
	if k.opts.OneWay {
		f.Flags = wire.FlagNoResponse
	}
	r := k.c.newRequest(k.c.self, 0, f)
	if k.extra.nparts > 0 {
		r.in = k.flat()
	} else {
		r.takeInput(payload)
	}
	if k.opts.OneWay {
		k.succeed(nil)
		k.c.dispatchElsewhere(r)
		return
	}
	k.local = true
	k.c.selfCalls.add(k)
	r.caller, r.started = k, k.state.load().sequence()
	if !k.take(flagWithTarget, 1) {
		r.answered.Store(true)
		r.Free()
		return
	}
	if k.c.closed.Load() { // after cancelAll, perhaps
		k.abort(codes.Canceled, errClosed)
	}
	k.c.dispatchElsewhere(r)
}

// answerSelf gives the caller of this process its answer, unless it has stopped waiting.
func (r *Request) answerSelf(code codes.Code, payload []byte) {
	k := r.caller
	if !k.state.claimTarget(r.started) {
		return
	}
	if code == wire.Success {
		k.succeed(k.keep(payload))
	} else {
		k.record(&Error{Op: "call", Addr: k.to.String(), Code: code, Remote: true})
	}
	k.release(0)
}

// keep copies a payload into the call.
func (k *Call) keep(payload []byte) []byte {
	if len(payload) > len(k.recv) {
		return append([]byte(nil), payload...)
	}
	return k.recv[:copy(k.recv, payload)]
}
