package tlsio

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"cinnabar/internal/invariants"
	"cinnabar/internal/sockio"
	"cinnabar/internal/tlstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pipe is one direction of a stream in memory, with room for most bytes.
type pipe struct {
	b    []byte
	most int
	eof  bool
}

// end is a Socket that reads from one pipe and writes to another one. rng, if it is not nil, cuts transfers at random.
type end struct {
	from, to *pipe
	rng      *rand.Rand
}

func (e *end) some(n int) int {
	if e.rng == nil || n == 0 {
		return n
	}
	return e.rng.IntN(n + 1)
}

func (e *end) TryReadv(bufs [][]byte) (n int, err error) {
	for _, b := range bufs {
		k := copy(b[:e.some(len(b))], e.from.b)
		e.from.b = e.from.b[k:]
		n += k
	}
	switch {
	case n > 0:
		return n, nil
	case len(e.from.b) == 0 && e.from.eof:
		return 0, io.EOF
	}
	return 0, sockio.ErrWouldBlock
}

func (e *end) TryWritev(bufs [][]byte) (n int, err error) {
	for _, b := range bufs {
		k := e.some(min(len(b), e.to.most-len(e.to.b)))
		e.to.b = append(e.to.b, b[:k]...)
		n += k
	}
	if n == 0 {
		return 0, sockio.ErrWouldBlock
	}
	return n, nil
}

// connected returns the two ends of a TLS connection, and the bytes that travel to the second one and back.
func connected(t testing.TB, rng *rand.Rand, clientCfg, serverCfg *tls.Config) (client, server *Conn, there, back *pipe) {
	t.Helper()
	a, b := net.Pipe()
	defer func() { _, _ = a.Close(), b.Close() }()
	var serr error
	var wg sync.WaitGroup
	wg.Go(func() { server, serr = Server(b, serverCfg, nil) })
	client, err := Client(a, clientCfg, "127.0.0.1")
	wg.Wait()
	if err != nil || serr != nil {
		t.Fatalf("client %v, server %v", err, serr)
	}
	there, back = &pipe{most: 100_000}, &pipe{most: 100_000}
	client.Attach(&end{back, there, rng})
	server.Attach(&end{there, back, rng})
	return client, server, there, back
}

func localPair(t testing.TB, rng *rand.Rand) (client, server *Conn, there, back *pipe) {
	t.Helper()
	cfg := prepared(t, tlstest.NewCA(t).Local(t))
	return connected(t, rng, cfg, cfg)
}

func prepared(t testing.TB, cfg *tls.Config) *tls.Config {
	t.Helper()
	c, err := Prepare(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// wait fails the test unless a read finds nothing.
func nothing(t *testing.T, c *Conn) {
	t.Helper()
	if n, err := c.TryReadv([][]byte{make([]byte, 100)}); n != 0 || !errors.Is(err, sockio.ErrWouldBlock) {
		t.Fatalf("read %d bytes, %v, want ErrWouldBlock", n, err)
	}
	if c.Buffered() {
		t.Fatal("bytes are buffered after ErrWouldBlock")
	}
}

// TestStream sends more bytes than the socket has room for in both directions at once, in pieces of random lengths.
func TestStream(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	client, server, _, _ := localPair(t, rng)
	nothing(t, server)
	type direction struct {
		from, to   *Conn
		data, left []byte
		got        []byte
	}
	var dirs []*direction
	for _, ends := range [][2]*Conn{{client, server}, {server, client}} {
		size := 3<<20 + 17
		if invariants.Race {
			size = 1<<19 + 17
		}
		data := make([]byte, size)
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		dirs = append(dirs, &direction{from: ends[0], to: ends[1], data: data, left: data})
	}
	for len(dirs[0].got) < len(dirs[0].data) || len(dirs[1].got) < len(dirs[1].data) {
		for _, d := range dirs {
			if len(d.left) > 0 {
				cut := rng.IntN(min(len(d.left), 1000))
				n, err := d.from.TryWritev([][]byte{d.left[:cut], {}, d.left[cut:]})
				if err != nil && !errors.Is(err, sockio.ErrWouldBlock) {
					t.Fatal(err)
				}
				d.left = d.left[n:]
			} else if err := d.from.mem.flush(d.from.sock); err != nil && !errors.Is(err, sockio.ErrWouldBlock) {
				t.Fatal(err)
			}
			one, two := make([]byte, rng.IntN(100)), make([]byte, rng.IntN(100_000))
			n, err := d.to.TryReadv([][]byte{one, {}, two})
			if err != nil && !errors.Is(err, sockio.ErrWouldBlock) {
				t.Fatal(err)
			}
			d.got = append(d.got, append(one, two...)[:n]...)
		}
	}
	for i, d := range dirs {
		if !bytes.Equal(d.got, d.data) {
			t.Errorf("direction %d: the bytes differ", i)
		}
	}
	if n, err := client.TryReadv([][]byte{{}, nil}); n != 0 || err != nil && !errors.Is(err, sockio.ErrWouldBlock) {
		t.Errorf("read into empty buffers: %d, %v", n, err)
	}
}

// TestWriteUntilTaken checks that TryWritev counts bytes when the socket has taken them, encrypts them once, and holds a bounded amount of ciphertext.
func TestWriteUntilTaken(t *testing.T) {
	client, server, there, _ := localPair(t, nil)
	there.most = 1000
	data := bytes.Repeat([]byte("0123456789"), 40_000)
	left := data
	var got []byte
	for len(left) > 0 {
		n, err := client.TryWritev([][]byte{left})
		if err != nil && !errors.Is(err, sockio.ErrWouldBlock) {
			t.Fatal(err)
		}
		if n > pieceBytes {
			t.Fatalf("%d bytes at once, want at most %d", n, pieceBytes)
		}
		if left = left[n:]; n > 0 && client.mem.pending.Load() {
			t.Fatal("TryWritev has counted bytes that the socket has not taken")
		}
		buf := make([]byte, 1<<20)
		n, err = server.TryReadv([][]byte{buf})
		if err != nil && !errors.Is(err, sockio.ErrWouldBlock) {
			t.Fatal(err)
		}
		got = append(got, buf[:n]...)
	}
	if !bytes.Equal(got, data) {
		t.Error("the bytes differ")
	}
}

// TestEndWriting checks that the end of the stream waits for a socket without room, behind the bytes that were written before.
func TestEndWriting(t *testing.T) {
	client, server, there, _ := localPair(t, nil)
	mustWrite(t, client, "the last words")
	there.most = len(there.b) + 5 // a part of the close_notify
	for range 2 {
		if err := client.EndWriting(); !errors.Is(err, sockio.ErrWouldBlock) {
			t.Fatalf("without room: %v", err)
		}
	}
	there.most += 100
	if err := client.EndWriting(); err != nil {
		t.Fatal(err)
	}
	there.eof = true
	buf := make([]byte, 100)
	if n, err := server.TryReadv([][]byte{buf}); string(buf[:n]) != "the last words" || err != nil {
		t.Errorf("read %q, %v", buf[:n], err)
	}
	if n, err := server.TryReadv([][]byte{buf}); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("read %d bytes, %v, want the end of the stream", n, err)
	}
}

func mustWrite(t *testing.T, c *Conn, s string) {
	t.Helper()
	if n, err := c.TryWritev([][]byte{[]byte(s)}); n != len(s) || err != nil {
		t.Fatalf("wrote %d bytes, %v", n, err)
	}
}

// TestEnds checks how a stream ends: by a close_notify, without one, and in the middle of a record.
func TestEnds(t *testing.T) {
	for name, want := range map[string]error{"close_notify": io.EOF, "cut": ErrCut, "cut in a record": ErrCut} {
		client, server, there, _ := localPair(t, nil)
		mustWrite(t, client, "hello")
		switch name {
		case "close_notify":
			client.CloseWrite()
			if _, err := client.TryWritev([][]byte{{1}}); err == nil {
				t.Error("a write after CloseWrite succeeds")
			}
		case "cut in a record":
			mustWrite(t, client, "more")
			there.b = there.b[:len(there.b)-3]
		}
		there.eof = true
		buf := make([]byte, 100)
		if n, err := server.TryReadv([][]byte{buf}); string(buf[:n]) != "hello" || err != nil {
			t.Fatalf("%s: read %q, %v", name, buf[:n], err)
		}
		for range 2 {
			if n, err := server.TryReadv([][]byte{buf}); n != 0 || !errors.Is(err, want) {
				t.Errorf("%s: read %d bytes, %v, want %v", name, n, err, want)
			}
		}
	}
}

// TestForeignBytes checks that plaintext, a changed record and a repeated record end the connection on both sides.
func TestForeignBytes(t *testing.T) {
	for name, change := range map[string]func(b []byte) []byte{
		"plaintext": func(b []byte) []byte { return append([]byte("plaintext"), b...) },
		"changed":   func(b []byte) []byte { b[len(b)/2] ^= 1; return b },
		"repeated":  func(b []byte) []byte { return append(b, b...) },
		"removed":   func(b []byte) []byte { return b[len(b)/2:] },
		"too long":  func([]byte) []byte { return []byte{23, 3, 3, 255, 255, 0} },
	} {
		client, server, there, _ := localPair(t, nil)
		mustWrite(t, client, "one")
		mustWrite(t, client, "two")
		there.b = change(there.b)
		buf := make([]byte, 100)
		var err error
		for range 3 {
			var n int
			if n, err = server.TryReadv([][]byte{buf}); err != nil || name != "repeated" && n > 3 {
				break
			}
		}
		if err == nil || errors.Is(err, sockio.ErrWouldBlock) || !strings.Contains(err.Error(), "no TLS records") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err = client.TryReadv([][]byte{buf}); err == nil || !strings.Contains(err.Error(), "the peer ended the TLS connection") {
			t.Errorf("%s: the other side reads %v", name, err)
		}
		if _, err = server.TryWritev([][]byte{{1}}); err == nil {
			t.Errorf("%s: the broken connection can be written", name)
		}
	}
}

// TestHandshakeErrors checks the errors of handshakes that fail, on both sides.
func TestHandshakeErrors(t *testing.T) {
	ca, other := tlstest.NewCA(t), tlstest.NewCA(t)
	local := ca.Local(t)
	with := func(change func(c *tls.Config)) *tls.Config {
		c := local.Clone()
		change(c)
		return c
	}
	host := []string{"127.0.0.1"}
	for _, test := range []struct {
		name           string
		client, server *tls.Config
		wantClient     string
		wantServer     string
	}{
		{"no client certificate", with(func(c *tls.Config) { c.Certificates = nil }), local, "certificate required", "didn't provide a certificate"},
		{"client of another authority", with(func(c *tls.Config) { c.Certificates = other.Local(t).Certificates }), local, "certificate", "certificate"},
		{"expired client", with(func(c *tls.Config) {
			c.Certificates = []tls.Certificate{ca.Issue(t, tlstest.Certificate{Name: "old", Hosts: host, Expired: true})}
		}), local, "certificate", "expired"},
		{"expired server", local, with(func(c *tls.Config) {
			c.Certificates = []tls.Certificate{ca.Issue(t, tlstest.Certificate{Name: "old", Hosts: host, Expired: true})}
		}), "expired", "certificate"},
		{"server of another authority", local, with(func(c *tls.Config) { c.Certificates = other.Local(t).Certificates }), "unknown authority", "certificate"},
		{"server of another name", with(func(c *tls.Config) { c.ServerName = "other.example" }), local, "other.example", "certificate"},
		{"no common protocol", local, with(func(c *tls.Config) { c.NextProtos = []string{"h2"} }), "no application protocol", "protocol"},
	} {
		a, b := net.Pipe()
		var serr error
		var wg sync.WaitGroup
		wg.Go(func() {
			_, serr = Server(b, prepared(t, test.server), nil)
			_ = b.Close()
		})
		c, err := Client(a, prepared(t, test.client), "127.0.0.1")
		if err == nil { // the server checks the client's certificate afterwards
			_, err = c.Read(make([]byte, 1))
		}
		_ = a.Close()
		wg.Wait()
		if err == nil || !strings.Contains(err.Error(), test.wantClient) {
			t.Errorf("%s: client: %v", test.name, err)
		}
		if serr == nil || !strings.Contains(serr.Error(), test.wantServer) {
			t.Errorf("%s: server: %v", test.name, serr)
		}
	}
}

// TestDowngrade checks that earlier versions are refused, by configurations and by peers.
func TestDowngrade(t *testing.T) {
	local := tlstest.NewCA(t).Local(t)
	old := local.Clone()
	old.MaxVersion = tls.VersionTLS12
	if _, err := Prepare(old); err == nil || !strings.Contains(err.Error(), "MaxVersion") {
		t.Errorf("a configuration without TLS 1.3: %v", err)
	}
	if _, err := Prepare(nil); err == nil {
		t.Error("no configuration is accepted")
	}
	chooses := local.Clone()
	chooses.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return old, nil }
	for _, cfg := range []*tls.Config{local, chooses} {
		a, b := net.Pipe()
		var serr error
		var wg sync.WaitGroup
		wg.Go(func() {
			_, serr = Server(b, prepared(t, cfg), nil)
			_ = b.Close()
		})
		raw := old.Clone()
		raw.ServerName = "127.0.0.1"
		err := tls.Client(a, raw).HandshakeContext(t.Context())
		wg.Wait()
		_ = a.Close()
		if err == nil || serr == nil {
			t.Errorf("a client of TLS 1.2: client %v, server %v", err, serr)
		}
	}
	var serr error
	a, b := net.Pipe()
	var wg sync.WaitGroup
	wg.Go(func() {
		serr = tls.Server(b, old).HandshakeContext(context.Background())
		_ = b.Close()
	})
	if _, err := Client(a, prepared(t, local), "127.0.0.1"); err == nil || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("a server of TLS 1.2: %v", err)
	}
	_ = a.Close()
	if wg.Wait(); serr == nil {
		t.Error("the server of TLS 1.2 has a connection")
	}
}

// TestPlainPeers checks that a peer without TLS is recognised, and that the server can answer it in plaintext.
func TestPlainPeers(t *testing.T) {
	cfg := prepared(t, tlstest.NewCA(t).Local(t))
	a, b := net.Pipe()
	var wg sync.WaitGroup
	wg.Go(func() {
		c, err := Server(b, cfg, nil)
		if !errors.Is(err, ErrPlain) {
			t.Errorf("a plain client: %v", err)
			return
		}
		buf := make([]byte, 5)
		if _, err := io.ReadFull(c, buf); string(buf) != "hello" || err != nil {
			t.Errorf("the server reads %q, %v", buf, err)
		}
		_, _ = c.Write([]byte("bye"))
		_ = b.Close()
	})
	_, _ = a.Write([]byte("hel"))
	_, _ = a.Write([]byte("lo"))
	if got, _ := io.ReadAll(a); string(got) != "bye" {
		t.Errorf("the client reads %q", got)
	}
	wg.Wait()
	_ = a.Close()
	for _, answer := range []string{"", "not TLS, but some text"} {
		a, b := net.Pipe()
		wg.Go(func() {
			_, _ = b.Read(make([]byte, 4096))
			_, _ = b.Write([]byte(answer))
			_ = b.Close()
		})
		if _, err := Client(a, cfg, "127.0.0.1"); !errors.Is(err, ErrPlain) {
			t.Errorf("a plain server that answers %q: %v", answer, err)
		}
		_ = a.Close()
		wg.Wait()
	}
}

// helloOf returns the first bytes of a client.
func helloOf(t *testing.T, cfg *tls.Config) string {
	t.Helper()
	a, b := net.Pipe()
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = Client(a, cfg, "127.0.0.1") })
	hello := make([]byte, 64<<10)
	n, err := b.Read(hello)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = a.Close(), b.Close()
	wg.Wait()
	return string(hello[:n])
}

// TestSlowHandshake checks that the deadline of the connection bounds a handshake whose peer sends nothing, stops half-way, or does not read, and
// that the server holds no right to work meanwhile.
func TestSlowHandshake(t *testing.T) {
	cfg := prepared(t, tlstest.NewCA(t).Local(t))
	for _, first := range []string{"", "\x16", "\x16\x03\x01\x02\x00\x01", helloOf(t, cfg)} {
		synctest.Test(t, func(t *testing.T) {
			a, b := net.Pipe()
			begun := time.Now()
			_ = b.SetDeadline(begun.Add(5 * time.Second))
			var working atomic.Int32
			var wg sync.WaitGroup
			wg.Go(func() { _, _ = a.Write([]byte(first)) })
			wg.Go(func() {
				time.Sleep(time.Second) //nolint:forbidigo // simulated time
				synctest.Wait()
				if n := working.Load(); n != 0 {
					t.Errorf("%d rights to work are held by a server that waits", n)
				}
			})
			_, err := Server(b, cfg, func() func() { working.Add(1); return func() { working.Add(-1) } })
			if took := time.Since(begun); err == nil || took != 5*time.Second {
				t.Errorf("first bytes %.20q: the handshake ended after %v with %v", first, took, err)
			}
			if n := working.Load(); n != 0 {
				t.Errorf("%d rights to work are left", n)
			}
			_, _ = a.Close(), b.Close()
			wg.Wait()
		})
	}
}

// TestIdentity checks the identities that certificates give, and when two are the same.
func TestIdentity(t *testing.T) {
	ca := tlstest.NewCA(t)
	serve := ca.Local(t)
	id := func(c tlstest.Certificate) Identity {
		cfg := ca.Mutual(t, c)
		_, server, _, _ := connected(t, nil, prepared(t, cfg), prepared(t, serve))
		return server.Identity()
	}
	anna := id(tlstest.Certificate{Name: "anna", Hosts: []string{"a.example", "127.0.0.1"}})
	if got := anna.Subject(); got != "CN=anna" {
		t.Errorf("subject %q", got)
	}
	if got := strings.Join(anna.Names(), " "); got != "DNS:a.example IP:127.0.0.1" {
		t.Errorf("names %q", got)
	}
	renewed := id(tlstest.Certificate{Name: "anna", Hosts: []string{"a.example", "127.0.0.1"}})
	other := id(tlstest.Certificate{Name: "anna", Hosts: []string{"b.example"}})
	client := id(tlstest.Certificate{Name: "anna", Hosts: []string{"127.0.0.1"}, Client: true})
	if !anna.Same(renewed) || anna.Same(other) || anna.Same(Identity{}) || !(Identity{}).Same(Identity{}) {
		t.Error("Same is wrong")
	}
	unnamed := id(tlstest.Certificate{})
	if !unnamed.Same(unnamed) || unnamed.Same(id(tlstest.Certificate{})) {
		t.Error("Same is wrong for certificates without names")
	}
	for _, test := range []struct {
		id   Identity
		name string
		want bool
	}{{anna, "127.0.0.1", true}, {anna, "a.example", true}, {anna, "b.example", false}, {other, "127.0.0.1", false}, {client, "127.0.0.1", false}, {Identity{}, "127.0.0.1", false}} {
		if got := test.id.MayServe(serve, test.name); got != test.want {
			t.Errorf("%v may serve as %s: %v", test.id.Names(), test.name, got)
		}
	}
	named := serve.Clone()
	named.ServerName = "a.example"
	if !anna.MayServe(named, "10.0.0.1") {
		t.Error("ServerName is not used")
	}
	open := serve.Clone()
	open.InsecureSkipVerify = true
	if !other.MayServe(open, "127.0.0.1") {
		t.Error("a configuration that verifies nothing refuses a certificate")
	}
}

// TestUnverifiedIdentity checks that a certificate that was not verified is the same as itself alone, because its owner has chosen its names.
func TestUnverifiedIdentity(t *testing.T) {
	ca, mallory := tlstest.NewCA(t), tlstest.NewCA(t)
	serve := ca.Local(t)
	serve.ClientAuth = tls.RequireAnyClientCert
	names := tlstest.Certificate{Name: "anna", Hosts: []string{"127.0.0.1"}}
	id := func(cfg *tls.Config) Identity {
		cfg.RootCAs = ca.Pool()
		_, server, _, _ := connected(t, nil, prepared(t, cfg), prepared(t, serve))
		return server.Identity()
	}
	cfg := ca.Mutual(t, names)
	anna, again := id(cfg), id(cfg)
	if !anna.Same(again) {
		t.Error("a certificate is not the same as itself")
	}
	if forged := id(mallory.Mutual(t, names)); anna.Same(forged) || forged.Same(anna) || forged.Subject() != "" || forged.Names() != nil {
		t.Error("a certificate that was not verified is the same as another one with its names")
	}
}

// TestOtherProtocols checks that each end refuses a peer with TLS that does not name the protocol inside it.
func TestOtherProtocols(t *testing.T) {
	local := tlstest.NewCA(t).Local(t)
	raw := local.Clone()
	raw.ServerName = "127.0.0.1"
	a, b := net.Pipe()
	var wg sync.WaitGroup
	wg.Go(func() { _ = tls.Client(a, raw).HandshakeContext(t.Context()) })
	if _, err := Server(b, prepared(t, local), nil); err == nil || !strings.Contains(err.Error(), "ALPN") {
		t.Errorf("a client of another protocol: %v", err)
	}
	_, _ = a.Close(), b.Close()
	wg.Wait()
	a, b = net.Pipe()
	wg.Go(func() { _ = tls.Server(b, raw).HandshakeContext(t.Context()) })
	if _, err := Client(a, prepared(t, local), "127.0.0.1"); err == nil || !strings.Contains(err.Error(), "ALPN") {
		t.Errorf("a server of another protocol: %v", err)
	}
	_, _ = a.Close(), b.Close()
	wg.Wait()
}

// FuzzStream feeds bytes of any content to a server after its handshake.
func FuzzStream(f *testing.F) {
	f.Add([]byte("plaintext"), false)
	f.Add([]byte{23, 3, 3, 0, 17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, true)
	f.Add([]byte{21, 3, 3, 0, 2, 1, 0}, false)
	f.Add([]byte{20, 3, 3, 0, 1, 1}, true)
	cfg := prepared(f, tlstest.NewCA(f).Local(f))
	f.Fuzz(func(t *testing.T, b []byte, eof bool) {
		client, server, there, _ := connected(t, nil, cfg, cfg)
		mustWrite(t, client, "hello")
		there.b, there.eof = append(there.b, b...), eof
		var got []byte
		for range 100 {
			buf := make([]byte, 7)
			n, err := server.TryReadv([][]byte{buf})
			if got = append(got, buf[:n]...); err != nil {
				break
			}
		}
		if string(got) != "hello" {
			t.Fatalf("read %q, want only the bytes that the client has sent", got)
		}
	})
}

// FuzzHandshake feeds bytes of any content to a server that expects a handshake.
func FuzzHandshake(f *testing.F) {
	f.Add([]byte{3, 0, 0, 8})
	f.Add([]byte{22, 3, 1, 0, 4, 1, 0, 0, 0})
	f.Add([]byte{22, 255, 255, 0, 1, 0}) // a version that no TLS has
	f.Add([]byte{22, 3, 1, 255, 255})    // a record that is too long
	f.Add([]byte{0x80, 0x2e, 1, 3, 1})
	cfg := prepared(f, tlstest.NewCA(f).Local(f))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, c := net.Pipe()
		var wg sync.WaitGroup
		wg.Go(func() {
			_, _ = a.Write(b)
			_ = a.Close()
		})
		wg.Go(func() { _, _ = io.Copy(io.Discard, a) })
		if conn, err := Server(c, cfg, nil); err == nil || errors.Is(err, ErrPlain) != (conn != nil) {
			t.Errorf("the handshake ends with %v and the connection %p", err, conn)
		}
		_ = c.Close()
		wg.Wait()
	})
}
