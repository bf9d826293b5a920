package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/margo"
	"cinnabar/stats"
	"cinnabar/verbs/auto"
)

// parity: G45
func TestQueryCommand(t *testing.T) {
	server := clitest.Queried(t, &cinnabar.Config{Pools: []cinnabar.PoolConfig{{Name: "disk", Workers: 3}}})
	p, err := server.NewProvider(42, "yokan")
	if err != nil {
		t.Fatal(err)
	}
	get := cinnabar.NewRPC[struct{}, struct{}]("get")
	if err := get.Handle(p, func(context.Context, struct{}) (struct{}, error) { return struct{}{}, nil }, cinnabar.WithPool(server.LookupPool("disk"))); err != nil {
		t.Fatal(err)
	}
	clitest.WantRun(t, 0, []string{"query", server.Addr()}, "asked over tcp\n"+server.Addr()+"\n", "42        yokan", "get ", "disk", "RequestsRecvd")
	o := clitest.WantRun(t, 0, []string{"query", "-j", server.Addr()})
	var d answered
	if err := json.Unmarshal(o.Out.Bytes(), &d); err != nil || d.Addr != server.Addr() || len(d.Pools) != 1 || d.Transport != "tcp" {
		t.Errorf("as JSON: %+v, %v", d, err)
	}
	o = clitest.WantRun(t, 0, []string{"query", "-c", server.Addr()})
	if c, err := margo.ParseConfig(o.Out.Bytes()); err != nil || len(c.Pools) != 1 || c.Pools[0].Workers != 3 {
		t.Errorf("the configuration: %s, %v", &o.Out, err)
	}
	o = clitest.WantRun(t, 0, []string{"query", "-p", "7,41-43", server.Addr()})
	if got, want := o.Out.String(), "PROVIDER  IDENTITY\n42        yokan\n"; got != want {
		t.Errorf("identities: %q, want %q", got, want)
	}
	o = clitest.WantRun(t, 0, []string{"query", "-j", "-p", "42", server.Addr()})
	var list []stats.Provider
	if err := json.Unmarshal(o.Out.Bytes(), &list); err != nil || len(list) != 1 || list[0].Identity != "yokan" {
		t.Errorf("identities as JSON: %s, %v", &o.Out, err)
	}
}

// TestQueryOverVerbs asks a process over the software device, and names the transport.
func TestQueryOverVerbs(t *testing.T) {
	dev, err := auto.Software(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}()
	server, err := cinnabar.Listen(t.Context(), "ofi+verbs", &cinnabar.Config{Device: dev, AllowRemoteShutdown: true})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if err := margo.ServeQuery(server, nil); err != nil {
		t.Fatal(err)
	}
	o := clitest.WantRun(t, 0, []string{"query", "--device", "software", server.Addr()}, "asked over verbs\n"+server.Addr()+"\n")
	if !strings.Contains(o.Err.String(), "warning: the RDMA device in software") {
		t.Errorf("%q on standard error, want a warning", &o.Err)
	}
	o = clitest.WantRun(t, 0, []string{"query", "--device", "cinnabar0", "-j", server.Addr()})
	var d answered
	if err := json.Unmarshal(o.Out.Bytes(), &d); err != nil || d.Transport != "verbs" {
		t.Errorf("as JSON: %+v, %v", d, err)
	}
	clitest.WantRun(t, 0, []string{"shutdown", "--device", "software", server.Addr()}, "shuts down")
	clitest.WantRun(t, 2, []string{"query", "--device", "software", "ofi+tcp://127.0.0.1:1"}, "only engines on ofi+verbs")
}

func TestQueryCommandFails(t *testing.T) {
	silent := clitest.Engine(t, nil).Addr()
	gone := clitest.Engine(t, nil)
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	clitest.WantRun(t, 1, []string{"query", silent}, "HG_NOENTRY", "Config.AllowQuery", "-p ID")
	clitest.WantRun(t, 1, []string{"query", "-p", "1,2", silent}, "HG_NOENTRY", "no provider with id 1,2")
	clitest.WantRun(t, 1, []string{"query", gone.Addr()}, "HG_HOSTUNREACH", gone.Addr())
	clitest.WantRun(t, cli.ExitUsage, []string{"query", "nosuch://1"}, "HG_PROTONOSUPPORT", "nosuch")
	clitest.WantRun(t, cli.ExitUsage, []string{"query", "ofi+tcp://127.0.0.1"}, "ofi+tcp://127.0.0.1")
	clitest.WantRun(t, 2, []string{"query"}, "usage: cinnabar query ADDRESS")
	clitest.WantRun(t, 2, []string{"query", "-t", "0s", silent}, "--timeout is 0s")
	clitest.WantRun(t, 2, []string{"query", "-c", "-p", "1", silent}, "choose one")
	clitest.WantRun(t, cli.ExitUsage, []string{"query", "odd\x1b[2J://1"}, "HG_PROTONOSUPPORT", "odd?[2J")
	wordless := clitest.Queried(t, &cinnabar.Config{Pools: []cinnabar.PoolConfig{{Name: "no identifier"}}})
	clitest.WantRun(t, 1, []string{"query", "-c", wordless.Addr()}, "reports no configuration")
	for _, list := range []string{"x", "65536", "3-2", "-1", "1-"} {
		clitest.WantRun(t, 2, []string{"query", "--provider=" + list, silent}, "want an id from 0 to 65535")
	}
}

// parity: G07
func TestShutdownCommand(t *testing.T) {
	server := clitest.Engine(t, &cinnabar.Config{AllowRemoteShutdown: true})
	clitest.WantRun(t, 0, []string{"shutdown", server.Addr()}, server.Addr()+" shuts down\n")
	<-server.Done()
	if err := server.Shutdown(t.Context()); err != nil {
		t.Errorf("the engine ends with %v", err)
	}
	clitest.WantRun(t, 1, []string{"shutdown", server.Addr()}, "HG_HOSTUNREACH", server.Addr())

	firm := clitest.Engine(t, nil)
	clitest.WantRun(t, 1, []string{"shutdown", firm.Addr()}, "HG_PERMISSION", "Config.AllowRemoteShutdown, margo_enable_remote_shutdown")
	clitest.WantRun(t, cli.ExitUsage, []string{"shutdown", "nosuch://1"}, "HG_PROTONOSUPPORT")
	clitest.WantRun(t, 2, []string{"shutdown"}, "usage: cinnabar shutdown ADDRESS")
	clitest.WantRun(t, 2, []string{"shutdown", "-t", "-1s", firm.Addr()}, "--timeout is -1s")
	select {
	case <-firm.Done():
		t.Error("an engine that does not allow it has ended")
	default:
	}
}

// TestQueryTerminal has a process say things that a terminal should not be told, in places where JSON lets them pass.
func TestQueryTerminal(t *testing.T) {
	const odd = "a\x7f\u009b2J\u202e\U000e0001é"
	server := clitest.Engine(t, nil)
	answer := cinnabar.NewRPC[struct{}, struct{ JSON string }]("__query__")
	err := answer.Handle(server, func(context.Context, struct{}) (out struct{ JSON string }, _ error) {
		out.JSON = `{"address":"` + odd + `","config":{"k":` + "\r\t" + `"` + odd + `"}}`
		return out, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	const escaped = `"a\u007f\u009b2J\u202e\udb40\udc01é"`
	clitest.WantRun(t, 0, []string{"query", "-j", server.Addr()}, `"address": `+escaped, `"k": `+escaped)
	o := clitest.WantRun(t, 0, []string{"query", "-c", server.Addr()}, `{"k":  `+escaped+"}\n")
	var back struct{ K string }
	if err := json.Unmarshal(o.Out.Bytes(), &back); err != nil || back.K != odd {
		t.Errorf("it means %q, %v", back.K, err)
	}
	clitest.WantRun(t, 0, []string{"query", server.Addr()}, "a??2J??é\n")
}

// TestDescriptionWidth: one long name does not make every line long.
func TestDescriptionWidth(t *testing.T) {
	d := &margo.Description{RPCs: make([]stats.RPC, 1000)}
	d.RPCs[0].Name, d.RPCs[1].Flavor = strings.Repeat("é", 1<<20), strings.Repeat("x", 1<<20)
	var b bytes.Buffer
	if err := writeDescription(&b, d); err != nil {
		t.Fatal(err)
	}
	if b.Len() > 1000*1000 || !strings.Contains(b.String(), "éé...  ") || !strings.Contains(b.String(), "xx...  ") {
		t.Errorf("%d bytes: %.1000s", b.Len(), &b)
	}
}

// TestDescriptionText has a process say things that a terminal should not be told.
func TestDescriptionText(t *testing.T) {
	provider := uint16(42)
	d := &margo.Description{
		Addr:      "ofi+tcp://10.0.0.1:1234",
		Providers: []stats.Provider{{ID: 7, Identity: ""}, {ID: 42, Identity: "a\x1b[2Jb"}},
		RPCs: []stats.RPC{
			{Name: "__identity__", ID: 0xd0bd4e3c0000ffff, Flavor: "Margo"},
			{Name: "get\n", ID: 0x3700cf5d0000002a, Provider: &provider, Flavor: "Margo", Pool: "disk"},
		},
		Handlers: stats.Pool{Running: 1, Served: 3},
		Pools:    []margo.PoolDescription{{Name: "disk", Kind: "fifo_wait", Workers: 3, Queue: 10, Stats: stats.Pool{Queued: 4, Refused: 5}}},
		Stats:    stats.Net{RequestsRecvd: 12, BytesRead: 1 << 33, CallsActive: 1},
	}
	var b bytes.Buffer
	if err := writeDescription(&b, d); err != nil {
		t.Fatal(err)
	}
	clitest.Golden(t, "query.golden", b.String())
}

// TestQueryState looks at a server with a handler that is held, and at its memory and connection.
// parity: P03
func TestQueryState(t *testing.T) {
	server := clitest.Queried(t, nil)
	held, entered := make(chan struct{}), make(chan struct{})
	hold := cinnabar.NewRPC[struct{}, struct{}]("hold")
	err := hold.Handle(server, func(context.Context, struct{}) (struct{}, error) {
		close(entered)
		<-held
		return struct{}{}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	lent, err := server.Alloc(cinnabar.ReadWrite, 5000)
	if err != nil {
		t.Fatal(err)
	}
	client := clitest.Engine(t, nil)
	ep, err := client.Lookup(server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	call := hold.Start(t.Context(), ep, struct{}{})
	<-entered
	o := clitest.WantRun(t, 0, []string{"query", "--state", server.Addr()}, "asked over tcp\n"+server.Addr()+", for ", "\n  running  hold ", client.Addr(),
		"EXPOSED MEMORY: 1, 4.9 KiB", "TestQueryState at ", "CONNECTIONS", "the peer", "CALLS OF THIS PROCESS\n  none\n", "POOLS")
	if strings.Contains(o.Out.String(), "more\n") {
		t.Errorf("rows are missing: %s", &o.Out)
	}
	o = clitest.WantRun(t, 0, []string{"query", "-s", "-j", "--rows", "1", server.Addr()})
	var s answeredState
	if err := json.Unmarshal(o.Out.Bytes(), &s); err != nil || s.Transport != "tcp" || len(s.Requests) != 1 || s.Requests[0].RPC != "hold" || s.More.Requests != 1 || len(s.RPCs) != 1 || s.More.RPCs == 0 {
		t.Errorf("as JSON: %s, %v", &o.Out, err)
	}
	clitest.WantRun(t, 2, []string{"query", "-s", "-c", server.Addr()}, "choose one")
	clitest.WantRun(t, 2, []string{"query", "-s", "--rows", "0", server.Addr()}, "--rows is 0")
	clitest.WantRun(t, 2, []string{"query", "--rows", "5", server.Addr()}, "without --state")
	clitest.WantRun(t, 1, []string{"query", "-s", client.Addr()}, "HG_NOENTRY", "Config.AllowQuery")
	close(held)
	if _, err := call.Wait(); err != nil {
		t.Error(err)
	}
	if err := lent.Close(); err != nil {
		t.Error(err)
	}
}

// TestHostileState prints a state with more rows than were asked for, and with texts that a terminal should not obey.
func TestHostileState(t *testing.T) {
	const odd = "a\x1b[2J\u202e\nb\tc"
	server := clitest.Engine(t, nil)
	evil := stats.State{Inventory: stats.Inventory{Addr: odd, Age: -1}, Connections: make([]stats.Connection, 2000), More: stats.More{Calls: -7, Requests: 3}}
	evil.Requests = []stats.Request{{State: odd, RPC: strings.Repeat("x", 1<<20), Peer: odd, Pool: odd, Age: -1 << 62}}
	evil.Calls = []stats.Operation{{Op: odd, RPC: odd, Peer: odd, Within: odd}}
	evil.Memory = []stats.Memory{{Kind: odd, Place: odd, Bytes: -1}}
	evil.Connections[0] = stats.Connection{Peer: odd, State: odd, Report: odd, Received: 1 << 62}
	evil.Pools = []stats.NamedPool{{Name: odd}}
	answer := cinnabar.NewRPC[struct{ Rows uint32 }, struct{ JSON string }]("__state__")
	err := answer.Handle(server, func(context.Context, struct{ Rows uint32 }) (out struct{ JSON string }, err error) {
		b, err := json.Marshal(evil)
		out.JSON = string(b)
		return out, err
	})
	if err != nil {
		t.Fatal(err)
	}
	o := clitest.WantRun(t, 0, []string{"query", "--state", "--rows", "10", server.Addr()}, "a?[2J?", "… and 1990 more", "… and 3 more")
	text := o.Out.String()
	if strings.ContainsAny(text, "\x1b\u202e\t") || len(text) > 20_000 || strings.Contains(text, "-7") {
		t.Errorf("%d bytes: %.3000q", len(text), text)
	}
}
