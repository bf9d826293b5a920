package margo

import (
	"context"
	"encoding/json"
	"log/slog"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"cinnabar"
	"cinnabar/internal/logtest"
)

// own has the fields of a Config that are of package cinnabar.
type own = cinnabar.Config

// wantConfig compares what a configuration says, without what is kept of the document.
func wantConfig(t *testing.T, what string, got, want *Config) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Config{}, cinnabar.Config{}), cmpopts.IgnoreFields(cinnabar.Config{}, "Logger", "Monitor"), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func parsed(t *testing.T, document string) *Config {
	t.Helper()
	c, err := ParseConfig([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// filled returns c with defaults in the place of zeros.
func filled(c *Config) *Config {
	if c == nil {
		c = new(Config)
	}
	return &Config{Config: *c.WithDefaults(), Log: c.Log, AllowQuery: c.AllowQuery}
}

func marshaled(t *testing.T, c *Config) string {
	t.Helper()
	b, err := FormatConfig(c, ConfigFormat{})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestParseConfig has each key that means something become what it means.
// parity: G80 G82
func TestParseConfig(t *testing.T) {
	const pools = `"argobots":{"pools":[{"name":"a","kind":"prio_wait"},{"name":"__primary__"},{"name":"b","kind":"earliest_first"},{"name":"idle","kind":"fifo"}],` +
		`"xstreams":[{"scheduler":{"pools":["a"]}},{"scheduler":{"pools":["b","a"]}},{"scheduler":{"pools":["a",1]}}]}`
	abi := []cinnabar.PoolConfig{{Name: "a", Workers: 3, Kind: cinnabar.PoolPriority}, {Name: "b", Workers: 1, Kind: cinnabar.PoolEarliestFirst}, {Name: "idle", Workers: 1, Kind: cinnabar.PoolFIFO}}
	for document, want := range map[string]*Config{
		`{}`:                                       {},
		`{` + pools + `}`:                          {Config: own{Pools: abi}},
		`{` + pools + `,"rpc_pool":"b"}`:           {Config: own{Pools: abi, RPCPool: "b"}},
		`{` + pools + `,"rpc_pool":1}`:             {Config: own{Pools: abi}},
		`{"rpc_thread_count":4}`:                   {Config: own{Pools: []cinnabar.PoolConfig{{Name: "__pool_1__", Workers: 4, Kind: cinnabar.PoolFIFO}}, RPCPool: "__pool_1__"}},
		`{"rpc_thread_count":-1}`:                  {},
		`{"use_progress_thread":true}`:             {Config: own{Pools: []cinnabar.PoolConfig{{Name: "__pool_1__", Workers: 1, Kind: cinnabar.PoolFIFO}}}},
		`{"progress_spindown_msec":10}`:            {},
		`{"progress_spindown_msec":3}`:             {},
		`{"progress_spindown_msec":0}`:             {Config: own{Progress: cinnabar.Progress{Mode: "economy"}}},
		`{"cinnabar":{"progress_mode":"latency"}}`: {Config: own{Progress: cinnabar.Progress{Mode: "latency"}}},
		`{"mercury":{"no_loopback":true}}`:         {Config: own{NoLoopback: true}},
		`{"mercury":{"no_bulk_eager":true}}`:       {Config: own{NoEager: true}},
		`{"mercury":{"ip_subnet":"10.0.0.0/8"}}`:   {Config: own{Subnet: netip.MustParsePrefix("10.0.0.0/8")}},
		`{"mercury":{"na_addr_format":"ipv6"}}`:    {Config: own{Subnet: netip.MustParsePrefix("::/0")}},
		`{"mercury":{"na_addr_format":"ipv4"}}`:    {Config: own{Subnet: netip.MustParsePrefix("0.0.0.0/0")}},
		`{"mercury":{"na_max_unexpected_size":8192,"na_max_expected_size":1024}}`:          {Config: own{MaxRequest: 8192, MaxResponse: 1024}},
		`{"mercury":{"checksum_level":"none"}}`:                                            {},
		`{"mercury":{"checksum_level":"rpc_headers"}}`:                                     {Config: own{Checksums: cinnabar.WithChecksums}},
		`{"mercury":{"checksum_level":"rpc_payload"}}`:                                     {Config: own{Checksums: cinnabar.WithChecksums}},
		`{"cinnabar":{"checksums":"never"}}`:                                               {Config: own{Checksums: cinnabar.NoChecksums}},
		`{"mercury":{"log_level":"warning","log_subsys":"hg,na"}}`:                         {},
		`{"mercury":{"log_level":"debug","log_subsys":"rpc"}}`:                             {Log: LogLevels{Mercury: "debug", Subsystems: "rpc"}},
		`{"cinnabar":{"max_handlers":5,"max_queued":-1,"handler_warning":"5s"}}`:           {Config: own{MaxHandlers: 5, MaxQueued: -1, HandlerWarning: 5 * time.Second}},
		`{"cinnabar":{"allow_remote_shutdown":true,"allow_query":true}}`:                   {Config: own{AllowRemoteShutdown: true}, AllowQuery: true},
		`{"cinnabar":{"max_overflow":1000,"overflow_budget":2000,"no_overflow":true}}`:     {Config: own{MaxOverflow: 1000, OverflowBudget: 2000, NoOverflow: true}},
		`{"cinnabar":{"advertise":"192.0.2.7:1234"}}`:                                      {Config: own{Advertise: "192.0.2.7:1234"}},
		`{"cinnabar":{"firewalled":true,"dial_timeout":"1s","dial_retry":"2s"}}`:           {Config: own{Firewalled: true, DialTimeout: time.Second, DialRetry: 2 * time.Second}},
		`{"cinnabar":{"keep_alive":"-1ns","send_timeout":"3s","late_access":"4s"}}`:        {Config: own{KeepAlive: -1, SendTimeout: 3 * time.Second, LateAccess: 4 * time.Second}},
		`{"rpc_thread_count":1,"cinnabar":{"queues":{"__pool_1__":7}}}`:                    {Config: own{Pools: []cinnabar.PoolConfig{{Name: "__pool_1__", Workers: 1, Queue: 7, Kind: cinnabar.PoolFIFO}}, RPCPool: "__pool_1__"}},
		`{"handle_cache_size":0,"progress_timeout_ub_msec":1,"enable_abt_profiling":true}`: {},
	} {
		got := parsed(t, document)
		wantConfig(t, document, got, want)
		// What is written means the same, with nothing left open.
		text := marshaled(t, got)
		again := parsed(t, text)
		if diff := cmp.Diff(text, marshaled(t, again)); diff != "" {
			t.Errorf("%s: no fixed point:\n%s", document, diff)
		}
		wantConfig(t, document+" written and read", filled(again), filled(want))
	}
}

func TestParseConfigRefuses(t *testing.T) {
	for document, text := range map[string]string{
		`{"mercury":{"listening":1}}`: "parse configuration: HG_INVALID_ARG: mercury.listening: want a boolean, got 1",
		`{"rpc_pool":"x"}`:            `rpc_pool: there is no pool "x"`,
		`{`:                           "no JSON at byte 1",
	} {
		_, err := ParseConfig([]byte(document))
		wantInvalid(t, err, text)
	}
}

// TestMarshalConfig goes from fields to the document and back.
// parity: G80
func TestMarshalConfig(t *testing.T) {
	for _, c := range []*Config{
		nil,
		{},
		{Config: own{Pools: []cinnabar.PoolConfig{{Name: "io", Workers: 3, Kind: cinnabar.PoolPriority, Queue: -1}, {Name: "late", Kind: cinnabar.PoolEarliestFirst}}, RPCPool: "late"}},
		{Config: own{Progress: cinnabar.Progress{Mode: "latency"}}},
		{Config: own{Progress: cinnabar.Progress{Mode: "economy"}}},
		{Config: own{Subnet: netip.MustParsePrefix("2001:db8::/32"), Checksums: cinnabar.WithChecksums, NoEager: true, NoLoopback: true, MaxRequest: 8192, MaxResponse: 512}},
		{Config: own{Subnet: netip.MustParsePrefix("0.0.0.0/0"), Checksums: cinnabar.NoChecksums}, Log: LogLevels{Mercury: "debug", Subsystems: "na,~rpc"}},
		{AllowQuery: true, Config: own{
			MaxHandlers: 9, MaxQueued: -1, AllowRemoteShutdown: true, MaxOverflow: 1, OverflowBudget: 2, NoOverflow: true,
			Advertise: "192.0.2.7", Firewalled: true, DialTimeout: 1, DialRetry: 2, KeepAlive: -1, SendTimeout: 90 * time.Second, LateAccess: -1, HandlerWarning: time.Minute, MaxHandlerTime: time.Hour,
		}},
	} {
		text := marshaled(t, c)
		got := parsed(t, text)
		wantConfig(t, text, filled(got), filled(c))
		if again := marshaled(t, got); again != text {
			t.Errorf("no fixed point: %s\nbecomes %s", text, again)
		}
	}
	for _, c := range []*Config{
		{Config: own{MaxHandlers: -1}},
		{Config: own{Pools: []cinnabar.PoolConfig{{Name: "no identifier"}}}},
		{Config: own{Pools: []cinnabar.PoolConfig{{Name: "__primary__"}}}},
		{Config: own{Pools: []cinnabar.PoolConfig{{Name: "crowd", Workers: math.MaxInt}}}},
	} {
		if b, err := FormatConfig(c, ConfigFormat{}); err == nil {
			t.Errorf("a configuration that Margo cannot have is written as %s", b)
		}
	}
}

// TestMarshalChanged changes what was parsed: execution streams are kept while they serve the pools as the fields say.
// parity: G80
func TestMarshalChanged(t *testing.T) {
	const document = `{"argobots":{"pools":[{"name":"a","access":"spsc"},{"name":"b"}],"xstreams":[{"name":"es1","scheduler":{"type":"prio","pools":[0,1]}},{"name":"es2","scheduler":{"pools":[1]}}]},"rpc_pool":"b","handle_cache_size":3}`
	c := parsed(t, document)
	for _, kept := range []string{`"name":"es1"`, `"type":"prio"`, `"access":"spsc"`, `"handle_cache_size":3`, `"rpc_pool":1`} {
		if text := marshaled(t, c); !strings.Contains(text, kept) {
			t.Errorf("%s is not in %s", kept, text)
		}
	}
	c.NoEager = true
	if text := marshaled(t, c); !strings.Contains(text, `"name":"es1"`) || !strings.Contains(text, `"no_bulk_eager":true`) {
		t.Errorf("other fields: %s", text)
	}
	c.Pools[0].Workers = 2
	text := marshaled(t, c)
	if strings.Contains(text, "es1") || !strings.Contains(text, `"handle_cache_size":3`) {
		t.Errorf("more workers: %s", text)
	}
	again := parsed(t, text)
	if len(again.Pools) != 2 || again.Pools[0].Workers != 2 || again.Pools[1].Workers != 2 || again.RPCPool != "b" {
		t.Errorf("more workers: %+v from %s", again.Pools, text)
	}
	c.Pools, c.RPCPool = nil, ""
	if text := marshaled(t, c); !strings.Contains(text, `"pools":[{"kind":"fifo_wait","name":"__primary__","access":"mpmc"}]`) {
		t.Errorf("no pools: %s", text)
	}
}

// TestMarshalChangedMode changes the mode of waiting that was parsed: the document that is written is accepted, and has the new mode.
// parity: G80
func TestMarshalChangedMode(t *testing.T) {
	for _, document := range []string{`{}`, `{"progress_spindown_msec":0}`, `{"progress_spindown_msec":7}`, `{"cinnabar":{"progress_mode":"latency"}}`} {
		for _, mode := range []string{"balanced", "latency", "economy"} {
			c := parsed(t, document)
			c.Progress.Mode = mode
			text := marshaled(t, c)
			if got := filled(parsed(t, text)).Progress.Mode; got != mode {
				t.Errorf("%s with mode %s becomes %s, with mode %q", document, mode, text, got)
			}
		}
	}
}

// TestEngineConfig is what margo_get_config says of an engine, and another engine of the same configuration.
// parity: G80
func TestEngineConfig(t *testing.T) {
	cfg := parsed(t, `{"argobots":{"pools":[{"name":"disk"}],"xstreams":[{"scheduler":{"pools":["disk"]}}]},"mercury":{"address":"somewhere","stats":true}}`)
	server := configured(t, cfg)
	if _, err := server.AddPool(cinnabar.PoolConfig{Name: "more", Workers: 2}); err != nil {
		t.Fatal(err)
	}
	b, err := FormatConfig(cfg.InForce(server), ConfigFormat{UseNames: true, Pretty: true})
	must(t, err)
	var got struct {
		Version  string
		Argobots struct {
			Pools    []struct{ Name string }
			Xstreams []struct{ Scheduler struct{ Pools []string } }
		}
		Mercury struct {
			Version, Address string
			Listening, Stats bool
			In               int `json:"input_eager_size"`
			Out              int `json:"output_eager_size"`
		}
		Progress string `json:"progress_pool"`
		RPC      string `json:"rpc_pool"`
	}
	must(t, json.Unmarshal(b, &got))
	if got.Version != "0.24.0" || got.Mercury.Version != "2.4.1" || got.Mercury.Address != server.Addr() || !got.Mercury.Listening || !got.Mercury.Stats {
		t.Errorf("%s", b)
	}
	if got.Mercury.In != 4064 || got.Mercury.Out != 4080 || got.Progress != "__primary__" || got.RPC != "__primary__" {
		t.Errorf("%s", b)
	}
	var names []string
	for _, p := range got.Argobots.Pools {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	if want := []string{"__primary__", "disk", "more"}; !slices.Equal(names, want) || len(got.Argobots.Xstreams) != 4 {
		t.Errorf("pools %q, want %q, in %s", names, want, b)
	}
	other := configured(t, cfg.InForce(server))
	if other.Addr() == server.Addr() || other.LookupPool("more") == nil {
		t.Errorf("another engine of the configuration: %s, %v", other.Addr(), other.LookupPool("more"))
	}
	child := &Config{Config: cinnabar.Config{Parent: server, RPCPool: "disk"}}
	if text := marshaled(t, child.InForce(configured(t, child))); !strings.Contains(text, `"name":"more"`) || strings.Contains(text, `"address":"`+server.Addr()) {
		t.Errorf("child: %s", text)
	}
}

// TestParsedPoolsBound has the number of execution streams bound how many handlers run at once.
// parity: G83 T70
func TestParsedPoolsBound(t *testing.T) {
	server := configured(t, parsed(t, `{"rpc_thread_count":3}`))
	ep := reach(t, calling(t, nil), server)
	must(t, relay.Handle(server, func(ctx context.Context, _ addIn) (addOut, error) {
		<-ctx.Done()
		return addOut{}, ctx.Err()
	}))
	for range 10 {
		relay.Start(t.Context(), ep, addIn{})
	}
	waitFor(t, func() bool { s := server.Stats().Pools["__pool_1__"]; return s.Running == 3 && s.Queued == 7 })
}

// TestExtendedArguments has each member of struct margo_init_info that has a counterpart take part in one call.
// parity: G04
func TestExtendedArguments(t *testing.T) {
	var lines logtest.Buffer
	var calls []string
	cfg := parsed(t, `{"rpc_thread_count":1,"mercury":{"auth_key":"x"}}`) // json_config, rpc_pool
	cfg.Logger = logger(t, &lines, LogLevels{})                           // logger
	cfg.Interceptors = []cinnabar.Interceptor{func(ctx context.Context, c *cinnabar.CallInfo, next func(context.Context) error) error {
		calls = append(calls, c.RPC)
		return next(ctx)
	}}
	server := configured(t, cfg)
	ep := reach(t, calling(t, nil), server)
	must(t, add.Handle(server, handleAdd))
	_, err := add.Call(t.Context(), ep, addIn{})
	must(t, err)
	child := listening(t, &cinnabar.Config{Parent: server}) // parent_mid
	if child.LookupPool("__pool_1__") != server.LookupPool("__pool_1__") {
		t.Error("the child has pools of its own")
	}
	if served := server.Stats().Pools["__pool_1__"].Served; served != 1 || len(calls) != 1 {
		t.Errorf("%d requests in the pool, %d through the interceptor", served, len(calls))
	}
	lines.Want(t, 0, "[warning] configuration: mercury.auth_key has no effect")
	lines.End(t, 1)
}

// TestMonitoringConfig hands the monitor's part of a document on.
// parity: G84 G89
func TestMonitoringConfig(t *testing.T) {
	var lines logtest.Buffer
	cfg := parsed(t, `{"monitoring":{"name":"default","config":{"filename_prefix": "x"}}}`)
	cfg.Logger = logger(t, &lines, LogLevels{})
	if got := string(cfg.Monitoring()); got != `{"filename_prefix":"x"}` || parsed(t, `{}`).Monitoring() != nil || new(Config).Monitoring() != nil {
		t.Errorf("monitoring: %s", got)
	}
	e := configured(t, cfg)
	if s, ok := e.Config().Monitor.(*Statistics); !ok {
		t.Errorf("the engine's monitor is %v", e.Config().Monitor)
	} else if got := find(t, report(t, e, s, false), "address"); got != e.Addr() {
		t.Errorf("statistics of %v", got)
	}
	if got := string(cfg.InForce(e).Monitoring()); got != `{"filename_prefix":"x"}` {
		t.Errorf("the engine's: %s", got)
	}
	for i, text := range []string{`{"name":"mine"}`, `{"config":{"statistics":{"disable":true}}}`} {
		cfg := parsed(t, `{"monitoring":`+text+`}`)
		cfg.Logger = logger(t, &lines, LogLevels{})
		if m := configured(t, cfg).Config().Monitor; m != nil {
			t.Errorf("%s has the monitor %v", text, m)
		}
		lines.Want(t, i, "[warning] configuration: monitoring has no effect")
	}
	mine := parsed(t, `{"monitoring":{"name":"mine"}}`)
	mine.Logger, mine.Monitor = logger(t, &lines, LogLevels{}), new(Statistics)
	configured(t, mine)
	lines.End(t, 2)
}

// TestConfigFromEnv reads the variables of the environment, in the place of keys that the document does not have.
// parity: H08 H17 G85 G05
func TestConfigFromEnv(t *testing.T) {
	env := map[string]string{}
	getenv := func(name string) string { return env[name] }
	from := func(document string) *Config {
		t.Helper()
		c, err := configFromEnv([]byte(document), getenv)
		must(t, err)
		return c
	}
	if c := from(""); c.Logger != nil || c.Log != (LogLevels{}) || c.Interface != "" {
		t.Errorf("without variables: %+v", c)
	}
	env = map[string]string{"MARGO_LOG_LEVEL": "debug", "HG_LOG_SUBSYS": "na", "FI_TCP_IFACE": "lo"}
	c := from(`{"mercury":{"log_level":"error"}}`)
	if c.Log != (LogLevels{"debug", "error", "na"}) || c.Interface != "lo" || c.Logger == nil || !c.Logger.Enabled(t.Context(), slog.LevelDebug) {
		t.Errorf("%+v", c)
	}
	if e := configured(t, &Config{Config: cinnabar.Config{Interface: c.Interface}}); !strings.HasPrefix(e.Addr(), "ofi+tcp://127.0.0.1:") {
		t.Errorf("the engine is at %s", e.Addr())
	}
	env = map[string]string{"HG_LOG_LEVEL": "debug", "FI_TCP_IFACE": "eth9", "ABT_THREAD_STACKSIZE": "123456"}
	c = from(`{"cinnabar":{"interface":"lo"}}`)
	if c.Log != (LogLevels{"", "debug", ""}) || c.Interface != "lo" || c.Logger == nil {
		t.Errorf("%+v", c)
	}
	if na := c.Logger.With(subsystemKey, "na"); c.Logger.Enabled(t.Context(), slog.LevelDebug) || !na.Enabled(t.Context(), slog.LevelDebug) {
		t.Error("HG_LOG_LEVEL is not the level of Mercury's layers alone")
	}
	if text := marshaled(t, c); !strings.Contains(text, `"abt_thread_stacksize":123456`) || !strings.Contains(text, `"interface":"lo"`) {
		t.Error(text)
	}
	for name, text := range map[string]string{
		"MARGO_LOG_LEVEL": `MARGO_LOG_LEVEL: parse log level: HG_INVALID_ARG: "loud" is none of trace`,
		"HG_LOG_LEVEL":    `HG_LOG_LEVEL: want none, fatal, error, warning, min_debug, info or debug, got "loud"`,
	} {
		env = map[string]string{name: "loud"}
		_, err := configFromEnv(nil, getenv)
		wantInvalid(t, err, text)
	}
	_, err := configFromEnv([]byte("["), getenv)
	wantInvalid(t, err)
}

// TestEnvironment has ConfigFromEnv read the process's environment, and ParseConfig not.
// parity: G05
func TestEnvironment(t *testing.T) {
	t.Setenv("ABT_THREAD_STACKSIZE", "123456")
	c, err := ConfigFromEnv(nil)
	must(t, err)
	for text, c := range map[string]*Config{`"abt_thread_stacksize":123456`: c, `"abt_thread_stacksize":2097152`: parsed(t, `{}`)} {
		if got := marshaled(t, c); !strings.Contains(got, text) {
			t.Errorf("no %s in %s", text, got)
		}
	}
}

// TestLimitsInForce checks that the limits of an engine survive a round trip through Margo's layout.
// parity: A07
func TestLimitsInForce(t *testing.T) {
	cfg := &Config{Config: own{MaxMemory: 1 << 30, MaxConnections: 100}}
	c := cfg.InForce(configured(t, cfg))
	text := marshaled(t, c)
	back := parsed(t, text)
	if back.MaxMemory != c.MaxMemory || back.MaxConnections != 100 || filled(back).OverflowBudget != c.OverflowBudget {
		t.Errorf("%s is read as %+v", text, back)
	}
}
