package cinnabar

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/na"
	"cinnabar/internal/na/natest"
)

// sim is two engines on a network in memory, whose time is the test's.
type sim struct {
	net            *natest.Network
	server, client *Engine
	serverEnd      *natest.Endpoint
	clientEnd      *natest.Endpoint
	ep             *Endpoint // of the server
}

// simulate runs a test on such a network, and checks that nothing is left in the end.
func simulate(t *testing.T, net natest.Config, cfg *Config, test func(*testing.T, *sim)) {
	t.Helper()
	if os.Getenv(networkEnv) != "" {
		t.Skip("it is about no other network")
	}
	synctest.Test(t, func(t *testing.T) {
		s := &sim{net: natest.New(net)}
		s.server, s.serverEnd = s.open(t, cfg, true)
		s.client, s.clientEnd = s.open(t, cfg, false)
		s.ep = reach(t, s.client, s.server)
		test(t, s)
		for _, e := range []*Engine{s.client, s.server} {
			must(t, e.Close())
			synctest.Wait()
			if n := e.Stats(); n.CallsActive != 0 || n.RequestsActive != 0 || n.Handlers.Running != 0 {
				t.Errorf("left over: %+v", n)
			}
		}
		elapse(time.Second) // until the network has done what was under way
		if n := s.net.InFlight(); n != 0 {
			t.Errorf("%d operations of the network are left", n)
		}
	})
}

func (s *sim) open(t *testing.T, cfg *Config, listen bool) (*Engine, *natest.Endpoint) {
	t.Helper()
	var end *natest.Endpoint
	e, err := newEngine(cfg, func(_ *Config, h na.Handler) (na.Endpoint, error) {
		if !listen {
			h = nil
		}
		end = s.net.Open(h)
		return end, nil
	})
	must(t, err)
	return e, end
}

// elapse lets that much of the test's time go by.
func elapse(d time.Duration) { <-time.NewTimer(d).C }

// nap is an RPC whose handler takes that many milliseconds.
var nap = NewRPC[int64, int64]("nap")

func handleNap(_ context.Context, ms int64) (int64, error) {
	elapse(time.Duration(ms) * time.Millisecond)
	return ms, nil
}

// TestSetup has a peer call an engine whose Setup has not registered the RPC yet. The request waits for Setup, and reaches the handler.
func TestSetup(t *testing.T) {
	simulate(t, natest.Config{}, nil, func(t *testing.T, s *sim) {
		var early *Pending[int64]
		register := func(e *Engine) error {
			early = nap.Start(t.Context(), reach(t, s.client, e), 1)
			synctest.Wait()
			if n := e.Stats().RequestsRecvd; n != 0 || len(e.State(-1).RPCs) == 0 {
				t.Errorf("%d requests are received before Setup has returned, and the RPCs are %v", n, e.State(-1).RPCs)
			}
			return nap.Handle(e, handleNap)
		}
		e, _ := s.open(t, &Config{Setup: register}, true)
		if got, err := early.Wait(); err != nil || got != 1 {
			t.Errorf("the early call: %d, %v", got, err)
		}
		must(t, e.Close())

		refuse := func(e *Engine) error {
			early = nap.Start(t.Context(), reach(t, s.client, e), 1)
			synctest.Wait()
			return codes.NoEntry
		}
		e, err := newEngine(&Config{Setup: refuse}, func(_ *Config, h na.Handler) (na.Endpoint, error) { return s.net.Open(h), nil })
		wantCode(t, err, codes.NoEntry, "set up engine at ")
		if e != nil {
			t.Error("an engine is returned with the error of Setup")
		}
		_, err = early.Wait()
		wantCode(t, err, codes.HostUnreach, "nap")
	})
}

// TestDeadlineExact checks when a call ends, to the nanosecond, and that the late answer is dropped.
// parity: G31 D02
func TestDeadlineExact(t *testing.T) {
	simulate(t, natest.Config{Delay: time.Millisecond}, &Config{Checksums: NoChecksums}, func(t *testing.T, s *sim) {
		must(t, nap.Handle(s.server, handleNap))
		for _, ms := range []int64{1, 100, 5000} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(ms)*time.Millisecond)
			start := time.Now()
			_, err := nap.Call(ctx, s.ep, 2*ms+10)
			if took := time.Since(start); took != time.Duration(ms)*time.Millisecond {
				t.Errorf("deadline after %d ms: took %v", ms, took)
			}
			wantCode(t, err, codes.Timeout, "nap")
			cancel()
			start = time.Now()
			_, err = nap.Start(ctx, s.ep, 1).Wait()
			wantCode(t, err, codes.Timeout)
			if time.Since(start) != 0 {
				t.Error("a call with a context that has ended takes time")
			}
			if got, err := nap.Call(t.Context(), s.ep, 3*ms+20); err != nil || got != 3*ms+20 { // the late answer arrives meanwhile
				t.Errorf("next call: %d, %v", got, err)
			}
		}
	})
}

// TestFrozenPeer has the peer stop in the middle of calls and go on later.
// parity: T45 Y02
func TestFrozenPeer(t *testing.T) {
	simulate(t, natest.Config{}, nil, func(t *testing.T, s *sim) {
		must(t, nap.Handle(s.server, handleNap))
		if _, err := nap.Call(t.Context(), s.ep, 1); err != nil {
			t.Fatal(err)
		}
		s.net.Hold(s.serverEnd)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var ps []*Pending[int64]
		for range 10 {
			ps = append(ps, nap.Start(ctx, s.ep, 1))
		}
		patientCall := nap.Start(t.Context(), s.ep, 7)
		for _, p := range ps {
			_, err := p.Wait()
			wantCode(t, err, codes.Timeout)
		}
		s.net.Release(s.serverEnd)
		if got, err := patientCall.Wait(); err != nil || got != 7 {
			t.Errorf("the patient call: %d, %v", got, err)
		}
	})
}

// TestLostConnection loses the connection under calls, and the peer altogether; then there is a new peer.
// parity: G41 Y02
func TestLostConnection(t *testing.T) {
	simulate(t, natest.Config{}, nil, func(t *testing.T, s *sim) {
		must(t, nap.Handle(s.server, handleNap))
		must(t, block.Handle(s.server, handleBlock))
		calls := func() (ps []*Pending[struct{}]) {
			for range 5 {
				ps = append(ps, block.Start(t.Context(), s.ep, struct{}{}))
			}
			synctest.Wait()
			return ps
		}
		lost := func(ps []*Pending[struct{}]) {
			for _, p := range ps {
				_, err := p.Wait()
				wantCode(t, err, codes.HostUnreach, "block", s.ep.String())
			}
			synctest.Wait()
			if n := s.server.Stats().Handlers.Running; n != 0 {
				t.Errorf("%d handlers do not know that their caller is gone", n)
			}
		}
		ps := calls()
		s.net.Cut(s.clientEnd, s.serverEnd)
		lost(ps)
		if got, err := nap.Call(t.Context(), s.ep, 1); err != nil || got != 1 {
			t.Errorf("after the loss: %d, %v", got, err)
		}
		ps = calls()
		s.net.Kill(s.serverEnd)
		lost(ps)
		_, err := nap.Call(t.Context(), s.ep, 1)
		wantCode(t, err, codes.HostUnreach, "nap")
		successor, err := newEngine(nil, func(_ *Config, h na.Handler) (na.Endpoint, error) {
			return s.net.Reopen(s.serverEnd, h), nil
		})
		must(t, err)
		must(t, nap.Handle(successor, handleNap))
		if got, err := nap.Call(t.Context(), s.ep, 1); err != nil || got != 1 {
			t.Errorf("at the successor: %d, %v", got, err)
		}
		must(t, successor.Close())
	})
}

// TestShutdownDelivers has a handler end its engine while the network takes nothing: the engine waits until the answers
// have left.
func TestShutdownDelivers(t *testing.T) {
	simulate(t, natest.Config{}, nil, func(t *testing.T, s *sim) {
		must(t, add.Handle(s.server, endAfter(s.server, 3)))
		callAdd(t, s.ep)
		s.net.Hold(s.serverEnd)
		ps := []*Pending[addOut]{add.Start(t.Context(), s.ep, addIn{X: 1}), add.Start(t.Context(), s.ep, addIn{X: 1})}
		elapse(time.Minute)
		select {
		case <-s.server.Done():
			t.Fatal("the engine has ended before its answers were sent")
		default:
		}
		s.net.Release(s.serverEnd)
		for _, p := range ps {
			if out, err := p.Wait(); err != nil || out.Sum != 1 {
				t.Errorf("add = %+v, %v", out, err)
			}
		}
		<-s.server.Done()
		must(t, s.server.Shutdown(t.Context()))
	})
}

// TestShutdownDeadline checks that a handler's context bounds the shutdown that it begins by its deadline alone.
func TestShutdownDeadline(t *testing.T) {
	simulate(t, natest.Config{}, nil, func(t *testing.T, s *sim) {
		must(t, nap.Handle(s.server, handleNap))
		must(t, add.Handle(s.server, func(ctx context.Context, in addIn) (addOut, error) {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel() // which does not cut the shutdown short
			return handleAddThen(in, s.server.Shutdown(ctx))
		}))
		slow := nap.Start(t.Context(), s.ep, 5000)
		synctest.Wait()
		start := time.Now()
		if out, err := add.Call(t.Context(), s.ep, addIn{X: 1}); err != nil || out.Sum != 1 {
			t.Errorf("add = %+v, %v", out, err)
		}
		<-s.server.Done()
		if took := time.Since(start); took != time.Second {
			t.Errorf("shutdown took %v", took)
		}
		wantCode(t, s.server.Shutdown(t.Context()), codes.Timeout, "1 of their requests")
		_, err := slow.Wait()
		if err == nil {
			t.Error("the slow call succeeds")
		}
		elapse(10 * time.Second) // until its handler is done
	})
}

func handleAddThen(in addIn, err error) (addOut, error) { return addOut{Sum: in.X + in.Y}, err }

// TestRandomHistory makes calls of all kinds on a network that delays them and loses connections, and cancels some. Each
// ends, with the right result or a sensible error.
func TestRandomHistory(t *testing.T) {
	seeds := uint64(30)
	if brief() {
		seeds = 10
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			cfg := &Config{MaxHandlers: 16, MaxQueued: 32} // one host has 9 of the handlers and 18 of the queue
			simulate(t, natest.Config{Seed: seed, Delay: time.Millisecond}, cfg, func(t *testing.T, s *sim) {
				must(t, nap.Handle(s.server, handleNap))
				must(t, add.Handle(s.server, handleAdd))
				stop := make(chan struct{})
				var wg sync.WaitGroup
				for i := range 8 {
					rng := rand.New(rand.NewPCG(seed, uint64(i)))
					wg.Go(func() { randomCalls(t, s, rng, stop) })
				}
				for range 20 {
					elapse(17 * time.Millisecond)
					s.net.Cut(s.clientEnd, s.serverEnd)
				}
				close(stop)
				wg.Wait()
				if _, err := nap.Call(t.Context(), s.ep, 1); err != nil {
					t.Errorf("after all that: %v", err)
				}
				elapse(time.Second) // until the last handlers are done
			})
		})
	}
}

func randomCalls(t *testing.T, s *sim, rng *rand.Rand, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.IntN(30))*time.Millisecond)
		var err error
		want := rng.Int64N(20)
		var got int64
		switch rng.IntN(3) {
		case 0:
			if got, err = nap.Call(ctx, s.ep, want); err == nil && got != want {
				t.Errorf("nap = %d, want %d", got, want)
			}
		case 1:
			p := nap.Start(ctx, s.ep, want)
			if rng.IntN(2) == 0 {
				p.cancel()
			}
			if got, err = p.Wait(); err == nil && got != want {
				t.Errorf("nap = %d, want %d", got, want)
			}
		default:
			var out addOut
			if out, err = add.Call(ctx, s.ep, addIn{X: int32(want), Y: 1}); err == nil && out.Sum != int32(want)+1 {
				t.Errorf("add = %d, want %d", out.Sum, want+1)
			}
		}
		cancel()
		switch codes.Of(err) {
		case codes.Code(0), codes.Timeout, codes.Canceled, codes.HostUnreach, codes.Again:
		default:
			t.Errorf("error %v", err)
		}
	}
}
