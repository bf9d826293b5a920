package cinnabar

import (
	"context"
	"encoding/json"
	"math"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"cinnabar/codes"
)

// wantConfig compares what a configuration says, without what is kept of the document.
func wantConfig(t *testing.T, what string, got, want *Config) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Config{}), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
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

func marshaled(t *testing.T, c *Config) string {
	t.Helper()
	b, err := c.MarshalJSON()
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
	abi := []PoolConfig{{Name: "a", Workers: 3, Kind: PoolPriority}, {Name: "b", Workers: 1, Kind: PoolEarliestFirst}, {Name: "idle", Workers: 1}}
	for document, want := range map[string]*Config{
		`{}`:                                     {},
		`{` + pools + `}`:                        {Pools: abi},
		`{` + pools + `,"rpc_pool":"b"}`:         {Pools: abi, RPCPool: "b"},
		`{` + pools + `,"rpc_pool":1}`:           {Pools: abi},
		`{"rpc_thread_count":4}`:                 {Pools: []PoolConfig{{Name: "__pool_1__", Workers: 4}}, RPCPool: "__pool_1__"},
		`{"rpc_thread_count":-1}`:                {},
		`{"use_progress_thread":true}`:           {Pools: []PoolConfig{{Name: "__pool_1__", Workers: 1}}},
		`{"progress_spindown_msec":10}`:          {},
		`{"progress_spindown_msec":3}`:           {Progress: Progress{Spin: 3 * time.Millisecond}},
		`{"progress_spindown_msec":0}`:           {Progress: Progress{Spin: -1}},
		`{"cinnabar":{"spin":"9500us"}}`:         {Progress: Progress{Spin: 9500 * time.Microsecond}},
		`{"mercury":{"no_loopback":true}}`:       {NoLoopback: true},
		`{"mercury":{"no_bulk_eager":true}}`:     {NoEager: true},
		`{"mercury":{"ip_subnet":"10.0.0.0/8"}}`: {Subnet: netip.MustParsePrefix("10.0.0.0/8")},
		`{"mercury":{"na_addr_format":"ipv6"}}`:  {Subnet: netip.MustParsePrefix("::/0")},
		`{"mercury":{"na_addr_format":"ipv4"}}`:  {Subnet: netip.MustParsePrefix("0.0.0.0/0")},
		`{"mercury":{"na_max_unexpected_size":8192,"na_max_expected_size":1024}}`:          {MaxRequest: 8192, MaxResponse: 1024},
		`{"mercury":{"checksum_level":"none"}}`:                                            {},
		`{"mercury":{"checksum_level":"rpc_headers"}}`:                                     {Checksums: WithChecksums},
		`{"mercury":{"checksum_level":"rpc_payload"}}`:                                     {Checksums: WithChecksums},
		`{"cinnabar":{"checksums":"never"}}`:                                               {Checksums: NoChecksums},
		`{"mercury":{"log_level":"warning","log_subsys":"hg,na"}}`:                         {},
		`{"mercury":{"log_level":"debug","log_subsys":"rpc"}}`:                             {MercuryLog: MercuryLog{Level: "debug", Subsystems: "rpc"}},
		`{"cinnabar":{"max_handlers":5,"max_queued":-1,"handler_warning":"5s"}}`:           {MaxHandlers: 5, MaxQueued: -1, HandlerWarning: 5 * time.Second},
		`{"cinnabar":{"allow_remote_shutdown":true,"allow_query":true}}`:                   {AllowRemoteShutdown: true, AllowQuery: true},
		`{"cinnabar":{"max_overflow":1000,"overflow_budget":2000,"no_overflow":true}}`:     {MaxOverflow: 1000, OverflowBudget: 2000, NoOverflow: true},
		`{"cinnabar":{"advertise":"192.0.2.7:1234"}}`:                                      {Advertise: "192.0.2.7:1234"},
		`{"cinnabar":{"firewalled":true,"dial_timeout":"1s","dial_retry":"2s"}}`:           {Firewalled: true, DialTimeout: time.Second, DialRetry: 2 * time.Second},
		`{"cinnabar":{"keep_alive":"-1ns","send_timeout":"3s","late_access":"4s"}}`:        {KeepAlive: -1, SendTimeout: 3 * time.Second, LateAccess: 4 * time.Second},
		`{"rpc_thread_count":1,"cinnabar":{"queues":{"__pool_1__":7}}}`:                    {Pools: []PoolConfig{{Name: "__pool_1__", Workers: 1, Queue: 7}}, RPCPool: "__pool_1__"},
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
		is, was := again.filled(), want.filled()
		is.Logger, was.Logger = nil, nil
		wantConfig(t, document+" written and read", &is, &was)
	}
}

func TestParseConfigRefuses(t *testing.T) {
	for document, text := range map[string]string{
		`{"mercury":{"listening":1}}`: "parse configuration: HG_INVALID_ARG: mercury.listening: want a boolean, got 1",
		`{"rpc_pool":"x"}`:            `rpc_pool: there is no pool "x"`,
		`{`:                           "no JSON at byte 1",
	} {
		_, err := ParseConfig([]byte(document))
		wantCode(t, err, codes.InvalidArg, text)
		c := &Config{MaxHandlers: 7}
		if err := json.Unmarshal([]byte(document), c); err == nil || c.MaxHandlers != 7 {
			t.Errorf("%s: json.Unmarshal makes %+v, %v", document, c, err)
		}
	}
}

// TestMarshalConfig goes from fields to the document and back.
// parity: G80
func TestMarshalConfig(t *testing.T) {
	for _, c := range []*Config{
		nil,
		{},
		{Pools: []PoolConfig{{Name: "io", Workers: 3, Kind: PoolPriority, Queue: -1}, {Name: "late", Kind: PoolEarliestFirst}}, RPCPool: "late"},
		{Progress: Progress{Spin: time.Millisecond}},
		{Progress: Progress{Spin: 10 * time.Millisecond}},
		{Progress: Progress{Spin: 200 * time.Microsecond}},
		{Progress: Progress{Spin: -1}},
		{Subnet: netip.MustParsePrefix("2001:db8::/32"), Checksums: WithChecksums, NoEager: true, NoLoopback: true, MaxRequest: 8192, MaxResponse: 512},
		{Subnet: netip.MustParsePrefix("0.0.0.0/0"), Checksums: NoChecksums, MercuryLog: MercuryLog{Level: "debug", Subsystems: "na,~rpc"}},
		{
			MaxHandlers: 9, MaxQueued: -1, AllowRemoteShutdown: true, AllowQuery: true, MaxOverflow: 1, OverflowBudget: 2, NoOverflow: true,
			Advertise: "192.0.2.7", Firewalled: true, DialTimeout: 1, DialRetry: 2, KeepAlive: -1, SendTimeout: 90 * time.Second, LateAccess: -1, HandlerWarning: time.Minute,
		},
	} {
		text := marshaled(t, c)
		got := parsed(t, text)
		is, was := got.filled(), c.filled()
		is.Logger, was.Logger = nil, nil
		wantConfig(t, text, &is, &was)
		if again := marshaled(t, got); again != text {
			t.Errorf("no fixed point: %s\nbecomes %s", text, again)
		}
	}
	for _, c := range []*Config{
		{MaxHandlers: -1},
		{Pools: []PoolConfig{{Name: "no identifier"}}},
		{Pools: []PoolConfig{{Name: "__primary__"}}},
		{Pools: []PoolConfig{{Name: "crowd", Workers: math.MaxInt}}},
	} {
		if b, err := json.Marshal(c); err == nil {
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

// TestEngineConfig is what margo_get_config says of an engine, and another engine of the same configuration.
// parity: G80
func TestEngineConfig(t *testing.T) {
	server := listening(t, parsed(t, `{"argobots":{"pools":[{"name":"disk"}],"xstreams":[{"scheduler":{"pools":["disk"]}}]},"mercury":{"address":"somewhere","stats":true}}`))
	if _, err := server.AddPool(PoolConfig{Name: "more", Workers: 2}); err != nil {
		t.Fatal(err)
	}
	b, err := server.Config().MargoJSON(ConfigFormat{UseNames: true, Pretty: true})
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
	other := listening(t, server.Config())
	if other.Addr() == server.Addr() || other.Pool("more") == nil {
		t.Errorf("another engine of the configuration: %s, %v", other.Addr(), other.Pool("more"))
	}
	child := listening(t, &Config{Parent: server, RPCPool: "disk"})
	if text := marshaled(t, child.Config()); !strings.Contains(text, `"name":"more"`) || strings.Contains(text, `"address":"`+server.Addr()) {
		t.Errorf("child: %s", text)
	}
}

// TestClass are C's figures for the same networks.
// parity: H10
func TestClass(t *testing.T) {
	for _, tc := range []struct {
		cfg  *Config
		want Class
	}{
		{nil, Class{"ofi", "tcp", true, 4064, 4080}},
		{&Config{Checksums: NoChecksums}, Class{"ofi", "tcp", true, 4064, 4080}},
		{&Config{Checksums: WithChecksums}, Class{"ofi", "tcp", true, 4060, 4076}},
		{&Config{MaxRequest: 8192, MaxResponse: 16384}, Class{"ofi", "tcp", true, 8160, 16368}},
	} {
		if got := listening(t, tc.cfg).Class(); got != tc.want {
			t.Errorf("%+v: %+v, want %+v", tc.cfg, got, tc.want)
		}
	}
	if got := calling(t, nil).Class(); got.Listening || got.Name != "ofi" {
		t.Errorf("client: %+v", got)
	}
}

// TestEagerSize sends arguments of exactly the eager size, and one byte more, which are fetched.
// parity: H10
func TestEagerSize(t *testing.T) {
	server, ep := pair(t, &Config{Checksums: NoChecksums})
	class := server.Class()
	// Of what fits, Margo's header takes eight bytes.
	fits := NewRPC[struct{ Data [4056]byte }, struct{}]("fits")
	more := NewRPC[struct{ Data [4057]byte }, struct{}]("more")
	if class.InputEager != 4056+8 {
		t.Fatalf("%+v", class)
	}
	must(t, fits.Handle(server, func(context.Context, struct{ Data [4056]byte }) (struct{}, error) { return struct{}{}, nil }))
	must(t, more.Handle(server, func(context.Context, struct{ Data [4057]byte }) (struct{}, error) { return struct{}{}, nil }))
	_, err := fits.Call(patient(t), ep, struct{ Data [4056]byte }{})
	must(t, err)
	if n := server.Stats().RequestsExtra; n != 0 {
		t.Errorf("%d requests were fetched", n)
	}
	_, err = more.Call(patient(t), ep, struct{ Data [4057]byte }{})
	must(t, err)
	if n := server.Stats().RequestsExtra; n != 1 {
		t.Errorf("%d requests were fetched, want 1", n)
	}
}

// TestRPCPool serves RPCs in the pool that the configuration says, but Margo's own.
// parity: G84
func TestRPCPool(t *testing.T) {
	server, ep := pair(t, &Config{Pools: []PoolConfig{{Name: "rpcs", Workers: 2}, {Name: "other"}}, RPCPool: "rpcs", AllowRemoteShutdown: true})
	must(t, add.Handle(server, handleAdd))
	callAdd(t, ep)
	if got := server.Pool("rpcs").Stats().Served; got != 1 {
		t.Errorf("the pool has served %d requests, want 1", got)
	}
	special := NewRPC[addIn, addOut]("special")
	must(t, special.Handle(server, handleAdd, InPool(server.Pool("other"))))
	_, err := special.Call(patient(t), ep, addIn{})
	must(t, err)
	// Both workers are taken, and the server ends all the same if it is told to.
	must(t, block.Handle(server, handleBlock))
	for range 2 {
		block.Start(patient(t), ep, struct{}{})
	}
	waitFor(t, func() bool { return server.Pool("rpcs").Stats().Running == 2 })
	provider, err := server.Provider(7, "thing")
	must(t, err)
	if name, err := ep.Provider(provider.ID()).Identity(patient(t)); err != nil || name != "thing" {
		t.Errorf("identity %q, %v", name, err)
	}
	if got := server.Pool("rpcs").Stats().Served + server.Pool("other").Stats().Served; got != 4 {
		t.Errorf("the pools have served %d requests, want 4", got)
	}

	_, err = Listen(network, &Config{RPCPool: "nosuch"})
	wantCode(t, err, codes.InvalidArg, `RPCPool is "nosuch"`)
}

// TestParsedPoolsBound has the number of execution streams bound how many handlers run at once.
// parity: G83 T70
func TestParsedPoolsBound(t *testing.T) {
	server, ep := pair(t, parsed(t, `{"rpc_thread_count":3}`))
	must(t, block.Handle(server, handleBlock))
	for range 10 {
		block.Start(patient(t), ep, struct{}{})
	}
	p := server.Pool("__pool_1__")
	waitFor(t, func() bool { s := p.Stats(); return s.Running == 3 && s.Queued == 7 })
}

// TestExtendedArguments has each member of struct margo_init_info that has a counterpart take part in one call.
// parity: G04
func TestExtendedArguments(t *testing.T) {
	var lines logLines
	var calls []string
	cfg := parsed(t, `{"rpc_thread_count":1,"mercury":{"auth_key":"x"}}`) // json_config, rpc_pool
	cfg.Logger = NewLogger(&lines)                                        // logger
	cfg.Interceptors = []Interceptor{func(ctx context.Context, c *CallInfo, next func(context.Context) error) error {
		calls = append(calls, c.RPC)
		return next(ctx)
	}}
	server, ep := pair(t, cfg)
	must(t, add.Handle(server, handleAdd))
	callAdd(t, ep)
	child := listening(t, &Config{Parent: server}) // parent_mid
	if child.Pool("__pool_1__") != server.Pool("__pool_1__") {
		t.Error("the child has pools of its own")
	}
	if served := server.Pool("__pool_1__").Stats().Served; served != 1 || len(calls) != 1 {
		t.Errorf("%d requests in the pool, %d through the interceptor", served, len(calls))
	}
	lines.want(t, 0, "[warning] configuration: mercury.auth_key has no effect")
	lines.end(t, 1)
}

// TestMonitoringConfig hands the monitor's part of a document on.
// parity: G84 G89
func TestMonitoringConfig(t *testing.T) {
	var lines logLines
	cfg := parsed(t, `{"monitoring":{"name":"default","config":{"filename_prefix": "x"}}}`)
	cfg.Logger = NewLogger(&lines)
	if got := string(cfg.Monitoring()); got != `{"filename_prefix":"x"}` || parsed(t, `{}`).Monitoring() != nil || new(Config).Monitoring() != nil {
		t.Errorf("monitoring: %s", got)
	}
	e := listening(t, cfg)
	if got := string(e.Config().Monitoring()); got != `{"filename_prefix":"x"}` {
		t.Errorf("the engine's: %s", got)
	}
	lines.want(t, 0, "[warning] configuration: monitoring has no effect")
	cfg.Monitor = new(journal)
	listening(t, cfg)
	lines.end(t, 1)
}

// TestStackSizeOfEnvironment is margo_set_environment's: goroutines have no stacks to set sizes of, so it is echoed only.
// parity: G05
func TestStackSizeOfEnvironment(t *testing.T) {
	t.Setenv("ABT_THREAD_STACKSIZE", "123456")
	if text := marshaled(t, parsed(t, `{}`)); !strings.Contains(text, `"abt_thread_stacksize":123456`) {
		t.Error(text)
	}
	must(t, os.Unsetenv("ABT_THREAD_STACKSIZE"))
	if text := marshaled(t, parsed(t, `{}`)); !strings.Contains(text, `"abt_thread_stacksize":2097152`) {
		t.Error(text)
	}
}

// TestInterfaceOfEnvironment is FI_TCP_IFACE, which names the interface where the address leaves it open.
// parity: H17
func TestInterfaceOfEnvironment(t *testing.T) {
	t.Setenv(envInterface, "lo")
	if got, _, err := ChooseAddr(t.Context(), "tcp", nil); err != nil || got != "ofi+tcp://127.0.0.1" {
		t.Errorf("%s, %v", got, err)
	}
	e, err := Listen("ofi+tcp", nil)
	if addr := opened(t, e, err).Addr(); !strings.HasPrefix(addr, "ofi+tcp://127.0.0.1:") {
		t.Errorf("the engine is at %s", addr)
	}
	t.Setenv(envInterface, "nosuch0")
	_, err = Listen("ofi+tcp", nil)
	wantCode(t, err, codes.AddrNotAvail, `there is no interface "nosuch0"`)
	e, err = Listen("ofi+tcp://127.0.0.1", nil) // an address that is named counts
	opened(t, e, err)
}
