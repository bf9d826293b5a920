package cinnabar

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"cinnabar/codes"
	"cinnabar/internal/audit"
	"cinnabar/stats"
)

// queryRPC is served by engines with Config.AllowQuery. Margo's instances do not have it; its name is in the style of
// those that they do have.
var queryRPC = NewRPC[struct{}, queryOut]("__query__")

// queryOut has a Description as JSON.
type queryOut struct{ JSON string }

// maxDescribed is how many values a Description may have. Each has a comma, and some take fifty times their JSON.
const maxDescribed = 1 << 18

// Description is what an engine tells about itself ([Endpoint.Query]).
type Description struct {
	Addr      string                `json:"address"`
	Providers []ProviderDescription `json:"providers"`
	RPCs      []RPCDescription      `json:"rpcs"`
	Handlers  stats.Pool            `json:"handlers"` // outside pools
	Pools     []PoolDescription     `json:"pools"`
	Stats     stats.Net             `json:"statistics"`
	Config    json.RawMessage       `json:"config,omitempty"` // in Margo's layout, if that can say it; without mercury.auth_key
}

// ProviderDescription is a provider.
type ProviderDescription struct {
	ID       uint16 `json:"id"`
	Identity string `json:"identity"`
}

// RPCDescription is an RPC that is served.
type RPCDescription struct {
	Name     string  `json:"name"`
	ID       uint64  `json:"id"`
	Provider *uint16 `json:"provider,omitempty"` // nil if it belongs to none
	Flavor   string  `json:"flavor"`
	Pool     string  `json:"pool,omitempty"` // empty: outside pools
}

// PoolDescription is a pool and what it does.
type PoolDescription struct {
	Name    string `json:"name"`
	Kind    string `json:"kind"`
	Workers int    `json:"workers"`
	Queue   int    `json:"queue"`

	Stats stats.Pool `json:"statistics"`
}

// Describe returns what the engine tells about itself.
func (e *Engine) Describe() Description {
	cfg := e.Config()
	cfg.margo.Mercury.AuthKey = "" // a secret, which peers may ask for
	config, err := cfg.MarshalJSON()
	if err != nil {
		config = nil // the rest is worth telling all the same
	}
	s := e.Stats()
	d := Description{Addr: e.Addr(), Providers: e.describeProviders(), RPCs: e.describeRPCs(), Handlers: s.Handlers, Stats: s.Net, Config: config}
	for _, p := range e.Pools() {
		c := p.Config()
		d.Pools = append(d.Pools, PoolDescription{Name: c.Name, Kind: c.Kind.String(), Workers: c.Workers, Queue: c.Queue, Stats: p.Stats()})
	}
	return d
}

func (e *Engine) describeProviders() (list []ProviderDescription) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, p := range e.providers {
		list = append(list, ProviderDescription{ID: id, Identity: p.identity})
	}
	slices.SortFunc(list, func(a, b ProviderDescription) int { return int(a.ID) - int(b.ID) })
	return list
}

func (e *Engine) describeRPCs() (list []RPCDescription) {
	for _, entry := range e.handlers.table.Entries() {
		svc := entry.Value
		d := RPCDescription{Name: entry.Name, ID: entry.ID, Flavor: svc.proc.flavor.String()}
		if f := svc.proc.flavor; f.overMargo() && svc.provider != f.defaultProvider() {
			d.Provider = &svc.provider
		}
		if svc.named != nil {
			d.Pool = svc.named.Name()
		}
		list = append(list, d)
	}
	return list
}

// answerQuery serves queryRPC.
func (e *Engine) answerQuery(ctx context.Context, _ struct{}) (queryOut, error) {
	e.audit(ctx, audit.Queried, "allowed by Config.AllowQuery")
	b, err := json.Marshal(e.Describe())
	return queryOut{JSON: string(b)}, err
}

// Query asks the process about its engine: providers, RPCs, pools, statistics, configuration. A process that does not
// allow it ([Config].AllowQuery), or is not Go, answers codes.NoEntry. What comes is as long as the process likes, up to
// Config.MaxOverflow of the asking engine.
func (ep *Endpoint) Query(ctx context.Context) (*Description, error) {
	out, err := queryRPC.Call(ctx, ep, struct{}{})
	if err != nil {
		return nil, err
	}
	d, err := parseDescription(out.JSON)
	if err != nil {
		return nil, &Error{Op: "call", RPC: queryRPC.Name(), Addr: ep.String(), Code: codes.ProtocolError, Err: fmt.Errorf("the answer cannot be read: %w", err)}
	}
	return d, nil
}

func parseDescription(text string) (*Description, error) {
	if n := strings.Count(text, ","); n > maxDescribed {
		return nil, fmt.Errorf("it has %d values; at most %d are taken", n, maxDescribed)
	}
	d := &Description{}
	if err := json.Unmarshal([]byte(text), d); err != nil {
		return nil, err
	}
	return d, nil
}
