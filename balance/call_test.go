package balance

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/native"
)

// TestRepeat sends calls again after each kind of error, if that is allowed.
// parity: A06
func TestRepeat(t *testing.T) {
	handled := func(code codes.Code) error { return remote(code, &native.Error{Code: code}) }
	for _, x := range []struct {
		name              string
		err               error
		plain, idempotent bool // the call is repeated
	}{
		{"draining", remote(codes.Draining, nil), true, true},
		{"overloaded", remote(codes.Again, errors.New("hint")), true, true},
		{"lost", lost, false, true},
		{"firewall", &cinnabar.Error{Code: codes.HostFirewall}, false, true},
		{"handler: again", handled(codes.Again), false, true},
		{"handler: draining", handled(codes.Draining), false, true},
		{"handler: unreachable", handled(codes.HostUnreach), false, false},
		{"handler panics", remote(codes.OtherError, nil), false, false},
		{"no such RPC", remote(codes.NoEntry, nil), false, false},
		{"malformed", &cinnabar.Error{Code: codes.ProtocolError}, false, false},
		{"arguments", &cinnabar.Error{Code: codes.InvalidArg}, false, false},
		{"timeout", &cinnabar.Error{Code: codes.Timeout}, false, false},
	} {
		for _, idempotent := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				c, f := newFakes(t, Config{Resolver: three, Policy: PickFirst})
				f.set(native.ServingYes, "a", "b", "c")
				var used []string
				_, err := do(t.Context(), c, idempotent, script(f, &used, x.err))
				want := []string{"a"}
				if idempotent && x.idempotent || x.plain {
					want = []string{"a", "b"}
				}
				if !slices.Equal(used, want) || (err == nil) != (len(want) == 2) {
					t.Errorf("%s, idempotent %v: servers %s, error %v", x.name, idempotent, fmtUsed(used), err)
				}
			})
		}
	}
}

// TestAttempts bounds the repetitions of one call, and of all calls.
func TestAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := newFakes(t, Config{Resolver: three, Attempts: 4})
		f.set(native.ServingYes, "a", "b", "c")
		again := remote(codes.Again, nil)
		var used []string
		_, err := do(t.Context(), c, false, script(f, &used, again, again, again, again, again))
		wantError(t, err, codes.Again)
		if len(used) != 4 || len(slices.Compact(slices.Sorted(slices.Values(used)))) != 3 {
			t.Errorf("one call is sent to %v", used)
		}
		total := 0
		for range 100 {
			_, err := do(t.Context(), c, true, func(context.Context, cinnabar.Target) (int, error) { total++; return 0, again })
			wantError(t, err, codes.Again)
		}
		if total < 110 || total > 120 {
			t.Errorf("100 calls are sent %d times in an outage", total)
		}
		c.budget.init(math.Inf(1))
		c.cfg.Attempts, total = 60, 0
		_, err = do(t.Context(), c, true, func(context.Context, cinnabar.Target) (int, error) {
			c.budget.deposit() // of other calls
			total++
			return 0, again
		})
		if wantError(t, err, codes.Again); total != 60 {
			t.Errorf("a call with 60 attempts is sent %d times", total)
		}
		ctx, cancel := context.WithCancel(t.Context())
		used = nil
		c.budget.init(1)
		_, err = do(ctx, c, true, func(ctx context.Context, to cinnabar.Target) (int, error) {
			cancel()
			return script(f, &used, again)(ctx, to)
		})
		if wantError(t, err, codes.Again); len(used) != 1 {
			t.Errorf("a call whose context has ended is sent to %v", used)
		}
	})
}

// TestHedge sends an idempotent call to a second server when the first is slow, and cancels the loser.
// parity: A06
func TestHedge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := newFakes(t, Config{Resolver: three, Policy: PickFirst, Hedge: time.Second})
		f.set(native.ServingYes, "a", "b", "c")
		run := func(ctx context.Context, idempotent bool, slow string) (winner string, cancelled []string, err error) {
			winner, err = do(ctx, c, idempotent, func(ctx context.Context, to cinnabar.Target) (string, error) {
				name := f.names[to.(*cinnabar.Endpoint)]
				if name != slow {
					return name, nil
				}
				timer := time.NewTimer(time.Minute)
				defer timer.Stop()
				select {
				case <-ctx.Done():
					cancelled = append(cancelled, name)
					return "", &cinnabar.Error{Code: codes.Canceled, Err: ctx.Err()}
				case <-timer.C:
					return name, nil
				}
			})
			return winner, cancelled, err
		}
		began := time.Now()
		winner, cancelled, err := run(t.Context(), true, "a")
		if winner != "b" || !slices.Equal(cancelled, []string{"a"}) || err != nil || time.Since(began) != time.Second {
			t.Errorf("winner %s after %v, cancelled %v, error %v", winner, time.Since(began), cancelled, err)
		}
		if winner, cancelled, err := run(t.Context(), false, "a"); winner != "a" || len(cancelled) != 0 || err != nil {
			t.Errorf("not idempotent: winner %s, cancelled %v, error %v", winner, cancelled, err)
		}
		if winner, cancelled, err := run(t.Context(), true, "b"); winner != "a" || len(cancelled) != 0 || err != nil {
			t.Errorf("quick: winner %s, cancelled %v, error %v", winner, cancelled, err)
		}
		c.budget.init(0)
		for c.budget.withdraw() {
		}
		if winner, _, err := run(t.Context(), true, "a"); winner != "a" || err != nil {
			t.Errorf("without budget: winner %s, error %v", winner, err)
		}
		c.budget.init(1)
		f.set(native.ServingNo, "b", "c")
		if winner, _, err := run(t.Context(), true, "a"); winner != "a" || err != nil {
			t.Errorf("without a second server: winner %s, error %v", winner, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if _, cancelled, err := run(ctx, true, "a"); codes.Of(err) != codes.Canceled || !slices.Equal(cancelled, []string{"a"}) {
			t.Errorf("a context that ends: %v, %v", cancelled, err)
		}
		f.set(native.ServingYes, "b", "c")
		var n atomic.Int32
		_, err = do(t.Context(), c, true, func(context.Context, cinnabar.Target) (int, error) {
			n.Add(1)
			<-time.NewTimer(2 * time.Second).C
			return 0, remote(codes.OtherError, nil)
		})
		if wantError(t, err, codes.OtherError); n.Load() != 2 {
			t.Errorf("a call that fails at both servers is sent %d times", n.Load())
		}
		n.Store(0)
		began = time.Now()
		_, err = do(t.Context(), c, true, func(ctx context.Context, _ cinnabar.Target) (int, error) {
			if n.Add(1) == 2 {
				select { // the loser
				case <-ctx.Done():
				case <-time.NewTimer(time.Minute).C:
				}
				return 0, &cinnabar.Error{Code: codes.Canceled, Err: ctx.Err()}
			}
			<-time.NewTimer(2 * time.Second).C
			return 0, remote(codes.NoEntry, &native.Error{Code: codes.NoEntry})
		})
		if wantError(t, err, codes.NoEntry); time.Since(began) != 2*time.Second {
			t.Errorf("the error of a handler comes after %v", time.Since(began))
		}
		for _, s := range first(c.Servers()) {
			if s.Calls != 0 {
				t.Errorf("%s has %d calls under way", s.Addr, s.Calls)
			}
		}
	})
}

func first(list []Server, _ error) []Server { return list }
