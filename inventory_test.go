package cinnabar

import (
	"context"
	"errors"
	"strings"
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
	if diff := cmp.Diff(want, e.Inventory(), ages, cmpopts.IgnoreFields(stats.Inventory{}, "RPCs", "MaxRequest", "MaxResponse"), cmpopts.IgnoreFields(stats.Memory{}, "Place")); diff != "" {
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
				{State: "waiting", RPC: "relay", Peer: client, Age: 2500 * ms},
				{State: "running", RPC: "nap@7", Peer: client, Pool: "p", Age: 1500 * ms},
				{State: "running", RPC: "nap@7", Peer: server, Pool: "p", Age: 2500 * ms},
				{State: "queued", RPC: "nap@7", Peer: client, Pool: "p", Age: 500 * ms},
				{State: "held", RPC: "add", Peer: client, Age: 3500 * ms},
			},
			Memory: []stats.Memory{
				{Kind: "read-only bulk of 100 bytes in 1 segments", Count: 1, Bytes: 100},
				{Kind: "read-write bulk of 64 bytes in 1 segments", Count: 3, Bytes: 192},
			},
		})
		for _, m := range s.server.Inventory().Memory {
			if !strings.Contains(m.Place, "TestInventory.func1") {
				t.Errorf("%s is exposed at %q", m.Kind, m.Place)
			}
		}
		found := map[string]stats.RPC{}
		for _, r := range s.server.Inventory().RPCs {
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
		if diff := cmp.Diff(want, s.client.Inventory().Transfers); diff != "" {
			t.Errorf("transfers (-want +got):\n%s", diff)
		}
		if n, err := p.Wait(); n != 60 || err != nil {
			t.Errorf("pulled %d, %v", n, err)
		}
		if left := s.client.Inventory().Transfers; len(left) != 0 {
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
	list := e.Inventory().Memory
	if len(list) != 2 {
		t.Errorf("%d kinds of memory, want 2: %+v", len(list), list)
	}
	for _, m := range list {
		if !strings.Contains(m.Place, "TestInventoryPlaces") {
			t.Errorf("%s is exposed at %q", m.Kind, m.Place)
		}
	}
}
