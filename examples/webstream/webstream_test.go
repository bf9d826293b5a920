package webstream

import (
	"errors"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"cinnabar/internal/tlstest"
	"cinnabar/verbs/rstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestGreeting serves and calls with certificates of one authority, and refuses a client with one of another authority.
// parity: A01
func TestGreeting(t *testing.T) {
	host := tlstest.Certificate{Name: "server", Hosts: []string{"127.0.0.1"}}
	ca, other := tlstest.NewCA(t), tlstest.NewCA(t)
	open := func(cert, key, roots string) (get func(url string) (string, error), listen func() *rstream.Listener, done func()) {
		dev, err := Open(cert, key, roots)
		if err != nil {
			t.Fatal(err)
		}
		client := Client(dev)
		get = func(url string) (string, error) {
			resp, err := client.Get(url)
			if err != nil {
				return "", err
			}
			text, err := io.ReadAll(resp.Body)
			return string(text), errors.Join(err, resp.Body.Close())
		}
		listen = func() *rstream.Listener {
			l, err := rstream.Listen(dev, netip.MustParseAddrPort("127.0.0.1:0"))
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		return get, listen, func() {
			client.CloseIdleConnections()
			if err := dev.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	cert, key, roots := ca.Write(t, t.TempDir(), ca.Issue(t, host))
	_, listen, done := open(cert, key, roots)
	defer done()
	l := listen()
	srv := &http.Server{Handler: http.HandlerFunc(Greet)}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	url := "http://" + l.Addr().String() + "/?name=RDMA"

	get, _, closeClient := open(cert, key, roots)
	if text, err := get(url); err != nil || text != "hello, RDMA\n" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := get("http://localhost:1/"); err == nil || !strings.Contains(err.Error(), "IP addresses") {
		t.Errorf("a dial by name: %v", err)
	}
	closeClient()

	cert, key, _ = other.Write(t, t.TempDir(), other.Issue(t, host))
	get, _, closeClient = open(cert, key, roots)
	if _, err := get(url); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a certificate of another authority: %v", err)
	}
	closeClient()
	if err := srv.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}
