package iwarp_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cinnabar/identity"
	"cinnabar/internal/tlstest"
	"cinnabar/internal/tokenproof"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
	"cinnabar/verbs/verbstest"
)

// secure returns the configuration of a device with TLS, mutual authentication and a certificate for the loopback addresses.
func secure(t *testing.T) iwarp.Config { return iwarp.Config{TLS: tlstest.NewCA(t).Local(t)} }

// unverified returns a configuration that verifies no certificate, so that a man in the middle has TLS with both ends.
func unverified(t *testing.T, name string) *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{tlstest.NewCA(t).Issue(t, tlstest.Certificate{Name: name})}, InsecureSkipVerify: true, NextProtos: []string{"cinnabar-iwarp"}}
}

// TestTLSOpcodes runs every operation once over TLS.
func TestTLSOpcodes(t *testing.T) {
	cfg := secure(t)
	for name, edit := range map[string]func(*iwarp.Config){
		"default":   func(*iwarp.Config) {},
		"token":     func(c *iwarp.Config) { c.Token = identity.NewToken() },
		"confirm":   func(c *iwarp.Config) { c.ConfirmWrites = true },
		"smallFPDU": func(c *iwarp.Config) { c.MaxULPDU = 128 },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := cfg
			edit(&cfg)
			testOpcodes(t, cfg)
		})
	}
}

// TestTLSConformance runs the suite of package verbstest on a device with TLS and a token. The groups with most traffic need CINNABAR_LARGE=1.
func TestTLSConformance(t *testing.T) {
	cfg := secure(t)
	cfg.Token = identity.NewToken()
	verbstest.TestDevice(t, func(t *testing.T, o verbstest.Options) *verbs.Device {
		if o.NoAllocs {
			t.Skip("crypto/tls allocates")
		}
		group := strings.Split(t.Name(), "/")[1]
		if slices.Contains([]string{"Learn", "Stress", "Memory", "Flush", "LockLimit"}, group) && os.Getenv("CINNABAR_LARGE") == "" {
			t.Skip("group ", group, " has much traffic: set CINNABAR_LARGE=1")
		}
		return openSuite(t, o, cfg)
	})
}

// dialError dials a listener of server with a device of configuration cfg, and returns the error.
func dialError(t *testing.T, server *side, addr netip.AddrPort, cfg iwarp.Config) error {
	t.Helper()
	c := newSide(t, cfg, nil)
	conn, err := verbs.Dial(testContext(t), c.qp, addr, verbs.ConnParam{PrivateData: []byte("secret")})
	if err == nil {
		_ = conn.Disconnect(testContext(t))
		t.Fatal("the dial succeeded")
	}
	if n := server.dev.Stats()["connections"]; n != 0 {
		t.Errorf("the server has %d connections", n)
	}
	return err
}

// refusals is a device that listens and counts the peers that it refuses.
type refusals struct {
	*side
	l *verbs.Listener
	n uint64
}

func listenSecure(t *testing.T, cfg iwarp.Config) *refusals {
	t.Helper()
	s := newSide(t, cfg, nil)
	l, err := verbs.Listen(s.dev, netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // some tests have closed it
	return &refusals{side: s, l: l}
}

// refuses dials with a configuration, and checks the words of the error and that it is counted once.
func (r *refusals) refuses(t *testing.T, cfg iwarp.Config, words ...string) {
	t.Helper()
	wantWords(t, dialError(t, r.side, r.l.Addr(), cfg), words...)
	r.counts(t)
}

// counts waits until the next refusal is counted, because a server may count it after the client has seen it.
func (r *refusals) counts(t *testing.T) {
	t.Helper()
	r.n++
	eventually(t, "the refusal is counted", func() bool { return r.dev.Stats()["audit_refused"] >= r.n })
	if got := r.dev.Stats()["audit_refused"]; got != r.n {
		t.Errorf("%d refusals are counted, want %d", got, r.n)
	}
}

// serves checks that a client with a configuration is served.
func (r *refusals) serves(t *testing.T, cfg iwarp.Config) {
	t.Helper()
	c, done := newSide(t, cfg, nil), make(chan error, 1)
	go func() {
		req, err := r.l.Accept(testContext(t))
		if err == nil {
			err = req.Reject([]byte("served"))
		}
		done <- err
	}()
	_, err := verbs.Dial(testContext(t), c.qp, r.l.Addr(), verbs.ConnParam{})
	if rejected, ok := errors.AsType[*verbs.RejectedError](err); !ok || string(rejected.PrivateData) != "served" {
		t.Errorf("the program's answer was not received: %v", err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func wantWords(t *testing.T, err error, words ...string) {
	t.Helper()
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("error %v, want %q in it", err, w)
		}
	}
}

// TestTLSCertificatesRefused checks dials with certificates that one of the two ends does not accept.
// parity: A01
func TestTLSCertificatesRefused(t *testing.T) {
	ca, other := tlstest.NewCA(t), tlstest.NewCA(t)
	local := ca.Local(t)
	server := listenSecure(t, iwarp.Config{TLS: local})
	with := func(change func(c *tls.Config)) iwarp.Config {
		c := local.Clone()
		change(c)
		return iwarp.Config{TLS: c}
	}
	certificate := func(ca *tlstest.CA, c tlstest.Certificate) iwarp.Config {
		return with(func(cfg *tls.Config) { cfg.Certificates = []tls.Certificate{ca.Issue(t, c)} })
	}
	server.refuses(t, with(func(c *tls.Config) { c.Certificates = nil }), "certificate is missing or was refused")
	server.refuses(t, certificate(other, tlstest.Certificate{Name: "foreign"}), "certificate is missing or was refused")
	server.refuses(t, certificate(ca, tlstest.Certificate{Name: "old", Expired: true}), "certificate is missing or was refused")
	server.refuses(t, with(func(c *tls.Config) { c.ServerName = "other.example" }), "other.example")
	server.refuses(t, with(func(c *tls.Config) { c.RootCAs = other.Pool() }), "unknown authority")
	server.refuses(t, with(func(c *tls.Config) { c.NextProtos = []string{"cinnabar-tcp"} }), "no application protocol")
	server.serves(t, iwarp.Config{TLS: local})
	server.serves(t, iwarp.Config{TLS: unverified(t, "any"), DialTLS: func() (*tls.Config, error) { return local, nil }})

	named := listenSecure(t, iwarp.Config{TLS: ca.Mutual(t, tlstest.Certificate{Name: "named", Hosts: []string{"server.example"}})})
	named.refuses(t, iwarp.Config{TLS: local}, "127.0.0.1")
	named.serves(t, with(func(c *tls.Config) { c.ServerName = "server.example" }))
}

// TestPlainAndTLS checks that devices with and without TLS, or a token, refuse each other in words, and that the server counts it.
// parity: A01 A03
func TestPlainAndTLS(t *testing.T) {
	encrypted, plain := secure(t), iwarp.Config{}
	tok := identity.NewToken()
	with := func(c iwarp.Config) iwarp.Config { c.Token = tok; return c }
	for _, c := range []struct {
		server, client iwarp.Config
		words          []string
	}{
		{encrypted, plain, []string{"requires TLS", "Config.TLS"}},
		{encrypted, iwarp.Config{Revision: 1}, []string{"requires TLS", "Config.TLS"}},
		{encrypted, with(plain), []string{"requires TLS", "Config.TLS"}},
		{with(encrypted), plain, []string{"requires TLS", "Config.TLS"}},
		{with(encrypted), encrypted, []string{"requires a token", "Config.Token"}},
		{encrypted, with(encrypted), []string{"has no token", "Config.Token"}},
		{plain, encrypted, []string{"does not speak TLS", "Config.TLS"}},
		{plain, with(encrypted), []string{"does not speak TLS", "Config.TLS"}},
		{with(plain), encrypted, []string{"does not speak TLS", "Config.TLS"}},
		{with(plain), plain, []string{"requires a token", "Config.Token"}},
		{plain, with(plain), []string{"has no token", "Config.Token"}},
	} {
		server := listenSecure(t, c.server)
		server.refuses(t, c.client, c.words...)
		server.serves(t, c.server)
	}
}

// TestTokenRefused checks dials with another token and with no token. Both ends count the former.
// parity: A03
func TestTokenRefused(t *testing.T) {
	tok := identity.NewToken()
	for name, cfg := range map[string]iwarp.Config{"plain": {}, "TLS": {TLS: unverified(t, "any")}} {
		t.Run(name, func(t *testing.T) {
			right, wrong := cfg, cfg
			right.Token, wrong.Token = tok, identity.NewToken()
			server := listenSecure(t, right)
			server.refuses(t, wrong, "tokens of the two processes differ")
			server.serves(t, right)
			own := server.side // a device may dial itself
			done := make(chan error, 1)
			go func() {
				req, err := server.l.Accept(testContext(t))
				if err == nil {
					err = req.Reject(nil)
				}
				done <- err
			}()
			if _, err := verbs.Dial(testContext(t), own.qp, server.l.Addr(), verbs.ConnParam{}); err == nil || strings.Contains(err.Error(), "token") {
				t.Errorf("a dial of itself: %v", err)
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestTokenReplay records the bytes by which a client proves its token, and sends them once more.
// parity: A03
func TestTokenReplay(t *testing.T) {
	tok := identity.NewToken()
	server := listenSecure(t, iwarp.Config{Token: tok})
	dial := func() net.Conn {
		c := dialListener(t, server.l).tc
		return c
	}
	c := dial()
	record := &recorder{ReadWriter: c}
	var free tokenproof.Nonces
	if err := tokenproof.Client(record, tok, nil, free.Add); err != nil {
		t.Fatal(err)
	}
	_ = c.Close() // the token was right, and no request comes
	server.counts(t)
	c = dial()
	const hello = 8 + 32 // bytes
	if _, err := c.Write(record.sent.Bytes()[:hello]); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 8+64)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(record.sent.Bytes()[hello:]); err != nil {
		t.Fatal(err)
	}
	server.counts(t)
	if n, err := c.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection goes on: %d bytes, %v", n, err)
	}
}

// recorder records the bytes that are written.
type recorder struct {
	io.ReadWriter
	sent bytes.Buffer
}

func (r *recorder) Write(b []byte) (int, error) {
	r.sent.Write(b)
	return r.ReadWriter.Write(b)
}

// middle passes connections on to an address, by TLS with both ends if cfg is not nil, and records the bytes of both directions.
type middle struct {
	ln  net.Listener
	wg  sync.WaitGroup
	mu  sync.Mutex
	log bytes.Buffer
}

func newMiddle(t *testing.T, to netip.AddrPort, cfg *tls.Config) *middle {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &middle{ln: ln}
	m.wg.Go(func() {
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
			if cfg != nil {
				a, b = tls.Server(a, cfg), tls.Client(b, cfg)
			}
			pass := func(dst, src net.Conn) {
				_, _ = io.Copy(dst, io.TeeReader(src, m))
				_, _ = dst.Close(), src.Close()
			}
			m.wg.Go(func() { pass(a, b) })
			m.wg.Go(func() { pass(b, a) })
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		m.wg.Wait()
	})
	return m
}

func (m *middle) addr() netip.AddrPort { return m.ln.Addr().(*net.TCPAddr).AddrPort() }

func (m *middle) Write(b []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.log.Write(b)
}

// has returns how often the record has the bytes.
func (m *middle) has(b []byte) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return bytes.Count(m.log.Bytes(), b)
}

// TestTokenInTheMiddle has a man in the middle pass on the exchange of two devices with the same token. Without TLS the token does not stop
// the man. Inside TLS both ends refuse, although they verify no certificate, and no private data is sent.
// parity: A03
func TestTokenInTheMiddle(t *testing.T) {
	tok := identity.NewToken()
	cfg := iwarp.Config{TLS: unverified(t, "any"), Token: tok}
	server := listenSecure(t, cfg)
	man := newMiddle(t, server.l.Addr(), unverified(t, "mallory"))
	wantWords(t, dialError(t, server.side, man.addr(), cfg), "man in the middle")
	server.counts(t)
	if man.has([]byte("cntk")) == 0 || man.has([]byte("secret")) > 0 {
		t.Error("the man in the middle has read other bytes than those of the exchange")
	}
	server.serves(t, cfg)

	plain := iwarp.Config{Token: tok}
	server = listenSecure(t, plain)
	man = newMiddle(t, server.l.Addr(), nil)
	done := make(chan error, 1)
	go func() {
		req, err := server.l.Accept(testContext(t))
		if err == nil {
			err = req.Reject([]byte("a secret"))
		}
		done <- err
	}()
	_ = dialError(t, server.side, man.addr(), plain)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if man.has([]byte("a secret")) == 0 {
		t.Error("the man in the middle has not read the private data: SECURITY.md says that it can")
	}
}

// TestTokenOracle has a device dial a stranger, which passes the exchange on to the listener of the same device. The stranger would have a
// connection that the device itself has proven.
func TestTokenOracle(t *testing.T) {
	server := listenSecure(t, iwarp.Config{Token: identity.NewToken()})
	stranger := newMiddle(t, server.l.Addr(), nil)
	_, err := verbs.Dial(testContext(t), server.qp, stranger.addr(), verbs.ConnParam{})
	wantWords(t, err, "passed on")
	eventually(t, "both ends of the exchange are counted", func() bool { return server.dev.Stats()["audit_refused"] == 2 })
}

// TestTLSDowngrade checks that a client with an earlier version of TLS, or with another protocol inside it, is refused.
// parity: A01
func TestTLSDowngrade(t *testing.T) {
	cfg := secure(t)
	server := listenSecure(t, cfg)
	for name, edit := range map[string]func(*tls.Config){
		"TLS 1.2":        func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 },
		"no protocol":    func(c *tls.Config) { c.NextProtos = nil },
		"other protocol": func(c *tls.Config) { c.NextProtos = []string{"h2"} },
	} {
		c := cfg.TLS.Clone()
		c.NextProtos, c.ServerName = []string{"cinnabar-iwarp"}, "127.0.0.1"
		edit(c)
		conn := tls.Client(dialListener(t, server.l).tc, c)
		_, err := conn.Read(make([]byte, 1))
		if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
		_ = conn.Close() // the connection may have failed
		server.counts(t)
	}
	old := cfg.TLS.Clone()
	old.MaxVersion = tls.VersionTLS12
	for word, c := range map[string]iwarp.Config{"MaxVersion": {TLS: old}, "without Config.TLS": {DialTLS: func() (*tls.Config, error) { return old, nil }}} {
		_, err := iwarp.Open(c)
		wantWords(t, err, word)
	}
	wantWords(t, dialError(t, server.side, server.l.Addr(), iwarp.Config{TLS: cfg.TLS, DialTLS: func() (*tls.Config, error) { return old, nil }}), "Config.DialTLS", "MaxVersion")
	s := newSide(t, iwarp.Config{TLS: &tls.Config{}}, nil)
	_, err := verbs.Listen(s.dev, netip.MustParseAddrPort("127.0.0.1:0"))
	wantWords(t, err, "no certificate")
}

// TestTLSHostileHellos checks that a device goes on after first bytes that begin as a TLS handshake and are none, and that unfinished
// handshakes count as those of their host.
func TestTLSHostileHellos(t *testing.T) {
	cfg := secure(t)
	cfg.Token = identity.NewToken()
	server := listenSecure(t, cfg)
	for _, hello := range []string{
		"\x16\xff\xff\x00\x05hello",            // a version that no TLS has
		"\x16\x03\x01\xff\xff",                 // a record that is too long
		"\x16\x03\x01\x00\x04\x02\x00\x00\x00", // a message that is no ClientHello
		"\x16",
		"cntk\x01\x01\x00\x00",
		"GET / HTTP/1.1\r\n\r\n",
		"",
	} {
		c := dialListener(t, server.l).tc
		if _, err := c.Write([]byte(hello)); err != nil {
			t.Error(err)
		}
		_ = c.CloseWrite() // the device may have closed the connection
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%q: the device keeps the connection", hello)
		}
		server.counts(t)
	}
	var conns []net.Conn
	var began time.Time
	eventually(t, "the handshakes are counted", func() bool {
		if time.Since(began) > 3*time.Second { // the device ends a handshake after 5 s, which a busy machine may take for four of them
			for _, c := range conns {
				_ = c.Close() // the device may have closed it
			}
			conns, began = nil, time.Now()
			for range 4 {
				c := dialListener(t, server.l).tc
				if _, err := c.Write([]byte{22, 3, 1, 2, 0, 1}); err != nil { // the begin of a record
					t.Error(err)
				}
				conns = append(conns, c)
			}
		}
		return server.dev.Stats()["quota_handshakes"] == 4
	})
	server.serves(t, cfg)
	for _, c := range conns {
		_ = c.Close() // the device ends it otherwise
	}
	eventually(t, "the handshakes are over", func() bool { return server.dev.Stats()["quota_handshakes"] == 0 })
}

// TestTLSCapture checks that a capture of a connection has no byte of the private data and of the payload, and that one without TLS has them.
// parity: A01
func TestTLSCapture(t *testing.T) {
	word := []byte("a secret that no capture may have")
	for _, cfg := range []iwarp.Config{secure(t), {}} {
		a, b := newSide(t, cfg, nil), newSide(t, cfg, nil)
		man := connectBy(t, a, b, verbs.ConnParam{PrivateData: word})
		const n = 10_000
		src, dst, back := a.region(t, n*len(word)), b.region(t, n*len(word)), a.region(t, n*len(word))
		copy(src.Bytes(), bytes.Repeat(word, n))
		a.send(t, verbs.SendWR{ID: 1, Op: verbs.OpWrite, SGL: []verbs.SGE{src.SGE(0, src.Len())}, Remote: dst.Remote()},
			verbs.SendWR{ID: 2, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{back.SGE(0, src.Len())}, Remote: dst.Remote()})
		a.want(t, 2, verbs.WCRead, verbs.StatusSuccess)
		if !bytes.Equal(src.Bytes(), back.Bytes()) {
			t.Error("the bytes differ")
		}
		if n := man.has(word); (n > 0) == (cfg.TLS != nil) {
			t.Errorf("TLS %t: the capture has the secret %d times", cfg.TLS != nil, n)
		}
		if err := a.conn.Disconnect(testContext(t)); err != nil {
			t.Error(err)
		}
		<-b.conn.Done()
		if err := b.conn.Err(); !errors.Is(err, verbs.ErrDisconnected) {
			t.Errorf("TLS %t: the end at the peer: %v", cfg.TLS != nil, err)
		}
	}
}

// connectBy connects two sides by a man in the middle, who only records.
func connectBy(t *testing.T, active, passive *side, param verbs.ConnParam) *middle {
	t.Helper()
	l, err := verbs.Listen(passive.dev, netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	man := newMiddle(t, l.Addr(), nil)
	done := make(chan error, 1)
	go func() {
		r, err := l.Accept(testContext(t))
		if err == nil {
			passive.conn, err = r.Accept(testContext(t), passive.qp, verbs.ConnParam{})
		}
		done <- err
	}()
	if active.conn, err = verbs.Dial(testContext(t), active.qp, man.addr(), param); err != nil {
		t.Fatal("dial:", err)
	}
	if err := <-done; err != nil {
		t.Fatal("accept:", err)
	}
	return man
}
