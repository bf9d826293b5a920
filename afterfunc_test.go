package cinnabar

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/na/natest"
)

// TestAfterFunc calls stop for a function that waits for its time, for one that waits for a worker, and for one that the engine has
// called.
func TestAfterFunc(t *testing.T) {
	log := new(logLines)
	cfg := &Config{Pools: []PoolConfig{{Name: "p", Kind: PoolPriority}}, Logger: log.logger()}
	simulate(t, natest.Config{}, cfg, func(t *testing.T, s *sim) {
		var calls []string
		after := func(name string, d time.Duration, opts ...HandleOption) (stop func() bool) {
			stop, err := s.server.AfterFunc(name, d, func(context.Context) { calls = append(calls, name) }, opts...)
			must(t, err)
			return stop
		}
		p := s.server.LookupPool("p")
		goOn := make(chan struct{})
		_, err := s.server.AfterFunc("busy", 0, func(context.Context) { <-goOn }, WithPool(p))
		must(t, err)
		synctest.Wait()
		never, queued := after("never", time.Hour, WithPool(p)), after("queued", time.Second, WithPool(p))
		low, high := after("low", 2*time.Second, WithPool(p)), after("high", 3*time.Second, WithPool(p), WithPriority(1))
		wantCode(t, s.server.RemovePool("p"), codes.Busy)
		elapse(time.Minute)
		synctest.Wait()
		if !never() || never() || !queued() || queued() {
			t.Error("stop does not report that it has prevented the call, or reports it twice")
		}
		close(goOn)
		elapse(2 * time.Hour)
		synctest.Wait()
		if low() || high() || len(calls) != 2 || calls[0] != "high" || calls[1] != "low" {
			t.Errorf("called are %q, want high and low", calls)
		}
		_, err = s.server.AfterFunc("faulty", 0, func(context.Context) { panic("of the program") })
		must(t, err)
		synctest.Wait()
		log.Want(t, 0, "function panics", "rpc=faulty", "of the program")
		_, err = s.client.AfterFunc("elsewhere", 0, func(context.Context) {}, WithPool(p))
		wantCode(t, err, codes.InvalidArg)
		late := after("late", time.Hour)
		must(t, s.server.Close())
		if late() {
			t.Error("stop reports that it, and not the end of the engine, has prevented the call")
		}
		_, err = s.server.AfterFunc("closed", 0, func(context.Context) {})
		wantCode(t, err, codes.Permission)
	})
}

// TestAfterFuncDuringShutdown lets the time of a function come while Shutdown waits for another one. It is never called, and stop reports
// that the end of the engine has prevented the call.
func TestAfterFuncDuringShutdown(t *testing.T) {
	simulate(t, natest.Config{}, &Config{}, func(t *testing.T, s *sim) {
		goOn := make(chan struct{})
		_, err := s.server.AfterFunc("busy", 0, func(context.Context) { <-goOn })
		must(t, err)
		late, err := s.server.AfterFunc("late", time.Minute, func(context.Context) { t.Error("a function is called after the shutdown has begun") })
		must(t, err)
		synctest.Wait()
		ended := make(chan error)
		go func() { ended <- s.server.Shutdown(context.Background()) }()
		elapse(time.Hour)
		synctest.Wait()
		if late() {
			t.Error("stop reports that it, and not the end of the engine, has prevented the call")
		}
		close(goOn)
		must(t, <-ended)
	})
}
