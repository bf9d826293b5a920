package margo_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/margo"
)

// serverOf returns an engine with this configuration that serves the RPC "double".
func serverOf(cfg *margo.Config) *cinnabar.Engine {
	engine, err := margo.Listen(context.Background(), "ofi+tcp://127.0.0.1", cfg)
	if err != nil {
		log.Fatal(err)
	}
	if err := double.Handle(engine, func(_ context.Context, n int32) (int32, error) { return 2 * n, nil }); err != nil {
		log.Fatal(err)
	}
	return engine
}

var double = cinnabar.NewRPC[int32, int32]("double")

// clientOf returns an engine for calls, and the server's endpoint.
func clientOf(server *cinnabar.Engine) (*cinnabar.Engine, *cinnabar.Endpoint) {
	client, err := margo.Open(context.Background(), "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		log.Fatal(err)
	}
	ep, err := client.Lookup(server.Addr())
	if err != nil {
		log.Fatal(err)
	}
	return client, ep
}

// A server with a configuration in Margo's JSON serves queries, and logs lines in Margo's format.
func Example() {
	cfg, err := margo.ParseConfig([]byte(`{"rpc_thread_count": 2, "cinnabar": {"allow_query": true}}`))
	if err != nil {
		log.Fatal(err)
	}
	if cfg.Logger, err = margo.NewLogger(os.Stdout, cfg.Log); err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	engine, err := margo.Listen(ctx, "ofi+tcp://127.0.0.1", cfg)
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	cfg.Logger.WarnContext(ctx, "the server runs with few workers")
	description, err := margo.Query(ctx, engine.Self())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("workers:", description.Pools[0].Workers)
	// Output:
	// [warning] the server runs with few workers
	// workers: 2
}

// A program reads Margo's JSON, changes a field, and writes the configuration again in Margo's layout.
func ExampleParseConfig() {
	cfg, err := margo.ParseConfig([]byte(`{"rpc_thread_count": 4, "enable_abt_profiling": true}`))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("pool of RPCs:", cfg.RPCPool, "with", cfg.Pools[0].Workers, "workers")
	for _, note := range cfg.Notes() {
		fmt.Println("note:", note)
	}

	cfg.AllowQuery = true
	text, err := margo.FormatConfig(cfg, margo.ConfigFormat{UseNames: true})
	if err != nil {
		log.Fatal(err)
	}
	var written struct {
		RPCPool  string `json:"rpc_pool"`
		Cinnabar struct {
			AllowQuery bool `json:"allow_query"`
		}
	}
	if err := json.Unmarshal(text, &written); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("written: rpc_pool %q, allow_query %v\n", written.RPCPool, written.Cinnabar.AllowQuery)

	_, err = margo.ParseConfig([]byte(`{"rpc_thread_count": "many"}`))
	fmt.Println("error:", err)
	// Output:
	// pool of RPCs: __pool_1__ with 4 workers
	// note: enable_abt_profiling: there is no Argobots to profile; use runtime/pprof
	// written: rpc_pool "__pool_1__", allow_query true
	// error: parse configuration: HG_INVALID_ARG: rpc_thread_count: want a number, got the string "many"
}

// The level of a program's lines is that of Margo. The attribute subsys stands for a layer of Mercury's, which has a level of its own.
func ExampleNewLogger() {
	logger, err := margo.NewLogger(os.Stdout, margo.LogLevels{Margo: "info", Mercury: "error"})
	if err != nil {
		log.Fatal(err)
	}
	logger.Debug("this line is below the level")
	logger.Info("the service starts", "providers", 3)
	network := logger.With("subsys", "na")
	network.Warn("this line is below the level of Mercury")
	network.Error("the connection is lost", "peer", "ofi+tcp://192.0.2.7:1234")
	// Output:
	// [info] the service starts providers=3
	// [error] the connection is lost peer=ofi+tcp://192.0.2.7:1234
}

// A timer runs its function once for each Start, by a worker of the pool.
func ExampleTimer() {
	engine := serverOf(nil)
	defer func() { _ = engine.Close() }()

	fired := make(chan struct{})
	timer := margo.NewTimer(engine, func(ctx context.Context) {
		if err := margo.Sleep(ctx, time.Millisecond); err != nil { // leaves the worker to others
			log.Print(err)
		}
		close(fired)
	})
	if err := timer.Start(time.Millisecond); err != nil {
		log.Fatal(err)
	}
	<-fired
	fmt.Println("the timer has fired")

	if err := timer.Start(time.Hour); err != nil {
		log.Fatal(err)
	}
	fmt.Println("a second Start is refused:", errors.Is(timer.Start(time.Hour), codes.Busy))
	fmt.Println("the error of Cancel:", timer.Cancel(context.Background()))
	// Output:
	// the timer has fired
	// a second Start is refused: true
	// the error of Cancel: <nil>
}

// Statistics is a Monitor. It measures the calls of an engine, and writes them as JSON in the form of Margo's file.
func ExampleStatistics() {
	server := serverOf(nil)
	defer func() { _ = server.Close() }()
	statistics := new(margo.Statistics)
	client, err := cinnabar.Open(context.Background(), "ofi+tcp://127.0.0.1", &cinnabar.Config{Monitor: statistics})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	ep, err := client.Lookup(server.Addr())
	if err != nil {
		log.Fatal(err)
	}
	for n := range int32(3) {
		if _, err := double.Call(context.Background(), ep, n); err != nil {
			log.Fatal(err)
		}
	}

	var file bytes.Buffer
	if err := statistics.Dump(client, &file, false); err != nil {
		log.Fatal(err)
	}
	var parts struct {
		RPCs map[string]struct {
			Name   string
			Origin map[string]struct {
				Forward struct{ Duration struct{ Num int } } `json:"iforward"`
			}
		}
	}
	if err := json.Unmarshal(file.Bytes(), &parts); err != nil {
		log.Fatal(err)
	}
	for _, rpc := range parts.RPCs {
		for _, peer := range rpc.Origin {
			fmt.Println(rpc.Name, peer.Forward.Duration.Num)
		}
	}
	// Output: double 3
}

// A client asks a server for the description of its engine, and for the identity of one of its providers.
func ExampleQuery() {
	server := serverOf(&margo.Config{AllowQuery: true})
	defer func() { _ = server.Close() }()
	if _, err := server.NewProvider(42, "yokan"); err != nil {
		log.Fatal(err)
	}
	client, ep := clientOf(server)
	defer func() { _ = client.Close() }()

	description, err := margo.Query(context.Background(), ep)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("address is that of the endpoint:", description.Addr == ep.String())
	names := map[string]bool{}
	for _, rpc := range description.RPCs {
		names[rpc.Name] = true
	}
	fmt.Println("RPCs:", slices.Sorted(maps.Keys(names)))
	for _, p := range description.Providers {
		identity, err := margo.Identity(context.Background(), ep.Provider(p.ID))
		fmt.Println("provider:", p.ID, identity, err)
	}
	// Output:
	// address is that of the endpoint: true
	// RPCs: [__identity__ __query__ __shutdown__ __state__ double]
	// provider: 42 yokan <nil>
}

// A setting changes while the engine runs. The error about another name lists the settings.
func ExampleSetParam() {
	engine := serverOf(nil)
	defer func() { _ = engine.Close() }()
	fmt.Println(margo.SetParam(engine, "handler_warning_msecs", "5000"))
	fmt.Println(margo.SetParam(engine, "rpc_thread_count", "8"))
	// Output:
	// <nil>
	// set parameter: HG_INVALID_ARG: "rpc_thread_count" cannot be changed while an engine runs; handler_warning_msecs and progress_timeout_ub_msecs can
}

// A program chooses the address of its server among those of this host, and looks at the network of its engine.
func ExampleClassOf() {
	chosen, reason, err := margo.ChooseAddr(context.Background(), "ofi+tcp://", nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s (%s)\n", chosen, reason)

	engine, err := margo.Listen(context.Background(), chosen, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = engine.Close() }()
	fmt.Printf("%+v\n", margo.ClassOf(engine))
	// Output:
	// ofi+tcp://127.0.0.1 (the loopback, because no host, interface or subnet is named: other hosts cannot reach it)
	// {Name:ofi Protocol:tcp Listening:true InputEager:4064 OutputEager:4080}
}

// DumpState writes the state of an engine for people: here the sections about memory and RPCs of a server.
func ExampleDumpState() {
	engine := serverOf(nil)
	defer func() { _ = engine.Close() }()
	bulk, err := engine.Expose(cinnabar.ReadOnly, []byte("some data"))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = bulk.Close() }()

	var state strings.Builder
	if err := margo.DumpState(engine, &state); err != nil {
		log.Fatal(err)
	}
	for line := range strings.Lines(state.String()) {
		if strings.HasPrefix(line, "memory exposed") || strings.HasPrefix(line, "requests") || strings.HasPrefix(line, "  double") {
			fmt.Print(line)
		}
	}
	// Output:
	// requests: 0
	// memory exposed: 1, 9 bytes
	//   double        0x31df6b5e0000ffff  Margo  in no pool
}

// A server that allows it ends when a client asks for it.
func ExampleShutdownRemote() {
	for _, allow := range []bool{false, true} {
		server := serverOf(&margo.Config{Config: cinnabar.Config{AllowRemoteShutdown: allow}})
		client, ep := clientOf(server)
		err := margo.ShutdownRemote(context.Background(), ep)
		if errors.Is(err, codes.Permission) {
			fmt.Println("the server refuses")
			_ = server.Close()
		}
		<-server.Done()
		fmt.Println("the server has ended:", server.Shutdown(context.Background()))
		_ = client.Close()
	}
	// Output:
	// the server refuses
	// the server has ended: <nil>
	// the server has ended: <nil>
}
