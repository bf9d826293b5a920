package cinnabar_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/margo"
)

// timed runs a test with an engine whose pool p has one worker, and time that is the test's.
func timed(t *testing.T, test func(t *testing.T, e *cinnabar.Engine, pool *cinnabar.HandlerPool)) {
	t.Helper()
	cfg := &cinnabar.Config{Pools: []cinnabar.PoolConfig{{Name: "p", Queue: -1}}}
	cinnabar.Simulated(t, cfg, func(t *testing.T, e *cinnabar.Engine, _ *cinnabar.Endpoint) { test(t, e, e.LookupPool("p")) })
}

// TestTimer fires timers in and outside pools, again and again.
// parity: G70 T14
func TestTimer(t *testing.T) {
	timed(t, func(t *testing.T, e *cinnabar.Engine, pool *cinnabar.HandlerPool) {
		for _, make := range []func(func(context.Context)) *margo.Timer{
			func(f func(context.Context)) *margo.Timer { return margo.NewTimer(e, f) },
			func(f func(context.Context)) *margo.Timer { return timerIn(pool, e, f) },
		} {
			start := time.Now()
			var fired []time.Duration
			var timer *margo.Timer
			timer = make(func(ctx context.Context) {
				if cinnabar.InfoFrom(ctx).Peer != nil {
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
	timed(t, func(t *testing.T, e *cinnabar.Engine, pool *cinnabar.HandlerPool) {
		var runs atomic.Int32
		goOn := make(chan struct{})
		timer := timerIn(pool, e, func(context.Context) { runs.Add(1); <-goOn })
		must(t, timer.Cancel(t.Context()))
		must(t, timer.Start(time.Second))
		must(t, timer.Cancel(t.Context()))
		pass(time.Minute)
		if runs.Load() != 0 {
			t.Fatal("a timer that was cancelled has run")
		}

		busy := timerIn(pool, e, func(context.Context) { <-goOn })
		must(t, busy.Start(0))
		synctest.Wait()
		must(t, timer.Start(0))
		synctest.Wait()
		if e.Stats().Pools["p"].Queued != 1 {
			t.Fatalf("stats %+v", e.Stats().Pools["p"])
		}
		must(t, timer.Cancel(t.Context())) // although no worker has come to it
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
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantCode(t, timer.Cancel(ctx), codes.Timeout)
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
	cfg := &cinnabar.Config{Pools: []cinnabar.PoolConfig{{Name: "p"}}}
	cinnabar.Simulated(t, cfg, func(t *testing.T, server *cinnabar.Engine, ep *cinnabar.Endpoint) {
		pool := server.LookupPool("p")
		cancelAll := cinnabar.NewRPC[struct{}, struct{}]("cancel all")
		var runs atomic.Int32
		var timers []*margo.Timer
		for i := range 10 {
			timers = append(timers, timerIn(pool, server, func(context.Context) { runs.Add(1) }))
			if i < 8 {
				must(t, timers[i].Start(time.Duration(i/4)*time.Hour))
			}
		}
		must(t, cancelAll.Handle(server, func(ctx context.Context, _ struct{}) (struct{}, error) {
			for _, timer := range timers[:4] { // fired already: their runs wait for this worker now
				if err := timer.Start(0); err != nil {
					return struct{}{}, err
				}
			}
			pass(time.Second)
			if err := margo.CancelTimers(ctx, timers...); err != nil {
				return struct{}{}, err
			}
			return struct{}{}, nil
		}, cinnabar.WithPool(pool)))
		pass(time.Second)
		if runs.Load() != 4 {
			t.Errorf("%d runs, want 4", runs.Load())
		}
		_, err := cancelAll.Call(t.Context(), ep, struct{}{})
		must(t, err)
		pass(2 * time.Hour)
		if runs.Load() != 4 {
			t.Errorf("%d runs after all were cancelled, want 4", runs.Load())
		}
	})
}

// TestTimerInItself has a timer's function cancel its timer, shut the engine down, and panic.
// parity: G70
func TestTimerInItself(t *testing.T) {
	timed(t, func(t *testing.T, e *cinnabar.Engine, pool *cinnabar.HandlerPool) {
		steps := 0
		var timer *margo.Timer
		timer = timerIn(pool, e, func(ctx context.Context) {
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
		<-e.Done()
		must(t, e.Shutdown(t.Context()))
		if steps != 3 {
			t.Errorf("%d runs, want 3", steps)
		}
	})
}

// TestTimerLost loses a started timer, which fires all the same.
// parity: G70
func TestTimerLost(t *testing.T) {
	timed(t, func(t *testing.T, e *cinnabar.Engine, pool *cinnabar.HandlerPool) {
		fired := false
		must(t, margo.NewTimer(e, func(context.Context) { fired = true }).Start(time.Minute))
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
	timed(t, func(t *testing.T, e *cinnabar.Engine, pool *cinnabar.HandlerPool) {
		var told error
		running := timerIn(pool, e, func(ctx context.Context) {
			<-ctx.Done()
			told = ctx.Err()
		})
		never := func(context.Context) { t.Error("a timer of an engine that has ended fires") }
		queued, later, other := timerIn(pool, e, never), margo.NewTimer(e, never), timerIn(pool, e, never)
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
	timed(t, func(t *testing.T, e *cinnabar.Engine, pool *cinnabar.HandlerPool) {
		done := false
		timer := timerIn(pool, e, func(ctx context.Context) {
			must(t, margo.Sleep(ctx, time.Minute))
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
	a, b := calling(t, &cinnabar.Config{Pools: []cinnabar.PoolConfig{{Name: "p"}}}), calling(t, nil)
	timer := timerIn(a.LookupPool("p"), b, func(context.Context) { t.Error("it fires") })
	wantCode(t, timer.Start(0), codes.InvalidArg, "pool")
}

// TestSleep has 100 handlers sleep on one worker: they end together.
// parity: G71 G95
func TestSleep(t *testing.T) {
	cfg := &cinnabar.Config{Checksums: cinnabar.NoChecksums, Pools: []cinnabar.PoolConfig{{Name: "p", Workers: 1}}}
	nap := cinnabar.NewRPC[int64, int64]("nap")
	cinnabar.Simulated(t, cfg, func(t *testing.T, server *cinnabar.Engine, ep *cinnabar.Endpoint) {
		must(t, nap.Handle(server, func(ctx context.Context, ms int64) (int64, error) {
			return ms, margo.Sleep(ctx, time.Duration(ms)*time.Millisecond)
		}, cinnabar.WithPool(server.LookupPool("p"))))
		start := time.Now()
		var ps []*cinnabar.Pending[int64]
		for range 100 {
			ps = append(ps, nap.Start(t.Context(), ep, 1000))
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
		if err := margo.Sleep(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Sleep = %v", err)
		}
		must(t, margo.Sleep(t.Context(), 0))
	})
}

// pass lets simulated time pass, and waits until what is due then is done.
func pass(d time.Duration) {
	cinnabar.Elapse(d)
	synctest.Wait()
}

// timerIn creates a timer whose function runs in a pool.
func timerIn(pool *cinnabar.HandlerPool, e *cinnabar.Engine, f func(context.Context)) *margo.Timer {
	return margo.NewTimer(e, f, cinnabar.WithPool(pool))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantCode checks the code of an error, and that its text has these parts.
func wantCode(t *testing.T, err error, code codes.Code, parts ...string) {
	t.Helper()
	if !errors.Is(err, code) {
		t.Errorf("error %v, want %v", err, code)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %v, want %q in it", err, part)
		}
	}
}

// calling returns an engine for calls.
func calling(t *testing.T, cfg *cinnabar.Config) *cinnabar.Engine {
	t.Helper()
	e, err := cinnabar.Open(t.Context(), "ofi+tcp://127.0.0.1", cfg)
	must(t, err)
	t.Cleanup(func() { must(t, e.Close()) })
	return e
}
