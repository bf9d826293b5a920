package ofitcp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"cinnabar/internal/na"
	"cinnabar/internal/na/ofiaddr"
)

// TestAdvertise: peers are told the address in Config, with its port or that of the listener: in the endpoint's address, in
// descriptors, in connection requests, and in messages. The endpoint's connections begin at its own address.
//
// parity: H32
func TestAdvertise(t *testing.T) {
	for _, port := range []uint16{0, 4321} {
		told := netip.AddrPortFrom(netip.MustParseAddr("192.0.2.9"), port)
		e, r := openEcho(t, Config{Address: "ofi+tcp://127.0.0.2:0", Advertise: told}), newRaw(t)
		if port == 0 {
			told = netip.AddrPortFrom(told.Addr(), e.local.Port())
		}
		if got, want := e.Addr().String(), formatAddr(told); got != want {
			t.Errorf("address %s, want %s", got, want)
		}
		a, err := e.ParseAddr(e.AppendAddr(nil, e.Addr()))
		if err != nil || a != e.Addr() {
			t.Errorf("in a descriptor: %v, %v", a, err)
		}
		op := r.send(e, 1, "x")
		c := r.acceptOnly()
		if from := remoteAddr(c.TCPConn); from.Addr() != e.local.Addr() {
			t.Errorf("a connection from %v, want %v", from, e.local.Addr())
		}
		m := c.cm()
		if m.port != told.Port() {
			t.Errorf("port %d in the request, want %d", m.port, told.Port())
		}
		m.typ, m.pid = cmResponse, 5
		c.write(appendCM(nil, m))
		if _, b := c.message(); string(b) != string(append(ofiaddr.Append(nil, told), 'x')) {
			t.Errorf("message % x", b)
		}
		if err := op.park(t); err != nil {
			t.Error(err)
		}
		reached, err := openEndpoint(t, Config{}).Lookup(formatAddr(e.local))
		if err != nil {
			t.Fatal(err)
		}
		newClient(reached.(*peer).ep, reached, 0).must(t, []byte("hello"))
		for i, own := range []netip.AddrPort{told, e.local} { // over the network, which the layer above does not use for that
			to, err := e.Lookup(formatAddr(own))
			if err != nil || to != e.Addr() {
				t.Fatalf("%v, %v", to, err)
			}
			newClient(e, to, uint32(100*(i+1))).must(t, []byte("hello"))
		}
	}
	for _, bad := range []string{"0.0.0.0:1", "224.0.0.1:0", "[2001:db8::1]:1"} {
		_, err := Open(t.Context(), Config{Address: "ofi+tcp://127.0.0.1", Advertise: netip.MustParseAddrPort(bad)})
		wantKind(t, err, na.Invalid)
	}
}

// TestAllAddressesOfOneself: an endpoint on all addresses reaches itself by each of them.
func TestAllAddressesOfOneself(t *testing.T) {
	e := openEcho(t, Config{Address: "ofi+tcp://0.0.0.0:0"})
	for i, ip := range []string{"127.0.0.1", "127.0.0.5", e.self.Addr().String()} {
		to, err := e.Lookup(fmt.Sprintf("ofi+tcp://%s:%d", ip, e.self.Port()))
		if err != nil {
			t.Fatal(err)
		}
		if !to.Equal(e.Addr()) {
			t.Errorf("%v is not the endpoint's own address", to)
		}
		newClient(e, to, uint32(100*i)).must(t, []byte("hello"))
	}
}

// TestFirewalledDoesNotListen: connections to a firewalled endpoint are refused, and no other process gets its port. Its own
// connections work in both directions.
//
// parity: D15
func TestFirewalledDoesNotListen(t *testing.T) {
	for _, address := range []string{"ofi+tcp://127.0.0.1:0", fmt.Sprintf("ofi+tcp://127.0.0.1:%d", freePort(t)), "ofi+tcp://[::1]:0"} {
		if probe, err := Open(t.Context(), Config{Address: address}); err != nil {
			t.Logf("this host has no IPv6 loopback: %v", err)
			continue
		} else {
			closeEndpoint(t, probe)
		}
		server := openEcho(t, Config{Address: address, Firewalled: true})
		at := server.self.String()
		if c, err := net.Dial("tcp", at); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %v, %v, want a refusal", at, c, err)
		}
		if _, err := net.Listen("tcp", at); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("the port of %s is free: %v", at, err)
		}
		_, err := Open(t.Context(), Config{Address: formatAddr(server.self), Firewalled: true})
		wantKind(t, err, na.InUse)
		if server.self.Addr().Is4() {
			r := newRaw(t)
			op := r.send(server, 1, "x")
			c := r.accept(1)
			c.message()
			if err := op.park(t); err != nil {
				t.Error(err)
			}
			r.ping(c, 7)
		}
		closeEndpoint(t, server)
		again := openEcho(t, Config{Address: formatAddr(server.self)})
		closeEndpoint(t, again)
	}
}
