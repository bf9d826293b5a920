package balance

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/internal/dnstest"
	"cinnabar/native"
)

const tcp = "ofi+tcp://127.0.0.1"

var where = native.New[uint32, string]("where", native.Idempotent())

// serve opens a server that answers with its own address.
func serve(t *testing.T, health *native.Health) *cinnabar.Engine {
	t.Helper()
	e, err := cinnabar.Listen(t.Context(), tcp, nil)
	must(t, err)
	t.Cleanup(func() { _ = e.Close() }) // some are shut down before
	must(t, where.Handle(e, func(context.Context, uint32) (string, error) { return e.Addr(), nil }))
	if health != nil {
		must(t, health.Handle(e))
	}
	return e
}

// dial opens a Client.
func dial(t *testing.T, cfg *Config) *Client {
	t.Helper()
	e, err := cinnabar.Open(t.Context(), "ofi+tcp", nil)
	must(t, err)
	t.Cleanup(func() { must(t, e.Close()) })
	c, err := New(e, cfg)
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	return c
}

// await waits for a state of the servers.
func await(t *testing.T, c *Client, event string, is func([]Server) bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for ctx := patient(t); !is(first(c.Servers())); {
		select {
		case <-tick.C:
		case <-ctx.Done():
			list, err := c.Servers()
			t.Fatalf("not so after %v: %s; servers %+v, %v", testLimit, event, list, err)
		}
	}
}

// TestBalance calls three servers, of which one has no health service, one stops serving, and one shuts down.
// parity: A06
func TestBalance(t *testing.T) {
	var health [2]native.Health
	a, b, plain := serve(t, &health[0]), serve(t, &health[1]), serve(t, nil)
	c := dial(t, &Config{Resolver: StaticAddrs(a.Addr(), b.Addr(), plain.Addr())})
	ctx := patient(t)
	reached := func() (list []string) {
		for range 6 {
			addr, err := Call(ctx, c, where, 0)
			must(t, err)
			list = append(list, addr)
		}
		slices.Sort(list)
		return slices.Compact(list)
	}
	want := func(engines ...*cinnabar.Engine) {
		t.Helper()
		var addrs []string
		for _, e := range engines {
			addrs = append(addrs, e.Addr())
		}
		slices.Sort(addrs)
		if got := reached(); !slices.Equal(got, addrs) {
			t.Errorf("calls reach %v, want %v", got, addrs)
		}
	}
	await(t, c, "all are ready", func(s []Server) bool { return len(s) == 3 && s[0].Ready && s[1].Ready && s[2].Ready })
	want(a, b, plain)
	health[0].Set("", native.ServingNo)
	await(t, c, "the first is not serving", func(s []Server) bool { return s[0].State == "not serving" })
	want(b, plain)
	health[0].Set("", native.ServingYes)
	await(t, c, "the first is serving", func(s []Server) bool { return s[0].Ready })
	must(t, b.Shutdown(ctx))
	await(t, c, "the second is gone", func(s []Server) bool { return !s[1].Ready })
	want(a, plain)
}

// TestCallWhileDraining calls a server that shuts down while a call is under way. No call of a client fails, and none is executed twice.
func TestCallWhileDraining(t *testing.T) {
	ctx := patient(t)
	var executed atomic.Int32
	begun, finish := make(chan struct{}, 1), make(chan struct{})
	count := native.New[bool, uint32]("count") // not idempotent
	var servers []*cinnabar.Engine
	for i := range 2 {
		e := serve(t, nil)
		must(t, count.Handle(e, func(_ context.Context, slow bool) (uint32, error) {
			if slow {
				begun <- struct{}{}
				<-finish
			}
			executed.Add(1)
			return uint32(i), nil
		}))
		servers = append(servers, e)
	}
	c := dial(t, &Config{Resolver: StaticAddrs(servers[0].Addr(), servers[1].Addr()), Policy: PickFirst})
	await(t, c, "both are ready", func(s []Server) bool { return len(s) == 2 && s[0].Ready && s[1].Ready })
	slow := make(chan error, 1)
	go func() {
		n, err := Call(ctx, c, count, true)
		if n != 0 {
			err = fmt.Errorf("the slow call was answered by server %d, %w", n, err)
		}
		slow <- err
	}()
	<-begun
	down := make(chan error, 1)
	go func() { down <- servers[0].Shutdown(ctx) }()
	for moved := uint32(0); moved == 0; { // until the server has begun to shut down
		n, err := Call(ctx, c, count, false)
		must(t, err)
		executed.Add(-1)
		moved = n
	}
	close(finish)
	must(t, <-slow)
	must(t, <-down)
	if n := executed.Load(); n != 1 {
		t.Errorf("the slow call was executed %d times, beside one for each other call", n)
	}
}

// TestLostServer loses a server in the middle of a call. Only the idempotent call is repeated.
func TestLostServer(t *testing.T) {
	for _, idempotent := range []bool{false, true} {
		t.Run(fmt.Sprint("idempotent=", idempotent), func(t *testing.T) {
			var opts []native.Option
			if idempotent {
				opts = append(opts, native.Idempotent())
			}
			ctx := patient(t)
			rpc := native.New[struct{}, uint32]("lose", opts...)
			first, second := serve(t, nil), serve(t, nil)
			called := make(chan struct{})
			must(t, rpc.Handle(first, func(context.Context, struct{}) (uint32, error) {
				go func() { _ = first.Close() }()
				<-called // so that the handler does not answer before the connection is closed
				return 1, nil
			}))
			must(t, rpc.Handle(second, func(context.Context, struct{}) (uint32, error) { return 2, nil }))
			c := dial(t, &Config{Resolver: StaticAddrs(first.Addr(), second.Addr()), Policy: PickFirst})
			await(t, c, "both are ready", func(s []Server) bool { return len(s) == 2 && s[0].Ready && s[1].Ready })
			n, err := Call(ctx, c, rpc, struct{}{})
			close(called)
			switch {
			case idempotent && (err != nil || n != 2):
				t.Errorf("result %d, %v", n, err)
			case !idempotent:
				wantError(t, err, codes.HostUnreach)
			}
		})
	}
}

// TestDNS resolves addresses and services.
// parity: A06 N13
func TestDNS(t *testing.T) {
	s := dnstest.Start(t)
	ctx := patient(t)
	s.Set("store.test", "127.0.0.3", "127.0.0.2", "::1", "127.0.0.2")
	s.Set("other.test", "127.0.0.9")
	s.Set("empty.test")
	s.SetService("_store._tcp.example.test",
		&net.SRV{Target: "other.test", Port: 7, Priority: 2}, &net.SRV{Target: "store.test", Port: 5, Priority: 1}, &net.SRV{Target: "gone.test", Port: 5, Priority: 3})
	s.SetService("broken.test", &net.SRV{Target: "gone.test", Port: 5})
	store := "ofi+tcp://127.0.0.2:%d ofi+tcp://127.0.0.3:%d ofi+tcp://[::1]:%d"
	for _, x := range []struct {
		r     Resolver
		want  string
		error string
	}{
		{DNS{"ofi+tcp", "store.test", 5, s.Resolver()}, strings.ReplaceAll(store, "%d", "5"), ""},
		{DNS{"ofi+tcp", "gone.test", 5, s.Resolver()}, "", `the addresses of "gone.test"`},
		{DNS{"ofi+tcp", "empty.test", 5, s.Resolver()}, "", `the addresses of "empty.test"`},
		{DNS{"ofi+tcp", "store.test", 0, s.Resolver()}, "", "port 0"},
		{SRV{"ofi+tcp", "store", "example.test", s.Resolver()}, strings.ReplaceAll(store, "%d", "5") + " ofi+tcp://127.0.0.9:7", ""},
		{SRV{"ofi+tcp", "", "broken.test", s.Resolver()}, "", `the addresses of "gone.test"`},
		{SRV{"ofi+tcp", "", "none.test", s.Resolver()}, "", `service "" of "none.test"`},
	} {
		list, err := x.r.Resolve(ctx)
		var got []string
		for _, a := range list {
			got = append(got, a.String())
		}
		if strings.Join(got, " ") != x.want || (err == nil) != (x.error == "") || err != nil && !strings.Contains(err.Error(), x.error) {
			t.Errorf("%+v: %v, %v, want %s, %s", x.r, got, err, x.want, x.error)
		}
	}
}

// TestSRVKeepsHosts has a service whose hosts cannot be resolved for a while. The Client keeps the addresses that it has of a host until an answer says
// that the host does not exist.
func TestSRVKeepsHosts(t *testing.T) {
	s := dnstest.Start(t)
	s.SetService("_store._tcp.example.test", &net.SRV{Target: "one.test", Port: 5, Priority: 1}, &net.SRV{Target: "two.test", Port: 6, Priority: 2})
	s.Set("one.test", "127.0.0.2")
	s.Set("two.test", "127.0.0.3", "127.0.0.4")
	c, err := newClient(&Config{Resolver: &SRV{"ofi+tcp", "store", "example.test", s.Resolver()}})
	must(t, err)
	c.lookup = func(string) (*cinnabar.Endpoint, error) { return nil, codes.InvalidArg } // so that the servers are only listed
	t.Cleanup(func() { must(t, c.Close()) })
	want := func(want string) {
		t.Helper()
		c.resolve()
		list, err := c.Servers()
		must(t, err)
		var got []string
		for _, server := range list {
			got = append(got, strings.TrimPrefix(server.Addr, "ofi+tcp://127.0.0."))
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	s.Fail("two.test", true) // from the beginning
	want("2:5")
	s.Fail("two.test", false)
	want("2:5 3:6 4:6")
	s.Fail("two.test", true)
	want("2:5 3:6 4:6")
	s.Fail("one.test", true)
	want("2:5 3:6 4:6")
	s.Fail("one.test", false)
	s.Fail("two.test", false)
	s.SetService("_store._tcp.example.test", &net.SRV{Target: "one.test", Port: 5, Priority: 1}, &net.SRV{Target: "gone.test", Port: 6, Priority: 2})
	want("2:5")
}

// filter is a Resolver that embeds an SRV and has a Resolve of its own.
type filter struct{ SRV }

func (filter) Resolve(ctx context.Context) ([]Address, error) {
	return StaticAddrs("chosen").Resolve(ctx)
}

// TestResolverAroundSRV checks that a Client calls the Resolve of a type that embeds an SRV.
func TestResolverAroundSRV(t *testing.T) {
	c, err := newClient(&Config{Resolver: filter{SRV{"ofi+tcp", "store", "example.test", dnstest.Start(t).Resolver()}}})
	must(t, err)
	c.lookup = func(string) (*cinnabar.Endpoint, error) { return nil, codes.InvalidArg } // so that the servers are only listed
	t.Cleanup(func() { must(t, c.Close()) })
	c.resolve()
	list, err := c.Servers()
	must(t, err)
	if len(list) != 1 || list[0].Addr != "chosen" {
		t.Errorf("the servers are %+v", list)
	}
}

// TestFollowDNS calls the servers that a name stands for, after it has changed.
func TestFollowDNS(t *testing.T) {
	s := dnstest.Start(t)
	a := serve(t, nil)
	port := netip.MustParseAddrPort(strings.TrimPrefix(a.Addr(), "ofi+tcp://")).Port()
	s.Set("store.test", "127.0.0.9") // where nothing listens
	c := dial(t, &Config{Resolver: DNS{"ofi+tcp", "store.test", port, s.Resolver()}, MinRefresh: time.Millisecond})
	await(t, c, "the server is down", func(s []Server) bool { return len(s) == 1 && s[0].State == "down" })
	_, err := Call(patient(t), c, where, 0)
	wantError(t, err, codes.HostUnreach, "none of 1 servers is ready")
	s.Set("store.test", "127.0.0.1")
	await(t, c, "the name has changed", func(s []Server) bool { return len(s) == 1 && s[0].Ready })
	if addr, err := Call(patient(t), c, where, 0); err != nil || addr != a.Addr() {
		t.Errorf("%s, %v", addr, err)
	}
}
