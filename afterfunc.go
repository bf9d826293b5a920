package cinnabar

import (
	"context"
	"runtime"
	"runtime/debug"
	"time"

	"cinnabar/internal/hg/wire"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/invariants"
	"cinnabar/internal/sched"
)

// AfterFunc calls f once, after d, as the engine calls a handler: on a goroutine where f may block, by a worker of the pool that
// [WithPool] names, or beside the handlers that are in no pool. It may have to wait for a worker as requests do, but there is always
// room for it in the queue. name stands for f in logs and in [Engine.State].
//
// The context of f ends as a handler's does, when the engine gives its handlers up; calls, transfers and [Block] with it give the
// worker away meanwhile. The engine logs a panic of f. Shutdown waits for functions that run or wait for a worker; the engine never
// calls functions that are not due by then, nor those that wait for a worker when the engine is closed.
//
// stop prevents the call of f. It returns true if this stop has prevented the call, and false if the engine has called f, or if an
// earlier stop or the end of the engine prevented the call. stop does not wait for f. A pool cannot be removed while a function waits for its time in it.
func (e *Engine) AfterFunc(name string, d time.Duration, f func(ctx context.Context), opts ...HandleOption) (stop func() bool, err error) {
	const op = "schedule function"
	svc := &service{e: e, proc: &procedure{name: name, flavor: Mercury}, pool: e.handlers.pools.other}
	for _, o := range opts {
		if err := o.apply(svc); err != nil {
			return nil, err
		}
	}
	t := &delayed{svc: svc, f: f}
	t.mu.Lock() // because the clock may run out before it is stored
	defer t.mu.Unlock()
	if err := e.handlers.pools.bind(svc.named, func() error { return e.timers.add(t) }); err != nil {
		return nil, errorFrom(op, name, "", err)
	}
	t.clock = time.AfterFunc(d, t.fire)
	return t.stop, nil
}

// Block calls f, which may block. If ctx is a handler's context, or is derived from one, other handlers have the worker meanwhile:
// any number of handlers may be in Block. A handler that waits for a channel or a lock uses it, so that the handler for which it waits
// can run. Calls and transfers with ctx give the worker away by themselves.
func Block(ctx context.Context, f func()) {
	if s := scopeFrom(ctx); s != nil {
		s.pause()
		defer s.resume()
	}
	f()
}

// delayed is a function of AfterFunc. It implements [described].
//
//	waiting --> queued --> called
//	   |          |
//	   +----------+--> stopped, by stop or by the end of the engine
type delayed struct {
	svc   *service // stands for the function in the pool, and has no id
	f     func(context.Context)
	job   sched.Job
	scope scope

	mu invariants.Mutex
	// +checklocks:mu
	clock *time.Timer
	// +checklocks:mu
	state delayedState
}

type delayedState uint8

const (
	delayWaiting delayedState = iota // for its time
	delayQueued                      // in the pool
	delayCalled                      // f has been called
	delayStopped                     // f is never called
)

// fire puts the function into the pool. The clock calls fire on a goroutine of its own.
func (t *delayed) fire() {
	e := t.svc.e
	t.mu.Lock()
	if t.state != delayWaiting {
		t.mu.Unlock()
		return
	}
	t.state = delayQueued
	e.timers.remove(t)
	t.mu.Unlock()
	if !e.handlers.gate.Acquire() { // the engine ends
		t.mu.Lock()
		t.state = delayStopped
		t.mu.Unlock()
		return
	}
	t.scope.svc, t.scope.id = t.svc, wire.NoParent
	t.job.Init(t, t.svc.pool, &t.svc.pace, &t.scope.ref)
	t.job.Prefer(t.svc.priority)
	if task := t.job.Admit(); task != nil {
		task.Run()
	}
}

// stop implements the function that AfterFunc returns.
func (t *delayed) stop() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch t.state {
	case delayCalled, delayStopped:
		return false
	case delayWaiting:
		t.clock.Stop() // a fire that has begun finds delayStopped, and returns
		t.svc.e.timers.remove(t)
	case delayQueued:
	}
	t.state = delayStopped
	return true
}

// begin reports whether the function is to be called now.
func (t *delayed) begin() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state != delayQueued || t.svc.e.contexts.ctx.Err() != nil {
		t.state = delayStopped
		return false
	}
	t.state = delayCalled
	return true
}

// Peer implements [sched.Work].
func (t *delayed) Peer() string { return sched.Own }

// Host implements [sched.Work].
func (t *delayed) Host() hostquota.Host { return hostquota.Host{} }

// Yield implements [sched.Work].
func (t *delayed) Yield() { runtime.Gosched() }

// Overloaded implements [sched.Work]. There is always room for a function of the process itself.
func (t *delayed) Overloaded() { panic("cinnabar: a pool refuses a function of AfterFunc") }

// About implements [sched.Work].
func (t *delayed) About() any { return t }

// Ended implements [sched.Work].
func (t *delayed) Ended() {}

func (t *delayed) describe() (e *Engine, label, peer string) { return t.svc.e, t.svc.label(), "" }

// Serve implements [sched.Work].
func (t *delayed) Serve() {
	e := t.svc.e
	defer e.handlers.gate.Release()
	if !t.begin() {
		return
	}
	t.scope.holds.Store(1)
	defer t.scope.holds.Store(0)
	defer func() {
		if v := recover(); v != nil {
			e.panicked("function panics", t.svc.label(), nil, v, debug.Stack())
		}
	}()
	t.f(&t.scope)
}

// timers are the functions of an engine that wait for their time.
type timers struct {
	mu invariants.Mutex
	// +checklocks:mu
	waiting map[*delayed]struct{}
	// +checklocks:mu
	ended bool
}

func (ts *timers) add(t *delayed) error {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.ended {
		return ErrClosed
	}
	if ts.waiting == nil {
		ts.waiting = map[*delayed]struct{}{}
	}
	ts.waiting[t] = struct{}{}
	return nil
}

func (ts *timers) remove(t *delayed) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	delete(ts.waiting, t)
}

// use reports whether a function waits for its time to be queued in a pool.
func (ts *timers) use(p *sched.Pool) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for t := range ts.waiting {
		if t.svc.pool == p {
			return true
		}
	}
	return false
}

func (ts *timers) count() int {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return len(ts.waiting)
}

// end stops the clocks of all functions that are not due yet, and makes add refuse further functions.
func (ts *timers) end() {
	ts.mu.Lock()
	ts.ended = true
	waiting := ts.waiting
	ts.waiting = nil
	ts.mu.Unlock()
	for t := range waiting {
		t.mu.Lock()
		if t.state == delayWaiting {
			t.state = delayStopped
			t.clock.Stop()
		}
		t.mu.Unlock()
	}
}
