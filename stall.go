package cinnabar

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/hg"
	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
)

// stallWatch ends operations of an engine that would wait for ever: transfers that move nothing, and calls to a peer that
// makes no progress. It looks at operations without a deadline in their context and at all transfers of handlers, every period while
// there are any, and costs the others nothing.
type stallWatch struct {
	e      *Engine
	period time.Duration // 0: there is nothing to watch for
	armed  atomic.Bool   // the timer runs

	mu invariants.Mutex
	// +checklocks:mu
	timer *time.Timer
	// +checklocks:mu
	ended bool
	// +checklocks:mu
	peers map[string]*pinged
}

// pinged is a peer that the engine asks whether it makes progress, because calls to it last long. The lock of the stallWatch guards it.
type pinged struct {
	asked    time.Duration // when the request that is under way was sent
	answered time.Duration // when the last request was answered, or when the peer was first watched
	inFlight bool          // a request is under way
}

const (
	defaultKeepAlive = 15 * time.Second
	// frozenAfter is the number of periods of KeepAlive for which a peer may leave such a request unanswered.
	frozenAfter = 20
	// looks is the number of times that the watch checks an operation in the time after which the operation counts as stalled.
	looks = 8
)

func (w *stallWatch) init(e *Engine) {
	w.e = e
	for _, d := range []time.Duration{e.cfg.TransferStall, w.keepAlive()} {
		if d > 0 && (w.period == 0 || d/looks < w.period) {
			w.period = max(d/looks, time.Millisecond)
		}
	}
}

// keepAlive is Config.KeepAlive in force; negative: never.
func (w *stallWatch) keepAlive() time.Duration {
	if w.e.cfg.KeepAlive == 0 {
		return defaultKeepAlive
	}
	return w.e.cfg.KeepAlive
}

// arm sees to it that the timer runs.
func (w *stallWatch) arm() {
	if w.armed.Load() || w.period == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended || w.armed.Swap(true) {
		return
	}
	if w.timer == nil {
		w.timer = time.AfterFunc(w.period, w.look)
		return
	}
	w.timer.Reset(w.period)
}

// end stops watching.
func (w *stallWatch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	if w.timer != nil {
		w.timer.Stop()
	}
}

// look is the timer's function. It ends the operations that have stalled, and arms the timer again if any is left.
func (w *stallWatch) look() {
	w.armed.Store(false) // before looking, so that an operation that begins meanwhile arms it
	now := w.e.ops.clock.Exact()
	any, stalled := w.transfers(now)
	calls, frozen := w.calls(now)
	for _, finish := range append(stalled, frozen...) {
		finish()
	}
	if any || calls {
		w.arm()
	}
}

// each calls f for each operation under way that is watched, with the lock of its shard.
func (ds *opTable) each(f func(*opRecord)) {
	for i := range ds.shards {
		sh := &ds.shards[i]
		sh.mu.Lock()
		for d := sh.first; d != nil; d = d.next {
			if !d.bounded {
				f(d)
			}
		}
		sh.mu.Unlock()
	}
}

// transfers reports whether there are any, and begins to end those that are stalled. Transfers of one peer wait for each
// other, so a peer's transfers are stalled when none of them moves a byte.
func (w *stallWatch) transfers(now time.Duration) (any bool, stalled []func()) {
	limit := w.e.cfg.TransferStall
	if limit <= 0 {
		return false, nil
	}
	due := false
	moves := map[string]bool{} // peers that a byte has moved to or from since the last look
	w.e.ops.each(func(d *opRecord) {
		if d.transfer == nil {
			return
		}
		any = true
		progress, flying := d.transfer.Progress()
		switch {
		case !flying:
			d.moved, d.progress = now, progress
		case progress != d.progress:
			d.moved, d.progress = now, progress
			moves[d.ep.String()] = true
		case now-d.moved >= limit:
			due = true
		}
	})
	if !due && len(moves) == 0 {
		return any, nil
	}
	w.e.ops.each(func(d *opRecord) {
		switch {
		case d.transfer == nil:
		case moves[d.ep.String()]:
			d.moved = now
		case now-d.moved >= limit:
			err := fmt.Errorf("%d of %d bytes have moved, and none for %v (Config.TransferStall): the peer is frozen, or does not serve its memory",
				min(d.progress, d.bytes), d.bytes, (now - d.moved).Round(time.Millisecond))
			if finish := d.transfer.Interrupt(codes.Timeout, err); finish != nil {
				stalled = append(stalled, finish)
			}
		}
	})
	return any, stalled
}

// calls reports whether there are any, asks peers that calls have waited for whether they make progress, and begins to end
// the calls to those that do not.
func (w *stallWatch) calls(now time.Duration) (any bool, frozen []func()) {
	keep := w.keepAlive()
	if keep <= 0 {
		return false, nil
	}
	wanted := map[string]na.Addr{}
	self := w.e.self.String()
	w.e.ops.each(func(d *opRecord) {
		if d.call == nil {
			return
		}
		any = true
		if peer := d.ep.String(); now-d.began >= keep && peer != self {
			if to := d.ep.reached(); to != nil {
				wanted[peer] = to
			}
		}
	})
	ask, dead := w.review(wanted, now, keep)
	for peer, p := range ask {
		w.ask(p, wanted[peer])
	}
	if len(dead) == 0 {
		return any, nil
	}
	w.e.ops.each(func(d *opRecord) {
		silent, is := dead[d.ep.String()]
		if !is || d.call == nil || now-d.began < keep {
			return
		}
		err := fmt.Errorf("the peer has answered nothing for %v (%d times Config.KeepAlive), not even a request that it need not serve: it is frozen, or makes no progress",
			silent.Round(time.Millisecond), frozenAfter)
		if finish := d.call.Interrupt(codes.HostUnreach, err); finish != nil {
			frozen = append(frozen, finish)
		}
	})
	return any, frozen
}

// review returns the peers that are to be asked, and the frozen peers with the time for which each has been silent.
func (w *stallWatch) review(wanted map[string]na.Addr, now, keep time.Duration) (ask map[string]*pinged, dead map[string]time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, p := range w.peers {
		if wanted[name] == nil && !p.inFlight {
			delete(w.peers, name)
		}
	}
	ask = map[string]*pinged{}
	for name := range wanted {
		p := w.peers[name]
		if p == nil {
			p = &pinged{answered: now - keep}
			if w.peers == nil {
				w.peers = map[string]*pinged{}
			}
			w.peers[name] = p
		}
		switch {
		case p.inFlight && now-p.asked >= frozenAfter*keep:
			if dead == nil {
				dead = map[string]time.Duration{}
			}
			dead[name] = now - p.asked
		case !p.inFlight && now-p.answered >= keep:
			p.inFlight, p.asked = true, now
			ask[name] = p
		}
	}
	return ask, dead
}

// ask sends a request for an RPC that no peer has. A peer that makes progress answers it, in C too.
func (w *stallWatch) ask(p *pinged, peer na.Addr) {
	k := w.e.core.NewCall()
	k.Notify(question{w, p})
	k.Start(peer, hg.ID(rand.Uint64()), hg.CallOptions{}, nil)
}

// question is the notifier of a request that asks a peer.
type question struct {
	w *stallWatch
	p *pinged
}

// CallDone implements [hg.Notifier]. Any end of the request counts as an answer: if the peer is lost, its calls end by
// themselves.
func (q question) CallDone(k *hg.Call) {
	k.Free()
	now := q.w.e.ops.clock.Exact()
	q.w.mu.Lock()
	defer q.w.mu.Unlock()
	q.p.inFlight, q.p.answered = false, now
}
