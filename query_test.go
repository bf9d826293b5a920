package cinnabar

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"cinnabar/codes"
)

// TestQuery asks an engine that allows it about everything.
func TestQuery(t *testing.T) {
	server, ep := pair(t, &Config{AllowQuery: true, Pools: []PoolConfig{{Name: "io", Workers: 2, Kind: PoolPriority}}})
	p, err := server.Provider(42, "yokan")
	must(t, err)
	must(t, add.Handle(p, handleAdd, InPool(server.Pool("io"))))
	plain := NewRPC[addIn, addOut]("plain", WithFlavor(Mercury))
	must(t, plain.Handle(server, handleAdd))
	callAdd(t, ep.Provider(42))

	d, err := ep.Query(patient(t))
	must(t, err)
	if d.Addr != server.Addr() || len(d.Providers) != 1 || d.Providers[0] != (ProviderDescription{42, "yokan"}) {
		t.Errorf("%+v", d)
	}
	found := map[string]RPCDescription{}
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

// TestQueryNotAllowed asks one that does not, and one that answers nonsense.
func TestQueryNotAllowed(t *testing.T) {
	server, ep := pair(t, nil)
	_, err := ep.Query(patient(t))
	wantCode(t, err, codes.NoEntry, "__query__", ep.String())

	forged := NewRPC[struct{}, queryOut]("__query__")
	must(t, forged.Handle(server, func(context.Context, struct{}) (queryOut, error) { return queryOut{JSON: `{"address":1}`}, nil }))
	_, err = ep.Query(patient(t))
	wantCode(t, err, codes.ProtocolError, "cannot be read")
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
	server, ep := pair(t, cfg)
	d, err := ep.Query(patient(t))
	must(t, err)
	if text := string(d.Config); strings.Contains(text, "sesame") || !strings.Contains(text, "allow_query") {
		t.Error(text)
	}
	own, err := server.Config().MarshalJSON()
	must(t, err)
	if !strings.Contains(string(own), "sesame") {
		t.Errorf("the engine's own configuration has lost its key: %s", own)
	}
}

// TestDescribe is what an engine says of itself without being asked over the network.
func TestDescribe(t *testing.T) {
	client := calling(t, &Config{Pools: []PoolConfig{{Name: "no identifier"}}})
	b, err := json.Marshal(client.Describe())
	must(t, err)
	var back Description
	must(t, json.Unmarshal(b, &back))
	if back.Addr != client.Addr() || len(back.RPCs) != 0 || len(back.Providers) != 0 || len(back.Pools) != 1 || back.Config != nil {
		t.Errorf("%s", b)
	}
}
