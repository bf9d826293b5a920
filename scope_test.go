package cinnabar

import (
	"context"
	"errors"
	"sync"
	"testing"

	"cinnabar/internal/envelope"
	"cinnabar/internal/invariants"
)

// keeper is an RPC whose handler passes its context on, and returns.
var keeper = NewRPC[flatIn, flatOut]("keep")

// keepContexts makes a server that sends the contexts of handlers of keeper to the channel that it returns.
func keepContexts(t *testing.T, cfg *Config, room int, opts ...func(*Engine) HandleOption) (*Engine, chan context.Context) {
	t.Helper()
	server := listening(t, cfg)
	kept := make(chan context.Context, room)
	var all []HandleOption
	for _, o := range opts {
		all = append(all, o(server))
	}
	must(t, keeper.Handle(server, func(ctx context.Context, in flatIn) (flatOut, error) {
		kept <- ctx
		return flatOut{in.A + in.B}, nil
	}, all...))
	return server, kept
}

// keepOne makes a call and returns the context of its handler, which has returned.
func keepOne(t *testing.T, to *Endpoint, kept <-chan context.Context) context.Context {
	t.Helper()
	out, err := keeper.Call(patient(t), to, flatIn{1, 2})
	if err != nil || out.Sum != 3 {
		t.Fatal(out, err)
	}
	return <-kept
}

// TestKeptContext keeps contexts of handlers that have returned, while the engine serves further requests of another client. Each describes its
// own request, and ends with its own connection.
func TestKeptContext(t *testing.T) {
	server, kept := keepContexts(t, nil, 1)
	first, second := calling(t, nil), calling(t, nil)
	to := []*Endpoint{reach(t, first, server), reach(t, second, server)}
	early, peers, ended := keepOne(t, to[0], kept), []CallInfo{}, make(chan error, 2)
	child, cancel := context.WithCancel(early)
	defer cancel()
	context.AfterFunc(early, func() { ended <- context.Cause(early) })
	unused := keepOne(t, to[0], kept) // its Done is asked for when the connection has ended
	var late []context.Context
	for range 3 * envelope.ValuesOfBlock {
		late = append(late, keepOne(t, to[1], kept))
	}
	for _, ctx := range []context.Context{early, unused, late[0]} {
		peers = append(peers, InfoFrom(ctx))
	}
	if !peers[0].Peer.Equal(peers[1].Peer) || peers[0].Peer.Equal(peers[2].Peer) || peers[0].RPC != "keep" {
		t.Errorf("the contexts are of %v, %v and %v", peers[0], peers[1], peers[2])
	}
	if InfoFrom(child).Peer == nil || !InfoFrom(child).Peer.Equal(peers[0].Peer) {
		t.Error("a derived context is of another request")
	}
	stopped := context.AfterFunc(late[0], func() { ended <- errors.New("the wrong one") })
	for _, ctx := range append(late, early, unused) {
		if _, timed := ctx.Deadline(); timed || ctx.Err() != nil {
			t.Fatalf("a context has a deadline (%v) or has ended: %v", timed, ctx.Err())
		}
	}
	must(t, first.Close())
	if err := soon(t, "the end of the first client's contexts", ended); !errors.Is(err, errPeerGone) {
		t.Errorf("the cause is %v, want %v", err, errPeerGone)
	}
	soon(t, "the end of a derived context", child.Done())
	soon(t, "the end of a context that was not used before", unused.Done())
	if !errors.Is(context.Cause(unused), errPeerGone) || unused.Err() == nil {
		t.Errorf("the cause is %v, the error %v", context.Cause(unused), unused.Err())
	}
	for i, ctx := range late {
		if ctx.Err() != nil {
			t.Fatalf("context %d of the second client has ended: %v", i, ctx.Err())
		}
	}
	if !stopped() {
		t.Error("a function for the second client's context has run")
	}
}

// TestKeptContextGivesNoWorker uses contexts of handlers that have returned in Block, in a call and in Shutdown, while another handler of the same
// pool runs. None of these uses gives away the worker of that handler, or counts as made by a handler.
func TestKeptContextGivesNoWorker(t *testing.T) {
	cfg := &Config{Pools: []PoolConfig{{Name: "one", Workers: 1}}}
	inPool := func(e *Engine) HandleOption { return WithPool(e.LookupPool("one")) }
	server, kept := keepContexts(t, cfg, 1, inPool)
	began, goOn := make(chan struct{}), make(chan struct{})
	must(t, mark.Handle(server, func(context.Context, int32) (struct{}, error) {
		began <- struct{}{}
		<-goOn
		return struct{}{}, nil
	}, inPool(server)))
	to := reach(t, calling(t, nil), server)
	var old []context.Context
	for range 4 { // a Call is used again by one of the next requests
		old = append(old, keepOne(t, to, kept))
	}
	runs := mark.Start(patient(t), to, 0)
	soon(t, "the handler", began)
	for _, ctx := range old {
		Block(ctx, func() {
			if s := server.LookupPool("one").stats(); s.Running != 1 || s.Waiting != 0 {
				t.Errorf("%d handlers run and %d wait, want 1 and 0", s.Running, s.Waiting)
			}
		})
		if s := scopeFrom(ctx); s.holds.Load() != 0 {
			t.Errorf("%d users of a request that is answered", s.holds.Load())
		}
	}
	second := mark.Start(patient(t), to, 1)
	goOn <- struct{}{}
	soon(t, "the second handler", began) // there was a worker for it after the first only
	goOn <- struct{}{}
	for _, p := range []*Pending[struct{}]{runs, second} {
		_, err := p.Wait()
		must(t, err)
	}
	must(t, server.Shutdown(old[0])) // waits for the end, because no handler runs
	select {
	case <-server.Done():
	default:
		t.Error("Shutdown with the context of a handler that has returned has not waited")
	}
}

// TestKeptContextsRace has goroutines use contexts whose handlers return meanwhile, and whose Calls serve other requests.
func TestKeptContextsRace(t *testing.T) {
	const keepers, calls, rounds = 4, 4, 60
	server, kept := keepContexts(t, nil, calls*rounds)
	back := listening(t, nil)
	must(t, add.Handle(back, handleAdd))
	at := reach(t, server, back)
	to := reach(t, calling(t, nil), server)
	var use, call sync.WaitGroup
	for range keepers {
		use.Go(func() {
			for ctx := range kept {
				info := InfoFrom(ctx)
				if info.RPC != "keep" || info.Peer == nil || ctx.Err() != nil || ctx.Done() == nil || ctx.Value(scopeKey{}) == nil {
					t.Errorf("a context of %v, error %v", info, ctx.Err())
				}
				child, cancel := context.WithCancel(ctx)
				stop := context.AfterFunc(child, func() {})
				Block(child, func() {})
				if _, err := add.Call(child, at, addIn{X: 1, Y: 2}); err != nil {
					t.Error(err)
				}
				if !stop() {
					t.Error("a derived context has ended")
				}
				cancel()
			}
		})
	}
	for range calls {
		call.Go(func() {
			for n := range uint64(rounds) {
				if out, err := keeper.Call(patient(t), to, flatIn{n, 1}); err != nil || out.Sum != n+1 {
					t.Errorf("sum %d of %d and 1, error %v", out.Sum, n, err)
				}
				server.State(-1)
			}
		})
	}
	call.Wait()
	close(kept)
	use.Wait()
}

type withBytes struct {
	B []byte `proc:"counted=uint64"`
}

// TestCallIsUsedAgain checks that a Call of the short form serves further requests, and that nothing of its arguments or results is left in it.
func TestCallIsUsedAgain(t *testing.T) {
	if invariants.Race {
		t.Skip("sync.Pool drops objects at random under the race detector")
	}
	h := &handler[withBytes, withBytes]{short: func(context.Context, withBytes) (withBytes, error) { return withBytes{[]byte("out")}, nil }}
	server := listening(t, nil)
	echo := NewRPC[withBytes, withBytes]("bytes")
	must(t, register(echo.proc, server, h, nil))
	to := reach(t, calling(t, nil), server)
	again := false
	ctx := patient(t)
	for n := 0; n < 100 || !again; n++ {
		_, err := echo.Call(ctx, to, withBytes{[]byte("in")})
		must(t, err) // also at the end of ctx, if no Call is ever kept for further requests
		c, _ := h.calls.Get().(*Call[withBytes, withBytes])
		if c == nil {
			continue // the handler has not ended yet
		}
		again = true
		if c.In.B != nil || c.out.B != nil || c.s.req != nil || c.s.scope != nil || c.ctx != nil {
			t.Fatalf("%+v is not empty", c.In)
		}
		h.calls.Put(c)
	}
}
