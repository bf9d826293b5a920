package cinnabar

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cinnabar/codes"
)

// endAfter returns a handler of add that ends e in its nth run.
func endAfter(e *Engine, n int32) func(context.Context, addIn) (addOut, error) {
	var runs atomic.Int32
	return func(ctx context.Context, in addIn) (addOut, error) {
		if runs.Add(1) == n {
			if err := e.Shutdown(ctx); err != nil {
				return addOut{}, err
			}
		}
		return handleAdd(ctx, in)
	}
}

// TestShutdownFromHandler ends a server in its 16th handler: all 16 callers have their answer.
// parity: G02
func TestShutdownFromHandler(t *testing.T) {
	for range 20 {
		server, err := Listen(t.Context(), network, withDevice(t, nil))
		must(t, err)
		must(t, add.Handle(server, endAfter(server, 16)))
		client := calling(t, nil)
		ep := reach(t, client, server)
		for range 16 {
			callAdd(t, ep)
		}
		soon(t, "end of the server", server.Done())
		must(t, server.Shutdown(t.Context()))
	}
}

// TestTutorialServer is the same over two processes: the server exits with status 0.
// parity: G02
func TestTutorialServer(t *testing.T) {
	p := spawn(t, "tutorial", network)
	addr := p.Stdout.Line()
	for range 4 { // four clients
		client := calling(t, nil)
		for range 4 {
			callAdd(t, find(t, client, addr))
		}
	}
	must(t, p.Wait())
}

// parity: G03 T16
func TestUseAfterClose(t *testing.T) {
	server, ep := pair(t, nil)
	must(t, add.Handle(server, handleAdd))
	callAdd(t, ep)
	client := ep.e
	must(t, client.Close())
	must(t, client.Close())
	must(t, client.Shutdown(patient(t)))
	soon(t, "end", client.Done())
	must(t, client.Shutdown(ended(t)))
	_, callErr := add.Call(patient(t), ep, addIn{})
	_, startErr := add.Start(patient(t), ep, addIn{}).Wait()
	_, lookupErr := client.Lookup(server.Addr())
	_, exposeErr := client.Expose(ReadOnly, make([]byte, 10))
	_, provider := client.NewProvider(1, "x")
	for name, err := range map[string]error{
		"call": callErr, "start": startErr, "lookup": lookupErr, "expose": exposeErr, "provider": provider,
		"handle": add.Handle(client, handleAdd), "send": NewOneWay[struct{}]("x").Send(patient(t), ep, struct{}{}),
	} {
		if !errors.Is(err, ErrClosed) || !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if client.Addr() == "" || client.Config() == nil || client.LookupPool("x") != nil || client.Stats().RequestsSent == 0 {
		t.Error("what only asks does not work any more")
	}
	callAdd(t, reach(t, calling(t, nil), server))
}

// TestCloseUnderWay closes engines in the middle of things: every waiter ends with an error that says so.
// parity: G03
func TestCloseUnderWay(t *testing.T) {
	server, ep := pair(t, nil)
	must(t, block.Handle(server, handleBlock))
	var ps []*Pending[struct{}]
	for range 10 {
		ps = append(ps, block.Start(context.Background(), ep, struct{}{}))
	}
	errs := make(chan error)
	go func() {
		_, err := block.Call(context.Background(), ep, struct{}{})
		errs <- err
	}()
	waitFor(t, func() bool { return server.Stats().Handlers.Running == 11 })
	must(t, ep.e.Close())
	for _, p := range ps {
		_, err := p.Wait()
		wantCode(t, err, codes.Canceled, "block", ep.String(), "closed")
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%v is not ErrClosed", err)
		}
	}
	if err := soon(t, "call", errs); !errors.Is(err, ErrClosed) {
		t.Errorf("%v is not ErrClosed", err)
	}
	waitFor(t, func() bool { return server.Stats().Handlers.Running == 0 }) // since the caller is gone
}

// TestCloseWithHandlers closes a server whose handlers wait.
func TestCloseWithHandlers(t *testing.T) {
	server, ep := pair(t, nil)
	begun, ended := make(chan struct{}), make(chan error, 1)
	must(t, block.Handle(server, func(ctx context.Context, _ struct{}) (struct{}, error) {
		close(begun)
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return struct{}{}, nil
	}))
	p := block.Start(patient(t), ep, struct{}{})
	soon(t, "handler", begun) // a worker that has not come to it when the engine closes would not call it
	must(t, server.Close())
	if err := soon(t, "handler", ended); !errors.Is(err, ErrClosed) {
		t.Errorf("cause %v", err)
	}
	soon(t, "call", p.Done()) // with an answer, if the handler was faster than the closing
}

// waitFor waits until a condition holds that nothing announces.
func waitFor(t testing.TB, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(testLimit); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatal("the condition does not come true")
		}
	}
}

// TestShutdownDrains has a server finalize with calls in flight: they are answered, later ones are refused.
// parity: G42 T03
func TestShutdownDrains(t *testing.T) {
	server, ep := pair(t, nil)
	goOn := make(chan struct{})
	slow := NewRPC[addIn, addOut]("slow")
	must(t, slow.Handle(server, func(_ context.Context, in addIn) (addOut, error) {
		<-goOn
		return addOut{Sum: in.X}, nil
	}))
	var ps []*Pending[addOut]
	for i := range int32(20) {
		ps = append(ps, slow.Start(patient(t), ep, addIn{X: i}))
	}
	waitFor(t, func() bool { return server.Stats().Handlers.Running == 20 })
	ended := make(chan error, 1)
	go func() { ended <- server.Shutdown(patient(t)) }()
	waitFor(t, server.handlers.gate.Closed)
	_, err := slow.Call(patient(t), ep, addIn{})
	wantCode(t, err, codes.Permission, "slow", ep.String())
	close(goOn)
	for i, p := range ps {
		if out, err := p.Wait(); err != nil || out.Sum != int32(i) {
			t.Errorf("call %d = %+v, %v", i, out, err)
		}
	}
	must(t, soon(t, "shutdown", ended))
	_, err = slow.Call(patient(t), ep, addIn{})
	if err == nil || codes.Of(err) == codes.Permission {
		t.Errorf("call after the end: %v", err)
	}
}

// TestShutdownLimit gives up on handlers when the context ends.
// parity: G42
func TestShutdownLimit(t *testing.T) {
	server, ep := pair(t, nil)
	must(t, block.Handle(server, handleBlock))
	p := block.Start(patient(t), ep, struct{}{})
	waitFor(t, func() bool { return server.Stats().Handlers.Running == 1 })
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	err := server.Shutdown(ctx)
	wantCode(t, err, codes.Timeout, "the wait for handlers ended with 1 of their requests unanswered")
	if err := server.Shutdown(ended(t)); !errors.Is(err, codes.Timeout) {
		t.Errorf("a second Shutdown: %v", err)
	}
	if _, err := p.Wait(); err == nil {
		t.Error("call succeeds")
	}
}

// TestShutdownCallbacks checks their order, that RPCs work in the first kind and not in the second, and removal.
// parity: G06 T10
func TestShutdownCallbacks(t *testing.T) {
	server, ep := pair(t, nil)
	other := listening(t, nil)
	must(t, add.Handle(server, handleAdd))
	must(t, add.Handle(other, handleAdd))
	toOther := reach(t, server, other)
	var mu sync.Mutex
	var order []string
	note := func(s string) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, s)
	}
	server.OnShutdown(func(ctx context.Context) {
		note("first")
		if out, err := add.Call(ctx, toOther, addIn{X: 1}); err != nil || out.Sum != 1 {
			t.Errorf("call in callback: %+v, %v", out, err)
		}
		callAdd(t, ep) // others' calls work too
	})
	remove := server.OnShutdown(func(context.Context) { note("removed") })
	server.OnShutdown(func(context.Context) { note("last") })
	server.OnClose(func() {
		note("close first")
		if _, err := add.Call(context.Background(), toOther, addIn{}); !errors.Is(err, ErrClosed) {
			t.Errorf("call after the end: %v", err)
		}
	})
	removeClose := server.OnClose(func() { note("removed") })
	server.OnClose(func() { note("close last") })
	if !remove() || remove() || !removeClose() {
		t.Error("remove does not report what it does")
	}
	must(t, server.Shutdown(patient(t)))
	if want := []string{"last", "first", "close last", "close first"}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
	if err := server.Shutdown(patient(t)); err != nil || len(order) != 4 {
		t.Errorf("second shutdown: %v, %v", err, order)
	}
}

// TestShutdownTwice has several goroutines end one engine at once, and Close cut it short.
// parity: G03 T16
func TestShutdownTwice(t *testing.T) {
	server, ep := pair(t, nil)
	goOn := make(chan struct{}) // the handler heeds no context, so there is something to wait for
	must(t, block.Handle(server, func(context.Context, struct{}) (struct{}, error) {
		<-goOn
		return struct{}{}, nil
	}))
	defer close(goOn)
	p := block.Start(patient(t), ep, struct{}{})
	waitFor(t, func() bool { return server.Stats().Handlers.Running == 1 })
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := server.Shutdown(context.Background()); !errors.Is(err, context.Canceled) {
				t.Errorf("shutdown: %v", err)
			}
		})
	}
	waitFor(t, server.handlers.gate.Closed)
	short, cancel := context.WithCancel(context.Background())
	cancel()
	if err := server.Shutdown(short); !errors.Is(err, context.Canceled) {
		t.Errorf("impatient shutdown: %v", err)
	}
	must(t, server.Close())
	wg.Wait()
	if _, err := p.Wait(); err == nil {
		t.Error("call succeeds")
	}
}

// TestRemoteShutdown ends a server from afar, if it allows that.
// parity: G07 T11
func TestRemoteShutdown(t *testing.T) {
	server, ep := pair(t, nil)
	must(t, add.Handle(server, handleAdd))
	if out, err := shutdownRPC.Call(patient(t), ep, struct{}{}); err != nil || out.Ret != -1 {
		t.Errorf("shutdown: %+v, %v; want a refusal", out, err)
	}
	callAdd(t, ep)

	p := spawn(t, "server", network)
	ep = find(t, ep.e, p.Stdout.Line())
	callAdd(t, ep)
	if out, err := shutdownRPC.Call(patient(t), ep, struct{}{}); err != nil || out.Ret != 0 {
		t.Errorf("shutdown: %+v, %v", out, err)
	}
	must(t, p.Wait())
}

// TestStartStop makes and ends engines a hundred times.
// parity: H02 G11
func TestStartStop(t *testing.T) {
	client := calling(t, nil)
	for range 100 {
		server, err := Listen(t.Context(), network, withDevice(t, nil))
		must(t, err)
		must(t, add.Handle(server, handleAdd))
		callAdd(t, reach(t, client, server))
		must(t, server.Shutdown(patient(t)))
	}
}

// parity: H01 H03 G01 G04 T16
func TestOpenRefused(t *testing.T) {
	for addr, word := range map[string]string{"bmi+tcp://x": "bmi+tcp", "": "use ofi+tcp"} {
		_, err := Listen(t.Context(), addr, nil)
		wantCode(t, err, codes.ProtoNoSupport, word)
	}
	for word, cfg := range map[string]*Config{
		"MaxHandlers": {MaxHandlers: -1},
		"Checksums":   {Checksums: 9},
		"no name":     {Pools: []PoolConfig{{}}},
		`"a"`:         {Pools: []PoolConfig{{Name: "a"}, {Name: "a"}}},
		"-1 workers":  {Pools: []PoolConfig{{Name: "a", Workers: -1}}},
	} {
		_, err := Listen(t.Context(), network, withDevice(t, cfg))
		wantCode(t, err, codes.InvalidArg, word)
	}
	server := listening(t, nil)
	_, err := Listen(t.Context(), server.Addr(), nil)
	wantCode(t, err, codes.AddrInUse, strings.TrimPrefix(server.Addr(), "ofi+tcp://"))
	if _, err := server.Lookup("nonsense"); err == nil {
		t.Error("an address without sense is accepted")
	}
}

// TestListening checks the two modes and what they say of themselves.
// parity: H01 H03 G01 G08 G50 G51 T12 D14
func TestListening(t *testing.T) {
	server, client := listening(t, nil), calling(t, nil)
	if !server.State(0).Listening || client.State(0).Listening {
		t.Error("the modes are mixed up")
	}
	for _, e := range []*Engine{server, client} {
		if self := find(t, e, e.Addr()); !self.Equal(e.Self()) || self.String() != e.Addr() {
			t.Errorf("self is %v, looked up %v", e.Self(), self)
		}
	}
	if reach(t, client, server).Equal(client.Self()) {
		t.Error("two engines are equal")
	}
	cfg := server.Config()
	if cfg.MaxHandlers != 4096 || cfg.MaxQueued != 65536 || cfg.Progress.Mode != "balanced" || cfg.Logger == nil {
		t.Errorf("config in force %+v", cfg)
	}
}

// TestShutdownWithHeldCalls checks that Shutdown does not wait for calls that the program holds if their callers are gone,
// whether these leave before Shutdown or during it, and waits for others.
func TestShutdownWithHeldCalls(t *testing.T) {
	server := listening(t, nil)
	held := make(chan *Call[struct{}, struct{}], 3)
	must(t, block.HandleCall(server, func(c *Call[struct{}, struct{}]) { held <- c }))
	var clients []*Engine
	var calls []*Pending[struct{}]
	var kept []*Call[struct{}, struct{}]
	for range 3 {
		client := calling(t, nil)
		clients = append(clients, client)
		calls = append(calls, block.Start(patient(t), reach(t, client, server), struct{}{}))
		kept = append(kept, soon(t, "the handler", held))
	}
	waitFor(t, func() bool { return len(server.handlers.unanswered.all()) == 3 })
	must(t, clients[0].Close())
	soon(t, "the end of the first caller", kept[0].Context().Done())
	down := make(chan error, 1)
	go func() { down <- server.Shutdown(patient(t)) }()
	waitFor(t, func() bool { return server.handlers.gate.Users() == 2 })
	must(t, clients[1].Close())
	waitFor(t, func() bool { return server.handlers.gate.Users() == 1 })
	select {
	case err := <-down:
		t.Fatalf("Shutdown has not waited for the answer to a caller that lives: %v", err)
	default:
	}
	must(t, kept[2].Respond(t.Context(), struct{}{}))
	_, err := calls[2].Wait()
	must(t, err)
	must(t, soon(t, "the shutdown", down))
	if err := kept[0].Respond(t.Context(), struct{}{}); err == nil {
		t.Error("an answer has reached a caller that is gone")
	}
	_ = kept[1].Fail(codes.Canceled)
}

// ended returns a context that has ended. Operations that need not wait succeed with it.
func ended(t testing.TB) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
