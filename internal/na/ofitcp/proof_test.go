package ofitcp

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	proven "cinnabar/identity"
	"cinnabar/internal/admission"
	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/internal/tlsio"
	"cinnabar/internal/tlstest"
	"cinnabar/internal/tokenproof"
)

// withToken returns cfg with a token.
func withToken(cfg Config, t proven.Token) Config {
	cfg.Token = t
	return cfg
}

// unverified returns a configuration that verifies no certificate, so that a man in the middle has TLS with both ends.
func unverified(t *testing.T, name string) *tls.Config {
	own := tlstest.NewCA(t) // that the other end does not know
	return &tls.Config{Certificates: []tls.Certificate{own.Issue(t, tlstest.Certificate{Name: name})}, InsecureSkipVerify: true}
}

// TestToken makes calls between ends with the same token, and checks the identity of the caller.
func TestToken(t *testing.T) {
	tok := proven.NewToken()
	for _, cfg := range []Config{{}, secure(unverified(t, "any")), secure(tlstest.NewCA(t).Local(t))} {
		server, cl := openEcho(t, withToken(cfg, tok)), openEcho(t, withToken(cfg, tok))
		newClient(cl, addrOf(t, cl, server), 0).must(t, []byte("proven"))
		newClient(server, addrOf(t, server, cl), 1<<16).must(t, []byte("in return"))
		server.mu.Lock()
		for c := range server.conns {
			p := c.origin.Identity()
			want := proven.Address
			if cfg.TLS != nil && !cfg.TLS.InsecureSkipVerify {
				want = proven.Certificate
			}
			if !p.Token || p.Kind != want || p.Host != cl.self.Addr() || want == proven.Certificate && (p.Subject != "CN=local" || len(p.Names) != 3) {
				t.Errorf("identity %+v", p)
			}
		}
		server.mu.Unlock()
		newClient(cl, addrOf(t, cl, cl), 2<<16).must(t, []byte("to itself"))
	}
}

// TestTokenRefused checks calls between ends of which one has another token or none. Each is counted once, and the error of the client names the cause.
// parity: A03 Y06
func TestTokenRefused(t *testing.T) {
	tok, other := proven.NewToken(), proven.NewToken()
	for name, cfg := range map[string]Config{"plain": {}, "TLS": secure(unverified(t, "any"))} {
		t.Run(name, func(t *testing.T) {
			server, open := openEcho(t, withToken(cfg, tok)), openEcho(t, cfg)
			cl := openEndpoint(t, withToken(cfg, other))
			refused(t, cl, server.Addr().String(), "tokens of the two processes differ")
			waitCounted(t, server, audit.Refused, causeToken, 1)
			waitCounted(t, cl, audit.Refused, causeServerToken, 1)
			refused(t, openEndpoint(t, cfg), server.Addr().String(), "requires a token", "--token-file")
			waitCounted(t, server, audit.Refused, causeNoToken, 1)
			refused(t, cl, open.Addr().String(), "it has no token", "--token-file")
			waitCounted(t, open, audit.Refused, causeTokenHello, 1)
			waitCounted(t, cl, audit.Refused, causeServerToken, 2)
			if n := counted(server, audit.Accepted, "by request of a peer") + counted(open, audit.Accepted, "by request of a peer"); n != 0 {
				t.Errorf("%d connections were accepted", n)
			}
			newClient(open, addrOf(t, open, open), 0).must(t, []byte("the server goes on"))
		})
	}
}

// TestTokenAndC checks that a process in C gets an ordinary refusal from an endpoint with a token, and that an endpoint with a token refuses a
// server in C, which ends a connection that does not begin as it expects.
func TestTokenAndC(t *testing.T) {
	server := openEcho(t, withToken(Config{}, proven.NewToken()))
	r := newRaw(t)
	c, m := r.dial(server, 1)
	if m.typ != cmNack || len(c.closed()) != 0 {
		t.Errorf("answer %+v", m)
	}
	waitCounted(t, server, audit.Refused, causeNoToken, 1)

	sent := r.send(server, 2, "secret")
	in := r.acceptOnly()
	if b := in.read(cmLen); !tokenproof.IsHello(b) || bytes.Contains(b, []byte("secret")) {
		t.Errorf("a server in C receives % x", b)
	}
	_ = in.Close()
	err := sent.park(t)
	wantKind(t, err, na.Unreachable)
	if !strings.Contains(err.Error(), "without one") {
		t.Errorf("error %v", err)
	}
}

// TestSilentToken checks that a peer that stops within the exchange is a half-open connection of its host.
func TestSilentToken(t *testing.T) {
	server := openEcho(t, withToken(Config{Quota: hostquota.NewBook(hostquota.Limits{hostquota.Handshakes: 100})}, proven.NewToken()))
	c := newRaw(t).dialOnly(server)
	hello := append([]byte("cntk\x01\x01\x00\x00"), make([]byte, 32)...)
	c.write(hello)
	c.read(8 + 64)
	if n := server.cfg.Quota.Used(hostquota.Handshakes); n != 1 {
		t.Errorf("%d half-open connections, want 1", n)
	}
	_ = c.Close()
	until(t, "the connection is no half-open one", func() bool { return server.cfg.Quota.Used(hostquota.Handshakes) == 0 })
	waitCounted(t, server, audit.Refused, causeToken, 1)
}

// middle starts a man in the middle that has TLS with both ends, and records the plaintext.
func middle(t *testing.T, to netip.AddrPort) (addr string, log *relay) {
	t.Helper()
	inner, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := tlsio.Prepare(unverified(t, "mallory"))
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{ln: inner}
	r.wg.Go(func() {
		for {
			nc, err := inner.Accept()
			if err != nil {
				return
			}
			r.wg.Go(func() {
				defer nc.Close()
				b, err := tls.Dial("tcp4", to.String(), cfg)
				if err != nil {
					return
				}
				a := tls.Server(nc, cfg)
				r.wg.Go(func() {
					_, _ = io.Copy(b, io.TeeReader(a, r))
					_ = b.Close()
				})
				_, _ = io.Copy(a, io.TeeReader(b, r))
			})
		}
	})
	t.Cleanup(func() {
		_ = inner.Close()
		r.wg.Wait()
	})
	return inner.Addr().String(), r
}

// TestTokenInTheMiddle has a man in the middle pass on the exchange of two ends with the same token. Over ofi+tcp the token does not stop
// the man, who then reads the arguments. Inside TLS both ends refuse, although they verify no certificate, and no argument is sent.
// parity: A03
func TestTokenInTheMiddle(t *testing.T) {
	word := []byte("a secret argument")
	tok := proven.NewToken()

	plain := openEcho(t, withToken(Config{}, tok))
	r := newRelay(t, plain.self)
	cl := openEndpoint(t, withToken(Config{Firewalled: true}, tok))
	to, err := cl.Lookup("ofi+tcp://" + r.ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	newClient(cl, to, 0).must(t, word)
	r.mu.Lock()
	if !bytes.Contains(r.log.Bytes(), word) {
		t.Error("the man in the middle has not read the argument: SECURITY.md says that it can")
	}
	r.mu.Unlock()
	closeEndpoint(t, cl) // before the relay ends

	cfg := withToken(secure(unverified(t, "any")), tok)
	server := openEcho(t, cfg)
	cfg.Firewalled = true
	cl = openEndpoint(t, cfg)
	addr, log := middle(t, server.self)
	refused(t, cl, secureScheme+addr, "man in the middle")
	waitCounted(t, server, audit.Refused, causeToken, 1)
	waitCounted(t, cl, audit.Refused, causeServerToken, 1)
	log.mu.Lock()
	if b := log.log.Bytes(); !bytes.HasPrefix(b, []byte("cntk")) || bytes.Contains(b, word) || bytes.Contains(b, []byte("secret")) {
		t.Errorf("the man in the middle has read %q", b)
	}
	log.mu.Unlock()
	newClient(cl, addrOf(t, cl, server), 1<<16).must(t, word)
	closeEndpoint(t, cl)
}

// TestTokenOracle has an engine dial a stranger, which passes the exchange on to the listener of the same engine. The stranger would have a
// connection that the engine itself has proven.
func TestTokenOracle(t *testing.T) {
	tok := proven.NewToken()
	victim := openEcho(t, withToken(Config{}, tok))
	r := newRelay(t, victim.self)
	refused(t, victim, "ofi+tcp://"+r.ln.Addr().String(), "passed on")
	waitCounted(t, victim, audit.Refused, causeOwnHello, 1)
	if n := counted(victim, audit.Accepted, "by request of a peer"); n != 0 {
		t.Errorf("the stranger has %d connections", n)
	}
	newClient(victim, addrOf(t, victim, victim), 1<<16).must(t, []byte("to itself"))
}

// TestTokenReplay records the bytes that a client sends, and sends them once more.
// parity: A03
func TestTokenReplay(t *testing.T) {
	tok := proven.NewToken()
	server := openEcho(t, withToken(Config{}, tok))
	c := newRaw(t).dialOnly(server)
	var hello, proof bytes.Buffer
	var free tokenproof.Nonces
	record := &splitWriter{first: &hello, rest: &proof, rw: c}
	if err := tokenproof.Client(record, tok, nil, free.Add); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	waitCounted(t, server, audit.Broken, causeRequest, 1) // the token was right, and no request came
	c = newRaw(t).dialOnly(server)
	c.write(hello.Bytes())
	c.read(8 + 64)
	c.write(proof.Bytes())
	c.closed()
	waitCounted(t, server, audit.Refused, causeToken, 1)
}

// splitWriter records the first write and the others.
type splitWriter struct {
	first, rest *bytes.Buffer
	rw          io.ReadWriter
}

func (s *splitWriter) Read(b []byte) (int, error) { return s.rw.Read(b) }

func (s *splitWriter) Write(b []byte) (int, error) {
	if s.first.Len() == 0 {
		s.first.Write(b)
	} else {
		s.rest.Write(b)
	}
	return s.rw.Write(b)
}

// TestAdmit checks that a refused peer gets the reason at once and is counted once, and that a call of Admit which takes long does not
// hold up another connection.
// parity: A02
func TestAdmit(t *testing.T) {
	var asked atomic.Int32
	release := make(chan struct{})
	gate := admission.New(func(ctx context.Context, p proven.Peer) error {
		if end, ok := ctx.Deadline(); !ok || time.Until(end) > handshakeTime-alertTime {
			t.Errorf("Admit may take until %v, and leaves no time for the refusal", end)
		}
		switch n := asked.Add(1); {
		case p.Kind != proven.Address || p.Host != netip.MustParseAddr("127.0.0.1"):
			t.Errorf("asked about %v", p)
		case n == 1:
			return errors.New("the first one is refused")
		case n == 2:
			<-release
		}
		return nil
	}, nil)
	server := openEcho(t, Config{Admit: gate})
	refused(t, openEndpoint(t, Config{}), server.Addr().String(), "does not admit", "Config.Admit")
	waitCounted(t, server, audit.Refused, causeAdmit, 1)
	slow := newRaw(t).dialOnly(server)
	slow.write(appendCM(nil, cmMessage{typ: cmRequest, version: 1, port: 9, pid: 9, probe: probeLittle}))
	until(t, "Admit is called", func() bool { return asked.Load() == 2 })
	cl := openEndpoint(t, Config{})
	newClient(cl, addrOf(t, cl, server), 0).must(t, []byte("meanwhile"))
	close(release)
	if m := slow.cm(); m.typ != cmResponse {
		t.Errorf("the slow one got %+v", m)
	}
	newClient(cl, addrOf(t, cl, server), 1<<16).must(t, []byte("the same connection"))
	newClient(server, addrOf(t, server, server), 2<<16).must(t, []byte("to itself"))
	if n := asked.Load(); n != 3 {
		t.Errorf("Admit was called %d times, want once for each of 3 connections", n)
	}
}

// TestAdmitEndsWithEndpoint closes an endpoint while Admit waits.
func TestAdmitEndsWithEndpoint(t *testing.T) {
	asked, ended := make(chan struct{}), make(chan error, 1)
	server := openEcho(t, Config{Admit: admission.New(func(ctx context.Context, _ proven.Peer) error {
		close(asked)
		<-ctx.Done()
		ended <- ctx.Err()
		return nil
	}, nil)})
	c := newRaw(t).dialOnly(server)
	c.write(appendCM(nil, cmMessage{typ: cmRequest, version: 1, port: 9, pid: 9, probe: probeLittle}))
	<-asked
	closeEndpoint(t, server)
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// TestAdmitEndsWithConnection checks that the call of Admit for a half-open connection that gives way to others ends at once. A host could
// otherwise have many more calls wait than it may have half-open connections.
func TestAdmitEndsWithConnection(t *testing.T) {
	const limit = 4
	var asked atomic.Int32
	ended := make(chan error, limit+1)
	server := openEcho(t, Config{Quota: hostquota.NewBook(hostquota.Limits{hostquota.Handshakes: limit}), Admit: admission.New(func(ctx context.Context, _ proven.Peer) error {
		asked.Add(1)
		<-ctx.Done()
		ended <- ctx.Err()
		return ctx.Err()
	}, nil)})
	r := newRaw(t)
	for range limit + 1 {
		r.dialOnly(server).write(appendCM(nil, cmMessage{typ: cmRequest, version: 1, port: 9, pid: 9, probe: probeLittle}))
		until(t, "Admit is called", func() bool { return asked.Load() > 0 }) // for the first one, which is the oldest
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("a call ends with %v, want it to end with its connection", err)
	}
}

// TestAdmitSeesCertificates checks the identity that Admit gets over TLS.
func TestAdmitSeesCertificates(t *testing.T) {
	ca := tlstest.NewCA(t)
	got := make(chan proven.Peer, 1)
	cfg := secure(ca.Local(t))
	cfg.Admit = admission.New(func(_ context.Context, p proven.Peer) error { got <- p; return nil }, nil)
	server := openEcho(t, cfg)
	cl := openEndpoint(t, secure(ca.Mutual(t, tlstest.Certificate{Name: "anna", Hosts: []string{"127.0.0.1", "a.example"}})))
	newClient(cl, addrOf(t, cl, server), 0).must(t, []byte("anna"))
	if p := <-got; p.String() != "subject:CN=anna DNS:a.example IP:127.0.0.1 addr:127.0.0.1" {
		t.Errorf("identity %v", p)
	}
}

// TestDialTLS checks that each dial asks for its configuration, and that an error of the function fails the dial.
func TestDialTLS(t *testing.T) {
	old, renewed := tlstest.NewCA(t), tlstest.NewCA(t)
	var current atomic.Pointer[tls.Config]
	cfg := secure(old.Local(t))
	cfg.DialTLS = func() (*tls.Config, error) {
		if c := current.Load(); c != nil {
			return c, nil
		}
		return nil, errors.New("nothing is loaded")
	}
	cl := openEndpoint(t, cfg)
	server := openEcho(t, secure(renewed.Local(t)))
	refused(t, cl, server.Addr().String(), "Config.DialTLS", "nothing is loaded")
	current.Store(old.Local(t))
	refused(t, cl, server.Addr().String(), "unknown authority")
	current.Store(renewed.Local(t))
	newClient(cl, addrOf(t, cl, server), 0).must(t, []byte("renewed"))
	if _, err := Open(t.Context(), Config{DialTLS: cfg.DialTLS}); err == nil {
		t.Error("DialTLS without TLS is accepted")
	}
}
