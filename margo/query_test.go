package margo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/stats"
)

// TestQuery asks an engine that allows it about everything.
func TestQuery(t *testing.T) {
	server := configured(t, &Config{AllowQuery: true, Config: own{Pools: []cinnabar.PoolConfig{{Name: "io", Workers: 2, Kind: cinnabar.PoolPriority}}}})
	ep := reach(t, calling(t, nil), server)
	p, err := server.NewProvider(42, "yokan")
	must(t, err)
	must(t, add.Handle(p, handleAdd, cinnabar.WithPool(server.LookupPool("io"))))
	plain := cinnabar.NewRPC[addIn, addOut]("plain", cinnabar.WithFlavor(cinnabar.Mercury))
	must(t, plain.Handle(server, handleAdd))
	_, err = add.Call(t.Context(), ep.Provider(42), addIn{})
	must(t, err)

	d, err := Query(t.Context(), ep)
	must(t, err)
	if d.Addr != server.Addr() || len(d.Providers) != 1 || d.Providers[0] != (stats.Provider{ID: 42, Identity: "yokan"}) {
		t.Errorf("%+v", d)
	}
	found := map[string]stats.RPC{}
	for _, r := range d.RPCs {
		found[r.Name] = r
	}
	if r := found["add"]; r.Provider == nil || *r.Provider != 42 || r.ID != add.ID(42) || r.Flavor != "Margo" || r.Pool != "io" {
		t.Errorf("%+v", r)
	}
	if r := found["plain"]; r.Provider != nil || r.Flavor != "Mercury" || r.Pool != "" {
		t.Errorf("%+v", r)
	}
	if r := found["__query__"]; r.Provider != nil || r.ID != queryRPC.ID(65535) {
		t.Errorf("%+v", r)
	}
	if len(d.Pools) != 1 || d.Pools[0].Name != "io" || d.Pools[0].Kind != "prio_wait" || d.Pools[0].Workers != 2 || d.Pools[0].Stats.Served != 1 {
		t.Errorf("%+v", d.Pools)
	}
	if d.Handlers.Running != 1 || d.Stats.RequestsRecvd < 2 {
		t.Errorf("%+v, %+v", d.Handlers, d.Stats)
	}
	if c := parsed(t, string(d.Config)); len(c.Pools) != 1 || !c.AllowQuery {
		t.Errorf("%s", d.Config)
	}
}

// TestQueryBeforeListenReturns looks for the RPC of queries in Setup, which runs before the engine serves a request, and sends a query
// from there. The configuration in force opens a second engine, because it has the program's Setup alone.
func TestQueryBeforeListenReturns(t *testing.T) {
	client := calling(t, nil)
	var early []*cinnabar.Pending[queryOut]
	cfg := &Config{AllowQuery: true, Config: own{Setup: func(e *cinnabar.Engine) error {
		served := func(r stats.RPC) bool { return r.Name == queryRPC.Name() }
		if !slices.ContainsFunc(e.State(-1).RPCs, served) {
			t.Error("Setup runs before the RPC of queries is registered")
		}
		early = append(early, queryRPC.Start(t.Context(), reach(t, client, e), struct{}{}))
		return nil
	}}}
	configured(t, cfg.InForce(configured(t, cfg)))
	if len(early) != 2 {
		t.Fatalf("Setup was called %d times, want once for each engine", len(early))
	}
	for _, p := range early {
		if out, err := p.Wait(); err != nil || out.JSON == "" {
			t.Errorf("%q, %v", out.JSON, err)
		}
	}
}

// TestQueryNotAllowed asks one that does not, and one that answers nonsense.
func TestQueryNotAllowed(t *testing.T) {
	server := listening(t, nil)
	ep := reach(t, calling(t, nil), server)
	_, err := Query(t.Context(), ep)
	if !errors.Is(err, codes.NoEntry) || !strings.Contains(err.Error(), "__query__ at "+ep.String()) {
		t.Errorf("Query = %v", err)
	}

	forged := cinnabar.NewRPC[struct{}, queryOut]("__query__")
	must(t, forged.Handle(server, func(context.Context, struct{}) (queryOut, error) { return queryOut{JSON: `{"address":1}`}, nil }))
	_, err = Query(t.Context(), ep)
	if !errors.Is(err, codes.ProtocolError) || !strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("Query = %v", err)
	}
}

// TestQueryLimits: an answer that costs far more than its bytes is refused before it is read.
func TestQueryLimits(t *testing.T) {
	many := func(n int) string { return `{"pools":[` + strings.Repeat("null,", n) + "null]}" }
	if d, err := parseDescription(many(100)); err != nil || len(d.Pools) != 101 {
		t.Errorf("%v, %v", d, err)
	}
	_, err := parseDescription(many(maxDescribed + 1))
	if err == nil || !strings.Contains(err.Error(), "at most 262144") {
		t.Errorf("an answer of very many values: %v", err)
	}
}

// TestQuerySecret: what a peer may ask for has no secrets.
func TestQuerySecret(t *testing.T) {
	cfg := parsed(t, `{"mercury":{"auth_key":"sesame"}}`)
	cfg.AllowQuery = true
	server := configured(t, cfg)
	d, err := Query(t.Context(), reach(t, calling(t, nil), server))
	must(t, err)
	if text := string(d.Config); strings.Contains(text, "sesame") || !strings.Contains(text, "allow_query") {
		t.Error(text)
	}
	if kept := marshaled(t, cfg.InForce(server)); !strings.Contains(kept, "sesame") {
		t.Errorf("the engine's own configuration has lost its key: %s", kept)
	}
}

// TestDescribe is what an engine says of itself without being asked over the network.
func TestDescribe(t *testing.T) {
	client := calling(t, &own{Pools: []cinnabar.PoolConfig{{Name: "no identifier"}}})
	b, err := json.Marshal(Describe(client, nil))
	must(t, err)
	var back Description
	must(t, json.Unmarshal(b, &back))
	if back.Addr != client.Addr() || len(back.RPCs) != 0 || len(back.Providers) != 0 || len(back.Pools) != 1 || back.Config != nil {
		t.Errorf("%s", b)
	}
}

// TestDescribeAll describes more RPCs than a bounded snapshot has.
func TestDescribeAll(t *testing.T) {
	server := listening(t, nil)
	for i := range stats.MostRows + 1 {
		must(t, cinnabar.NewRPC[struct{}, struct{}](fmt.Sprint("rpc", i)).Handle(server, func(context.Context, struct{}) (struct{}, error) { return struct{}{}, nil }))
	}
	if n := len(Describe(server, nil).RPCs); n <= stats.MostRows {
		t.Errorf("%d RPCs are described, want more than %d", n, stats.MostRows)
	}
}

// TestQueryEvents counts queries as events of security, and serves them while the pool of the RPCs is busy.
func TestQueryEvents(t *testing.T) {
	server := configured(t, &Config{AllowQuery: true, Config: own{Pools: []cinnabar.PoolConfig{{Name: "rpcs", Workers: 1}}, RPCPool: "rpcs"}})
	ep := reach(t, calling(t, nil), server)
	must(t, relay.Handle(server, func(ctx context.Context, _ addIn) (addOut, error) {
		<-ctx.Done()
		return addOut{}, ctx.Err()
	}))
	relay.Start(t.Context(), ep, addIn{})
	waitFor(t, func() bool { return server.Stats().Pools["rpcs"].Running == 1 })
	_, err := Query(t.Context(), ep)
	must(t, err)
	for _, ev := range server.Stats().Security.Events {
		if ev.Event == "description read by a peer" && ev.Cause == "allowed by Config.AllowQuery" && ev.Count == 1 {
			return
		}
	}
	t.Errorf("no event in %+v", server.Stats().Security.Events)
}

// TestShutdownRemote asks an engine that does not allow it and one that does.
func TestShutdownRemote(t *testing.T) {
	client := calling(t, nil)
	server := listening(t, nil)
	ep := reach(t, client, server)
	err := ShutdownRemote(t.Context(), ep)
	if failure, ok := errors.AsType[*cinnabar.Error](err); !ok || failure.Code != codes.Permission || !failure.Remote ||
		failure.Addr != ep.String() || !strings.Contains(err.Error(), "Config.AllowRemoteShutdown") {
		t.Errorf("refused: %v", err)
	}
	server = listening(t, &own{AllowRemoteShutdown: true})
	must(t, ShutdownRemote(t.Context(), reach(t, client, server)))
	<-server.Done()
	must(t, server.Shutdown(t.Context()))
}
