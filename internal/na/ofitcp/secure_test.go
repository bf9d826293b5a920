package ofitcp

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/internal/tlsio"
	"cinnabar/internal/tlstest"
)

// secure returns the configuration of an endpoint on ofi+tcps.
func secure(cfg *tls.Config) Config {
	return Config{Address: "ofi+tcps://127.0.0.1:0", TLS: cfg}
}

// TestSecure makes calls of all sizes and transfers over TLS, from both ends over one connection.
// parity: A01 Y06
func TestSecure(t *testing.T) {
	cfg := secure(tlstest.NewCA(t).Local(t))
	cfg.MaxRequest, cfg.MaxResponse = 200_000, 200_000
	server, cl := openEcho(t, cfg), openEcho(t, cfg)
	to, back := addrOf(t, cl, server), addrOf(t, server, cl)
	if s := to.String(); !strings.HasPrefix(s, "ofi+tcps://127.0.0.1:") {
		t.Errorf("the address is %s", s)
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			c := newClient(cl, to, uint32(g)<<16)
			if g == 3 {
				c = newClient(server, back, uint32(g)<<16)
			}
			c.buf = make([]byte, cfg.MaxResponse)
			for _, n := range []int{1, 100, stageBytes - 40, stageBytes, 65536, 199_984, 3} {
				c.must(t, random(n, uint64(n+g)))
			}
		})
	}
	wg.Wait()
	for _, size := range []int{1, 4096, 1<<20 + 1, 5<<20 + 5} {
		src, dst := random(size, uint64(size)), make([]byte, size)
		_, from := expose(t, server, cl, src, na.ReadOnly)
		c := newCall()
		cl.Get(&c.op, to, []na.Fragment{{Remote: from, Local: dst}})
		if err := c.wait(t, cl, to); err != nil || !bytes.Equal(src, dst) {
			t.Fatalf("get of %d: %v", size, err)
		}
		clear(dst)
		_, into := expose(t, server, cl, dst, na.WriteOnly)
		cl.Put(&c.op, to, []na.Fragment{{Remote: into, Local: src}})
		if err := c.wait(t, cl, to); err != nil || !bytes.Equal(src, dst) {
			t.Fatalf("put of %d: %v", size, err)
		}
	}
	if s := cl.Stats(); s.Connections > 2 { // two attempts may cross
		t.Errorf("%d connections, want 1", s.Connections)
	}
}

// refused calls a server and returns the error, which must contain the words.
func refused(t *testing.T, cl *Endpoint, addr string, words ...string) {
	t.Helper()
	to, err := cl.Lookup(addr)
	if err != nil {
		t.Fatal(err)
	}
	_, err = newClient(cl, to, 0).call(t, []byte("secret"))
	wantKind(t, err, na.Unreachable)
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("error %v, want %q in it", err, w)
		}
	}
}

// waitCounted waits until the trail of e has counted a cause n times, because servers count a refusal after the client has seen it.
func waitCounted(t *testing.T, e *Endpoint, event audit.Event, cause string, n uint64) {
	t.Helper()
	until(t, fmt.Sprintf("%q is counted %d times", cause, n), func() bool { return counted(e, event, cause) == n })
}

// TestPlainAndSecure checks that ends of the two protocols refuse each other at once, in words, and that servers count it.
// parity: A01 Y06
func TestPlainAndSecure(t *testing.T) {
	cfg := tlstest.NewCA(t).Local(t)
	server, plain := openEcho(t, secure(cfg)), openEcho(t, Config{})
	begin := time.Now()
	refused(t, openEndpoint(t, Config{}), formatAddr(server.self), "requires TLS", "ofi+tcps")
	refused(t, openEndpoint(t, secure(cfg)), secureScheme+plain.self.String(), "does not speak TLS", "ofi+tcps")
	if took := time.Since(begin); took > defaultDial/2 {
		t.Errorf("the refusals took %v", took)
	}
	waitCounted(t, server, audit.Refused, causePlain, 1)
	waitCounted(t, plain, audit.Broken, causeRequest, 1)
	for s, e := range map[string]*Endpoint{formatAddr(server.self): server, secureScheme + plain.self.String(): plain} {
		if _, err := e.Lookup(s); err == nil || !strings.Contains(err.Error(), "both ends must use the same") {
			t.Errorf("lookup of %s: %v", s, err)
		}
	}
}

// TestBrokenHellos checks that a server goes on after first bytes that begin as a TLS handshake and are none.
func TestBrokenHellos(t *testing.T) {
	cfg := secure(tlstest.NewCA(t).Local(t))
	server := openEcho(t, cfg)
	hellos := []string{
		"\x16\xff\xff\x00\x05hello",            // a version that no TLS has
		"\x16\x03\x01\xff\xff",                 // a record that is too long
		"\x16\x03\x01\x00\x04\x02\x00\x00\x00", // a message that is no ClientHello
		"\x16",
	}
	for _, hello := range hellos {
		c, err := net.Dial("tcp4", server.self.String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte(hello)); err != nil {
			t.Error(err)
		}
		_ = c.(*net.TCPConn).CloseWrite()
		_ = c.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("% x: the server keeps the connection", hello)
		}
		_ = c.Close()
	}
	waitCounted(t, server, audit.Refused, causeTLS, uint64(len(hellos)))
	cl := openEndpoint(t, cfg)
	newClient(cl, addrOf(t, cl, server), 0).must(t, []byte("behind broken hellos"))
}

// TestCertificatesRefused checks calls with certificates that one of the two ends does not accept.
// parity: A01 Y06
func TestCertificatesRefused(t *testing.T) {
	ca, other := tlstest.NewCA(t), tlstest.NewCA(t)
	local := ca.Local(t)
	e := openEcho(t, secure(local))
	server := e.Addr().String()
	with := func(c tls.Certificate) *tls.Config {
		cfg := local.Clone()
		cfg.Certificates = []tls.Certificate{c}
		return cfg
	}
	missing := local.Clone()
	missing.Certificates = nil
	refused(t, openEndpoint(t, secure(missing)), server, "certificate required")
	refused(t, openEndpoint(t, secure(with(other.Local(t).Certificates[0]))), server, "certificate")
	refused(t, openEndpoint(t, secure(with(ca.Issue(t, tlstest.Certificate{Name: "old", Expired: true})))), server, "certificate")
	waitCounted(t, e, audit.Refused, causeTLS, 3)
	named := local.Clone()
	named.ServerName = "other.example"
	refused(t, openEndpoint(t, secure(named)), server, "other.example")
	middle := openEcho(t, secure(other.Local(t)))
	refused(t, openEndpoint(t, secure(local)), middle.Addr().String(), "unknown authority")
}

// TestSecureNames checks that a peer that was looked up by name must prove the name, and one that was looked up by address the address.
// parity: A01 Y06
func TestSecureNames(t *testing.T) {
	ca := tlstest.NewCA(t)
	cfg := ca.Mutual(t, tlstest.Certificate{Name: "server", Hosts: []string{"localhost"}})
	server := openEcho(t, secure(cfg))
	cl := openEndpoint(t, secure(ca.Local(t)))
	to, err := cl.Lookup(strings.Replace(server.Addr().String(), "127.0.0.1", "localhost", 1))
	if err != nil {
		t.Fatal(err)
	}
	newClient(cl, to, 0).must(t, []byte("by name"))
	refused(t, cl, server.Addr().String(), "127.0.0.1")
}

// TestSecureSettings checks configurations that cannot be opened, and that an endpoint without a certificate is firewalled.
func TestSecureSettings(t *testing.T) {
	ca := tlstest.NewCA(t)
	local := ca.Local(t)
	old := local.Clone()
	old.MaxVersion = tls.VersionTLS12
	handler := handlerFunc(func(*na.Message) na.Task { return nil })
	for word, cfg := range map[string]Config{
		"needs Config.TLS": {Address: "tcps"}, "without TLS": {Address: "ofi+tcp", TLS: local}, "MaxVersion": {Address: "ofi+tcps", TLS: old},
		"no certificate": {Address: "ofi+tcps://127.0.0.1", TLS: &tls.Config{}, Listen: true, Handler: handler},
	} {
		if _, err := Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("Open with %q: %v", word, err)
		}
	}
	public := local.Clone()
	public.ClientAuth = tls.NoClientCert
	server := openEcho(t, secure(public))
	cl := openEndpoint(t, secure(&tls.Config{RootCAs: ca.Pool()}))
	if !cl.cfg.Firewalled {
		t.Error("an endpoint without a certificate is not firewalled")
	}
	newClient(cl, addrOf(t, cl, server), 0).must(t, []byte("no client certificate"))
}

// claim connects to e with a certificate as the peer that listens on port, and returns the answer to its connection request.
func claim(t *testing.T, e *Endpoint, cfg *tls.Config, port uint16, id byte) (*tlsio.Conn, cmMessage, error) {
	t.Helper()
	nc, err := net.Dial("tcp4", e.self.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(patience))
	prepared, err := tlsio.Prepare(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c, err := tlsio.Client(nc, prepared, "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	m := cmMessage{typ: cmRequest, version: 1, port: port, pid: uint32(id), id: processID{id}, probe: probeLittle}
	if _, err := c.Write(appendCM(nil, m)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, cmLen)
	if _, err := io.ReadFull(c, b); err != nil {
		return c, cmMessage{}, err
	}
	m, _ = parseCMHead(b)
	return c, m, nil
}

// TestPlaceOfLivePeer checks that a peer with another certificate does not get the place of a live peer, that one with a renewed
// certificate does, and that requests for an address do not go to a caller that could not prove it as a server.
func TestPlaceOfLivePeer(t *testing.T) {
	ca := tlstest.NewCA(t)
	host := []string{"127.0.0.1"}
	server := openEcho(t, secure(ca.Local(t)))
	victim := openEcho(t, secure(ca.Mutual(t, tlstest.Certificate{Name: "victim", Hosts: host})))
	newClient(victim, addrOf(t, victim, server), 0).must(t, []byte("first"))
	port := victim.self.Port()
	if _, m, err := claim(t, server, ca.Mutual(t, tlstest.Certificate{Name: "mallory", Hosts: host}), port, 1); err != nil || m.mark != cmTaken {
		t.Errorf("another certificate gets the place: %+v, %v", m, err)
	}
	waitCounted(t, server, audit.Refused, causeClaim, 1)
	if _, m, err := claim(t, server, ca.Mutual(t, tlstest.Certificate{Name: "victim", Hosts: host}), port, 2); err != nil || m.typ != cmResponse {
		t.Errorf("a renewed certificate: %+v, %v", m, err)
	}
	newClient(victim, addrOf(t, victim, server), 10).must(t, []byte("still there"))

	// mallory claims the port of a server that has no connection yet. The request for that server must not reach mallory.
	target := openEcho(t, secure(ca.Mutual(t, tlstest.Certificate{Name: "target", Hosts: host})))
	if _, m, err := claim(t, server, ca.Mutual(t, tlstest.Certificate{Name: "mallory", Hosts: []string{"m.example"}}), target.self.Port(), 3); err != nil || m.typ != cmResponse {
		t.Fatalf("the claim: %+v, %v", m, err)
	}
	newClient(server, addrOf(t, server, target), 20).must(t, []byte("for the target"))
}

// TestSecureRequestsAreNotRepeated has a connection end by a late access while requests wait because the peer reads nothing. Requests of the
// ciphertext that the socket has taken a part of may have arrived, so they must not be sent again, and their errors must say so.
func TestSecureRequestsAreNotRepeated(t *testing.T) {
	var mem na.Memory
	cfg := secure(tlstest.NewCA(t).Local(t))
	cfg.LateAccess, cfg.MaxRequest = -1, 8<<10
	l := giveUpWith(t, cfg, 1, func(e *Endpoint) []na.Memory {
		mem, _ = e.Register(make([]byte, 10), na.ReadOnly)
		return []na.Memory{mem}
	})
	mem.(na.LateMemory).Withdraw(nil)
	mem.Close()
	const requests = 8 << 10 // of 4 KiB: more than sockets hold
	data := strings.Repeat("x", 4<<10)
	sends, recvs := make([]*call, requests), make([]*call, requests)
	for i := range requests {
		recvs[i] = newCall()
		l.e.RecvExpected(&recvs[i].op, l.to, uint32(i+2), make([]byte, 10))
		sends[i] = l.r.send(l.e, uint32(i+2), data)
	}
	own := l.to.(*peer).conn.Load()
	until(t, "a full socket", own.blocked.Load)
	l.c.write(appendReadReq(nil, []iov{{len: 1, key: keyOf(mem)}}))
	next := l.r.accept(1)
	came := make([]bool, requests)
	for b := make([]byte, requestHeader+len(data)+100); ; { // the requests of the first connection, until it is cut
		if _, err := io.ReadFull(l.c, b[:baseLen]); err != nil {
			break
		}
		n := header(b).hdrSize()
		if _, err := io.ReadFull(l.c, b[baseLen:n]); err != nil {
			break
		}
		var m message
		parseHeader(&m, b[:n])
		if _, err := io.ReadFull(l.c, b[:m.payload]); err != nil {
			break
		}
		came[m.cqData-2] = true
	}
	for i := range requests {
		if !came[i] {
			continue
		}
		if err := sends[i].park(t); err != nil && strings.Contains(err.Error(), "is not executed") {
			t.Errorf("request %d has arrived, and its error is: %v", i, err)
		}
	}
	m, _ := next.message()
	first := int(m.cqData) - 2
	if first <= 0 || first >= requests || slices.Contains(came[first:], true) {
		t.Fatalf("request %d is sent again, and has arrived: %v", first, slices.Contains(came[first:], true))
	}
	for i := range first {
		if err := recvs[i].park(t); err == nil || !strings.Contains(err.Error(), "may have been executed") {
			t.Errorf("request %d: %v", i, err)
		}
	}
}

// TestTakenPlaceIsExplained checks that an endpoint whose place another peer has gets an error that says so, at once.
func TestTakenPlaceIsExplained(t *testing.T) {
	e, r := openEndpoint(t, secure(tlstest.NewCA(t).Local(t))), newRaw(t)
	send := r.send(e, 1, "hello")
	c := r.acceptOnly()
	c.tls = tls.Server(c.TCPConn, e.tls)
	c.write(markedNack(c.read(cmLen), cmTaken))
	err := send.park(t)
	wantKind(t, err, na.Unreachable)
	if !errors.Is(err, errTaken) {
		t.Errorf("the error is %v", err)
	}
}

// TestSecureConnectionGivesWay checks that the peer of a connection that gives way does not take this for the end of a process, and that the
// place of a connection is free afterwards.
func TestSecureConnectionGivesWay(t *testing.T) {
	cfg := secure(tlstest.NewCA(t).Local(t))
	server, cl := openEcho(t, cfg), openEndpoint(t, cfg)
	to := addrOf(t, cl, server)
	newClient(cl, to, 0).must(t, []byte("first"))
	recv := newCall()
	cl.RecvExpected(&recv.op, to, 100, make([]byte, 10))
	until(t, "an idle connection", server.evictIdle)
	if err := recv.park(t); err == nil || !strings.Contains(err.Error(), errLost.Error()) {
		t.Errorf("the error at the peer is %v, want %v", err, errLost)
	}
	until(t, "a free place", func() bool {
		server.mu.Lock()
		defer server.mu.Unlock()
		return len(server.claimed) == 0
	})
	newClient(cl, to, 1).must(t, []byte("second"))
}

// relay passes connections on to an address, and records the bytes of both directions.
type relay struct {
	ln  net.Listener
	wg  sync.WaitGroup
	mu  sync.Mutex
	log bytes.Buffer
}

func newRelay(t *testing.T, to netip.AddrPort) *relay {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{ln: ln}
	r.wg.Go(func() {
		for {
			a, err := ln.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp4", to.String())
			if err != nil {
				_ = a.Close()
				continue
			}
			pass := func(dst, src net.Conn) {
				_, _ = io.Copy(dst, io.TeeReader(src, r))
				_, _ = dst.Close(), src.Close()
			}
			r.wg.Go(func() { pass(a, b) })
			r.wg.Go(func() { pass(b, a) })
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		r.wg.Wait()
	})
	return r
}

func (r *relay) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.Write(b)
}

// TestCapture checks that a capture of a connection has no byte of the arguments and results, and that the same call over ofi+tcp has them.
// parity: A01 Y06
func TestCapture(t *testing.T) {
	local := tlstest.NewCA(t).Local(t)
	word := []byte("a secret that no capture may have")
	for _, cfg := range []Config{secure(local), {}} {
		server := openEcho(t, cfg)
		r := newRelay(t, server.self)
		cfg.Firewalled = true
		cl := openEndpoint(t, cfg)
		to, err := cl.Lookup(server.scheme + r.ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		newClient(cl, to, 0).must(t, word)
		big, got := bytes.Repeat(word, 10_000), make([]byte, 10_000*len(word))
		_, from := expose(t, server, cl, big, na.ReadOnly)
		c := newCall()
		cl.Get(&c.op, to, []na.Fragment{{Remote: from, Local: got}})
		if err := c.wait(t, cl, to); err != nil || !bytes.Equal(got, big) {
			t.Fatalf("get through the relay: %v", err)
		}
		closeEndpoint(t, cl)
		r.mu.Lock()
		if n := bytes.Count(r.log.Bytes(), word); (n > 0) == (cfg.TLS != nil) {
			t.Errorf("TLS %v: the capture of %d bytes has the secret %d times", cfg.TLS != nil, r.log.Len(), n)
		}
		r.mu.Unlock()
	}
}

// TestSecureCancel cancels transfers half-way. The connection goes on for other calls.
func TestSecureCancel(t *testing.T) {
	cfg := secure(tlstest.NewCA(t).Local(t))
	server, cl := openEcho(t, cfg), openEndpoint(t, cfg)
	to := addrOf(t, cl, server)
	const size = 16 << 20
	src, dst := make([]byte, size), make([]byte, size)
	_, from := expose(t, server, cl, src, na.ReadOnly)
	_, into := expose(t, server, cl, make([]byte, size), na.WriteOnly)
	for i := range 6 {
		c := newCall()
		if i%2 == 0 {
			cl.Get(&c.op, to, []na.Fragment{{Remote: from, Local: dst}})
		} else {
			cl.Put(&c.op, to, []na.Fragment{{Remote: into, Local: dst}})
		}
		until(t, "the transfer has begun", func() bool { return c.op.Progress.Load() > 0 })
		cl.Cancel(&c.op)
		if err := c.park(t); err != nil {
			wantKind(t, err, na.Canceled)
		}
		newClient(cl, to, uint32(i+1)<<16).must(t, []byte("after a cancellation"))
	}
	if s := cl.Stats(); s.Connections != 1 {
		t.Errorf("%d connections, want 1", s.Connections)
	}
}

// TestSecureHandshakes checks that unfinished TLS handshakes count as half-open connections of their host.
func TestSecureHandshakes(t *testing.T) {
	cfg := secure(tlstest.NewCA(t).Local(t))
	const most = 8
	cfg.Quota = hostquota.NewBook(hostquota.Limits{hostquota.Handshakes: most})
	server := openEcho(t, cfg)
	var conns []net.Conn
	for range 5 * most {
		c, err := net.Dial("tcp4", server.self.String())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		if _, err := c.Write([]byte{22, 3, 1, 2, 0, 1}); err != nil { // the begin of a record
			t.Log(err)
		}
		if n := cfg.Quota.Used(hostquota.Handshakes); n > most {
			t.Fatalf("%d handshakes, want at most %d", n, most)
		}
	}
	cl := openEndpoint(t, secure(cfg.TLS))
	newClient(cl, addrOf(t, cl, server), 0).must(t, []byte("beside the flood"))
	for _, c := range conns {
		_ = c.Close()
	}
}
