package main

import (
	"bufio"
	"context"
	"html"
	"io"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"cinnabar"
	"cinnabar/identity"
	"cinnabar/internal/tlstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// get returns the body of a page.
func get(t *testing.T, url string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	b, err := io.ReadAll(w.Body)
	if err != nil || w.StatusCode != http.StatusOK {
		t.Fatalf("%s: status %d, %v", url, w.StatusCode, err)
	}
	return string(b)
}

// TestService calls the service over TLS, and reads its page and its figures.
func TestService(t *testing.T) {
	defer http.DefaultClient.CloseIdleConnections()
	ca := tlstest.NewCA(t)
	cert, key, roots := ca.Write(t, t.TempDir(), ca.Issue(t, tlstest.Certificate{Name: "local", Hosts: []string{"127.0.0.1"}}))
	ctx, stop := context.WithCancel(t.Context())
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := run(ctx, w, []string{"-http", "127.0.0.1:0", "-cert", cert, "-key", key, "ofi+tcps://127.0.0.1:0"})
		w.CloseWithError(io.EOF)
		ended <- err
	}()
	lines := bufio.NewScanner(r)
	next := func() string {
		if !lines.Scan() {
			t.Fatalf("the service has ended: %v", <-ended)
		}
		return lines.Text()
	}
	address, page, figures := next(), next(), next()
	certs, err := identity.LoadCertificates(identity.Files{Authorities: roots})
	if err != nil {
		t.Fatal(err)
	}
	client, err := cinnabar.Open(t.Context(), "ofi+tcps", &cinnabar.Config{TLS: certs.Config(), DialTLS: certs.Dial})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ep, err := client.Lookup(address)
	if err != nil {
		t.Fatal(err)
	}
	if cents, err := Price.Call(t.Context(), ep, PriceIn{Item: "tea", Count: 5}); err != nil || cents != 15 {
		t.Errorf("the price is %d, %v", cents, err)
	}
	if text := get(t, page); !strings.Contains(html.UnescapeString(text), address) {
		t.Errorf("the page does not have %s: %s", address, text)
	}
	if text, want := get(t, figures), `cinnabar_rpc_duration_seconds_count{rpc="price",side="server"} 1`; !strings.Contains(text, want) {
		t.Errorf("the figures do not have %s", want)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestWrongArguments starts the service with arguments that it refuses.
func TestWrongArguments(t *testing.T) {
	for args, want := range map[string]string{
		"":                            "want one ADDRESS",
		"a b":                         "want one ADDRESS",
		"-cert no-such-file tcps":     "belong together",
		"ofi+tcps://127.0.0.1:0":      "certificate",
		"-http 127.0.0.1:x ofi+tcp":   "-http 127.0.0.1:x",
		"-http 127.0.0.1:0 ucx://a:1": "ucx",
	} {
		if err := run(t.Context(), io.Discard, strings.Fields(args)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
}
