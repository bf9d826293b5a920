package ofitcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"cinnabar/internal/dnstest"
	"cinnabar/internal/na"
	"cinnabar/internal/na/ofiaddr"
)

// nameOf returns what Lookup makes of a host and the port of a server.
func nameOf(t *testing.T, e *Endpoint, host string, port uint16) na.Named {
	t.Helper()
	a, err := e.Lookup(fmt.Sprintf("ofi+tcp://%s:%d", host, port))
	if err != nil {
		t.Fatal(err)
	}
	return a.(na.Named)
}

// resolve returns the peer that a name stands for.
func resolve(t *testing.T, n na.Named) na.Addr {
	t.Helper()
	a, err := n.Resolve(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// openAt opens an endpoint that echoes, at an address.
func openAt(t *testing.T, ip string, port uint16) *Endpoint {
	t.Helper()
	return openEcho(t, Config{Address: fmt.Sprintf("ofi+tcp://%s:%d", ip, port)})
}

// TestName: a name is resolved when it is used first, and not again while the connection lives. The peer is the one that the
// numeric address stands for.
//
// parity: H30 H35
func TestName(t *testing.T) {
	dns, server := dnstest.Start(t), openEcho(t, Config{})
	dns.Set("store.test", "127.0.0.1")
	e := openEndpoint(t, Config{Resolver: dns.Resolver()})
	n := nameOf(t, e, "Store.test", server.self.Port())
	if q := dns.Queries(); q != 0 || n.Reached() != nil || n.Done() != nil || n.Account() == nil {
		t.Errorf("Lookup has asked %d times; %v", q, n.Reached())
	}
	newClient(e, resolve(t, n), 0).must(t, []byte("hello"))
	queries := dns.Queries()
	if a := resolve(t, n); a != n.Reached() || dns.Queries() != queries {
		t.Error("the name is resolved again although the connection lives")
	}
	byNumber := addrOf(t, e, server)
	newClient(e, byNumber, 100).must(t, []byte("hello"))
	other := nameOf(t, e, "store.test", server.self.Port())
	if !n.Equal(byNumber) || !byNumber.Equal(n) || !n.Equal(other) || other.Equal(byNumber) {
		t.Error("the name and the address of one peer are not equal")
	}
	if want := fmt.Sprintf("ofi+tcp://store.test:%d", server.self.Port()); n.String() != want || n.Account() != byNumber.Account() {
		t.Errorf("%v, want %s", n, want)
	}
	if open := e.Stats().Open; open != 1 {
		t.Errorf("%d connections, want 1", open)
	}
	op := newCall()
	e.SendRequest(&op.op, n, 1, make([]byte, e.Limits().RequestRoom))
	wantKind(t, op.park(t), na.Invalid)
}

// TestNameWithSeveralAddresses: the addresses of a name are tried in turn: one refuses, one takes the connection and says
// nothing, one answers.
//
// parity: H35
func TestNameWithSeveralAddresses(t *testing.T) {
	dns, silent := dnstest.Start(t), newRawOn(t, net.IPv4(127, 0, 0, 3))
	dns.Set("store.test", "127.0.0.2", "127.0.0.3", "127.0.0.2", "127.0.0.4")
	dns.Set("gone.test", "127.0.0.2", "127.0.0.3")
	port := silent.addr().Port()
	server := openAt(t, "127.0.0.4", port)
	e := openEndpoint(t, Config{Resolver: dns.Resolver(), DialTimeout: time.Second})
	a := resolve(t, nameOf(t, e, "store.test", port))
	if a.String() != server.Addr().String() {
		t.Errorf("reached %v, want %v", a, server.Addr())
	}
	newClient(e, a, 0).must(t, []byte("hello"))
	_, err := nameOf(t, e, "gone.test", port).Resolve(t.Context())
	wantKind(t, err, na.Unreachable)
	for _, part := range []string{"gone.test", "2 addresses", "127.0.0.2: ", "connection refused", "127.0.0.3: "} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("no %q in %q", part, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond) // of which each address gets a part
	defer cancel()
	// The first endpoint's attempt to connect to the silent address may be about to end, with an error of its own.
	other := openEndpoint(t, Config{Resolver: dns.Resolver(), DialTimeout: time.Second})
	_, err = nameOf(t, other, "gone.test", port).Resolve(ctx)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "127.0.0.3: no connection within ") {
		t.Errorf("with a short deadline: %v", err)
	}
}

// TestNameMoves: after the connection is lost, a name is resolved again, and may stand for another host.
//
// parity: H34 D06
func TestNameMoves(t *testing.T) {
	dns, first := dnstest.Start(t), openAt(t, "127.0.0.2", 0)
	dns.Set("store.test", "127.0.0.2")
	port := first.self.Port()
	second := openAt(t, "127.0.0.3", port)
	e := openEndpoint(t, Config{Resolver: dns.Resolver()})
	n := nameOf(t, e, "store.test", port)
	newClient(e, resolve(t, n), 0).must(t, []byte("hello"))
	dns.Set("store.test", "127.0.0.3")
	gone := n.Done()
	closeEndpoint(t, first)
	<-gone
	a := resolve(t, n)
	if a.String() != second.Addr().String() {
		t.Errorf("reached %v, want %v", a, second.Addr())
	}
	newClient(e, a, 0).must(t, []byte("hello"))
}

// TestNameWithoutAddress: what a resolver may answer instead of a usable address.
//
// parity: H35
func TestNameWithoutAddress(t *testing.T) {
	dns := dnstest.Start(t)
	dns.Set("empty.test")
	dns.Set("six.test", "2001:db8::1")
	dns.Set("none.test", "0.0.0.0", "224.0.0.1")
	e := openEndpoint(t, Config{Resolver: dns.Resolver()})
	for host, want := range map[string]string{
		"unknown.test": "no such host",
		"empty.test":   "no such host",
		"six.test":     "IPv4",
		"none.test":    "no IPv4 address of a host",
	} {
		_, err := nameOf(t, e, host, 1).Resolve(t.Context())
		wantKind(t, err, na.Unreachable)
		if !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), host) {
			t.Errorf("%s: %v, want %q", host, err, want)
		}
	}
}

// TestBrokenResolver: an error does not claim that a host has no address when the resolver was not reached.
func TestBrokenResolver(t *testing.T) {
	down := errors.New("the resolver is down")
	r := &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) { return nil, down }}
	_, err := nameOf(t, openEndpoint(t, Config{Resolver: r}), "store.test", 1).Resolve(t.Context())
	wantKind(t, err, na.Unreachable)
	if text := err.Error(); !strings.Contains(text, "could not be resolved") || !strings.Contains(text, down.Error()) || strings.Contains(text, "no IPv4 address") {
		t.Error(text)
	}
}

// TestNameWithThousands: a resolver's answer of any length costs a bounded number of attempts.
func TestNameWithThousands(t *testing.T) {
	dns := dnstest.Start(t)
	var addrs []string
	for i := range 2000 {
		addrs = append(addrs, fmt.Sprintf("127.1.%d.%d", i/250, 1+i%250))
	}
	dns.Set("many.test", addrs...)
	e := openEndpoint(t, Config{Resolver: dns.Resolver()})
	_, err := nameOf(t, e, "many.test", uint16(freePort(t))).Resolve(t.Context())
	wantKind(t, err, na.Unreachable)
	if n := strings.Count(err.Error(), "refused"); n != ofiaddr.MaxTried || !strings.Contains(err.Error(), "1984 more were not tried") {
		t.Errorf("%d attempts: %v", n, err)
	}
}

// TestSilentResolver: a resolver that does not answer is waited for until the context ends, until DialTimeout, or until
// the endpoint is closed.
func TestSilentResolver(t *testing.T) {
	dns := dnstest.Start(t)
	dns.Silence(true)
	asked := func(n int) func() bool { return func() bool { return dns.Queries() > n } }
	t.Run("context", func(t *testing.T) {
		e := openEndpoint(t, Config{Resolver: dns.Resolver()})
		n := nameOf(t, e, "store.test", 1)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		results, queries := make(chan error, 2), dns.Queries()
		for range cap(results) { // one of them waits for the other
			go func() {
				_, err := n.Resolve(ctx)
				results <- err
			}()
		}
		until(t, "a query", asked(queries))
		cancel()
		for range cap(results) {
			if err := <-results; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
	})
	t.Run("limit", func(t *testing.T) {
		e := openEndpoint(t, Config{Resolver: dns.Resolver(), DialTimeout: 20 * time.Millisecond})
		_, err := nameOf(t, e, "store.test", 1).Resolve(t.Context())
		wantKind(t, err, na.Unreachable)
		if errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no answer from the resolver") {
			t.Error(err)
		}
	})
	t.Run("close", func(t *testing.T) {
		e := openEndpoint(t, Config{Resolver: dns.Resolver()})
		n := nameOf(t, e, "store.test", 1)
		result, queries := make(chan error, 1), dns.Queries()
		go func() {
			_, err := n.Resolve(context.Background())
			result <- err
		}()
		until(t, "a query", asked(queries))
		closeEndpoint(t, e)
		wantKind(t, <-result, na.Closed)
		_, err := n.Resolve(context.Background())
		wantKind(t, err, na.Closed)
	})
}

// TestNameRetry: with Config.DialRetry a name whose address refuses connections is resolved again.
func TestNameRetry(t *testing.T) {
	dns, server := dnstest.Start(t), openAt(t, "127.0.0.3", 0)
	dns.Set("store.test", "127.0.0.2")
	e := openEndpoint(t, Config{Resolver: dns.Resolver(), DialRetry: patience})
	n := nameOf(t, e, "store.test", server.self.Port())
	type result struct {
		a   na.Addr
		err error
	}
	results := make(chan result, 1)
	go func() {
		a, err := n.Resolve(t.Context())
		results <- result{a, err}
	}()
	until(t, "a second query", func() bool { return dns.Queries() > 1 })
	dns.Set("store.test", "127.0.0.3")
	if r := <-results; r.err != nil || r.a.String() != server.Addr().String() {
		t.Errorf("reached %v, %v", r.a, r.err)
	}
}

// TestNameOfOneself: a name of the endpoint's own address needs no connection.
func TestNameOfOneself(t *testing.T) {
	dns, e := dnstest.Start(t), (*Endpoint)(nil)
	dns.Set("self.test", "127.0.0.1")
	e = openEcho(t, Config{Resolver: dns.Resolver()})
	n := nameOf(t, e, "self.test", e.self.Port())
	if a := resolve(t, n); a != e.Addr() || n.Reached() != a {
		t.Errorf("reached %v", a)
	}
	if p := e.peer(netip.AddrPortFrom(e.self.Addr(), e.self.Port())); e.Stats().Open != 0 || p != e.own {
		t.Error("there is a connection")
	}
}
