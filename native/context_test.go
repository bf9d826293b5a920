package native_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"sync"
	"testing"
	"time"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/internal/invariants"
	"cinnabar/native"
)

// keeping returns the endpoint of a server whose handlers of rpc pass their contexts to look and return, and the channel with these contexts.
func keeping(t *testing.T, network string, rpc *native.RPC[uint32, uint32], room int, look func(context.Context)) (*cinnabar.Endpoint, chan context.Context) {
	t.Helper()
	server, ep := pair(t, network, nil, nil)
	kept := make(chan context.Context, room)
	must(t, rpc.Handle(server, func(ctx context.Context, n uint32) (uint32, error) {
		look(ctx)
		kept <- ctx
		return n, nil
	}))
	return ep, kept
}

type userKey struct{}

// TestKeptContexts keeps the contexts of handlers, of which each describes its own request for ever, whether a handler has asked for the end of its context
// or not. Further calls use no part of them again.
func TestKeptContexts(t *testing.T) {
	const calls = 200
	for name, look := range map[string]func(context.Context){
		"not looked at": func(context.Context) {},
		"done":          func(ctx context.Context) { _ = ctx.Done() },
		"error":         func(ctx context.Context) { check(t, ctx.Err()) },
		"value":         func(ctx context.Context) { _ = ctx.Value(userKey{}) },
		"derived": func(ctx context.Context) {
			_, cancel := context.WithTimeout(ctx, time.Hour)
			cancel()
		},
	} {
		t.Run(name, func(t *testing.T) {
			keep := native.New[uint32, uint32]("keep")
			ep, kept := keeping(t, tcp, keep, calls, look)
			traces := map[uint32]native.Trace{}
			for i := range uint32(calls) {
				ctx := patient(t)
				if i%3 == 1 {
					ctx = native.WithMetadata(ctx, native.Metadata{"call": fmt.Sprint(i)})
				}
				if i%5 == 1 {
					traces[i] = native.NewTrace(true)
					ctx = native.WithTrace(ctx, traces[i])
				}
				n, err := keep.Call(ctx, ep, i)
				if err != nil || n != i {
					t.Fatalf("call %d: %d, %v", i, n, err)
				}
			}
			ids := map[uint64]bool{}
			for i := range uint32(calls) {
				ctx := soon(t, "context", kept)
				soon(t, "end of the context", ctx.Done())
				if err, cause := ctx.Err(), context.Cause(ctx); !errors.Is(err, context.Canceled) || !errors.Is(cause, context.Canceled) {
					t.Errorf("call %d: error %v and cause %v, want those of a context that has ended", i, err, cause)
				}
				if d, ok := ctx.Deadline(); !ok || time.Until(d) > testLimit {
					t.Errorf("call %d: deadline %v, %v", i, d, ok)
				}
				m := native.MetadataFrom(ctx)
				if want := (native.Metadata{"call": fmt.Sprint(i)}); i%3 == 1 && !maps.Equal(m, want) || i%3 != 1 && m != nil {
					t.Errorf("call %d: metadata %v", i, m)
				}
				if trace := native.TraceFrom(ctx); trace != traces[i] {
					t.Errorf("call %d: trace %v, want %v", i, trace, traces[i])
				}
				if err := native.SetMetadata(ctx, "late", ""); !errors.Is(err, codes.InvalidArg) {
					t.Errorf("call %d: metadata after its end: %v", i, err)
				}
				if info := cinnabar.InfoFrom(ctx); info.RPC != "keep" || info.Peer == nil {
					t.Errorf("call %d: description %+v", i, info)
				}
				if ctx.Value(userKey{}) != nil {
					t.Errorf("call %d: the context has a value", i)
				}
				derived, cancel := context.WithCancel(ctx)
				soon(t, "end of a context that is derived late", derived.Done())
				cancel()
				ids[native.CallID(ctx)] = true
			}
			if len(ids) != calls {
				t.Errorf("%d contexts of %d calls", len(ids), calls)
			}
		})
	}
}

// TestContextEnds checks how the context of a handler ends: by a cancel or by the deadline, for handlers that first ask in each of the ways.
func TestContextEnds(t *testing.T) {
	asks := map[string]func(ctx context.Context, ended chan<- struct{}){
		"done": func(ctx context.Context, ended chan<- struct{}) {
			go func() {
				<-ctx.Done()
				close(ended)
			}()
		},
		"error": func(ctx context.Context, ended chan<- struct{}) {
			go func() {
				for ctx.Err() == nil {
					runtime.Gosched()
				}
				close(ended)
			}()
		},
		"function": func(ctx context.Context, ended chan<- struct{}) { context.AfterFunc(ctx, func() { close(ended) }) },
		"function of a value": func(ctx context.Context, ended chan<- struct{}) {
			context.AfterFunc(context.WithValue(ctx, userKey{}, 1), func() { close(ended) })
		},
		"cause": func(ctx context.Context, ended chan<- struct{}) {
			go func() {
				for context.Cause(ctx) == nil {
					runtime.Gosched()
				}
				close(ended)
			}()
		},
	}
	for name, ask := range asks {
		for _, c := range []struct {
			by   string
			most time.Duration
			err  error
			code codes.Code
		}{
			{"cancel", 0, context.Canceled, codes.Canceled},
			{"deadline", 300 * time.Millisecond, context.DeadlineExceeded, codes.Timeout},
		} {
			t.Run(name+" "+c.by, func(t *testing.T) {
				server, ep := pair(t, tcp, &cinnabar.Config{MaxHandlerTime: c.most}, nil)
				hold := native.New[struct{}, struct{}]("hold")
				begun, kept := make(chan struct{}), make(chan context.Context, 1)
				must(t, hold.Handle(server, func(ctx context.Context, _ struct{}) (struct{}, error) {
					ended := make(chan struct{})
					ask(ctx, ended)
					close(begun)
					<-ended
					kept <- ctx
					return struct{}{}, ctx.Err()
				}))
				ctx, cancel := context.WithCancel(patient(t))
				defer cancel()
				go func() {
					<-begun
					if c.by == "cancel" {
						cancel()
					}
				}()
				_, err := hold.Call(ctx, ep, struct{}{})
				wantError(t, err, c.code)
				ended := soon(t, "end", kept)
				if cause := context.Cause(ended); !errors.Is(ended.Err(), c.err) || codes.Of(cause) != c.code {
					t.Errorf("error %v, cause %v, want %v and %v", ended.Err(), cause, c.err, c.code)
				}
			})
		}
	}
}

// TestCancelMeetsAnswer cancels calls while they are answered. A late cancel ends no other call, whose memory may have been that of the cancelled one.
func TestCancelMeetsAnswer(t *testing.T) {
	double := native.New[uint32, uint32]("double")
	server, ep := pair(t, tcp, nil, nil)
	must(t, double.Handle(server, func(ctx context.Context, n uint32) (uint32, error) {
		if n%2 == 0 {
			return 2 * n, ctx.Err()
		}
		<-ctx.Done()
		return 0, ctx.Err()
	}))
	rounds := 1000
	if invariants.Race {
		rounds = 200
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range rounds {
				n := uint32(8*i + 2*g)
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() { // at any time during the call, or after it
					defer close(ended)
					for range i % 50 {
						runtime.Gosched()
					}
					cancel()
				}()
				if got, err := double.Call(ctx, ep, n); err == nil && got != 2*n || err != nil && !errors.Is(err, codes.Canceled) {
					t.Errorf("double %d: %d, %v", n, got, err)
				}
				<-ended
				if got, err := double.Call(t.Context(), ep, n); err != nil || got != 2*n {
					t.Errorf("double %d, which is not cancelled: %d, %v", n, got, err)
				}
				if i%10 == 0 { // a handler that waits for the cancel
					ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
					if _, err := double.Call(ctx, ep, n+1); !errors.Is(err, codes.Timeout) {
						t.Errorf("a call without an answer: %v", err)
					}
					cancel()
				}
			}
		})
	}
	wg.Wait()
}

// TestRejectedCallsAreNotReused has an interceptor of the client give calls up while they go on. They use no memory of other calls.
func TestRejectedCallsAreNotReused(t *testing.T) {
	var left sync.WaitGroup
	defer left.Wait()
	leave := func(ctx context.Context, _ *cinnabar.CallInfo, next func(context.Context) error) error {
		if native.TraceFrom(ctx).IsZero() {
			return next(ctx)
		}
		left.Go(func() { _ = next(ctx) }) // its result is of no interest
		return fmt.Errorf("%w: too slow", codes.Busy)
	}
	server, ep := pair(t, tcp, nil, &cinnabar.Config{Interceptors: []cinnabar.Interceptor{leave}})
	echo := native.New[uint32, uint32]("echo")
	var mu sync.Mutex
	traced, plain := map[uint32]bool{}, map[uint32]bool{}
	must(t, echo.Handle(server, func(ctx context.Context, n uint32) (uint32, error) {
		mu.Lock()
		defer mu.Unlock()
		if native.TraceFrom(ctx).IsZero() {
			plain[n] = true
		} else {
			traced[n] = true
		}
		return n, nil
	}))
	const calls = 300
	ctx := native.WithTrace(patient(t), native.NewTrace(false))
	for n := range uint32(calls) {
		if _, err := echo.Call(ctx, ep, 2*n); !errors.Is(err, codes.Busy) {
			t.Errorf("call %d: %v", 2*n, err)
		}
		got, err := echo.Call(patient(t), ep, 2*n+1)
		if err != nil || got != 2*n+1 {
			t.Fatalf("echo %d: %d, %v", 2*n+1, got, err)
		}
	}
	left.Wait()
	mu.Lock()
	defer mu.Unlock()
	if len(traced) != calls || len(plain) != calls {
		t.Errorf("%d calls with a trace and %d without one, want %d each", len(traced), len(plain), calls)
	}
	for n := range traced {
		if n%2 != 0 {
			t.Errorf("call %d has the trace of another one", n)
		}
	}
}

// TestSteadyAllocs counts the allocations and the bytes of native calls in both engines together, once both have their buffers. A call needs the two
// contexts of its handler, which come in blocks, and crypto/tls allocates 24 bytes for each record. A deadline costs nothing more.
func TestSteadyAllocs(t *testing.T) {
	if invariants.Race {
		t.Skip("the race detector allocates, and sync.Pool drops at random under it")
	}
	for _, c := range []struct {
		network string
		objects float64
		bytes   uint64
	}{{tcp, 0, 200}, {tcps, 2, 256}} {
		t.Run(c.network[:indexOf(c.network)], func(t *testing.T) {
			server, ep := pair(t, c.network, nil, nil)
			must(t, add.Handle(server, handleAdd))
			for name, ctx := range map[string]context.Context{"no deadline": context.Background(), "deadline": patient(t)} {
				one := func() {
					if _, err := add.Call(ctx, ep, addIn{1, 2}); err != nil {
						t.Fatal(err)
					}
				}
				for range 1000 {
					one()
				}
				if n := testing.AllocsPerRun(2000, one); n > c.objects {
					t.Errorf("%s: %v allocations, want at most %v", name, n, c.objects)
				}
				const calls = 5000
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				for range calls {
					one()
				}
				runtime.ReadMemStats(&after)
				if n := (after.TotalAlloc - before.TotalAlloc) / calls; n > c.bytes {
					t.Errorf("%s: %d bytes, want at most %d", name, n, c.bytes)
				}
			}
		})
	}
}
