package cinnabar

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"reflect"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/hg"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/na/natest"
	"cinnabar/internal/na/ofitcp"
	"cinnabar/internal/progress"
)

// TestResultPanics checks that the caller of a handler whose result panics while it is encoded has an answer, and that
// the server can still end in good order.
func TestResultPanics(t *testing.T) {
	server, ep := pair(t, nil)
	short, late := NewRPC[struct{}, rude]("short"), NewRPC[struct{}, rude]("late")
	must(t, short.Handle(server, func(context.Context, struct{}) (rude, error) { return rude{}, nil }))
	must(t, late.HandleCall(server, func(c *Call[struct{}, rude]) {
		go func() {
			defer func() {
				if recover() == nil {
					t.Error("Respond does not panic")
				}
			}()
			_ = c.Respond(c.Context(), rude{})
		}()
	}))
	for _, rpc := range []*RPC[struct{}, rude]{short, late} {
		p := rpc.Start(patient(t), ep, struct{}{})
		_, err := p.Wait()
		wantCode(t, err, codes.OtherError, rpc.Name())
	}
	must(t, server.Shutdown(patient(t)))
}

// TestNilError checks handlers whose error is a nil pointer in an interface.
func TestNilError(t *testing.T) {
	server, ep := pair(t, nil)
	var none *Error
	must(t, add.Handle(server, func(context.Context, addIn) (addOut, error) { return addOut{}, none }))
	handleLong(t, server, func(c *Call[addIn, addOut]) { _ = c.Fail(none) })
	for _, rpc := range []*RPC[addIn, addOut]{add, long} {
		_, err := rpc.Call(patient(t), ep, addIn{})
		wantCode(t, err, codes.OtherError, rpc.Name())
	}
	must(t, server.Shutdown(patient(t)))
}

// TestAbandonedResults starts calls with results that do not fit into a message, and waits for none of them.
func TestAbandonedResults(t *testing.T) {
	server, ep := pair(t, nil)
	must(t, large.Handle(server, func(context.Context, struct{}) (largeOut, error) {
		return largeOut{N: 5000, Data: make([]byte, 5000)}, nil
	}))
	for range 10 {
		<-large.Start(patient(t), ep, struct{}{}).Done()
	}
	waitFor(t, func() bool { return ep.e.Stats().OverflowBytes == 0 })
}

// TestQueuedAtClose closes a server while requests wait for a handler: none gets one any more.
func TestQueuedAtClose(t *testing.T) {
	server, ep := pair(t, &Config{MaxHandlers: 1})
	var runs atomic.Int32
	must(t, block.Handle(server, func(ctx context.Context, _ struct{}) (struct{}, error) {
		runs.Add(1)
		<-ctx.Done()
		return struct{}{}, nil
	}))
	for range 10 {
		block.Start(context.Background(), ep, struct{}{})
	}
	waitFor(t, func() bool { s := server.Stats().Handlers; return runs.Load() == 1 && s.Queued == 9 })
	must(t, server.Close())
	waitFor(t, func() bool { s := server.Stats(); return s.Handlers.Running == 0 && s.RequestsActive == 0 })
	if n := runs.Load(); n != 1 {
		t.Errorf("%d handlers have run", n)
	}
}

// TestGoexitTask has a handler of an RPC that has proved quick end the goroutine that it runs on: the connection is
// served on.
func TestGoexitTask(t *testing.T) {
	server, ep := pair(t, nil)
	exit := NewRPC[bool, struct{}]("exit")
	must(t, exit.Handle(server, func(_ context.Context, now bool) (struct{}, error) {
		if now {
			runtime.Goexit()
		}
		return struct{}{}, nil
	}))
	for range 3 {
		for range 50 {
			_, err := exit.Call(patient(t), ep, false)
			must(t, err)
		}
		_, err := exit.Call(patient(t), ep, true)
		wantCode(t, err, codes.OtherError, "exit")
	}
}

// TestSmallMessages opens engines with the shortest messages that there may be, which is enough for longer arguments, and
// with shorter ones, which are refused.
// parity: H20 D27
func TestSmallMessages(t *testing.T) {
	for _, cfg := range []Config{{MaxRequest: 511}, {MaxResponse: 511}, {MaxRequest: -1}, {MaxRequest: 64, MaxResponse: 64}} {
		_, err := Listen(t.Context(), "ofi+tcp://127.0.0.1", &cfg)
		wantCode(t, err, codes.InvalidArg, "512")
	}
	cfg := &Config{MaxRequest: 512, MaxResponse: 512}
	server := listening(t, cfg)
	must(t, add.Handle(server, handleAdd))
	must(t, large.Handle(server, func(context.Context, struct{}) (largeOut, error) {
		return largeOut{N: 5000, Data: make([]byte, 5000)}, nil
	}))
	ep := reach(t, calling(t, cfg), server)
	callAdd(t, ep)
	if out, err := large.Call(patient(t), ep, struct{}{}); err != nil || len(out.Data) != 5000 {
		t.Errorf("large: %d bytes, %v", len(out.Data), err)
	}
}

// TestOverflowLimits checks the limits of what an engine fetches.
func TestOverflowLimits(t *testing.T) {
	_, err := Listen(t.Context(), "ofi+tcp://127.0.0.1", &Config{OverflowBudget: -1})
	wantCode(t, err, codes.InvalidArg, "OverflowBudget")
	type blob struct {
		N    uint32
		Data []byte `proc:"count=N"`
	}
	take := NewRPC[blob, uint32]("take")
	server, ep := pair(t, &Config{MaxOverflow: 20000, OverflowBudget: 30000})
	goOn, began := make(chan struct{}), make(chan struct{}, 1)
	must(t, take.Handle(server, func(_ context.Context, in blob) (uint32, error) {
		began <- struct{}{}
		<-goOn
		return in.N, nil
	}))
	_, err = take.Call(patient(t), ep, blob{N: 20000, Data: make([]byte, 20000)}) // and headers
	wantCode(t, err, codes.Overflow, "take", "MaxOverflow")                       // the types of both sides agree
	first := take.Start(patient(t), ep, blob{N: 16000, Data: make([]byte, 16000)})
	soon(t, "handler", began)
	_, err = take.Call(patient(t), ep, blob{N: 16000, Data: make([]byte, 16000)})
	wantCode(t, err, codes.Again, "take")
	close(goOn)
	if n, err := first.Wait(); err != nil || n != 16000 {
		t.Errorf("take = %d, %v", n, err)
	}
	waitFor(t, func() bool { return server.Stats().OverflowBytes == 0 }) // soon after the answer
	if _, err = take.Call(patient(t), ep, blob{N: 16000, Data: make([]byte, 16000)}); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// TestInterceptorGivesUp has an interceptor return before the call does.
func TestInterceptorGivesUp(t *testing.T) {
	errLate := errors.New("too late")
	server := listening(t, nil)
	goOn := make(chan struct{})
	over := make(chan struct{}, 100)
	must(t, add.Handle(server, func(ctx context.Context, in addIn) (addOut, error) {
		if in.X == 1 {
			<-goOn
		}
		return handleAdd(ctx, in)
	}))
	client := calling(t, &Config{Interceptors: []Interceptor{func(ctx context.Context, c *CallInfo, next func(context.Context) error) error {
		done := make(chan error, 1)
		go func() { done <- next(ctx); over <- struct{}{} }()
		select {
		case err := <-done:
			return err
		case <-ctx.Done():
			return errLate
		}
	}}})
	ep := reach(t, client, server)
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		_, err := add.Call(ctx, ep, addIn{X: 1})
		if err == nil {
			t.Error("no error")
		}
	}
	close(goOn)
	for i := range int32(20) {
		out, err := add.Call(t.Context(), ep, addIn{X: i, Y: 1})
		if err != nil || out.Sum != i+1 {
			t.Errorf("%v %v", out, err)
		}
	}
}

// TestNestedDetached waits for a started call whose context is a handler's without its end.
func TestNestedDetached(t *testing.T) {
	server, ep := pair(t, &Config{Pools: []PoolConfig{{Name: "one"}}})
	outer := NewRPC[struct{}, addOut]("outer")
	one := WithPool(server.LookupPool("one"))
	must(t, add.Handle(server, handleAdd, one))
	must(t, outer.Handle(server, func(ctx context.Context, _ struct{}) (addOut, error) {
		return add.Start(context.WithoutCancel(ctx), server.Self(), addIn{X: 1, Y: 2}).Wait()
	}, one))
	if out, err := outer.Call(patient(t), ep, struct{}{}); err != nil || out.Sum != 3 {
		t.Errorf("outer = %+v, %v", out, err)
	}
}

// TestProviderClosed registers on a provider that is closed.
func TestProviderClosed(t *testing.T) {
	server := listening(t, nil)
	p, err := server.NewProvider(1, "first")
	must(t, err)
	must(t, p.Close())
	if err := add.Handle(p, handleAdd); err == nil {
		t.Error("a closed provider registers")
	}
}

func TestZeroEndpoint(t *testing.T) {
	var zero Endpoint
	if zero.Equal(listening(t, nil).Self()) || !zero.Equal(&zero) {
		t.Error("equal")
	}
}

// TestWhoCalls checks that a handler learns the address at which its caller listens, and can call back.
// parity: H32 H45 G28 T33
func TestWhoCalls(t *testing.T) {
	server, other := listening(t, nil), listening(t, nil)
	who := NewRPC[struct{}, string]("who")
	must(t, add.Handle(other, handleAdd))
	must(t, who.Handle(server, func(ctx context.Context, _ struct{}) (string, error) {
		peer := InfoFrom(ctx).Peer
		out, err := add.Call(ctx, peer, addIn{X: 3, Y: 4})
		if err == nil && out.Sum != 7 {
			t.Errorf("calling back: %+v", out)
		}
		return peer.String(), err
	}))
	if got, err := who.Call(patient(t), reach(t, other, server), struct{}{}); err != nil || got != other.Addr() {
		t.Errorf("%q called, %v; want %q", got, err, other.Addr())
	}
	client := calling(t, nil)
	_, err := add.Call(patient(t), client.Self(), addIn{})
	wantCode(t, err, codes.NoEntry) // it serves nothing, and says so
}

// TestConfigReaches checks that each setting arrives where it is used.
// parity: H15
func TestConfigReaches(t *testing.T) {
	subnet := netip.MustParsePrefix("127.0.0.0/8")
	log := slog.New(slog.DiscardHandler)
	cfg := Config{
		Logger: log, Checksums: WithChecksums, NoEager: true, NoOverflow: true, NoLoopback: true, MaxOverflow: 1, OverflowBudget: 2,
		Progress: Progress{Mode: "economy"}, waits: progress.New(progress.Economy), Subnet: subnet, Firewalled: true, Resolver: net.DefaultResolver, MaxRequest: 4, MaxResponse: 5, DialTimeout: 6, DialRetry: 7,
		KeepAlive: 8, SendTimeout: 9, LateAccess: 10, Advertise: "192.0.2.7:1234",
	}
	wantTCP := ofitcp.Config{Logger: log, Progress: cfg.waits, Subnet: subnet, Firewalled: true, Resolver: net.DefaultResolver, MaxRequest: 4, MaxResponse: 5, DialTimeout: 6,
		DialRetry: 7, KeepAlive: 8, SendTimeout: 9, LateAccess: 10, Advertise: netip.MustParseAddrPort("192.0.2.7:1234")}
	if got := cfg.tcp(); !reflect.DeepEqual(got, wantTCP) {
		t.Errorf("the transport is told %+v, want %+v", got, wantTCP)
	}
	wantClass := hg.Config{Logger: log, Checksums: wire.Checksums, NoEager: true, NoOverflow: true, NoLoopback: true, MaxOverflow: 1, OverflowBudget: 2, Progress: cfg.waits}
	if got := cfg.class(nil); !reflect.DeepEqual(got, wantClass) {
		t.Errorf("the core is told %+v, want %+v", got, wantClass)
	}
}

// TestNoOverflow refuses what does not fit into a message, at either end.
func TestNoOverflow(t *testing.T) {
	server, ep := pair(t, &Config{NoOverflow: true})
	must(t, large.Handle(server, func(context.Context, struct{}) (largeOut, error) {
		return largeOut{N: 5000, Data: make([]byte, 5000)}, nil
	}))
	_, err := large.Call(patient(t), ep, struct{}{})
	wantCode(t, err, codes.Overflow, "large")
	_, err = NewRPC[largeOut, struct{}]("x").Call(patient(t), reach(t, server, server), largeOut{N: 5000, Data: make([]byte, 5000)})
	wantCode(t, err, codes.NoEntry) // nothing overflows on the way to oneself
	_, err = NewRPC[largeOut, struct{}]("x").Call(patient(t), reach(t, server, listening(t, nil)), largeOut{N: 5000, Data: make([]byte, 5000)})
	wantCode(t, err, codes.Overflow, "NoOverflow")
}

// TestShutdownUnfetched ends a server whose long answer nobody fetches, since its caller has given up.
func TestShutdownUnfetched(t *testing.T) {
	simulate(t, natest.Config{}, nil, func(t *testing.T, s *sim) {
		goOn := make(chan struct{})
		must(t, large.Handle(s.server, func(context.Context, struct{}) (largeOut, error) {
			<-goOn
			return largeOut{N: 1 << 20, Data: make([]byte, 1<<20)}, nil
		}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := large.Call(ctx, s.ep, struct{}{})
		wantCode(t, err, codes.Timeout, "large")
		close(goOn)
		elapse(10 * time.Second)
		if n := s.server.Stats().Handlers.Waiting; n != 1 {
			t.Errorf("%d handlers wait for their answer to be fetched, want 1", n)
		}
		start := time.Now()
		must(t, s.server.Shutdown(t.Context()))
		if took := time.Since(start); took < 2*time.Second || took > 5*time.Second {
			t.Errorf("shutdown took %v", took)
		}
	})
}
