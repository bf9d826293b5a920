package cinnabar

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/na/natest"
)

// timed runs a test with an engine whose pool p has one worker, and time that is the test's.
func timed(t *testing.T, test func(t *testing.T, e *Engine, pool *HandlerPool)) {
	t.Helper()
	simulate(t, natest.Config{}, &Config{Pools: []PoolConfig{{Name: "p", Queue: -1}}}, func(t *testing.T, s *sim) {
		test(t, s.server, s.server.LookupPool("p"))
	})
}

// TestTimer fires timers in and outside pools, again and again.
// parity: G70 T14
func TestTimer(t *testing.T) {
	timed(t, func(t *testing.T, e *Engine, pool *HandlerPool) {
		for _, make := range []func(func(context.Context)) *Timer{
			e.NewTimer, func(f func(context.Context)) *Timer { return pool.NewTimer(e, f) },
		} {
			start := time.Now()
			var fired []time.Duration
			var timer *Timer
			timer = make(func(ctx context.Context) {
				if InfoFrom(ctx).Peer != nil {
					t.Error("a timer has a caller")
				}
				fired = append(fired, time.Since(start))
				if len(fired) == 2 {
					must(t, timer.Start(time.Second))
					wantCode(t, timer.Start(time.Second), codes.Busy, "started")
				}
			})
			must(t, timer.Start(100*time.Millisecond))
			wantCode(t, timer.Start(0), codes.Busy)
			pass(time.Minute)
			must(t, timer.Start(-1))
			pass(time.Minute)
			want := []time.Duration{100 * time.Millisecond, time.Minute, time.Minute + time.Second}
			if len(fired) != 3 || fired[0] != want[0] || fired[1] != want[1] || fired[2] != want[2] {
				t.Errorf("fired after %v, want %v", fired, want)
			}
		}
	})
}

// TestTimerCancel cancels a timer before it fires, while its run waits for a worker, and while it runs.
// parity: G70 T14
func TestTimerCancel(t *testing.T) {
	timed(t, func(t *testing.T, e *Engine, pool *HandlerPool) {
		var runs atomic.Int32
		goOn := make(chan struct{})
		timer := pool.NewTimer(e, func(context.Context) { runs.Add(1); <-goOn })
		must(t, timer.Cancel(t.Context()))
		must(t, timer.Start(time.Second))
		must(t, timer.Cancel(t.Context()))
		pass(time.Minute)
		if runs.Load() != 0 {
			t.Fatal("a timer that was cancelled has run")
		}

		busy := pool.NewTimer(e, func(context.Context) { <-goOn })
		must(t, busy.Start(0))
		synctest.Wait()
		must(t, timer.Start(0))
		synctest.Wait()
		if pool.Stats().Queued != 1 {
			t.Fatalf("stats %+v", pool.Stats())
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantCode(t, timer.Cancel(ctx), codes.Timeout) // it is taken back, but the worker has not got to it
		goOn <- struct{}{}
		pass(time.Second)
		if runs.Load() != 0 {
			t.Fatal("a run that was taken back has run")
		}

		must(t, timer.Start(0))
		synctest.Wait()
		canceled := make(chan error)
		go func() { canceled <- timer.Cancel(t.Context()) }()
		synctest.Wait()
		wantCode(t, timer.Start(0), codes.Busy, "being cancelled")
		select {
		case err := <-canceled:
			t.Errorf("Cancel returns %v while the function runs", err)
		default:
		}
		close(goOn)
		must(t, <-canceled)
		must(t, timer.Start(0))
		pass(time.Second)
		if runs.Load() != 2 {
			t.Errorf("%d runs, want 2", runs.Load())
		}
	})
}

// TestTimerCancelMany cancels timers in all states at once, from a handler that has the worker which they need.
// parity: G70
func TestTimerCancelMany(t *testing.T) {
	simulate(t, natest.Config{}, &Config{Pools: []PoolConfig{{Name: "p"}}}, func(t *testing.T, s *sim) {
		pool := s.server.LookupPool("p")
		var runs atomic.Int32
		var timers []*Timer
		for i := range 10 {
			timers = append(timers, pool.NewTimer(s.server, func(context.Context) { runs.Add(1) }))
			if i < 8 {
				must(t, timers[i].Start(time.Duration(i/4)*time.Hour))
			}
		}
		must(t, add.Handle(s.server, func(ctx context.Context, in addIn) (addOut, error) {
			for _, timer := range timers[:4] { // fired already: their runs wait for this worker now
				if err := timer.Start(0); err != nil {
					return addOut{}, err
				}
			}
			pass(time.Second)
			if err := CancelTimers(ctx, timers...); err != nil {
				return addOut{}, err
			}
			return handleAdd(ctx, in)
		}, WithPool(pool)))
		pass(time.Second)
		if runs.Load() != 4 {
			t.Errorf("%d runs, want 4", runs.Load())
		}
		callAdd(t, s.ep)
		pass(2 * time.Hour)
		if runs.Load() != 4 {
			t.Errorf("%d runs after all were cancelled, want 4", runs.Load())
		}
	})
}

// TestTimerInItself has a timer's function cancel its timer, shut the engine down, and panic.
// parity: G70
func TestTimerInItself(t *testing.T) {
	timed(t, func(t *testing.T, e *Engine, pool *HandlerPool) {
		steps := 0
		var timer *Timer
		timer = pool.NewTimer(e, func(ctx context.Context) {
			steps++
			must(t, timer.Cancel(ctx))
			must(t, timer.Start(time.Second))
			switch steps {
			case 1:
				panic("of the program")
			case 2:
				runtime.Goexit()
			case 3:
				must(t, e.Shutdown(ctx))
			}
		})
		must(t, timer.Start(0))
		soon(t, "end", e.Done())
		must(t, e.Err())
		if steps != 3 {
			t.Errorf("%d runs, want 3", steps)
		}
	})
}

// TestTimerStartedWhileItFires checks that a timer which fires is not taken for one that is not started before it has left
// the list of those that are: it might be started anew, and then leave the list.
//
// +checklocksignore
func TestTimerStartedWhileItFires(t *testing.T) {
	e := calling(t, nil)
	ran := make(chan struct{})
	timer := e.NewTimer(func(context.Context) { close(ran) })
	must(t, timer.Start(time.Hour))
	e.timers.mu.Lock() // which fire needs
	go timer.fire(1)
	for range 10000 {
		if timer.mu.TryLock() {
			started := timer.started
			timer.mu.Unlock()
			if !started {
				t.Error("the timer can be started while it is in the list")
				break
			}
		}
		runtime.Gosched()
	}
	e.timers.mu.Unlock()
	soon(t, "run", ran)
	timer.mu.Lock()
	defer timer.mu.Unlock()
	timer.clock.Stop()
}

// TestTimerLost loses a started timer, which fires all the same.
// parity: G70
func TestTimerLost(t *testing.T) {
	timed(t, func(t *testing.T, e *Engine, pool *HandlerPool) {
		fired := false
		must(t, e.NewTimer(func(context.Context) { fired = true }).Start(time.Minute))
		runtime.GC()
		pass(time.Hour)
		if !fired {
			t.Error("a timer that the program has lost does not fire")
		}
	})
}

// TestTimerEnds checks that timers end with their engine: those that run are told, others never fire.
// parity: G70
func TestTimerEnds(t *testing.T) {
	timed(t, func(t *testing.T, e *Engine, pool *HandlerPool) {
		var told error
		running := pool.NewTimer(e, func(ctx context.Context) {
			<-ctx.Done()
			told = ctx.Err()
		})
		never := func(context.Context) { t.Error("a timer of an engine that has ended fires") }
		queued, later, other := pool.NewTimer(e, never), e.NewTimer(never), pool.NewTimer(e, never)
		must(t, running.Start(0))
		synctest.Wait()
		must(t, queued.Start(0))
		must(t, later.Start(time.Hour))
		synctest.Wait()
		must(t, e.Close())
		wantCode(t, other.Start(0), codes.Permission)
		pass(2 * time.Hour)
		if !errors.Is(told, context.Canceled) {
			t.Errorf("the context of the one that runs ends with %v", told)
		}
		must(t, later.Cancel(t.Context()))
	})
}

// TestTimerShutdown checks that Shutdown waits for functions that run, and that a timer keeps its pool.
// parity: G70
func TestTimerShutdown(t *testing.T) {
	timed(t, func(t *testing.T, e *Engine, pool *HandlerPool) {
		done := false
		timer := pool.NewTimer(e, func(ctx context.Context) {
			must(t, Sleep(ctx, time.Minute))
			done = true
		})
		must(t, timer.Start(time.Second))
		wantCode(t, e.RemovePool("p"), codes.Busy, "timer")
		pass(2 * time.Second)
		wantCode(t, e.RemovePool("p"), codes.Busy, "1 handlers")
		must(t, e.Shutdown(t.Context()))
		if !done {
			t.Error("Shutdown does not wait for a timer's function")
		}
		must(t, e.RemovePool("p"))
		wantCode(t, timer.Start(0), codes.InvalidArg, "no longer")
	})
}

// TestTimerOtherEngine starts a timer of a pool that is not the engine's.
func TestTimerOtherEngine(t *testing.T) {
	a, b := calling(t, &Config{Pools: []PoolConfig{{Name: "p"}}}), calling(t, nil)
	timer := a.LookupPool("p").NewTimer(b, func(context.Context) { t.Error("it fires") })
	wantCode(t, timer.Start(0), codes.InvalidArg, "pool")
}

// TestSleep has 100 handlers sleep on one worker: they end together.
// parity: G71 G95
func TestSleep(t *testing.T) {
	cfg := &Config{Checksums: NoChecksums, Pools: []PoolConfig{{Name: "p", Workers: 1}}}
	simulate(t, natest.Config{}, cfg, func(t *testing.T, s *sim) {
		must(t, nap.Handle(s.server, func(ctx context.Context, ms int64) (int64, error) {
			return ms, Sleep(ctx, time.Duration(ms)*time.Millisecond)
		}, WithPool(s.server.LookupPool("p"))))
		start := time.Now()
		var ps []*Pending[int64]
		for range 100 {
			ps = append(ps, nap.Start(t.Context(), s.ep, 1000))
		}
		for _, p := range ps {
			if _, err := p.Wait(); err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(start); took != time.Second {
			t.Errorf("100 handlers that sleep for a second take %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := Sleep(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Sleep = %v", err)
		}
		must(t, Sleep(t.Context(), 0))
	})
}

// pass is elapse, and waits until what is due then is done.
func pass(d time.Duration) {
	elapse(d)
	synctest.Wait()
}
