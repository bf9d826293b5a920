package ofitcp

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"

	"cinnabar/internal/audit"
	"cinnabar/internal/na"
)

// TestServerAtSeveralAddresses: a process calls a server by several of the server's addresses, and moves memory with each.
func TestServerAtSeveralAddresses(t *testing.T) {
	server, cl := openEcho(t, Config{Address: "ofi+tcp://0.0.0.0:0"}), openEndpoint(t, Config{})
	src := random(100_000, 1)
	_, from := expose(t, server, cl, src, na.ReadOnly)
	var clients []*client
	for i, ip := range []string{"127.0.0.1", "127.0.0.2", "127.0.0.3", server.self.Addr().String()} {
		a, err := cl.Lookup(fmt.Sprintf("ofi+tcp://%s:%d", ip, server.self.Port()))
		if err != nil {
			t.Fatal(err)
		}
		clients = append(clients, newClient(cl, a, uint32(1000*i)))
	}
	for range 10 {
		for _, c := range clients {
			c.must(t, []byte("hello"))
			get, dst := newCall(), make([]byte, len(src))
			cl.Get(&get.op, c.to, []na.Fragment{{Remote: from, Local: dst}})
			if err := get.wait(t, cl, c.to); err != nil || string(dst) != string(src) {
				t.Errorf("get from %v: %v", c.to, err)
			}
		}
	}
	if n := server.Stats().Open; n != len(clients) {
		t.Errorf("%d connections, want %d", n, len(clients))
	}
}

// dialAt is dial by another address of the endpoint's host.
func (r *raw) dialAt(e *Endpoint, ip string, pid uint32) (*rawConn, cmMessage) {
	r.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: r.addr().Addr().AsSlice()}}
	c := r.wrap(d.Dial("tcp4", netip.AddrPortFrom(netip.MustParseAddr(ip), e.self.Port()).String()))
	c.write(appendCM(nil, r.request(pid)))
	return c, c.cm()
}

// TestSeveralAddressesOfC: a process in C, which sends no identity, calls a server by several of the server's addresses. The
// answers come over the connections of their requests. A second connection to the same address, and one of another process,
// are refused as before.
func TestSeveralAddressesOfC(t *testing.T) {
	const pid = 77
	e, r := openEcho(t, Config{Address: "ofi+tcp://0.0.0.0:0"}), newRaw(t)
	ips := []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"}
	var conns []*rawConn
	for _, ip := range ips {
		c, m := r.dialAt(e, ip, pid)
		if m.typ != cmResponse || !m.id.isZero() {
			t.Fatalf("answer by %s: %+v", ip, m)
		}
		conns = append(conns, c)
	}
	for tag := range uint32(20) {
		for _, c := range conns {
			r.ping(c, tag)
		}
	}
	for _, ip := range ips {
		if _, m := r.dialAt(e, ip, pid); m.typ != cmNack {
			t.Errorf("a second connection to %s: %+v", ip, m)
		}
		if _, m := r.dialAt(e, ip, pid+1); m.typ != cmNack {
			t.Errorf("another process by %s: %+v", ip, m)
		}
	}
	if n := counted(e, audit.Refused, causeTaken); n != uint64(len(ips)) {
		t.Errorf("%d refusals are counted, want %d", n, len(ips))
	}
	_ = conns[1].Close()
	until(t, "the connection is lost", func() bool { return e.Stats().Open == 2 })
	again, m := r.dialAt(e, ips[1], pid)
	if m.typ != cmResponse {
		t.Fatalf("answer after the loss of the connection: %+v", m)
	}
	for _, c := range []*rawConn{conns[0], again, conns[2]} {
		r.ping(c, 99)
	}
}

// TestAddressesThatCross: the endpoint dials a process in C, whose own request arrives by the endpoint's address and crosses
// that: it is refused, because both are for one connection. By another address it is a further connection.
func TestAddressesThatCross(t *testing.T) {
	const pid = 77
	e, r := openEcho(t, Config{Address: "ofi+tcp://0.0.0.0:0", Subnet: netip.MustParsePrefix("127.0.0.0/8")}), newRaw(t)
	op := r.send(e, 1, "x")
	own := r.accept(pid)
	if m, _ := own.message(); m.op != opMsg {
		t.Errorf("message %+v", m)
	}
	if err := op.park(t); err != nil {
		t.Fatal(err)
	}
	if _, m := r.dialAt(e, "127.0.0.1", pid); m.typ != cmNack {
		t.Errorf("a request that has crossed the endpoint's: %+v", m)
	}
	c, m := r.dialAt(e, "127.0.0.2", pid)
	if m.typ != cmResponse {
		t.Fatalf("a request by another address: %+v", m)
	}
	r.ping(c, 5)
	r.ping(own, 6)
}

// TestTwoOfCBehindOneAddress: of two processes in C that have the same port behind one address, the first one is served on, and
// the second one is refused. A warning names the address and the cause.
func TestTwoOfCBehindOneAddress(t *testing.T) {
	var log bytes.Buffer
	audit.Reset()
	e, r := openEcho(t, Config{Audit: audit.New(slog.New(slog.NewTextHandler(&log, nil)))}), newRaw(t)
	first, m := r.dial(e, 1)
	if m.typ != cmResponse {
		t.Fatalf("answer %+v", m)
	}
	for tag := range uint32(3) {
		if _, m := r.dial(e, 2); m.typ != cmNack {
			t.Errorf("answer to the second process: %+v", m)
		}
		r.ping(first, tag)
	}
	closeEndpoint(t, e) // nothing is logged after it
	line := log.String()
	for _, part := range []string{"level=WARN", causeTaken, formatAddr(r.addr())} {
		if !strings.Contains(line, part) {
			t.Errorf("no %q in the log:\n%s", part, line)
		}
	}
}
