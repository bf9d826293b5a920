package cinnabar

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/internal/na/natest"
	"cinnabar/regmem/pool"
	"cinnabar/stats"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// wantInventory compares an inventory without the places and the RPCs; ages are compared to the millisecond.
func wantInventory(t *testing.T, e *Engine, want stats.Inventory) {
	t.Helper()
	ages := cmp.Transformer("round", func(d time.Duration) string { return d.Round(time.Millisecond).String() })
	if diff := cmp.Diff(want, e.State(-1).Inventory, ages, cmpopts.IgnoreFields(stats.Inventory{}, "RPCs", "MaxRequest", "MaxResponse"), cmpopts.IgnoreFields(stats.Memory{}, "Place")); diff != "" {
		t.Errorf("inventory (-want +got):\n%s", diff)
	}
}

// TestInventory looks at a server that hangs, and at its caller.
// parity: G90
func TestInventory(t *testing.T) {
	cfg := &Config{Checksums: NoChecksums, Pools: []PoolConfig{{Name: "p", Workers: 2, Kind: PoolPriority}}, Logger: new(logLines).logger()}
	simulate(t, natest.Config{}, cfg, func(t *testing.T, s *sim) {
		p, err := s.server.NewProvider(7, "sleepers")
		must(t, err)
		must(t, nap.Handle(p, handleNap, WithPool(s.server.LookupPool("p"))))
		relay := NewRPC[struct{}, struct{}]("relay")
		must(t, relay.Handle(s.server, func(ctx context.Context, _ struct{}) (struct{}, error) {
			_, err := nap.Call(ctx, s.server.Self().Provider(7), 9000)
			return struct{}{}, err
		}))
		calls := make(chan *Call[addIn, addOut], 1)
		must(t, add.HandleCall(s.server, func(c *Call[addIn, addOut]) { calls <- c }))
		stop, err := s.server.AfterFunc("later", time.Hour, func(context.Context) {})
		must(t, err)
		lent, err := s.server.Expose(ReadOnly, make([]byte, 100))
		must(t, err)
		pool, err := pool.New(3, func() (*Bulk, error) { return s.server.Alloc(ReadWrite, 64) })
		must(t, err)

		elapse(time.Second)
		held := add.Start(t.Context(), s.ep, addIn{})
		elapse(time.Second)
		relayed := relay.Start(t.Context(), s.ep, struct{}{})
		elapse(time.Second)
		one := nap.Start(t.Context(), s.ep.Provider(7), 8000)
		elapse(time.Second)
		two := nap.Start(t.Context(), s.ep.Provider(7), 1000)
		elapse(500 * time.Millisecond)
		server, client := s.server.Addr(), s.client.Addr()
		const ms = time.Millisecond
		wantInventory(t, s.server, stats.Inventory{
			Addr: server, Listening: true, Age: 4500 * ms, Delayed: 1, Providers: []stats.Provider{{ID: 7, Identity: "sleepers"}},
			Calls: []stats.Operation{{Op: "call", RPC: "nap@7", Peer: server, Age: 2500 * ms, Within: "relay"}},
			Requests: []stats.Request{
				{State: "held", RPC: "add", Peer: client, Age: 3500 * ms},
				{State: "waiting", RPC: "relay", Peer: client, Age: 2500 * ms},
				{State: "running", RPC: "nap@7", Peer: server, Pool: "p", Age: 2500 * ms},
				{State: "running", RPC: "nap@7", Peer: client, Pool: "p", Age: 1500 * ms},
				{State: "queued", RPC: "nap@7", Peer: client, Pool: "p", Age: 500 * ms},
			},
			Memory: []stats.Memory{
				{Kind: "read-write bulk of 64 bytes in 1 segments", Count: 3, Bytes: 192},
				{Kind: "read-only bulk of 100 bytes in 1 segments", Count: 1, Bytes: 100},
			},
		})
		for _, m := range s.server.State(-1).Memory {
			if !strings.Contains(m.Place, "TestInventory.func1") {
				t.Errorf("%s is exposed at %q", m.Kind, m.Place)
			}
		}
		found := map[string]stats.RPC{}
		for _, r := range s.server.State(-1).RPCs {
			found[r.Name] = r
		}
		if r := found["nap"]; r.ID != nap.ID(7) || r.Provider == nil || *r.Provider != 7 || r.Flavor != "Margo" || r.Pool != "p" {
			t.Errorf("the RPC of the provider: %+v", r)
		}
		if r := found["add"]; r.ID != add.ID(65535) || r.Provider != nil || r.Pool != "" {
			t.Errorf("the RPC of no provider: %+v", r)
		}
		wantInventory(t, s.client, stats.Inventory{Addr: client, Age: 4500 * ms, Calls: []stats.Operation{
			{Op: "call", RPC: "add", Peer: server, Age: 3500 * ms}, {Op: "call", RPC: "relay", Peer: server, Age: 2500 * ms},
			{Op: "call", RPC: "nap@7", Peer: server, Age: 1500 * ms}, {Op: "call", RPC: "nap@7", Peer: server, Age: 500 * ms},
		}})

		must(t, (<-calls).Respond(t.Context(), addOut{}))
		for _, p := range []interface{ Done() <-chan struct{} }{held, relayed, one, two} {
			<-p.Done()
		}
		must(t, errors.Join(lent.Close(), pool.Close(), p.Close()))
		if !stop() {
			t.Error("the function of AfterFunc has been called")
		}
		synctest.Wait()
		wantInventory(t, s.server, stats.Inventory{Addr: server, Listening: true, Age: time.Since(s.server.born)})
		wantInventory(t, s.client, stats.Inventory{Addr: client, Age: time.Since(s.client.born)})
	})
}

// TestInventoryTransfer looks at a transfer that the network delays.
// parity: G90
func TestInventoryTransfer(t *testing.T) {
	simulate(t, natest.Config{Delay: time.Hour}, &Config{Checksums: NoChecksums, NoEager: true, TransferStall: -1}, func(t *testing.T, s *sim) {
		theirs, err := s.server.Expose(ReadOnly, make([]byte, 100))
		must(t, err)
		mine, err := s.client.Expose(WriteOnly, make([]byte, 60))
		must(t, err)
		p := theirs.Handle().On(s.ep).StartPull(t.Context(), mine)
		elapse(time.Minute)
		want := []stats.Operation{{Op: "pull", Peer: s.server.Addr(), Bytes: 60, Age: time.Minute}}
		if diff := cmp.Diff(want, s.client.State(-1).Transfers); diff != "" {
			t.Errorf("transfers (-want +got):\n%s", diff)
		}
		if n, err := p.Wait(); n != 60 || err != nil {
			t.Errorf("pulled %d, %v", n, err)
		}
		if left := s.client.State(-1).Transfers; len(left) != 0 {
			t.Errorf("transfers after the end: %+v", left)
		}
		must(t, errors.Join(theirs.Close(), mine.Close()))
	})
}

// TestInventoryPlaces checks that memory has the place where the program exposed it, also for an engine that logs nothing.
func TestInventoryPlaces(t *testing.T) {
	e := listening(t, nil)
	b, err := e.Alloc(ReadOnly, 100)
	must(t, err)
	defer func() { _ = b.Close() }()
	pool, err := pool.New(2, func() (*Bulk, error) { return e.Alloc(ReadOnly, 50) })
	must(t, err)
	defer func() { _ = pool.Close() }()
	list := e.State(-1).Memory
	if len(list) != 2 {
		t.Errorf("%d kinds of memory, want 2: %+v", len(list), list)
	}
	for _, m := range list {
		if !strings.Contains(m.Place, "TestInventoryPlaces") {
			t.Errorf("%s is exposed at %q", m.Kind, m.Place)
		}
	}
}

// TestStateBounds: a State with few rows has the oldest operations, and says how many it leaves out.
func TestStateBounds(t *testing.T) {
	cfg := &Config{Checksums: NoChecksums, Pools: []PoolConfig{{Name: "p", Workers: 40}, {Name: "q", Workers: 1}}}
	simulate(t, natest.Config{}, cfg, func(t *testing.T, s *sim) {
		must(t, nap.Handle(s.server, handleNap, WithPool(s.server.LookupPool("p"))))
		for i := range 30 {
			p, err := s.server.NewProvider(uint16(i), "x")
			must(t, err)
			must(t, nap.Handle(p, handleNap, WithPool(s.server.LookupPool("q"))))
		}
		var ends []func()
		for i := range 20 {
			b, err := s.server.Alloc(ReadWrite, int64(i+1))
			must(t, err)
			ends = append(ends, func() { must(t, b.Close()) })
			nap.Start(t.Context(), s.ep, 100_000)
			nap.Start(t.Context(), s.ep.Provider(uint16(i)), 100_000)
			elapse(time.Second)
		}
		here, there := s.client.State(5), s.server.State(5)
		if len(here.Calls) != 5 || here.More.Calls != 35 || here.Calls[0].Age < 20*time.Second || here.Calls[4].Age > here.Calls[0].Age {
			t.Errorf("calls: %+v, and %d more", here.Calls, here.More.Calls)
		}
		if len(there.Requests) != 5 || there.More.Requests != 35 || there.Requests[0].Age < 20*time.Second || there.Requests[0].State != "running" {
			t.Errorf("requests: %+v, and %d more", there.Requests, there.More.Requests)
		}
		if len(there.Memory) != 5 || there.Memory[0].Bytes != 20 || there.More.Memory != 15 || there.MemoryCount != 20 || there.MemoryBytes != 210 {
			t.Errorf("memory: %+v, and %d more of %d, %d bytes", there.Memory, there.More.Memory, there.MemoryCount, there.MemoryBytes)
		}
		for _, m := range there.Memory {
			if !strings.Contains(m.Place, "TestStateBounds.func1") {
				t.Errorf("%s is exposed at %q", m.Kind, m.Place)
			}
		}
		if len(there.Providers) != 5 || there.More.Providers != 25 || len(there.RPCs) != 5 || there.More.RPCs < 26 || len(there.Pools) != 3 || there.Pools[1].Name != "p" || there.Pools[1].Running != 20 {
			t.Errorf("providers, RPCs, pools: %+v, %+v, %+v, %+v", there.Providers, there.RPCs, there.Pools, there.More)
		}
		if all := s.server.State(-1); len(all.Requests) != 40 || len(all.Memory) != 20 || all.More != (stats.More{}) {
			t.Errorf("without a limit: %d requests, %d memories, %+v", len(all.Requests), len(all.Memory), all.More)
		}
		for _, end := range ends {
			end()
		}
		if left := s.server.State(0); left.MemoryCount != 0 || left.MemoryBytes != 0 || len(left.Memory) != 0 {
			t.Errorf("after Close: %d memories, %d bytes", left.MemoryCount, left.MemoryBytes)
		}
		elapse(20 * 100 * time.Second) // the naps in q follow each other
	})
}

// TestStateConnections compares the two ends of a connection.
func TestStateConnections(t *testing.T) {
	server, client := listening(t, nil), listening(t, nil)
	must(t, add.Handle(server, handleAdd))
	ep, err := client.Lookup(server.Addr())
	must(t, err)
	_, err = add.Call(t.Context(), ep, addIn{1, 2})
	must(t, err)
	here, there := client.State(0).Connections, server.State(0).Connections
	if len(here) != 1 || len(there) != 1 || here[0].Inbound || !there[0].Inbound || here[0].State == "connecting" || there[0].State == "connecting" {
		t.Fatalf("at the client: %+v, at the server: %+v", here, there)
	}
	if withAutoSM || !strings.HasPrefix(network, "ofi+tcp:") {
		return
	}
	if here[0].Peer != server.Addr() || there[0].Peer != client.Addr() || here[0].Sent != there[0].Received || here[0].Sent == 0 || here[0].Received == 0 {
		t.Errorf("at the client: %+v, at the server: %+v", here, there)
	}
}

// TestStateDuringCalls takes snapshots while calls begin and end.
func TestStateDuringCalls(t *testing.T) {
	server, client := listening(t, nil), listening(t, nil)
	must(t, add.Handle(server, handleAdd))
	ep, err := client.Lookup(server.Addr())
	must(t, err)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				if _, err := add.Call(t.Context(), ep, addIn{1, 2}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 200 {
		for _, s := range []stats.State{client.State(2), server.State(2)} {
			if len(s.Calls) > 2 || s.More.Calls < 0 || s.More.Requests < 0 {
				t.Fatalf("%+v", s)
			}
		}
	}
	wg.Wait()
	if s := client.State(2); len(s.Calls) != 0 || s.More.Calls != 0 {
		t.Errorf("calls that have ended: %+v", s.Calls)
	}
}
