package cinnabar

import (
	"context"
	"errors"
	"reflect"
	"runtime"
	"runtime/debug"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/invariants"
	"cinnabar/internal/rundown"
	"cinnabar/internal/sched"
)

// Timer runs a function once, some time after each Start, as a handler is run: by a worker of a pool, on a goroutine
// where it may block. It is what a margo_timer_t is in C, and safe for concurrent use.
//
// There is nothing to destroy: a started Timer that the program has lost still fires. Timers end with their engine.
// Shutdown waits for functions that run or are queued; what has not fired by then never does. (margo_finalize runs it
// before its time.)
type Timer struct {
	svc *service // stands for the function in the pool, and has no id
	f   func(context.Context)

	mu invariants.Mutex
	// +checklocks:mu
	clock *time.Timer // nil until the first Start
	// +checklocks:mu
	starts uint64 // how often it was started, which numbers the runs
	// +checklocks:mu
	void uint64 // runs up to this one are cancelled, unless they have begun
	// +checklocks:mu
	started bool // and not fired or cancelled since
	// +checklocks:mu
	cancels int // calls of Cancel under way

	runs rundown.Guard // counts the runs of f that are queued or under way; never closed. Acquire is called with mu held
}

var (
	errTimerStarted  = errors.New("the timer is started and has not fired; cancel it first")
	errTimerCanceled = errors.New("the timer is being cancelled; start it when Cancel has returned")
)

// NewTimer makes a timer whose function is run beside the handlers that are in no pool (margo_timer_create). f's context
// ends as a handler's does, when the engine gives its handlers up; calls, transfers and [Sleep] with it give the worker
// away meanwhile. A panic of f is logged.
func (e *Engine) NewTimer(f func(ctx context.Context)) *Timer {
	return newTimer(e, nil, e.handlers.pools.other, f)
}

// NewTimer makes a timer of e whose function is run by the pool's workers (margo_timer_create_with_pool). It may have to
// wait for one as requests do, but there is always room for it in the queue. e must be an engine of the pool; Start says
// if it is not.
func (p *HandlerPool) NewTimer(e *Engine, f func(ctx context.Context)) *Timer {
	return newTimer(e, p, p.pool, f)
}

func newTimer(e *Engine, named *HandlerPool, pool *sched.Pool, f func(context.Context)) *Timer {
	name := "timer"
	if fn := runtime.FuncForPC(reflect.ValueOf(f).Pointer()); fn != nil {
		name += " " + fn.Name()
	}
	return &Timer{f: f, svc: &service{e: e, proc: &procedure{name: name, flavor: Mercury}, named: named, pool: pool}}
}

// Start has the function run after d, at once if d is not positive (margo_timer_start). A timer that has fired may be
// started again, also by its own function. It is refused with codes.Busy while the timer is started, or being cancelled.
func (t *Timer) Start(d time.Duration) error {
	e := t.svc.e
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.started:
		return &Error{Op: "start timer", Code: codes.Busy, Err: errTimerStarted}
	case t.cancels > 0:
		return &Error{Op: "start timer", Code: codes.Busy, Err: errTimerCanceled}
	}
	if err := e.handlers.pools.bind(t.svc.named, func() error { return e.timers.add(t) }); err != nil {
		return errorFrom("start timer", "", "", err)
	}
	t.started = true
	t.starts++
	start := t.starts
	t.clock = time.AfterFunc(d, func() { t.fire(start) })
	return nil
}

// fire puts a run of the function into the pool. It is called on a goroutine of its own.
func (t *Timer) fire(start uint64) {
	t.mu.Lock()
	if !t.started || t.starts != start {
		t.mu.Unlock()
		return
	}
	e := t.svc.e
	t.started = false
	t.runs.Acquire()
	e.timers.remove(t) // before anybody can start it anew
	t.mu.Unlock()
	if !e.handlers.gate.Acquire() {
		t.runs.Release()
		return
	}
	r := &run{t: t, start: start}
	r.s.svc, r.s.id = t.svc, wire.NoParent
	r.s.job.Init(r, t.svc.pool, &t.svc.pace)
	if task := r.s.job.Admit(); task != nil {
		task.Run()
	}
}

// Cancel makes sure that the function does not run: a timer that has not fired does not, a run that waits for a worker
// is taken back, and one that is under way is waited for, until ctx is done, whose error is then returned
// (margo_timer_cancel). Called by the function itself, with its context, it does not wait. Afterwards the timer may be
// started again.
func (t *Timer) Cancel(ctx context.Context) error { return CancelTimers(ctx, t) }

// CancelTimers is Cancel for several timers, which may be of different engines: all are stopped before any is waited for
// (margo_timer_cancel_many).
func CancelTimers(ctx context.Context, timers ...*Timer) error {
	for _, t := range timers { // before the worker is free, because a run that waits for it would begin
		t.stop()
	}
	s := servingFrom(ctx)
	if s != nil {
		s.pause() // the runs that are waited for may need the worker
		defer s.resume()
	}
	var errs []error
	for _, t := range timers {
		if s != nil && s.svc == t.svc {
			continue
		}
		errs = append(errs, t.wait(ctx))
	}
	for _, t := range timers {
		t.mu.Lock()
		t.cancels--
		t.mu.Unlock()
	}
	return errors.Join(errs...)
}

// stop keeps the timer from firing, and from being started until cancels is 0 again.
func (t *Timer) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cancels++
	t.void = t.starts
	t.unstartLocked()
}

// +checklocks:t.mu
func (t *Timer) unstartLocked() {
	if t.started {
		t.started = false
		t.clock.Stop() // if it has begun to fire, it finds the timer not started
		t.svc.e.timers.remove(t)
	}
}

// wait waits for the runs of the function.
func (t *Timer) wait(ctx context.Context) error {
	if err := t.runs.Wait(ctx); err != nil {
		return errorFrom("cancel timer", "", "", err)
	}
	return nil
}

// run is one run of a timer's function: a serving without a request. It implements [described].
type run struct {
	t     *Timer
	start uint64 // Timer.starts when it was started
	s     serving
}

// Peer implements [sched.Work].
func (r *run) Peer() string { return sched.Own }

// Host implements [sched.Work].
func (r *run) Host() hostquota.Host { return hostquota.Host{} }

// Yield implements [sched.Work].
func (r *run) Yield() { runtime.Gosched() }

// Overloaded implements [sched.Work]. There is always room for a timer.
func (r *run) Overloaded() { panic("cinnabar: a timer is refused by its pool") }

func (r *run) describe() (e *Engine, label, peer string) { return r.t.svc.e, r.t.svc.label(), "" }

// Serve implements [sched.Work].
func (r *run) Serve() {
	e := r.t.svc.e
	defer e.handlers.gate.Release()
	defer r.t.runs.Release()
	if e.lives.ctx.Err() != nil || r.void() {
		return
	}
	r.s.holds.Store(1)
	defer r.s.holds.Store(0)
	defer func() {
		if v := recover(); v != nil {
			e.panicked("timer panics", r.t.svc.label(), nil, v, debug.Stack())
		}
	}()
	r.t.f(&r.s)
}

// void tells whether the run is cancelled.
func (r *run) void() bool {
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	return r.start <= r.t.void
}

// timers are those of an engine that are started.
type timers struct {
	mu invariants.Mutex
	// +checklocks:mu
	started map[*Timer]struct{}
	// +checklocks:mu
	ended bool
}

func (ts *timers) add(t *Timer) error {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.ended {
		return ErrClosed
	}
	if ts.started == nil {
		ts.started = map[*Timer]struct{}{}
	}
	ts.started[t] = struct{}{}
	return nil
}

func (ts *timers) remove(t *Timer) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	delete(ts.started, t)
}

// use tells whether a started timer is bound to a pool.
func (ts *timers) use(p *sched.Pool) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for t := range ts.started {
		if t.svc.pool == p {
			return true
		}
	}
	return false
}

func (ts *timers) count() int {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return len(ts.started)
}

// end stops all timers, for good.
func (ts *timers) end() {
	ts.mu.Lock()
	ts.ended = true
	started := ts.started
	ts.started = nil
	ts.mu.Unlock()
	for t := range started {
		t.mu.Lock()
		t.unstartLocked()
		t.mu.Unlock()
	}
}

// Sleep returns after d, or when ctx is done, with its error then (margo_thread_sleep). In a handler, and with its
// context, it leaves the handler's worker to others meanwhile, so that any number may sleep.
func Sleep(ctx context.Context, d time.Duration) error {
	if s := servingFrom(ctx); s != nil {
		s.pause()
		defer s.resume()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
