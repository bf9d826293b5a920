package cinnabar

import (
	"context"
	"errors"
	"iter"
	"sync"

	"cinnabar/codes"
	"cinnabar/internal/hg"
	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
)

// Pending is an operation in flight. It is safe for concurrent use, and Wait may be called any number of times.
//
// An operation runs to its end even if the program never calls Wait. Until then a transfer uses the memory of the local Bulk, so the
// program must not change those bytes, and must not read those that a pull writes. [RPC.Start] has the rule for arguments.
type Pending[T any] struct {
	op    operation[T]
	event na.Event // set when over, for drivers

	mu invariants.Mutex
	// +checklocks:mu
	stop func() bool // ends the watching of the context; nil: it is not watched
	// +checklocks:mu
	ended context.Context // the one watched, once it has ended; kept only to say why
	// +checklocks:mu
	within *scope // the handler that has begun the operation, nil if none has
	// +checklocks:mu
	over bool
	// +checklocks:mu
	heeded bool // a goroutine waits, has waited, or has asked for done or an entry in watchers
	// +checklocks:mu
	done chan struct{} // closed when over; made when asked for
	// +checklocks:mu
	watchers []watcher

	once  sync.Once
	value T
	err   error
}

// operation is the call or transfer of a Pending. It calls Pending.end once, when it is over.
type operation[T any] interface {
	// abort asks the operation to end early. It must not block, may come on any goroutine, any number of times and
	// after the end.
	abort()
	// result is called once, after the end, by a goroutine that waits: it may take time and run programs' code.
	result() (T, error)
	// driven returns the peer that a goroutine which waits for the operation can receive from, and the endpoint of that peer. The endpoint is
	// nil if there is nothing to receive, or if another goroutine receives.
	driven() (na.GroupDriver, na.Addr)
}

// watcher receives its index when an operation is over.
type watcher struct {
	index int
	over  chan<- int // with room for the index
}

// watch has the operation cancelled when ctx ends, and remembers which handler ctx is of. It is called once the
// operation can be cancelled.
func (p *Pending[T]) watch(ctx context.Context) {
	within := scopeFrom(ctx)
	var stop func() bool
	if ctx.Done() != nil {
		stop = context.AfterFunc(ctx, func() { p.contextEnds(ctx) })
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		if stop != nil {
			stop()
		}
		return
	}
	p.stop, p.within = stop, within
}

func (p *Pending[T]) contextEnds(ctx context.Context) {
	p.mu.Lock()
	p.ended = ctx
	p.mu.Unlock()
	p.cancel()
}

// end ends an operation that has a result. It does not block and may run on a goroutine that makes progress.
func (p *Pending[T]) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	p.event.Set()
	if p.stop != nil {
		p.stop()
	}
	if p.done != nil {
		close(p.done)
	}
	for _, w := range p.watchers {
		w.over <- w.index
	}
	p.watchers = nil
}

// Done returns a channel that is closed when the operation is over.
func (p *Pending[T]) Done() <-chan struct{} {
	p.leaveToEngine()
	return p.channel()
}

// leaveToEngine announces to the endpoint that it must receive the messages of the operation itself, because the goroutine that waits for
// the operation does not.
func (p *Pending[T]) leaveToEngine() {
	if p.event.IsSet() {
		return
	}
	if ep, peer := p.op.driven(); ep != nil {
		ep.Undriven(peer)
	}
}

// channel returns the channel of Done. Unlike Done, it leaves the receiving to the calling goroutine, which has called DriveGroup before.
func (p *Pending[T]) channel() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heeded = true
	if p.done == nil {
		p.done = make(chan struct{})
		if p.over {
			close(p.done)
		}
	}
	return p.done
}

// Wait returns the operation's result once it is over. If a handler has begun it, with its context, the handler's worker
// is free for others meanwhile.
func (p *Pending[T]) Wait() (T, error) {
	if over, within := p.state(); !over {
		if within != nil {
			within.pause()
			defer within.resume()
		}
		if ep, peer := p.op.driven(); ep != nil {
			ep.DriveGroup(peer, &p.event)
		}
		if !p.event.IsSet() {
			<-p.channel()
		}
	}
	p.once.Do(p.conclude)
	return p.value, p.err
}

func (p *Pending[T]) state() (over bool, within *scope) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heeded = true
	return p.over, p.within
}

// ignored implements [pendingOp]: it reports whether no goroutine has waited for the operation so far.
func (p *Pending[T]) ignored() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.heeded
}

// conclude stores the result of the operation. The first Wait calls it.
func (p *Pending[T]) conclude() {
	p.value, p.err = p.op.result()
	p.explain()
}

// explain makes the error of an operation that its context has ended say so.
func (p *Pending[T]) explain() {
	p.mu.Lock()
	ctx := p.ended
	p.mu.Unlock()
	e, ok := errors.AsType[*Error](p.err)
	if ctx == nil || !ok || e.Remote || e.Code != codes.Canceled || errors.Is(e, ErrClosed) {
		return
	}
	told := *e
	told.Code, told.Err = codes.Of(ctx.Err()), hg.During(context.Cause(ctx), e.Err)
	p.err = &told
}

// cancel asks the operation to end early; Wait then returns an error of codes.Canceled, unless the operation was over
// already. Nothing is sent: a remote handler that has the request runs on.
func (p *Pending[T]) cancel() { p.op.abort() }

// Completed yields operations in the order in which they end, each with its index in ps, until all have ended or ctx
// is done. The loop may be left early; the operations run on.
func Completed[T any](ctx context.Context, ps ...*Pending[T]) iter.Seq2[int, *Pending[T]] {
	return func(yield func(int, *Pending[T]) bool) {
		over := make(chan int, len(ps)) // room for all, so the end of an operation never blocks
		for i, p := range ps {
			p.notify(watcher{index: i, over: over})
		}
		for range ps {
			select {
			case i := <-over:
				if !yield(i, ps[i]) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// notify sends w its index when the operation is over, at once if it is.
func (p *Pending[T]) notify(w watcher) {
	p.leaveToEngine()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heeded = true
	if p.over {
		w.over <- w.index
		return
	}
	p.watchers = append(p.watchers, w)
}
