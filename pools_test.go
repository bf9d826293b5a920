package cinnabar

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/na/natest"
)

// mark is an RPC whose handlers say when they begin, and wait until they may end.
var mark = NewRPC[int32, struct{}]("mark")

// TestPoolKinds has requests of two RPCs wait for the one worker of a pool of each kind.
// parity: G78 T70
func TestPoolKinds(t *testing.T) {
	for kind, want := range map[PoolKind]string{
		PoolFIFO:          "0 1 2 13 14",
		PoolPriority:      "0 13 14 1 2",
		PoolEarliestFirst: "0 1 2 13 14",
	} {
		t.Run(string(kind), func(t *testing.T) {
			cfg := &Config{Checksums: NoChecksums, Pools: []PoolConfig{{Name: "p", Kind: kind}}}
			simulate(t, natest.Config{}, cfg, func(t *testing.T, s *sim) {
				order := make(chan string, 10)
				goOn := make(chan struct{})
				h := func(_ context.Context, n int32) (struct{}, error) {
					order <- fmt.Sprint(n)
					<-goOn
					return struct{}{}, nil
				}
				pool := s.server.LookupPool("p")
				urgent := NewRPC[int32, struct{}]("urgent")
				must(t, mark.Handle(s.server, h, WithPool(pool)))
				must(t, urgent.Handle(s.server, h, WithPool(pool), WithPriority(1)))
				var ps []*Pending[struct{}]
				for n := range int32(5) {
					if n < 3 {
						ps = append(ps, mark.Start(t.Context(), s.ep, n))
					} else {
						ps = append(ps, urgent.Start(t.Context(), s.ep, 10+n))
					}
					synctest.Wait()
				}
				close(goOn)
				var got []string
				for _, p := range ps {
					if _, err := p.Wait(); err != nil {
						t.Error(err)
					}
					got = append(got, <-order)
				}
				if strings.Join(got, " ") != want {
					t.Errorf("order %v, want %s", got, want)
				}
			})
		})
	}
}

// TestPoolsAtRunTime adds a pool, binds an RPC to it, and removes it when it is not used any more.
// parity: G26 G76 G77 T13
func TestPoolsAtRunTime(t *testing.T) {
	server, ep := pair(t, &Config{Pools: []PoolConfig{{Name: "first", Workers: 3}}})
	pool, err := server.AddPool(PoolConfig{Name: "more", Kind: PoolPriority})
	must(t, err)
	if want := (PoolConfig{Name: "more", Kind: PoolPriority, Workers: 1, Queue: defaultQueued}); pool.Config() != want {
		t.Errorf("config %+v, want %+v", pool.Config(), want)
	}
	if ps := server.handlers.pools.all(); len(ps) != 2 || ps[0] != server.LookupPool("first") || ps[1] != pool {
		t.Errorf("pools %v", ps)
	}
	began, goOn := make(chan string, 1), make(chan struct{})
	must(t, mark.Handle(server, func(ctx context.Context, _ int32) (struct{}, error) {
		info := InfoFrom(ctx)
		began <- info.Pool
		<-goOn
		return struct{}{}, nil
	}, WithPool(pool)))
	wantCode(t, server.RemovePool("more"), codes.Busy, "more", `RPC "mark"`, "remove that")
	call := mark.Start(patient(t), ep, 0)
	if name := soon(t, "handler", began); name != "more" {
		t.Errorf("handler is in pool %q", name)
	}
	must(t, mark.Remove(server))
	wantCode(t, server.RemovePool("more"), codes.Busy, "more", "1 handlers and requests")
	close(goOn)
	_, err = call.Wait()
	must(t, err)
	waitFor(t, func() bool { return server.Stats().Pools["more"].Running == 0 })
	must(t, server.RemovePool("more"))
	if server.LookupPool("more") != nil || len(server.Config().Pools) != 1 {
		t.Error("a removed pool is found")
	}
	wantCode(t, server.RemovePool("more"), codes.NoEntry, "more")
	wantCode(t, mark.Handle(server, nil, WithPool(pool)), codes.InvalidArg, "no longer")
	must(t, server.RemovePool("first"))
}

// parity: G76
func TestAddPoolRefused(t *testing.T) {
	server := listening(t, &Config{Pools: []PoolConfig{{Name: "p"}}})
	for want, cfg := range map[string]PoolConfig{
		"no name": {}, "-1 workers": {Name: "q", Workers: -1}, `kind "lifo"`: {Name: "q", Kind: "lifo"},
	} {
		_, err := server.AddPool(cfg)
		wantCode(t, err, codes.InvalidArg, want)
	}
	for _, n := range []int{-32769, 32768} {
		wantCode(t, mark.Handle(server, nil, WithPriority(n)), codes.InvalidArg, "32767")
	}
	_, err := server.AddPool(PoolConfig{Name: "p"})
	wantCode(t, err, codes.Exist, `"p"`)
	must(t, server.Close())
	_, err = server.AddPool(PoolConfig{Name: "q"})
	wantCode(t, err, codes.Permission)
}

// TestParentPools has engines share pools, and ends them in either order.
// parity: G10 T70 T73
func TestParentPools(t *testing.T) {
	for _, parentFirst := range []bool{true, false} {
		parent, client := listening(t, &Config{Pools: []PoolConfig{{Name: "p", Workers: 1}}}), calling(t, nil)
		child := listening(t, &Config{Parent: parent})
		if !slices.Equal(child.handlers.pools.all(), parent.handlers.pools.all()) || child.LookupPool("p") != parent.LookupPool("p") {
			t.Fatal("the pools differ")
		}
		added, err := child.AddPool(PoolConfig{Name: "of the child"})
		must(t, err)
		must(t, mark.Handle(parent, nil, WithPool(added)))
		wantCode(t, child.RemovePool("of the child"), codes.Busy, parent.Addr())
		goOn := make(chan struct{})
		for _, e := range []*Engine{parent, child} {
			must(t, block.Handle(e, func(context.Context, struct{}) (struct{}, error) { <-goOn; return struct{}{}, nil }, WithPool(e.LookupPool("p"))))
			must(t, add.Handle(e, handleAdd, WithPool(e.LookupPool("p"))))
		}
		one := block.Start(patient(t), reach(t, client, parent), struct{}{})
		waitFor(t, func() bool { return parent.Stats().Pools["p"].Running == 1 })
		two := block.Start(patient(t), reach(t, client, child), struct{}{})
		waitFor(t, func() bool { return child.Stats().Pools["p"].Queued == 1 })
		close(goOn)
		for _, p := range []*Pending[struct{}]{one, two} {
			_, err := p.Wait()
			must(t, err)
		}
		order := []*Engine{child, parent}
		if parentFirst {
			slices.Reverse(order)
		}
		must(t, order[0].Shutdown(patient(t)))
		callAdd(t, reach(t, client, order[1]))
		if parentFirst {
			must(t, child.RemovePool("of the child"))
		}
		must(t, order[1].Shutdown(patient(t)))
	}
}

// TestRemoveRPCPool has a child go by a pool of its parent, which cannot be removed meanwhile.
func TestRemoveRPCPool(t *testing.T) {
	parent, client := listening(t, &Config{Pools: []PoolConfig{{Name: "p"}}}), calling(t, nil)
	cfg := &Config{Parent: parent, RPCPool: "p"}
	child := listening(t, cfg)
	wantCode(t, parent.RemovePool("p"), codes.Busy, `"p"`, "RPCPool")
	must(t, add.Handle(child, handleAdd))
	callAdd(t, reach(t, client, child))
	if n := parent.Stats().Pools["p"].Served; n != 1 {
		t.Errorf("the pool has served %d requests, want 1", n)
	}
	must(t, child.Shutdown(patient(t)))
	must(t, parent.RemovePool("p"))

	// One that is removed after the child's configuration was checked.
	late := &Engine{cfg: *cfg}
	wantCode(t, late.handlers.init(late), codes.InvalidArg, `"p"`, "removed")
}

// parity: G10
func TestParentRefused(t *testing.T) {
	parent := listening(t, nil)
	_, err := Open(t.Context(), network, withDevice(t, &Config{Parent: parent, MaxHandlers: 3}))
	wantCode(t, err, codes.InvalidArg, "Parent")
	must(t, parent.Close())
	_, err = Open(t.Context(), network, withDevice(t, &Config{Parent: parent}))
	wantCode(t, err, codes.Permission)
}

// TestHandlerWarning checks that a handler that blocks is named, once for each doubling of its age.
// parity: D32
func TestHandlerWarning(t *testing.T) {
	log := new(logLines)
	cfg := &Config{Checksums: NoChecksums, HandlerWarning: time.Second, Logger: log.logger(), Pools: []PoolConfig{{Name: "p"}}}
	simulate(t, natest.Config{}, cfg, func(t *testing.T, s *sim) {
		p, err := s.server.NewProvider(7, "naps")
		must(t, err)
		must(t, nap.Handle(p, handleNap, WithPool(s.server.LookupPool("p"))))
		must(t, add.Handle(s.server, handleAdd))
		for range 50 {
			callAdd(t, s.ep)
			elapse(300 * time.Millisecond)
		}
		if _, err := nap.Call(t.Context(), s.ep.Provider(7), 5000); err != nil {
			t.Fatal(err)
		}
		for i, age := range []string{"1s", "2s", "4s"} {
			log.Want(t, i, "handler takes long", "rpc=nap@7", "peer="+s.client.Addr(), "age="+age, "state=running")
		}
		must(t, s.server.SetHandlerWarning(0))
		if _, err := nap.Call(t.Context(), s.ep.Provider(7), 5000); err != nil {
			t.Fatal(err)
		}
		must(t, s.server.SetHandlerWarning(3*time.Second))
		if _, err := nap.Call(t.Context(), s.ep.Provider(7), 5000); err != nil {
			t.Fatal(err)
		}
		log.Want(t, 3, "handler takes long", "rpc=nap@7", "age=3s")
		log.End(t, 4)
	})
	_, err := Open(t.Context(), network, withDevice(t, &Config{HandlerWarning: -1}))
	wantCode(t, err, codes.InvalidArg, "HandlerWarning")
	e := calling(t, nil)
	wantCode(t, e.SetHandlerWarning(-1), codes.InvalidArg, "HandlerWarning is -1ns")
	must(t, e.Close())
	wantCode(t, e.SetHandlerWarning(0), codes.Permission)
}
