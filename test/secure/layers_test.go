package secure

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"cinnabar"
	"cinnabar/identity"
	"cinnabar/internal/tlstest"
	"cinnabar/rmem"
	"cinnabar/rmem/verbsrmem"
	"cinnabar/verbs"
	"cinnabar/verbs/auto"
	"cinnabar/verbs/flow"
	"cinnabar/verbs/iwarp"
	"cinnabar/verbs/rstream"
	"cinnabar/xfer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// secret is in the payload of each test.
var secret = []byte("a secret that no capture may have")

// patience bounds every wait; only a test that fails reaches it.
const patience = 20 * time.Second

var loopback = netip.MustParseAddrPort("127.0.0.1:0")

// device opens a software device, which is closed at the end of the test.
func device(t *testing.T, cfg iwarp.Config) *verbs.Device {
	t.Helper()
	dev, err := iwarp.Open(cfg)
	must(t, err)
	closeAtEnd(t, dev)
	return dev
}

func closeAtEnd(t *testing.T, c io.Closer) {
	t.Cleanup(func() { must(t, c.Close()) })
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// man passes connections on to an address, and records the bytes of both directions.
type man struct {
	ln    net.Listener
	wg    sync.WaitGroup
	mu    sync.Mutex
	log   bytes.Buffer
	conns []net.Conn
	ended bool
}

// between starts a man in the middle. accept and dial make the two connections of each pair.
func between(t *testing.T, accept func(net.Conn) net.Conn, dial func() (net.Conn, error)) *man {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	m := &man{ln: ln}
	m.wg.Go(func() {
		for {
			a, err := ln.Accept()
			if err != nil {
				return
			}
			b, err := dial()
			if err != nil {
				t.Error(err)
				_ = a.Close()
				continue
			}
			a = accept(a)
			m.keep(a, b)
			m.wg.Go(func() {
				var both sync.WaitGroup
				both.Go(func() { m.pass(a, b) })
				both.Go(func() { m.pass(b, a) })
				both.Wait()
				_, _ = a.Close(), b.Close() // they may have failed
			})
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		m.end()
		m.wg.Wait()
	})
	return m
}

// keep notes connections for the end of the test.
func (m *man) keep(conns ...net.Conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.conns = append(m.conns, conns...)
	if m.ended {
		m.closeLocked()
	}
}

// end closes the connections that are left.
func (m *man) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended = true
	m.closeLocked()
}

func (m *man) closeLocked() {
	for _, c := range m.conns {
		_ = c.Close() // most are closed already
	}
}

// pass copies one direction, and its end.
func (m *man) pass(dst, src net.Conn) {
	if _, err := io.Copy(dst, io.TeeReader(src, m)); err != nil {
		_, _ = dst.Close(), src.Close() // the connection is gone
		return
	}
	if c, ok := dst.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite() // it may be gone
	}
}

func (m *man) Write(b []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.log.Write(b)
}

// has returns how often the record has the secret.
func (m *man) has() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return bytes.Count(m.log.Bytes(), secret)
}

func (m *man) addr() netip.AddrPort { return m.ln.Addr().(*net.TCPAddr).AddrPort() }

// listening dials a server.
func listening(addr netip.AddrPort) func() (net.Conn, error) {
	return func() (net.Conn, error) { return net.Dial("tcp4", addr.String()) }
}

func plain(c net.Conn) net.Conn { return c }

// layer is a protocol over a device. run serves it on one device, gives the address to via, uses it on the other device at the address that via
// returns, and returns the client's error.
type layer struct {
	name string
	run  func(t *testing.T, server, client *verbs.Device, via func(netip.AddrPort) netip.AddrPort) error
}

var layers = []layer{
	{"flow", runFlow}, {"rstream", runStream}, {"http", runHTTP}, {"xfer", runTransfer}, {"rmem", runMemory}, {"rpc", runCalls},
}

func runFlow(t *testing.T, server, client *verbs.Device, via func(netip.AddrPort) netip.AddrPort) (err error) {
	ctx, cancel := context.WithCancel(testContext(t))
	l, err := flow.Listen(server, loopback, flow.Config{})
	must(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		c, err := l.Accept(ctx)
		if err != nil {
			return // the client was refused
		}
		for r, err := c.Recv(ctx); err == nil; r, err = c.Recv(ctx) {
			if err := errors.Join(c.Send(ctx, r.Bytes()), r.Release()); err != nil {
				t.Error(err)
			}
		}
		_ = c.Close() // the client may have closed it
	})
	defer func() {
		cancel()
		must(t, l.Close())
		wg.Wait()
	}()
	c, err := flow.Dial(testContext(t), client, via(l.Addr()), flow.Config{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := c.Send(testContext(t), secret); err != nil {
		return err
	}
	r, err := c.Recv(testContext(t))
	if err != nil {
		return err
	}
	if !bytes.Equal(r.Bytes(), secret) {
		t.Errorf("the echo is %q", r.Bytes())
	}
	return r.Release()
}

func runStream(t *testing.T, server, client *verbs.Device, via func(netip.AddrPort) netip.AddrPort) error {
	l, err := rstream.Listen(server, loopback)
	must(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		c, err := l.Accept()
		if err != nil {
			return // the client was refused
		}
		if _, err := io.Copy(c, c); err != nil {
			t.Error(err)
		}
		must(t, c.Close())
	})
	defer func() {
		must(t, l.Close())
		wg.Wait()
	}()
	c, err := rstream.Dial(testContext(t), client, via(netip.MustParseAddrPort(l.Addr().String())))
	if err != nil {
		return err
	}
	text := bytes.Repeat(secret, 10_000)
	wg.Go(func() {
		if _, err := c.Write(text); err != nil {
			t.Error(err)
		}
		if err := c.CloseWrite(); err != nil {
			t.Error(err)
		}
	})
	got, err := io.ReadAll(c)
	if !bytes.Equal(got, text) {
		t.Errorf("%d bytes came back of %d", len(got), len(text))
	}
	return errors.Join(err, c.Close())
}

func runHTTP(t *testing.T, server, client *verbs.Device, via func(netip.AddrPort) netip.AddrPort) error {
	l, err := rstream.Listen(server, loopback)
	must(t, err)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body) // the client sees what is missing
	})}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	to := via(netip.MustParseAddrPort(l.Addr().String()))
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return rstream.Dial(ctx, client, to) }}
	defer func() {
		transport.CloseIdleConnections()
		must(t, srv.Shutdown(testContext(t)))
		wg.Wait()
	}()
	req, err := http.NewRequestWithContext(testContext(t), http.MethodPost, "http://server.example/", bytes.NewReader(secret))
	must(t, err)
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return err
	}
	got, err := io.ReadAll(resp.Body)
	if !bytes.Equal(got, secret) {
		t.Errorf("the echo is %q", got)
	}
	return errors.Join(err, resp.Body.Close())
}

func runTransfer(t *testing.T, server, client *verbs.Device, via func(netip.AddrPort) netip.AddrPort) error {
	l, err := verbs.Listen(server, loopback)
	must(t, err)
	in := t.TempDir()
	dir, err := xfer.OpenDir(t.Context(), in, xfer.DirOptions{})
	must(t, err)
	ctx, cancel := context.WithCancel(testContext(t))
	var wg sync.WaitGroup
	wg.Go(func() {
		r := xfer.Receiver{Open: dir.Open}
		if err := r.Serve(ctx, l); err != nil {
			t.Error(err)
		}
	})
	defer func() {
		cancel()
		wg.Wait()
		must(t, errors.Join(l.Close(), dir.Close()))
	}()
	text := bytes.Repeat(secret, 50_000)
	var s xfer.Sender
	if _, err := s.Send(testContext(t), client, via(l.Addr()), xfer.Source{Name: "file", Data: bytes.NewReader(text), Size: int64(len(text))}); err != nil {
		return err
	}
	if got, err := os.ReadFile(filepath.Join(in, "file")); err != nil || !bytes.Equal(got, text) {
		t.Errorf("the file has %d bytes of %d, %v", len(got), len(text), err)
	}
	return nil
}

func runMemory(t *testing.T, server, client *verbs.Device, via func(netip.AddrPort) netip.AddrPort) (err error) {
	s, err := verbsrmem.Listen(server, loopback, rmem.Config{Quota: 1 << 30})
	must(t, err)
	defer func() { must(t, s.Close()) }()
	ctx := testContext(t)
	c, err := verbsrmem.Dial(ctx, client, via(s.Addr()))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	text := bytes.Repeat(secret, 10_000)
	r, err := c.Alloc(ctx, int64(len(text)))
	if err != nil {
		return err
	}
	got := make([]byte, len(text))
	if _, err := r.WriteAtContext(ctx, text, 0); err != nil {
		return err
	}
	if _, err := r.ReadAtContext(ctx, got, 0); err != nil {
		return err
	}
	if !bytes.Equal(got, text) {
		t.Error("other bytes came back")
	}
	return r.Free(ctx)
}

var echo = cinnabar.NewRPC[string, string]("echo")

func runCalls(t *testing.T, server, client *verbs.Device, via func(netip.AddrPort) netip.AddrPort) error {
	ctx := testContext(t)
	s, err := cinnabar.Listen(ctx, "ofi+verbs://127.0.0.1:0", &cinnabar.Config{Device: auto.Use(server)})
	must(t, err)
	defer func() { must(t, s.Close()) }()
	must(t, echo.Handle(s, func(_ context.Context, in string) (string, error) { return in, nil }))
	c, err := cinnabar.Open(ctx, "ofi+verbs", &cinnabar.Config{Device: auto.Use(client)})
	must(t, err)
	defer func() { must(t, c.Close()) }()
	scheme, addr, _ := strings.Cut(s.Addr(), "://")
	to, err := c.Lookup(scheme + "://" + via(netip.MustParseAddrPort(addr)).String())
	must(t, err)
	text := strings.Repeat(string(secret), 1000)
	got, err := echo.Call(ctx, to, text)
	if err == nil && got != text {
		t.Errorf("%d bytes came back of %d", len(got), len(text))
	}
	return err
}

// TestLayers runs all layers between two devices with TLS and a token. The man in the middle sees no byte of the payload, and sees it without
// TLS. Clients with the certificate of another authority, with another token, and without either are refused.
// parity: A01 A03
func TestLayers(t *testing.T) {
	local, other := tlstest.NewCA(t).Local(t), tlstest.NewCA(t).Local(t)
	tok := identity.NewToken()
	both := iwarp.Config{TLS: local, Token: tok}
	foreign := local.Clone()
	foreign.Certificates = other.Certificates
	for _, l := range layers {
		t.Run(l.name, func(t *testing.T) {
			for _, cfg := range []iwarp.Config{both, {Token: tok}, {}} {
				server, client := device(t, cfg), device(t, cfg)
				var m *man
				err := l.run(t, server, client, func(a netip.AddrPort) netip.AddrPort {
					m = between(t, plain, listening(a))
					return m.addr()
				})
				if err != nil {
					t.Errorf("TLS %t: %v", cfg.TLS != nil, err)
				}
				if n := m.has(); (n > 0) == (cfg.TLS != nil) {
					t.Errorf("TLS %t: the capture has the secret %d times", cfg.TLS != nil, n)
				}
			}
			direct := func(a netip.AddrPort) netip.AddrPort { return a }
			for words, cfg := range map[string]iwarp.Config{
				"certificate is missing or was refused": {TLS: foreign, Token: tok},
				"tokens of the two processes differ":    {TLS: local, Token: identity.NewToken()},
				"requires a token":                      {TLS: local},
				"requires TLS":                          {},
			} {
				server := device(t, both)
				if err := l.run(t, server, device(t, cfg), direct); err == nil || !strings.Contains(err.Error(), words) {
					t.Errorf("error %v, want %q in it", err, words)
				}
				if n := server.Stats()["connections"]; n != 0 {
					t.Errorf("%s: the server has %d connections", words, n)
				}
			}
		})
	}
}

// TestPlainThroughTLSRelay runs the plain protocols through two relays: one beside the client that encrypts, and one beside the server that
// decrypts. Only the bytes between the two are encrypted.
// parity: A01
func TestPlainThroughTLSRelay(t *testing.T) {
	cfg := tlstest.NewCA(t).Local(t)
	cfg.ServerName = "127.0.0.1"
	for _, l := range layers {
		t.Run(l.name, func(t *testing.T) {
			dev := device(t, iwarp.Config{})
			var wire *man
			err := l.run(t, dev, device(t, iwarp.Config{}), func(a netip.AddrPort) netip.AddrPort {
				inner := between(t, func(c net.Conn) net.Conn { return tls.Server(c, cfg) }, listening(a))
				wire = between(t, plain, listening(inner.addr()))
				outer := between(t, plain, func() (net.Conn, error) { return tls.Dial("tcp4", wire.addr().String(), cfg) })
				return outer.addr()
			})
			if err != nil {
				t.Error(err)
			}
			if n := wire.has(); n > 0 {
				t.Errorf("the capture has the secret %d times", n)
			}
		})
	}
	t.Run("ofi+tcp", func(t *testing.T) {
		var wire *man
		callOverTCP(t, func(a netip.AddrPort) netip.AddrPort {
			inner := between(t, func(c net.Conn) net.Conn { return tls.Server(c, cfg) }, listening(a))
			wire = between(t, plain, listening(inner.addr()))
			return between(t, plain, func() (net.Conn, error) { return tls.Dial("tcp4", wire.addr().String(), cfg) }).addr()
		})
		if n := wire.has(); n > 0 {
			t.Errorf("the capture has the secret %d times", n)
		}
	})
}

// callOverTCP makes a call over ofi+tcp to the address that via returns.
func callOverTCP(t *testing.T, via func(netip.AddrPort) netip.AddrPort) {
	t.Helper()
	ctx := testContext(t)
	s, err := cinnabar.Listen(ctx, "ofi+tcp://127.0.0.1:0", nil)
	must(t, err)
	defer func() { must(t, s.Close()) }()
	must(t, echo.Handle(s, func(_ context.Context, in string) (string, error) { return in, nil }))
	c, err := cinnabar.Open(ctx, "ofi+tcp", nil)
	must(t, err)
	defer func() { must(t, c.Close()) }()
	to, err := c.Lookup("ofi+tcp://" + via(netip.MustParseAddrPort(strings.TrimPrefix(s.Addr(), "ofi+tcp://"))).String())
	must(t, err)
	if got, err := echo.Call(ctx, to, string(secret)); err != nil || got != string(secret) {
		t.Errorf("%q, %v", got, err)
	}
}
