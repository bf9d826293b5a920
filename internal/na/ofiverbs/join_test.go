package ofiverbs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"cinnabar/internal/dnstest"
	"cinnabar/internal/na"
)

// named returns the address of a host and the port of a server.
func named(t *testing.T, e *Endpoint, host string, port uint16) na.Named {
	t.Helper()
	a, err := e.Lookup(fmt.Sprintf("ofi+verbs://%s:%d", host, port))
	if err != nil {
		t.Fatal(err)
	}
	return a.(na.Named)
}

// serverAt opens an endpoint that answers requests, at an address.
func serverAt(t *testing.T, ip string, port uint16) *Endpoint {
	t.Helper()
	return openServer(t, Config{Address: fmt.Sprintf("ofi+verbs://%s:%d", ip, port)})
}

// TestName: the first operation resolves a name, and tries the host's addresses in turn. After the connection is lost, it resolves the name
// again, and the name may stand for another host.
//
// parity: H30 H34 H35
func TestName(t *testing.T) {
	dns, first := dnstest.Start(t), serverAt(t, "127.0.0.2", 0)
	port := first.self.Port()
	second := serverAt(t, "127.0.0.3", port)
	dns.Set("store.test", "127.0.0.9", "127.0.0.2") // no endpoint listens at the first address
	e := openEndpoint(t, Config{Resolver: dns.Resolver()})
	n := named(t, e, "Store.test", port)
	if q := dns.Queries(); q != 0 || n.Reached() != nil || n.Done() != nil || n.Account() == nil {
		t.Errorf("Lookup has asked %d times; %v", q, n.Reached())
	}
	a, err := n.Resolve(t.Context())
	if err != nil || a.String() != first.Addr().String() {
		t.Fatalf("reached %v, %v; want %v", a, err, first.Addr())
	}
	ask(t, e, a, 1, []byte("hello"))
	queries := dns.Queries()
	if again, err := n.Resolve(t.Context()); err != nil || again != a || dns.Queries() != queries {
		t.Errorf("the name is resolved again although the connection lives: %v, %v", again, err)
	}
	byNumber, other := lookup(t, e, first), named(t, e, "store.test", port)
	if !n.Equal(byNumber) || !byNumber.Equal(n) || !n.Equal(other) || other.Equal(byNumber) || n.Account() != byNumber.Account() {
		t.Error("the name and the address of one peer are not equal")
	}
	op := newCall()
	e.SendRequest(&op.op, n, 1, request(e, nil))
	op.want(t, na.Invalid)
	dns.Set("store.test", "127.0.0.3")
	gone := n.Done()
	closeEndpoint(t, first)
	<-gone
	if a, err = n.Resolve(t.Context()); err != nil || a.String() != second.Addr().String() {
		t.Fatalf("reached %v, %v; want %v", a, err, second.Addr())
	}
	ask(t, e, a, 2, []byte("hello"))
}

// TestNameUnreached: the error of a name that is not reached names the host, its addresses and their causes. The context bounds the
// resolver, and so does Close.
//
// parity: H35
func TestNameUnreached(t *testing.T) {
	dns := dnstest.Start(t)
	dns.Set("gone.test", "127.0.0.8", "127.0.0.9")
	e := openEndpoint(t, Config{Resolver: dns.Resolver(), DialRetry: time.Millisecond})
	_, err := named(t, e, "gone.test", 1).Resolve(t.Context())
	if na.KindOf(err) != na.Unreachable {
		t.Error(err)
	}
	for _, part := range []string{"gone.test", "2 addresses", "127.0.0.8: ", "refused", "127.0.0.9: "} {
		if !strings.Contains(fmt.Sprint(err), part) {
			t.Errorf("no %q in %q", part, err)
		}
	}
	if _, err = named(t, e, "unknown.test", 1).Resolve(t.Context()); na.KindOf(err) != na.Unreachable || !strings.Contains(err.Error(), "no such host") {
		t.Error(err)
	}
	dns.Silence(true)
	ctx, cancel := context.WithCancel(t.Context())
	results, queries := make(chan error, 1), dns.Queries()
	go func() {
		_, err := named(t, e, "store.test", 1).Resolve(ctx)
		results <- err
	}()
	eventually(t, "a query", func() bool { return dns.Queries() > queries })
	cancel()
	if err := <-results; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	queries = dns.Queries()
	go func() {
		_, err := named(t, e, "store.test", 1).Resolve(context.Background())
		results <- err
	}()
	eventually(t, "a query", func() bool { return dns.Queries() > queries })
	closeEndpoint(t, e)
	if err := <-results; na.KindOf(err) != na.Closed {
		t.Error(err)
	}
}

// TestNameRetry: for Config.DialRetry a name whose address refuses connections is resolved again.
func TestNameRetry(t *testing.T) {
	dns, server := dnstest.Start(t), serverAt(t, "127.0.0.3", 0)
	dns.Set("store.test", "127.0.0.2")
	e := openEndpoint(t, Config{Resolver: dns.Resolver(), DialRetry: patience})
	n := named(t, e, "store.test", server.self.Port())
	results := make(chan error, 1)
	go func() {
		_, err := n.Resolve(t.Context())
		results <- err
	}()
	eventually(t, "a second query", func() bool { return dns.Queries() > 1 })
	dns.Set("store.test", "127.0.0.3")
	if err := <-results; err != nil || n.Reached().String() != server.Addr().String() {
		t.Errorf("reached %v, %v", n.Reached(), err)
	}
}

// TestNameOfOneself: a name of the endpoint's own address needs no connection.
func TestNameOfOneself(t *testing.T) {
	dns := dnstest.Start(t)
	dns.Set("self.test", "127.0.0.1")
	e := openServer(t, Config{Resolver: dns.Resolver()})
	n := named(t, e, "self.test", e.self.Port())
	a, err := n.Resolve(t.Context())
	if err != nil || a != e.Addr() || n.Reached() != a || e.peer(netip.AddrPortFrom(e.self.Addr(), e.self.Port())).conn.Load() != nil {
		t.Errorf("reached %v, %v", a, err)
	}
}
