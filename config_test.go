package cinnabar

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"cinnabar/codes"
)

// TestConfigJSON writes a Config as JSON, without the fields that are Go values, and reads it.
func TestConfigJSON(t *testing.T) {
	c := &Config{
		Logger: slog.New(slog.DiscardHandler), Interceptors: []Interceptor{new(journal).interceptor("A")}, Monitor: new(journal),
		Pools: []PoolConfig{{Name: "io", Workers: 3, Kind: PoolPriority, Queue: -1}}, RPCPool: "io", Progress: Progress{Mode: "economy"},
		Subnet: netip.MustParsePrefix("10.0.0.0/8"), Interface: "eth0", Checksums: WithChecksums, MaxOverflow: 1 << 40, KeepAlive: -1,
	}
	b, err := json.Marshal(c)
	must(t, err)
	got := new(Config)
	must(t, json.Unmarshal(b, got))
	want := *c
	want.Logger, want.Interceptors, want.Monitor = nil, nil, nil
	prefixes := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
	if diff := cmp.Diff(&want, got, cmpopts.IgnoreUnexported(Config{}), prefixes); diff != "" {
		t.Errorf("%s (-want +got):\n%s", b, diff)
	}
}

// TestInterface takes the address from the interface that the configuration names, where the address that is asked for leaves it open.
// parity: H17
func TestInterface(t *testing.T) {
	t.Setenv("FI_TCP_IFACE", "nosuch0") // which an engine does not read
	lo := &Config{Interface: "lo"}
	e, err := Listen(t.Context(), "ofi+tcp", lo)
	if addr := opened(t, e, err).Addr(); !strings.HasPrefix(addr, "ofi+tcp://127.0.0.1:") {
		t.Errorf("the engine is at %s", addr)
	}
	_, err = Listen(t.Context(), "ofi+tcp", &Config{Interface: "nosuch0"})
	wantCode(t, err, codes.AddrNotAvail, `there is no interface "nosuch0"`)
	e, err = Listen(t.Context(), "ofi+tcp://127.0.0.1", &Config{Interface: "nosuch0"}) // the address counts
	opened(t, e, err)
}

// TestSubsystems checks the attribute subsys of log lines: it names the layer below the engine that wrote the line, and lines of the
// engine itself have none.
func TestSubsystems(t *testing.T) {
	var lines logLines
	log := slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{Level: slog.LevelDebug}))
	listening(t, &Config{Logger: log})
	lines.Want(t, 0, "endpoint opened", "subsys=na")
	before := len(lines.Lines())
	server := listening(t, &Config{Logger: slog.New(lines.logger().Handler())})
	must(t, NewRPC[addIn, addOut]("fails").Handle(server, func(context.Context, addIn) (addOut, error) { return addOut{}, errors.New("no reason") }))
	_, err := NewRPC[addIn, addOut]("fails").Call(patient(t), server.Self(), addIn{})
	wantCode(t, err, codes.OtherError)
	lines.Want(t, before, "handler fails")
	if got := lines.Lines()[before]; strings.Contains(got, "subsys") {
		t.Errorf("a line of the engine is of a subsystem: %s", got)
	}
}

// TestEagerSize sends arguments of exactly the eager size, and one byte more, which are fetched.
// parity: H10
func TestEagerSize(t *testing.T) {
	server, ep := pair(t, &Config{Checksums: NoChecksums})
	limit := server.State(0).MaxRequest
	// Of what fits, Margo's header takes eight bytes.
	fits := NewRPC[struct{ Data [4056]byte }, struct{}]("fits")
	more := NewRPC[struct{ Data [4057]byte }, struct{}]("more")
	if limit != 4056+8 {
		t.Fatalf("%d bytes of arguments fit a message", limit)
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

// TestRPCPool serves RPCs in the pool that the configuration names, and RPCs that administer the engine outside it.
// parity: G84
func TestRPCPool(t *testing.T) {
	server, ep := pair(t, &Config{Pools: []PoolConfig{{Name: "rpcs", Workers: 2}, {Name: "other"}}, RPCPool: "rpcs", AllowRemoteShutdown: true})
	must(t, add.Handle(server, handleAdd))
	callAdd(t, ep)
	if got := server.Stats().Pools["rpcs"].Served; got != 1 {
		t.Errorf("the pool has served %d requests, want 1", got)
	}
	special := NewRPC[addIn, addOut]("special")
	must(t, special.Handle(server, handleAdd, WithPool(server.LookupPool("other"))))
	_, err := special.Call(patient(t), ep, addIn{})
	must(t, err)
	// Two handlers take both workers. The server answers the request for a provider's identity all the same.
	must(t, block.Handle(server, handleBlock))
	for range 2 {
		block.Start(patient(t), ep, struct{}{})
	}
	waitFor(t, func() bool { // the handler of callAdd may still count as running
		s := server.Stats().Pools["rpcs"]
		return s.Running == 2 && s.Served == 3
	})
	provider, err := server.NewProvider(7, "thing")
	must(t, err)
	if name, err := identityOf(t, ep.Provider(provider.id)); err != nil || name != "thing" {
		t.Errorf("identity %q, %v", name, err)
	}
	if got := server.Stats().Pools["rpcs"].Served + server.Stats().Pools["other"].Served; got != 4 {
		t.Errorf("the pools have served %d requests, want 4", got)
	}

	_, err = Listen(t.Context(), network, withDevice(t, &Config{RPCPool: "nosuch"}))
	wantCode(t, err, codes.InvalidArg, `RPCPool is "nosuch"`)
}

// socket returns a listener of TCP, which the end of the test closes if no engine has.
func socket(t *testing.T, network, address string) net.Listener {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Skipf("this host has no %s: %v", address, err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// TestListener opens engines on listeners of the program. Their address is that of the listener, which ends with the engine.
func TestListener(t *testing.T) {
	for _, tt := range []struct{ network, at, address string }{
		{"tcp4", "127.0.0.1:0", "ofi+tcp"}, {"tcp4", "127.0.0.1:0", "tcp://"}, {"tcp6", "[::1]:0", "ofi+tcp://"}, {"tcp4", "127.0.0.1:0", "ofi+tcp://ADDRESS"},
		{"tcp4", "0.0.0.0:0", "ofi+tcp"}, {"tcp6", "[::]:0", "ofi+tcp"},
	} {
		t.Run(tt.at+" "+tt.address, func(t *testing.T) {
			l := socket(t, tt.network, tt.at)
			at := l.Addr().String()
			server, err := Listen(t.Context(), strings.ReplaceAll(tt.address, "ADDRESS", at), &Config{Listener: l, KeepAlive: -1})
			opened(t, server, err)
			_, port, err := net.SplitHostPort(at)
			must(t, err)
			if !strings.HasSuffix(server.Addr(), ":"+port) {
				t.Errorf("the engine is at %s, and the listener at %s", server.Addr(), at)
			}
			if server.Config().Listener != nil {
				t.Error("Config returns the listener, which is used up")
			}
			client, err := Open(t.Context(), strings.TrimSuffix(server.Addr(), ":"+port), nil)
			opened(t, client, err)
			ep, err := client.Lookup(server.Addr())
			must(t, err)
			_, err = NewRPC[struct{}, struct{}]("none").Call(t.Context(), ep, struct{}{})
			wantCode(t, err, codes.NoEntry)
			must(t, server.Close())
			if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("the listener is open after the engine: %v", err)
			}
		})
	}
}

// TestListenerRefused gives listeners that an engine cannot use. Listen and Open close them.
func TestListenerRefused(t *testing.T) {
	for _, tt := range []struct {
		network, at, address string
		open                 bool
		words                string
	}{
		{"tcp4", "127.0.0.1:0", "ofi+tcp://127.0.0.1:1", false, "Listener is at 127.0.0.1:"},
		{"tcp4", "127.0.0.1:0", "ofi+tcp://lo", false, "Listener is at"},
		{"tcp4", "127.0.0.1:0", "na+sm://", false, "Listener is set, and it is for ofi+tcp"},
		{"tcp4", "127.0.0.1:0", "ofi+verbs://", false, "Listener is set, and it is for ofi+tcp"},
		{"tcp4", "127.0.0.1:0", "ofi+tcp", true, "Listener is set, and the engine does not listen"},
		{"tcp", "[::]:0", "ofi+tcp", false, "takes IPv4 too"},
		{"tcp4", "127.0.0.1:0", "ofi+tcps", false, "TLS"},
	} {
		l := socket(t, tt.network, tt.at)
		open := Listen
		if tt.open {
			open = Open
		}
		_, err := open(t.Context(), tt.address, &Config{Listener: l})
		wantCode(t, err, codes.InvalidArg, tt.words)
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: the listener is open: %v", tt.address, err)
		}
	}
	_, err := Listen(t.Context(), "ofi+tcp", &Config{Listener: struct{ net.Listener }{socket(t, "tcp4", "127.0.0.1:0")}})
	wantCode(t, err, codes.InvalidArg, "it must be a *net.TCPListener")

	closed := socket(t, "tcp4", "127.0.0.1:0")
	must(t, closed.Close())
	for name, l := range map[string]*net.TCPListener{"nil": nil, "the zero value": {}, "closed": closed.(*net.TCPListener)} {
		for _, addr := range []string{"ofi+tcp", "tcps://", "na+sm://"} {
			if _, err := Listen(t.Context(), addr, &Config{Listener: l}); codes.Of(err) != codes.InvalidArg || !strings.Contains(err.Error(), "Listener is not open") {
				t.Errorf("%s, %s: %v", name, addr, err)
			}
		}
	}
}

// TestListenerThatDoesNotListen gives an engine a bound socket of which net.FileListener has made a listener.
func TestListenerThatDoesNotListen(t *testing.T) {
	c, err := net.Dial("tcp4", socket(t, "tcp4", "127.0.0.1:0").Addr().String())
	must(t, err)
	defer c.Close()
	f, err := c.(*net.TCPConn).File()
	if err != nil {
		t.Skipf("this system gives no descriptor of a connection: %v", err)
	}
	defer f.Close()
	l, err := net.FileListener(f)
	must(t, err)
	_, err = Listen(t.Context(), "ofi+tcp", &Config{Listener: l})
	wantCode(t, err, codes.InvalidArg, "does not listen")
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener is open: %v", err)
	}
}
