package margo

import (
	"context"
	"errors"
	"reflect"
	"runtime"
	"sync"
	"time"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/internal/rundown"
)

// Timer calls a function once, some time after each Start, as an engine calls a handler ([cinnabar.Engine.AfterFunc]). It is the
// counterpart of a margo_timer_t, and safe for concurrent use.
//
// A Timer need not be destroyed: a started Timer to which the program has no reference still fires. Timers end with their engine.
// Shutdown waits for functions that run or are queued; a timer that has not fired by then never does. (margo_finalize runs it before its
// time.)
type Timer struct {
	e    *cinnabar.Engine
	f    func(context.Context)
	name string
	opts []cinnabar.HandleOption

	mu sync.Mutex
	// +checklocks:mu
	starts uint64 // the number of Starts, which numbers the runs
	// +checklocks:mu
	begun uint64 // the last run that has begun
	// +checklocks:mu
	void uint64 // runs up to this one do not begin any more
	// +checklocks:mu
	due time.Time // the time at which the last run is queued
	// +checklocks:mu
	stop func() bool // prevents the last run
	// +checklocks:mu
	cancels int // calls of Cancel that have not returned

	runs rundown.Guard // counts the runs of f that have begun and not ended; never closed. Acquire is called with mu held
}

var (
	errTimerStarted  = errors.New("the timer is started and has not fired; cancel it first")
	errTimerCanceled = errors.New("the timer is being cancelled; start it when Cancel has returned")
)

// NewTimer creates a timer of e. Its function f runs by the workers of the pool that [cinnabar.WithPool] in opts names, which must be a
// pool of e, or beside the handlers that are in no pool (margo_timer_create, margo_timer_create_with_pool). The context of f ends as a
// handler's does; calls, transfers and [Sleep] with it give the worker away meanwhile. The engine logs a panic of f.
func NewTimer(e *cinnabar.Engine, f func(ctx context.Context), opts ...cinnabar.HandleOption) *Timer {
	name := "timer"
	if fn := runtime.FuncForPC(reflect.ValueOf(f).Pointer()); fn != nil {
		name += " " + fn.Name()
	}
	return &Timer{e: e, f: f, name: name, opts: opts}
}

// Start makes the function run after d, or at once if d is not positive (margo_timer_start). A timer that has fired may be started
// again, also by its own function. The error has codes.Busy while the timer is started, or being cancelled.
func (t *Timer) Start(d time.Duration) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.starts > max(t.begun, t.void) && time.Now().Before(t.due):
		return &cinnabar.Error{Op: "start timer", Code: codes.Busy, Err: errTimerStarted}
	case t.cancels > 0:
		return &cinnabar.Error{Op: "start timer", Code: codes.Busy, Err: errTimerCanceled}
	}
	start := t.starts + 1
	stop, err := t.e.AfterFunc(t.name, d, func(ctx context.Context) { t.run(ctx, start) }, t.opts...)
	if err != nil {
		return err
	}
	t.starts, t.due, t.stop = start, time.Now().Add(d), stop
	return nil
}

// timerKey is the key under which the context of a timer's function has its Timer.
type timerKey struct{}

// run calls the function, unless the run is cancelled.
func (t *Timer) run(ctx context.Context, start uint64) {
	t.mu.Lock()
	if start <= t.void {
		t.mu.Unlock()
		return
	}
	t.begun = max(t.begun, start)
	t.runs.Acquire()
	t.mu.Unlock()
	defer t.runs.Release()
	t.f(context.WithValue(ctx, timerKey{}, t))
}

// prevent keeps the runs that have not begun from beginning, and the timer from being started until cancels is 0 again.
func (t *Timer) prevent() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cancels++
	t.void = t.starts
	if t.stop != nil {
		t.stop()
		t.stop = nil
	}
}

// Cancel makes sure that the function does not run: a timer that has not fired does not fire, a run that waits for a worker is taken
// back, and Cancel waits for a run that has begun. If ctx is done before, it returns the error of ctx (margo_timer_cancel). The function
// itself may call it with its context; Cancel does not wait then. Afterwards the timer may be started again.
func (t *Timer) Cancel(ctx context.Context) error { return CancelTimers(ctx, t) }

// CancelTimers is Cancel for several timers, which may be of different engines. It stops all of them before it waits for any
// (margo_timer_cancel_many).
func CancelTimers(ctx context.Context, timers ...*Timer) error {
	for _, t := range timers { // before the worker is free, because a run that waits for it would begin
		t.prevent()
	}
	own, _ := ctx.Value(timerKey{}).(*Timer)
	var errs []error
	cinnabar.Block(ctx, func() { // because the runs may need the worker
		for _, t := range timers {
			if t == own {
				continue
			}
			if err := t.runs.Wait(ctx); err != nil {
				errs = append(errs, &cinnabar.Error{Op: "cancel timer", Code: codes.Of(err), Err: err})
			}
		}
	})
	for _, t := range timers {
		t.mu.Lock()
		t.cancels--
		t.mu.Unlock()
	}
	return errors.Join(errs...)
}

// Sleep returns after d, or when ctx is done, with its error then (margo_thread_sleep). In a handler, and with its context, it leaves the
// handler's worker to others meanwhile, so that any number may sleep.
func Sleep(ctx context.Context, d time.Duration) (err error) {
	cinnabar.Block(ctx, func() {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			err = ctx.Err()
		}
	})
	return err
}
