package cinnabar

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/invariants"
)

// TestOverload sends 10,000 calls to a server of 64 handlers: each is answered or refused, and memory does not grow with
// their number.
// parity: H59 G93 Y12 D31
func TestOverload(t *testing.T) {
	server, ep := pair(t, &Config{MaxHandlers: 64, MaxQueued: 256})
	var running, most atomic.Int32
	work := NewRPC[addIn, addOut]("work")
	must(t, work.Handle(server, func(_ context.Context, in addIn) (addOut, error) {
		n := running.Add(1)
		defer running.Add(-1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		spin(50 * time.Microsecond)
		return addOut{Sum: in.X}, nil
	}))
	ctx := patient(t)
	batch := func(n int) (answered, refused int) {
		var ps []*Pending[addOut]
		for i := range n {
			ps = append(ps, work.Start(ctx, ep, addIn{X: int32(i)}))
		}
		for i, p := range ps {
			switch out, err := p.Wait(); codes.Of(err) {
			case codes.Code(0):
				answered++
				if out.Sum != int32(i) {
					t.Errorf("call %d answered %d", i, out.Sum)
				}
			case codes.Again:
				refused++
				wantCode(t, err, codes.Again, "work", ep.String(), "later")
			default:
				t.Fatal(err)
			}
		}
		return answered, refused
	}
	batch(1000)
	before := residentKiB(t)
	answered, refused := 0, 0
	rounds := 10
	if brief() {
		rounds = 2
	}
	for range rounds {
		a, r := batch(1000)
		answered, refused = answered+a, refused+r
	}
	if answered+refused != rounds*1000 || answered < 320 {
		t.Errorf("%d answered, %d refused", answered, refused)
	}
	if most.Load() > 64 {
		t.Errorf("%d handlers at once", most.Load())
	}
	grown := residentKiB(t) - before
	t.Logf("%d answered, %d refused, memory %+d KiB", answered, refused, grown)
	if grown > 16<<10 && !invariants.Race {
		t.Errorf("memory has grown by %d KiB", grown)
	}
	waitFor(t, func() bool { return server.Stats().Handlers.Running == 0 }) // they end after their answers are sent
	if s := server.Stats().Handlers; s.Most > 64 || s.Queued != 0 || int(s.Refused) < refused {
		t.Errorf("stats %+v", s)
	}
}

// spin keeps a processor busy.
func spin(d time.Duration) {
	for start := time.Now(); time.Since(start) < d; {
		runtime.Gosched()
	}
}

// residentKiB returns how much memory the process has once it has given back what it does not need.
func residentKiB(t *testing.T) int {
	t.Helper()
	debug.FreeOSMemory()
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip("there is no /proc here to tell the process's memory: ", err)
	}
	_, rest, _ := strings.Cut(string(data), "VmRSS:")
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	must(t, err)
	return n
}

// TestGreedyPeer checks that one peer that floods a server does not starve another.
// parity: Y12
func TestGreedyPeer(t *testing.T) {
	server, greedy := pair(t, &Config{MaxHandlers: 4, MaxQueued: 100})
	modest := reach(t, calling(t, nil), server)
	var begun atomic.Int32
	steps := make(chan struct{})
	served := make(chan string, 2000)
	work := NewRPC[struct{}, struct{}]("work")
	must(t, work.Handle(server, func(ctx context.Context, _ struct{}) (struct{}, error) {
		begun.Add(1)
		<-steps
		served <- InfoFrom(ctx).Peer.String()
		return struct{}{}, nil
	}))
	var flood []*Pending[struct{}]
	for range 1000 {
		flood = append(flood, work.Start(patient(t), greedy, struct{}{}))
	}
	waitFor(t, func() bool { s := server.Stats().Handlers; return s.Queued == 56 && s.Refused == 1000-60 }) // its host's share
	var few []*Pending[struct{}]
	for range 5 {
		few = append(few, work.Start(patient(t), modest, struct{}{}))
	}
	waitFor(t, func() bool { return server.Stats().Handlers.Refused == 1000-60+5 }) // at the greedy one's expense
	order := []string{}
	for n := range int32(4 + 10) {
		waitFor(t, func() bool { return begun.Load() == n+4 }) // or a later one would take the step
		steps <- struct{}{}
		order = append(order, soon(t, "handler", served))
	}
	for _, p := range few {
		if _, err := p.Wait(); err != nil {
			t.Errorf("the modest peer's call: %v (served: %v)", err, order)
		}
	}
	close(steps)
	for _, p := range flood {
		if _, err := p.Wait(); codes.Of(err) != codes.Again && err != nil {
			t.Error(err)
		}
	}
}

// TestPools checks that a slow RPC in a pool of its own does not delay others.
// parity: G04 G26 T70
func TestPools(t *testing.T) {
	server, ep := pair(t, &Config{MaxHandlers: 2, Pools: []PoolConfig{{Name: "slow", Workers: 2, Queue: 3}}})
	goOn := make(chan struct{})
	slow := NewRPC[struct{}, struct{}]("slow")
	pool := server.LookupPool("slow")
	if pool == nil || pool.cfg.Name != "slow" || server.LookupPool("other") != nil {
		t.Fatal("wrong pools")
	}
	must(t, add.Handle(server, handleAdd))
	must(t, slow.Handle(server, func(context.Context, struct{}) (struct{}, error) {
		<-goOn
		return struct{}{}, nil
	}, WithPool(pool)))
	other := NewRPC[struct{}, struct{}]("other")
	for _, p := range []*HandlerPool{nil, listening(t, &Config{Pools: []PoolConfig{{Name: "slow"}}}).LookupPool("slow")} {
		wantCode(t, other.Handle(server, nil, WithPool(p)), codes.InvalidArg, "pool")
	}
	var ps []*Pending[struct{}]
	for range 6 {
		ps = append(ps, slow.Start(patient(t), ep, struct{}{}))
	}
	waitFor(t, func() bool {
		s := server.Stats().Pools["slow"]
		return s.Running == 2 && s.Queued == 3 && s.Refused == 1
	})
	for range 100 {
		callAdd(t, ep)
	}
	close(goOn)
	refused := 0
	for _, p := range ps {
		if _, err := p.Wait(); codes.Of(err) == codes.Again {
			refused++
		} else if err != nil {
			t.Error(err)
		}
	}
	if refused != 1 {
		t.Errorf("%d calls refused, want 1", refused)
	}
}

// TestSleepers has 100 handlers wait at once.
// parity: G71
func TestSleepers(t *testing.T) {
	server, ep := pair(t, nil)
	goOn := make(chan struct{})
	sleep := NewRPC[struct{}, struct{}]("sleep")
	must(t, sleep.Handle(server, func(context.Context, struct{}) (struct{}, error) {
		<-goOn
		return struct{}{}, nil
	}))
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if _, err := sleep.Call(patient(t), ep, struct{}{}); err != nil {
				t.Error(err)
			}
		})
	}
	waitFor(t, func() bool { return server.Stats().Handlers.Running == 100 })
	close(goOn)
	wg.Wait()
}

// TestManyClients has 1,024 clients call one server at once.
// parity: H128 D33
func TestManyClients(t *testing.T) {
	clients := 1024
	if brief() { // with which an engine takes ten times as long
		clients = 128
	}
	server := listening(t, nil)
	must(t, add.Handle(server, handleAdd))
	var eps []*Endpoint
	for range clients {
		eps = append(eps, reach(t, calling(t, nil), server))
	}
	ctx := patient(t)
	for range 3 {
		var wg sync.WaitGroup
		for i, ep := range eps {
			wg.Go(func() {
				if out, err := add.Call(ctx, ep, addIn{X: int32(i), Y: 1}); err != nil || out.Sum != int32(i)+1 {
					t.Errorf("client %d: %+v, %v", i, out, err)
				}
			})
		}
		wg.Wait()
	}
}
