package cinnabar

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/dnstest"
)

// named makes a server at an address, and the endpoint of it by the name store.test.
func named(t *testing.T, dns *dnstest.Server, ip string, cfg *Config) (server *Engine, ep *Endpoint) {
	t.Helper()
	server, err := Listen(t.Context(), "ofi+tcp://"+ip, nil)
	server = opened(t, server, err)
	must(t, add.Handle(server, handleAdd))
	dns.Set("store.test", ip)
	_, port, _ := strings.Cut(strings.TrimPrefix(server.Addr(), "ofi+tcp://"), ":")
	if cfg == nil {
		cfg = &Config{}
	}
	cfg.Resolver = dns.Resolver()
	return server, find(t, calling(t, cfg), "ofi+tcp://store.test:"+port)
}

// TestCallByName makes calls and transfers of each kind to a host that is known by its name, each as the first operation.
//
// parity: H30 T04
func TestCallByName(t *testing.T) {
	dns := dnstest.Start(t)
	note := NewOneWay[struct{}]("note")
	for name, use := range map[string]func(*testing.T, *Engine, *Endpoint){
		"call": func(t *testing.T, _ *Engine, ep *Endpoint) { callAdd(t, ep) },
		"start": func(t *testing.T, _ *Engine, ep *Endpoint) {
			out, err := add.Start(patient(t), ep.Provider(0xffff), addIn{1, 2}).Wait()
			if err != nil || out.Sum != 3 {
				t.Errorf("%v, %v", out, err)
			}
		},
		"send": func(t *testing.T, server *Engine, ep *Endpoint) {
			got := make(chan string, 1)
			must(t, note.Handle(server, func(ctx context.Context, _ struct{}) error {
				got <- InfoFrom(ctx).Peer.String()
				return nil
			}))
			must(t, note.Send(patient(t), ep, struct{}{}))
			if from := soon(t, "the request", got); from != ep.e.Addr() {
				t.Errorf("from %s", from)
			}
		},
		"pull": func(t *testing.T, server *Engine, ep *Endpoint) {
			into := make([]byte, 1<<20)
			n, err := remoteOf(t, server, ep).Pull(patient(t), exposed(t, ep.e, into))
			if err != nil || n != 1<<20 || into[n-1] != 7 {
				t.Errorf("%d bytes, %v", n, err)
			}
		},
		"pull in chunks": func(t *testing.T, server *Engine, ep *Endpoint) {
			into := make([]byte, 1<<20)
			n, err := remoteOf(t, server, ep).PullChunks(patient(t), exposed(t, ep.e, into), 1<<18, 2)
			if err != nil || n != 1<<20 || into[n-1] != 7 {
				t.Errorf("%d bytes, %v", n, err)
			}
		},
		"start a pull": func(t *testing.T, server *Engine, ep *Endpoint) {
			into := make([]byte, 1<<20)
			n, err := remoteOf(t, server, ep).StartPull(patient(t), exposed(t, ep.e, into)).Wait()
			if err != nil || n != 1<<20 || into[n-1] != 7 {
				t.Errorf("%d bytes, %v", n, err)
			}
		},
		"read": func(t *testing.T, server *Engine, ep *Endpoint) {
			into := make([]byte, 10)
			if _, err := remoteOf(t, server, ep).ReadAt(patient(t), into, 1<<19); err != nil || into[9] != 7 {
				t.Errorf("% x, %v", into, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			server, ep := named(t, dns, "127.0.0.2", nil)
			queries := dns.Queries()
			use(t, server, ep)
			if dns.Queries() == queries {
				t.Error("the name was not resolved")
			}
			if !ep.Equal(find(t, ep.e, server.Addr())) {
				t.Error("the endpoint is not that of the server's address")
			}
		})
	}
}

// exposed exposes memory for as long as the test runs.
func exposed(t *testing.T, e *Engine, mem []byte) *Bulk {
	t.Helper()
	b, err := e.Expose(ReadWrite, mem)
	must(t, err)
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// remoteOf exposes 1 MiB of the server, all 7, for an endpoint.
func remoteOf(t *testing.T, server *Engine, ep *Endpoint) RemoteBulk {
	t.Helper()
	mem := make([]byte, 1<<20)
	for i := range mem {
		mem[i] = 7
	}
	return travel(t, exposed(t, server, mem).Handle()).On(ep)
}

// TestStartEncodesBeforeTheNameIsResolved: the arguments of a call may be changed as soon as Start has returned.
func TestStartEncodesBeforeTheNameIsResolved(t *testing.T) {
	type blob struct {
		N    uint32
		Data []byte `proc:"count=N"`
	}
	dns, resolve := dnstest.Start(t), make(chan struct{})
	server, byOther := named(t, dns, "127.0.0.2", nil)
	first := NewRPC[blob, uint32]("first")
	must(t, first.Handle(server, func(_ context.Context, in blob) (uint32, error) { return uint32(in.Data[0]), nil }))
	r := dns.Resolver()
	dial := r.Dial
	r.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		select {
		case <-resolve:
		case <-ctx.Done():
		}
		return dial(ctx, network, address)
	}
	ep := find(t, calling(t, &Config{Resolver: r}), byOther.String())
	data := []byte{7}
	pending := first.Start(patient(t), ep, blob{1, data})
	ctx, cancel := context.WithCancel(t.Context())
	canceled := first.Start(ctx, ep, blob{1, data})
	data[0] = 8
	cancel()
	_, err := canceled.Wait()
	wantCode(t, err, codes.Canceled)
	close(resolve)
	if got, err := pending.Wait(); err != nil || got != 7 {
		t.Errorf("the server got %d, want 7: %v", got, err)
	}
}

// TestNameThatDoesNotResolve: the operation fails, with the name and the cause, by the operation's own context.
func TestNameThatDoesNotResolve(t *testing.T) {
	dns := dnstest.Start(t)
	client := calling(t, &Config{Resolver: dns.Resolver()})
	ep := find(t, client, "ofi+tcp://nosuch.test:1")
	var h BulkHandle
	_, err := add.Call(patient(t), ep, addIn{})
	wantCode(t, err, codes.HostUnreach, "nosuch.test", "no such host")
	_, err = add.Start(patient(t), ep, addIn{}).Wait()
	wantCode(t, err, codes.HostUnreach, "nosuch.test", "no such host")
	h = travel(t, exposed(t, listening(t, nil), make([]byte, 100<<10)).Handle())
	for _, chunk := range []int64{100 << 10, 10 << 10} {
		_, err = h.On(ep).PullChunks(patient(t), exposed(t, client, make([]byte, 100<<10)), chunk, 3)
		wantCode(t, err, codes.HostUnreach, "nosuch.test", "no such host")
	}
	dns.Silence(true)
	late, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = add.Call(late, ep, addIn{})
	wantCode(t, err, codes.Timeout, "nosuch.test", "resolver")
	_, err = h.On(ep).Pull(late, exposed(t, client, make([]byte, 100<<10)))
	wantCode(t, err, codes.Timeout)
	ctx, stop := context.WithCancel(t.Context())
	queries := dns.Queries()
	pending := add.Start(ctx, ep, addIn{})
	waitFor(t, func() bool { return dns.Queries() > queries })
	stop()
	_, err = pending.Wait()
	wantCode(t, err, codes.Canceled)
	queries = dns.Queries()
	pending = add.Start(t.Context(), ep, addIn{})
	moved := h.On(ep).StartPull(t.Context(), exposed(t, client, make([]byte, 100<<10)))
	waitFor(t, func() bool { return dns.Queries() > queries })
	must(t, client.Close())
	if _, err = pending.Wait(); err == nil {
		t.Error("a call has succeeded")
	}
	if _, err = moved.Wait(); err == nil {
		t.Error("a transfer has succeeded")
	}
}

// TestNameAfterLoss: a name stands for another process after the first one has ended.
//
// parity: H34 D06
func TestNameAfterLoss(t *testing.T) {
	dns := dnstest.Start(t)
	server, ep := named(t, dns, "127.0.0.2", nil)
	callAdd(t, ep)
	_, port, _ := strings.Cut(strings.TrimPrefix(server.Addr(), "ofi+tcp://"), ":")
	second, err := Listen(t.Context(), fmt.Sprintf("ofi+tcp://127.0.0.3:%s", port), nil)
	must(t, add.Handle(opened(t, second, err), handleAdd))
	dns.Set("store.test", "127.0.0.3")
	gone := ep.named.Done()
	must(t, server.Close())
	soon(t, "the end of the connection", gone)
	callAdd(t, ep)
	if !ep.Equal(find(t, ep.e, second.Addr())) {
		t.Error("the name does not stand for the second process")
	}
}

// TestAdvertise: the address in Config is given out by the engine, in its handles, and to its peers.
//
// parity: H32
func TestAdvertise(t *testing.T) {
	free, err := Listen(t.Context(), "ofi+tcp://127.0.0.2", nil)
	at := opened(t, free, err).Addr()
	through := relay(t, strings.TrimPrefix(at, "ofi+tcp://")) // as a router forwards a port
	must(t, free.Close())
	server, err := Listen(t.Context(), at, &Config{Advertise: strings.TrimPrefix(through, "ofi+tcp://")})
	server = opened(t, server, err)
	must(t, add.Handle(server, handleAdd))
	if server.Addr() != through || server.Self().String() != through {
		t.Errorf("address %s, want %s", server.Addr(), through)
	}
	client := calling(t, nil)
	for _, e := range []*Engine{client, server} {
		callAdd(t, find(t, e, through))
		callAdd(t, find(t, e, at))
	}
	mem, err := server.Expose(ReadOnly, make([]byte, 100<<10))
	must(t, err)
	defer func() { _ = mem.Close() }()
	owner, err := travel(t, mem.Bound()).Owner(client)
	if err != nil || owner.String() != through {
		t.Errorf("the owner of a handle is %v, %v", owner, err)
	}
	portless, err := Listen(t.Context(), "ofi+tcp://127.0.0.2", &Config{Advertise: "192.0.2.7"})
	if portless = opened(t, portless, err); !strings.HasPrefix(portless.Addr(), "ofi+tcp://192.0.2.7:") {
		t.Errorf("address %s", portless.Addr())
	}
	for _, bad := range []string{"store.test", "192.0.2.7:", "192.0.2.7:70000", "0.0.0.0", "ofi+tcp://192.0.2.7", "2001:db8::1", "[192.0.2.7", "]192.0.2.7["} {
		_, err := Listen(t.Context(), "ofi+tcp://127.0.0.1", &Config{Advertise: bad})
		wantCode(t, err, codes.InvalidArg, "Advertise")
	}
	for _, bad := range []string{"fe80::1%eth0", "[fe80::1%eth0]:99"} { // the zone is not checked against this host's interfaces
		_, err := Listen(t.Context(), "ofi+tcp://[::1]", &Config{Advertise: bad})
		wantCode(t, err, codes.InvalidArg, "Advertise", "zone")
	}
	_, err = Listen(t.Context(), "na+sm://", &Config{Advertise: "192.0.2.7"})
	wantCode(t, err, codes.InvalidArg, "Advertise")
}

// TestFirewalled: a firewalled engine accepts no connection, calls others, and serves them over its own connections.
//
// parity: D15
func TestFirewalled(t *testing.T) {
	server, peers := listening(t, nil), make(chan *Endpoint, 1)
	must(t, add.Handle(server, func(ctx context.Context, in addIn) (addOut, error) {
		peers <- InfoFrom(ctx).Peer
		return handleAdd(ctx, in)
	}))
	walled := listening(t, &Config{Firewalled: true})
	must(t, add.Handle(walled, handleAdd))
	_, err := add.Call(patient(t), find(t, calling(t, nil), walled.Addr()), addIn{})
	wantCode(t, err, codes.HostUnreach, "refused")
	callAdd(t, find(t, walled, server.Addr()))
	callAdd(t, soon(t, "the caller", peers))
}
