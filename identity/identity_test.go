package identity

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"cinnabar/internal/tlstest"
)

// TestTokenRefused checks that texts and secrets that are too short, too long or not random are refused in words that do not contain them.
func TestTokenRefused(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"", "does not begin with"},
		{"password", "does not begin with"},
		{tokenPrefix, "0 bits; at least 128"},
		{tokenPrefix + "AAECAwQFBgcICQoLDA0O", "120 bits; at least 128"},
		{tokenPrefix + strings.Repeat("A", 86), "1 different bytes"},
		{tokenPrefix + strings.Repeat("AQID", 30), "at most 64"},
		{tokenPrefix + "AAECAwQFBgcICQoLDA0O\nDxAREhMU", "a line ends"},
		{tokenPrefix + "AAECAwQFBgcICQoLDA0ODw==", "base64"},
		{tokenPrefix + "AAECAwQFBgcICQoLDA0OD/", "base64"},
	} {
		tok, err := ParseToken(test.text)
		if err == nil || !tok.IsZero() || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: %v, %v, want %q", test.text, tok, err, test.want)
		}
		if secret := strings.TrimPrefix(test.text, tokenPrefix); len(secret) > 8 && strings.Contains(err.Error(), secret) {
			t.Errorf("the error contains the secret: %v", err)
		}
	}
	if _, err := TokenOf(make([]byte, 32)); err == nil {
		t.Error("zeros are a token")
	}
}

// TestTokenIsHidden checks that a token survives its text and that no way of printing shows it.
func TestTokenIsHidden(t *testing.T) {
	tok := NewToken()
	if again, err := ParseToken(" " + tok.Reveal() + "\r\n"); err != nil || again != tok {
		t.Fatalf("%v, %v", again, err)
	}
	if other := NewToken(); tok == other || tok.Equal(other) || !tok.Equal(tok) || tok.Equal(Token{}) {
		t.Error("two tokens are equal, or one is not equal to itself")
	}
	text, err := json.Marshal(struct{ T Token }{tok})
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "token", tok)
	all := fmt.Sprintf("%v %+v %#v %x %d %q %s", tok, tok, tok, tok, tok, tok, struct{ T Token }{tok}) + string(text) + log.String()
	hidden := struct{ t Token }{tok} // package fmt calls no methods of unexported fields
	for _, verb := range []string{"%v", "%+v", "%#v", "%x", "%d", "%q", "%s"} {
		all += fmt.Sprintf(verb+verb, hidden, &hidden)
	}
	for _, form := range []string{string(tok.bytes()), tok.Reveal(), fmt.Sprintf("%x", tok.bytes()), fmt.Sprint(tok.bytes()), strconv.Quote(string(tok.bytes()))} {
		if strings.Contains(all, form) {
			t.Errorf("%q shows the secret", all)
		}
	}
	if !strings.Contains(all, "256 bits") {
		t.Errorf("%q", all)
	}
}

// TestTokenFile checks the rights and the length of a token's file.
func TestTokenFile(t *testing.T) {
	tok := NewToken()
	write := func(text string, mode os.FileMode) string {
		path := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if got, err := ReadToken(write(tok.Reveal()+"\n", 0o640)); err != nil || got != tok {
		t.Errorf("%v, %v", got, err)
	}
	refused := func(path, want string) {
		t.Helper()
		if _, err := ReadToken(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if runtime.GOOS != "windows" {
		refused(write(tok.Reveal(), 0o644), "chmod 600")
		refused(write(tok.Reveal(), 0o660), "chmod 600")
	}
	refused(write(tok.Reveal()+strings.Repeat("\n", 300), 0o600), "more than 256 bytes")
	refused(write("secret", 0o600), "does not begin")
	refused(t.TempDir(), "directory")
	refused(filepath.Join(t.TempDir(), "none"), "no such file")
}

// TestPipeWithoutWriter checks that a pipe does not keep the reader of a secret waiting for a writer, because a reload would then never end.
func TestPipeWithoutWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if out, err := exec.Command("mkfifo", "-m", "600", path).CombinedOutput(); err != nil {
		t.Skipf("mkfifo: %v, %s", err, out)
	}
	if tok, err := ReadToken(path); err == nil {
		t.Errorf("%v", tok)
	}
	if _, err := LoadCertificates(Files{Authorities: path}); err == nil {
		t.Error("an empty pipe has authorities")
	}
}

// TestMAC checks that the parts of a MAC cannot run into each other.
func TestMAC(t *testing.T) {
	tok := NewToken()
	one := tok.MAC("label", []byte("ab"), []byte("c"))
	for name, other := range map[string][32]byte{
		"boundary": tok.MAC("label", []byte("a"), []byte("bc")), "label": tok.MAC("labela", []byte("b"), []byte("c")),
		"part": tok.MAC("label", []byte("ab"), []byte("c"), nil), "token": NewToken().MAC("label", []byte("ab"), []byte("c")),
	} {
		if one == other {
			t.Errorf("another %s has the same MAC", name)
		}
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add(NewToken().Reveal())
	f.Add(tokenPrefix)
	f.Fuzz(func(t *testing.T, text string) {
		tok, err := ParseToken(text)
		if err != nil {
			return
		}
		if again, err := ParseToken(tok.Reveal()); err != nil || again != tok {
			t.Errorf("%q is not read again: %v", text, err)
		}
	})
}

// handshake makes a TLS handshake in memory and returns the errors of both sides.
func handshake(t *testing.T, client, server *tls.Config) (clientErr, serverErr error) {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	done := make(chan error, 1)
	go func() {
		c, err := ln.Accept()
		if err != nil {
			done <- err
			return
		}
		defer c.Close()
		s := tls.Server(c, server)
		err = s.Handshake()
		if err == nil {
			_, err = s.Write([]byte("x"))
		}
		done <- err
	}()
	nc, err := net.Dial("tcp4", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	cfg := client.Clone()
	cfg.ServerName = "127.0.0.1"
	c := tls.Client(nc, cfg)
	if clientErr = c.Handshake(); clientErr == nil {
		_, clientErr = c.Read(make([]byte, 1)) // the server refuses a certificate after the handshake of the client
	}
	_ = nc.Close()
	return clientErr, <-done
}

// TestCertificatesReload checks that new contents of the files count for new connections, that those of an authority that was
// replaced are refused at both ends, and that the old contents stay in use while the new ones are wrong.
// parity: Y06
func TestCertificatesReload(t *testing.T) {
	dir := t.TempDir()
	first, second := tlstest.NewCA(t), tlstest.NewCA(t)
	host := tlstest.Certificate{Name: "one", Hosts: []string{"127.0.0.1"}}
	cert, key, roots := first.Write(t, dir, first.Issue(t, host))
	files := Files{Certificate: cert, Key: key, Authorities: roots}
	c, err := LoadCertificates(files)
	if err != nil {
		t.Fatal(err)
	}
	server := c.Config() // once, as an engine has it
	old := first.Mutual(t, host)
	dial := func() *tls.Config {
		cfg, err := c.Dial()
		if err != nil {
			t.Fatal(err)
		}
		return cfg
	}
	accepted := func(client *tls.Config) {
		t.Helper()
		if ce, se := handshake(t, client, server); ce != nil || se != nil {
			t.Errorf("client %v, server %v", ce, se)
		}
	}
	accepted(old)
	accepted(dial())

	broken := func(name, want string, change func()) {
		t.Helper()
		before, _ := os.ReadFile(filepath.Join(dir, name))
		change()
		if err := c.Reload(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
		accepted(old)
		_ = os.Remove(filepath.Join(dir, name))
		if err := os.WriteFile(filepath.Join(dir, name), before, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	overwrite := func(path, text string) func() {
		return func() {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Error(err)
			}
		}
	}
	broken(filepath.Base(cert), "certificate", overwrite(cert, "nonsense"))
	broken(filepath.Base(roots), "no certificate in PEM", overwrite(roots, ""))
	broken(filepath.Base(key), "private key", overwrite(key, readAll(t, keyOf(t, second, host))))
	if runtime.GOOS != "windows" {
		broken(filepath.Base(key), "chmod 600", func() { _ = os.Chmod(key, 0o644) })
	}
	first.Write(t, dir, first.Issue(t, tlstest.Certificate{Name: "late", Hosts: host.Hosts, Expired: true}))
	if err := c.Reload(); err == nil || !strings.Contains(err.Error(), "expired at") {
		t.Errorf("an expired certificate: %v", err)
	}
	accepted(old)

	second.Write(t, dir, second.Issue(t, host))
	if err := c.Reload(); err != nil {
		t.Fatal(err)
	}
	if ce, se := handshake(t, old, server); ce == nil || se == nil {
		t.Errorf("the authority that was replaced: client %v, server %v", ce, se)
	}
	trusting := old.Clone()
	trusting.RootCAs = second.Pool()
	if _, se := handshake(t, trusting, server); se == nil {
		t.Error("a certificate of the authority that was replaced is accepted")
	}
	if ce, _ := handshake(t, dial(), old); ce == nil {
		t.Error("a server of the authority that was replaced is accepted")
	}
	accepted(second.Mutual(t, host))
	accepted(dial())
}

func readAll(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func keyOf(t *testing.T, ca *tlstest.CA, c tlstest.Certificate) string {
	t.Helper()
	_, key, _ := ca.Write(t, t.TempDir(), ca.Issue(t, c))
	return key
}

// TestCertificatesOfClient checks files of a client without a certificate, and incomplete ones.
func TestCertificatesOfClient(t *testing.T) {
	ca := tlstest.NewCA(t)
	cert, key, roots := ca.Write(t, t.TempDir(), ca.Issue(t, tlstest.Certificate{}))
	c, err := LoadCertificates(Files{Authorities: roots, ServerName: "server.example"})
	if err != nil {
		t.Fatal(err)
	}
	if cfg := c.Config(); cfg.GetCertificate != nil || cfg.GetConfigForClient != nil || cfg.ServerName != "server.example" || cfg.RootCAs == nil {
		t.Errorf("%+v", cfg)
	}
	for _, files := range []Files{{Certificate: cert}, {Key: key}, {Certificate: key, Key: key}, {Authorities: filepath.Join(t.TempDir(), "none")}} {
		if _, err := LoadCertificates(files); err == nil {
			t.Errorf("%+v is accepted", files)
		}
	}
}

func TestPeerString(t *testing.T) {
	host := netip.MustParseAddr("192.0.2.7")
	for want, p := range map[string]Peer{
		"unknown":                           {},
		"self":                              {Kind: Self},
		"addr:192.0.2.7 token":              {Kind: Address, Host: host, Token: true},
		"uid:7 (process 9)":                 {Kind: Process, UID: 7, PID: 9},
		"uid:0":                             {Kind: Process},
		"subject:CN=a DNS:b addr:192.0.2.7": {Kind: Certificate, Host: host, Subject: "CN=a", Names: []string{"DNS:b"}},
	} {
		if got := p.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for k := Unknown; k <= Self+1; k++ {
		if k.String() == "" {
			t.Errorf("kind %d has no name", uint8(k))
		}
	}
}

// ExampleToken makes the token that two processes share, and reads its text.
func ExampleToken() {
	text := NewToken().Reveal() // for a file that both processes read
	t, err := ParseToken(text)
	fmt.Println(t, err)
	// Output: token of 256 bits (hidden) <nil>
}

// Example admits peers with a certificate.
func Example() {
	admit := func(p Peer) error {
		if p.Kind != Certificate {
			return fmt.Errorf("a certificate is required, and only this is known: %v", p)
		}
		return nil
	}
	fmt.Println(admit(Peer{Kind: Address, Host: netip.MustParseAddr("192.0.2.7")}))
	fmt.Println(admit(Peer{Kind: Certificate, Subject: "CN=client"}))
	// Output:
	// a certificate is required, and only this is known: addr:192.0.2.7
	// <nil>
}
