package margo

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/querylimit"
	"cinnabar/stats"
)

// queryRPC is served by engines that allow queries. Margo's instances do not have it; its name is in the style of those that they do
// have.
var queryRPC = cinnabar.NewRPC[struct{}, queryOut]("__query__")

// stateRPC is served beside queryRPC.
var stateRPC = cinnabar.NewRPC[stateIn, queryOut]("__state__")

// stateIn is the largest number of rows in each list; 0: as many as [stats.DefaultRows].
type stateIn struct{ Rows uint32 }

// queryOut has a Description, or a State, as JSON.
type queryOut struct{ JSON string }

// maxDescribed is the largest number of values in a Description or a State, counted by commas, because some values take fifty times as much memory as
// their JSON.
const maxDescribed = 1 << 18

// Description is the answer to [Query].
type Description struct {
	Addr      string            `json:"address"`
	Providers []stats.Provider  `json:"providers"`
	RPCs      []stats.RPC       `json:"rpcs"`
	Handlers  stats.Pool        `json:"handlers"` // outside pools
	Pools     []PoolDescription `json:"pools"`
	Stats     stats.Net         `json:"statistics"`
	Config    json.RawMessage   `json:"config,omitempty"` // in Margo's layout, if that can hold it; without mercury.auth_key
}

// PoolDescription is a pool with its counters.
type PoolDescription struct {
	Name    string `json:"name"`
	Kind    string `json:"kind"`
	Workers int    `json:"workers"`
	Queue   int    `json:"queue"`

	Stats stats.Pool `json:"statistics"`
}

// Describe returns a description of an engine that was opened with c, without the secret mercury.auth_key. A nil c is the zero Config.
func Describe(e *cinnabar.Engine, c *Config) Description {
	inForce := c.InForce(e)
	inForce.document.Mercury.AuthKey = "" // a secret, which peers may ask for
	config, err := FormatConfig(inForce, ConfigFormat{})
	if err != nil {
		config = nil // the rest is of use without it
	}
	inventory, s := e.State(stats.MostRows), e.Stats()
	if inventory.More.Providers > 0 || inventory.More.RPCs > 0 {
		inventory = e.State(-1) // which takes longer, and makes calls wait, in proportion to the operations under way
	}
	d := Description{Addr: e.Addr(), Providers: inventory.Providers, RPCs: inventory.RPCs, Handlers: s.Handlers, Stats: s.Net, Config: config}
	for _, p := range poolsOf(e) {
		c := p.Config()
		d.Pools = append(d.Pools, PoolDescription{Name: c.Name, Kind: string(c.Kind), Workers: c.Workers, Queue: c.Queue, Stats: s.Pools[c.Name]})
	}
	return d
}

// ServeQuery makes an engine that listens and was opened with c answer [Query] and [QueryState], of any peer. A nil c is the zero
// Config. The engine answers codes.Again to a host that asks more than ten times a second, because each answer costs some of its time.
func ServeQuery(e *cinnabar.Engine, c *Config) error {
	limiter := querylimit.New()
	begin := func(ctx context.Context) (end func(), err error) {
		end, err = limiter.Begin(hostquota.FromContext(ctx))
		if err != nil {
			audit.RecordIn(ctx, audit.Refused, "a peer reads descriptions too often")
			return nil, fmt.Errorf("%w: %w", codes.Again, err)
		}
		audit.RecordIn(ctx, audit.Queried, "allowed by Config.AllowQuery")
		return end, nil
	}
	err := queryRPC.Handle(e, func(ctx context.Context, _ struct{}) (queryOut, error) {
		end, err := begin(ctx)
		if err != nil {
			return queryOut{}, err
		}
		defer end()
		b, err := json.Marshal(Describe(e, c))
		return queryOut{JSON: string(b)}, err
	})
	if err != nil {
		return err
	}
	return stateRPC.Handle(e, func(ctx context.Context, in stateIn) (queryOut, error) {
		end, err := begin(ctx)
		if err != nil {
			return queryOut{}, err
		}
		defer end()
		b, err := json.Marshal(e.State(int(min(in.Rows, stats.MostRows))))
		return queryOut{JSON: string(b)}, err
	})
}

// Query asks the process at ep for a description of its engine: providers, RPCs, pools, statistics, configuration. A process that does
// not allow it ([Config].AllowQuery, [ServeQuery]), or is not Go, answers codes.NoEntry. The process chooses the length of the answer,
// up to Config.MaxOverflow of the asking engine.
func Query(ctx context.Context, ep *cinnabar.Endpoint) (*Description, error) {
	out, err := queryRPC.Call(ctx, ep, struct{}{})
	if err != nil {
		return nil, err
	}
	d, err := parseDescription(out.JSON)
	if err != nil {
		return nil, unreadable(queryRPC.Name(), ep, err)
	}
	return d, nil
}

func parseDescription(text string) (*Description, error) {
	d := &Description{}
	if err := parseAnswer(text, d); err != nil {
		return nil, err
	}
	return d, nil
}

// parseAnswer reads the JSON of another process into v.
func parseAnswer(text string, v any) error {
	if n := strings.Count(text, ","); n > maxDescribed {
		return fmt.Errorf("it has %d values; at most %d are taken", n, maxDescribed)
	}
	return json.Unmarshal([]byte(text), v)
}

// QueryState asks the process at ep for a snapshot of its engine: calls that run or wait, exposed memory, connections. Each list has at
// most rows rows (see [stats.Rows]). A process answers codes.NoEntry if it does not allow queries ([Config].AllowQuery, [ServeQuery]),
// was built before this function existed, or is not a Go program, and codes.Again if peers query it too often.
func QueryState(ctx context.Context, ep *cinnabar.Endpoint, rows int) (*stats.State, error) {
	rows = stats.Rows(rows)
	out, err := stateRPC.Call(ctx, ep, stateIn{Rows: uint32(rows)})
	if err != nil {
		return nil, err
	}
	s, err := parseState(out.JSON, rows)
	if err != nil {
		return nil, unreadable(stateRPC.Name(), ep, err)
	}
	return s, nil
}

// parseState reads a State of another process, and cuts its lists to rows rows.
func parseState(text string, rows int) (*stats.State, error) {
	s := &stats.State{}
	if err := parseAnswer(text, s); err != nil {
		return nil, err
	}
	s.Clip(rows)
	return s, nil
}

// unreadable is the error of an answer that cannot be read.
func unreadable(rpc string, ep *cinnabar.Endpoint, err error) error {
	return &cinnabar.Error{Op: "call", RPC: rpc, Addr: ep.String(), Code: codes.ProtocolError, Err: fmt.Errorf("the answer cannot be read: %w", err)}
}

// identityRPC is served by each provider (margo-identity.c).
var identityRPC = cinnabar.NewRPC[struct{}, identityOut]("__identity__")

type identityOut struct{ Identity *string }

// Identity asks the process of a provider for the word with which the provider was created, which names the kind of its service
// (margo_provider_get_identity). A process without a provider of that id answers codes.NoEntry.
func Identity(ctx context.Context, h cinnabar.ProviderHandle) (string, error) {
	out, err := identityRPC.Call(ctx, h, struct{}{})
	if err != nil || out.Identity == nil {
		return "", err
	}
	return *out.Identity, nil
}

// shutdownRPC asks a process to shut its engine down. Each Margo instance and each engine of this module serves it (margo-core.c).
var shutdownRPC = cinnabar.NewRPC[struct{}, shutdownOut]("__shutdown__")

// shutdownOut is 0 if the peer shuts down, -1 if it refuses.
type shutdownOut struct{ Ret int32 }

// ShutdownRemote asks the process at ep to shut its engine down (margo_shutdown_remote_instance). It returns when the process has
// agreed, before the shutdown ends. The error is codes.Permission if the process does not allow it (Config.AllowRemoteShutdown).
func ShutdownRemote(ctx context.Context, ep *cinnabar.Endpoint) error {
	out, err := shutdownRPC.Call(ctx, ep, struct{}{})
	if err != nil {
		return err
	}
	if out.Ret != 0 {
		return &cinnabar.Error{Op: "call", RPC: shutdownRPC.Name(), Addr: ep.String(), Code: codes.Permission, Remote: true,
			Err: fmt.Errorf("remote shutdown is not enabled there (Config.AllowRemoteShutdown, margo_enable_remote_shutdown)")}
	}
	return nil
}
