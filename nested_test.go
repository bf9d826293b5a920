package cinnabar

import (
	"context"
	"fmt"
	"sync"
	"testing"
)

// hop is an RPC that calls itself along a path of servers.
var hop = NewRPC[hopIn, hopOut]("hop")

type hopIn struct {
	Left uint32
	Path [3]hopName
}

type (
	hopName struct{ Addr string }
	hopOut  struct{ Hops uint32 }
)

// ring makes n servers that each have a pool of one worker for hop.
func ring(t *testing.T, n int) []*Engine {
	t.Helper()
	var es []*Engine
	for range n {
		e := listening(t, &Config{Pools: []PoolConfig{{Name: "hops", Workers: 1}}})
		must(t, hop.Handle(e, func(ctx context.Context, in hopIn) (hopOut, error) {
			if in.Left == 0 {
				return hopOut{}, nil
			}
			info := InfoFrom(ctx)
			if want := hop.ID(65535); info.ID != want || info.Parent != want && info.Parent != 65535 {
				return hopOut{}, fmt.Errorf("info %+v", info)
			}
			in.Left--
			next, err := e.Lookup(in.Path[in.Left%3].Addr)
			if err != nil {
				return hopOut{}, err
			}
			out, err := hop.Call(ctx, next, in)
			return hopOut{Hops: out.Hops + 1}, err
		}, WithPool(e.LookupPool("hops"))))
		es = append(es, e)
	}
	return es
}

// TestNested sends 64 requests at once around A, B, C and A again, each of which has one worker.
// parity: H56 G39
func TestNested(t *testing.T) {
	es := ring(t, 3)
	in := hopIn{Left: 3}
	for i, e := range es {
		in.Path[(3-i)%3] = hopName{e.Addr()}
	}
	client := calling(t, nil)
	first := reach(t, client, es[0])
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range 5 {
				out, err := hop.Call(patient(t), first, in)
				if err != nil || out.Hops != 3 {
					t.Errorf("hops = %d, %v", out.Hops, err)
				}
			}
		})
	}
	wg.Wait()
}

// TestNestedStarted is the same between two servers with calls that are started and waited for.
// parity: H56
func TestNestedStarted(t *testing.T) {
	type in struct {
		Left uint32
		Addr string
	}
	ping := NewRPC[in, uint32]("ping")
	var es []*Engine
	for range 2 {
		e := listening(t, &Config{Pools: []PoolConfig{{Name: "one", Workers: 1}}})
		must(t, ping.Handle(e, func(ctx context.Context, arg in) (uint32, error) {
			if arg.Left == 0 {
				return 0, nil
			}
			back, err := e.Lookup(arg.Addr)
			if err != nil {
				return 0, err
			}
			p := ping.Start(ctx, back, in{Left: arg.Left - 1, Addr: e.Addr()})
			n, err := p.Wait()
			return n + 1, err
		}, WithPool(e.LookupPool("one"))))
		es = append(es, e)
	}
	ep := reach(t, calling(t, nil), es[0])
	var ps []*Pending[uint32]
	for range 16 {
		ps = append(ps, ping.Start(patient(t), ep, in{Left: 5, Addr: es[1].Addr()}))
	}
	for _, p := range ps {
		if n, err := p.Wait(); err != nil || n != 5 {
			t.Errorf("%d, %v", n, err)
		}
	}
}

// TestProgress checks that handlers of a quick RPC that suddenly block do not keep others from being served.
// parity: H14 G73 D32
func TestProgress(t *testing.T) {
	server, ep := pair(t, nil)
	goOn := make(chan struct{})
	must(t, add.Handle(server, handleAdd))
	sudden := NewRPC[bool, struct{}]("sudden")
	must(t, sudden.Handle(server, func(_ context.Context, wait bool) (struct{}, error) {
		if wait {
			<-goOn
		}
		return struct{}{}, nil
	}))
	for range 50 {
		if _, err := sudden.Call(patient(t), ep, false); err != nil {
			t.Fatal(err)
		}
	}
	var ps []*Pending[struct{}]
	for range 5 {
		ps = append(ps, sudden.Start(patient(t), ep, true))
		for range 20 {
			callAdd(t, ep)
		}
	}
	close(goOn)
	for _, p := range ps {
		if _, err := p.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// TestParent checks which parent a call tells its peer.
// parity: G39
func TestParent(t *testing.T) {
	server, ep := pair(t, nil)
	parents := make(chan uint64, 1)
	inner := NewRPC[struct{}, struct{}]("inner")
	outer := NewRPC[struct{}, struct{}]("outer")
	must(t, inner.Handle(server, func(ctx context.Context, _ struct{}) (struct{}, error) {
		info := InfoFrom(ctx)
		parents <- info.Parent
		return struct{}{}, nil
	}))
	p, err := server.NewProvider(5, "p")
	must(t, err)
	type key struct{}
	must(t, outer.Handle(p, func(ctx context.Context, _ struct{}) (struct{}, error) {
		return inner.Call(context.WithValue(ctx, key{}, 1), server.Self(), struct{}{})
	}))
	if _, err := inner.Call(patient(t), ep, struct{}{}); err != nil {
		t.Fatal(err)
	}
	if got, want := soon(t, "parent", parents), uint64(65535); got != want {
		t.Errorf("parent of an outermost call is %#x, want %#x", got, want)
	}
	if _, err := outer.Call(patient(t), ep.Provider(5), struct{}{}); err != nil {
		t.Fatal(err)
	}
	if got, want := soon(t, "parent", parents), outer.ID(5); got != want {
		t.Errorf("parent of a nested call is %#x, want %#x", got, want)
	}
	if InfoFrom(context.Background()).Peer != nil {
		t.Error("any context is a handler's")
	}
}
