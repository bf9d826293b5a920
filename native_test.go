package cinnabar_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/native"
)

// hold is an RPC whose handler returns when its context ends.
var hold = native.New[int64, struct{}]("hold")

// held is a call of a handler of hold.
type held struct {
	n           int64
	began       time.Time
	left        time.Duration // until the deadline; 0: there is none
	ended       time.Time
	err, reason error
}

// serveHold makes e serve hold. calls has each call at its end.
func serveHold(t *testing.T, e *cinnabar.Engine, opts ...cinnabar.HandleOption) (calls <-chan held) {
	t.Helper()
	c := make(chan held, 10)
	err := hold.Handle(e, func(ctx context.Context, n int64) (struct{}, error) {
		h := held{n: n, began: time.Now()}
		if d, ok := ctx.Deadline(); ok {
			h.left = time.Until(d)
		}
		<-ctx.Done()
		h.ended, h.err, h.reason = time.Now(), ctx.Err(), context.Cause(ctx)
		c <- h
		return struct{}{}, ctx.Err()
	}, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestNativeDeadline checks to the nanosecond that the handler has the time that is left until the caller's deadline, or the server's limit if that is less.
// parity: A04 Y01
func TestNativeDeadline(t *testing.T) {
	for _, c := range []struct {
		name   string
		limit  time.Duration // of the server
		caller time.Duration // 0: no deadline
		want   time.Duration
	}{
		{"caller's", 0, 10 * time.Second, 7 * time.Second},
		{"server's", 4 * time.Second, 10 * time.Second, 4 * time.Second},
		{"caller's is less", 8 * time.Second, 10 * time.Second, 7 * time.Second},
		{"server's alone", 4 * time.Second, 0, 4 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			cinnabar.Simulated(t, &cinnabar.Config{MaxHandlerTime: c.limit}, func(t *testing.T, server *cinnabar.Engine, ep *cinnabar.Endpoint) {
				calls := serveHold(t, server)
				ctx, cancel := context.WithCancel(t.Context())
				if c.caller > 0 {
					ctx, cancel = context.WithTimeout(t.Context(), c.caller)
				}
				defer cancel()
				cinnabar.Elapse(3 * time.Second)
				start := time.Now()
				_, err := hold.Call(ctx, ep, 1)
				if !errors.Is(err, codes.Timeout) || time.Since(start) != c.want {
					t.Errorf("the call ends after %v with %v, want %v", time.Since(start), err, c.want)
				}
				h := <-calls
				cancelled := c.want != c.limit && errors.Is(h.err, context.Canceled) // the caller gives up at the same moment, and its cancel may come first
				if h.left != c.want || h.ended.Sub(start) != c.want || !cancelled && !errors.Is(h.err, context.DeadlineExceeded) {
					t.Errorf("the handler has %v and ends after %v with %v, want %v", h.left, h.ended.Sub(start), h.err, c.want)
				}
			})
		})
	}
}

// TestNativeDeadlineInQueue checks that the time of a call passes while it waits for a worker. A handler that has some left begins with the rest
// of it; if none is left the handler is not called.
func TestNativeDeadlineInQueue(t *testing.T) {
	cfg := &cinnabar.Config{Pools: []cinnabar.PoolConfig{{Name: "one", Workers: 1}}}
	cinnabar.Simulated(t, cfg, func(t *testing.T, server *cinnabar.Engine, ep *cinnabar.Endpoint) {
		calls := serveHold(t, server, cinnabar.WithPool(server.LookupPool("one")))
		start := time.Now()
		errs := make(chan error, 3)
		for n, limit := range []time.Duration{2 * time.Second, time.Second, 5 * time.Second} {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			go func() {
				_, err := hold.Call(ctx, ep, int64(n))
				errs <- err
			}()
			synctest.Wait()
		}
		for range 3 {
			if err := <-errs; !errors.Is(err, codes.Timeout) {
				t.Error(err)
			}
		}
		for _, want := range []held{{n: 0, left: 2 * time.Second}, {n: 2, left: 3 * time.Second}} {
			if h := <-calls; h.n != want.n || h.left != want.left || h.ended.Sub(start) != h.began.Sub(start)+want.left {
				t.Errorf("handler %d has %v, want handler %d with %v", h.n, h.left, want.n, want.left)
			}
		}
		synctest.Wait()
		if len(calls) > 0 {
			t.Errorf("handler %d is called after the end of its time", (<-calls).n)
		}
	})
}

// TestNativeCancel checks that a cancel ends the handler's context without delay, and that the caller of a call without a deadline needs none.
// parity: A04
func TestNativeCancel(t *testing.T) {
	cinnabar.Simulated(t, nil, func(t *testing.T, server *cinnabar.Engine, ep *cinnabar.Endpoint) {
		calls := serveHold(t, server)
		ctx, cancel := context.WithCancel(t.Context())
		errs := make(chan error)
		go func() {
			_, err := hold.Call(ctx, ep, 1)
			errs <- err
		}()
		cinnabar.Elapse(time.Hour)
		start := time.Now()
		cancel()
		if err := <-errs; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		h := <-calls
		if h.left != 0 || !h.ended.Equal(start) || !errors.Is(h.err, context.Canceled) || !errors.Is(h.reason, codes.Canceled) {
			t.Errorf("the handler ends %v after the cancel with %v, and the cause %v", h.ended.Sub(start), h.err, h.reason)
		}
		synctest.Wait()
		if n := server.Stats().RequestsActive; n != 0 {
			t.Errorf("%d requests are left", n)
		}
	})
}

// holdStream is a stream whose handler ends with its context.
var holdStream = native.NewStream[int64, int64]("hold-stream")

// TestNativeStreamDeadline checks to the nanosecond that the handler of a stream has the time that is left until the deadline of Open, that a cancel ends
// its context at once, and that nothing is sent while a stream is idle.
// parity: A05
func TestNativeStreamDeadline(t *testing.T) {
	cinnabar.Simulated(t, nil, func(t *testing.T, server *cinnabar.Engine, ep *cinnabar.Endpoint) {
		calls := make(chan held, 1)
		err := holdStream.Handle(server, func(ctx context.Context, s *native.ServerStream[int64, int64]) error {
			h := held{began: time.Now()}
			if d, ok := ctx.Deadline(); ok {
				h.left = time.Until(d)
			}
			for n, err := range s.Receive(ctx) {
				h.n += n
				h.err = err
			}
			h.ended, h.reason = time.Now(), context.Cause(ctx)
			calls <- h
			return h.err
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		cinnabar.Elapse(3 * time.Second)
		start := time.Now()
		s, err := holdStream.Open(ctx, ep)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Send(ctx, 5); err != nil {
			t.Error(err)
		}
		for _, err := range s.Receive(ctx) {
			if !errors.Is(err, codes.Timeout) || time.Since(start) != 7*time.Second {
				t.Errorf("the client's side ends after %v with %v", time.Since(start), err)
			}
		}
		if h := <-calls; h.n != 5 || h.left != 7*time.Second || h.ended.Sub(start) != 7*time.Second || h.err == nil {
			t.Errorf("the handler has %v and ends after %v with %v", h.left, h.ended.Sub(start), h.err)
		}

		if s, err = holdStream.Open(t.Context(), ep); err != nil {
			t.Fatal(err)
		}
		if err := s.Send(t.Context(), 5); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		received := server.Stats().RequestsRecvd
		cinnabar.Elapse(10 * time.Second)
		if n := server.Stats().RequestsRecvd; n != received {
			t.Errorf("%d requests for an idle stream", n-received)
		}
		start = time.Now()
		s.Cancel(nil)
		if err := s.Wait(t.Context()); !errors.Is(err, codes.Canceled) {
			t.Error(err)
		}
		if h := <-calls; !h.ended.Equal(start) || !errors.Is(h.reason, codes.Canceled) {
			t.Errorf("the handler ends %v after the cancel with %v", h.ended.Sub(start), h.reason)
		}
		synctest.Wait()
		if n := server.Stats().RequestsActive; n != 0 {
			t.Errorf("%d requests are left", n)
		}
	})
}
