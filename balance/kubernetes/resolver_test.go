package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"cinnabar"
	"cinnabar/balance"
	"cinnabar/codes"
	"cinnabar/native"
)

// TestWatch follows the slices of a service from the list on.
func TestWatch(t *testing.T) {
	c := newCluster(t)
	c.put("a", slice("192.0.2.2", "192.0.2.1"))
	r := resolver(t, c.config())
	await(t, r, "", "192.0.2.1", "192.0.2.2")
	c.put("b", slice("192.0.2.3", "192.0.2.1"))
	await(t, r, "", "192.0.2.1", "192.0.2.2", "192.0.2.3")
	six := slice("2001:db8::1", "192.0.2.9", "::", "fe80::1%eth0", "ff02::1")
	six["addressType"] = "IPv6"
	c.put("c", six) // the others are no addresses of servers of IPv6
	await(t, r, "", "192.0.2.1", "192.0.2.2", "192.0.2.3", "[2001:db8::1]")
	named := slice("db-1.example", "bad_name", "")
	named["addressType"] = "FQDN"
	c.put("c", named)
	await(t, r, "", "192.0.2.1", "192.0.2.2", "192.0.2.3", "db-1.example")
	c.remove("a")
	c.remove("c")
	await(t, r, "", "192.0.2.1", "192.0.2.3")
	unready := slice("192.0.2.3", "192.0.2.1")
	unready["endpoints"].([]object)[0]["conditions"] = object{"ready": false, "serving": true, "terminating": true}
	unready["endpoints"].([]object)[1]["conditions"] = object{}
	c.put("b", unready)
	await(t, r, "", "192.0.2.1")
	c.remove("b")
	await(t, r, "")
	if lists, watches := c.seen(); lists != 1 || len(watches) != 1 {
		t.Errorf("%d lists and %d watches, want one of each", lists, len(watches))
	}
}

// TestPort chooses the port of a slice.
func TestPort(t *testing.T) {
	for _, tt := range []struct {
		want  string
		ports []port
		port  uint16
	}{
		{"rpc", []port{{"http", 80, "TCP"}, {"rpc", 4321, "TCP"}}, 4321},
		{"4321", []port{{"http", 80, "TCP"}, {"rpc", 4321, ""}}, 4321},
		{"", []port{{"", 4321, "TCP"}}, 4321},
		{"", []port{{"http", 80, "TCP"}, {"rpc", 4321, "TCP"}}, 0},
		{"rpc", []port{{"rpc", 4321, "UDP"}}, 0},
		{"rpc", []port{{"rpc", 0, "TCP"}}, 0},
		{"rpc", nil, 0},
	} {
		s := &endpointSlice{Ports: tt.ports}
		if got, ok := s.port(tt.want); got != tt.port || ok != (tt.port != 0) {
			t.Errorf("port %q of %v: %d, %v", tt.want, tt.ports, got, ok)
		}
	}
}

// TestPages reads a list in pages, and again when the mark of a page expires.
func TestPages(t *testing.T) {
	c := newCluster(t)
	c.page, c.expire = 3, 1
	var want []string
	for n := range 11 {
		c.put(fmt.Sprintf("s%02d", n), slice(hostNumber(10+n)))
		want = append(want, hostNumber(10+n))
	}
	await(t, resolver(t, c.config()), "", want...)
	if lists, _ := c.seen(); lists != 2 {
		t.Errorf("%d lists, want 2", lists)
	}
}

// TestExpired ends watches whose version the API server has forgotten, which it says by a status or by an event, and those whose version it still has.
func TestExpired(t *testing.T) {
	c := newCluster(t)
	c.put("a", slice("192.0.2.1"))
	r := resolver(t, c.config())
	await(t, r, "", "192.0.2.1")
	for n, gone := range []bool{false, true} {
		c.mu.Lock()
		c.gone = gone
		delete(c.slices, "a") // without an event: the watch cannot learn of it
		c.slices[fmt.Sprint("new", n)] = slice(hostNumber(10 + n))
		c.mu.Unlock()
		c.compact(0)
		c.end()
		await(t, r, "", []string{"192.0.2.10", "192.0.2.11"}[:n+1]...)
	}
	c.put("b", slice("192.0.2.29")) // its event shows that the watch has begun
	await(t, r, "", "192.0.2.10", "192.0.2.11", "192.0.2.29")
	lists, began := c.seen()
	at := c.bookmark()
	c.compact(at)
	c.end()
	c.awaitWatch(t, len(began))
	c.put("b", slice("192.0.2.30"))
	await(t, r, "", "192.0.2.10", "192.0.2.11", "192.0.2.30")
	after, watches := c.seen()
	if after != lists || watches[len(watches)-1] != fmt.Sprint(at) {
		t.Errorf("%d lists, then %d; the watches began after %v, want the last one after the bookmark %d", lists, after, watches, at)
	}
}

// TestReload replaces the token and the certificates. Meanwhile the resolver keeps the servers, with an error.
func TestReload(t *testing.T) {
	c := newCluster(t)
	c.put("a", slice("192.0.2.1"))
	r := resolver(t, c.config())
	await(t, r, "", "192.0.2.1")
	c.mu.Lock()
	c.secret = "second"
	c.mu.Unlock()
	c.end()
	await(t, r, "401", "192.0.2.1")
	c.replaceToken(t, "second")
	await(t, r, "", "192.0.2.1")

	right, err := os.ReadFile(c.ca)
	must(t, err)
	must(t, os.WriteFile(c.ca, []byte("no certificate"), 0o600))
	c.end()
	c.mu.Lock()
	c.secret = "third" // so that the next request fails, and the file is read again
	c.mu.Unlock()
	await(t, r, "has no certificate in PEM", "192.0.2.1")
	must(t, os.WriteFile(c.ca, right, 0o600))
	c.replaceToken(t, "third")
	await(t, r, "", "192.0.2.1")

	cfg := c.config()
	cfg.CAFile = ""
	other := resolver(t, cfg)
	if _, err := other.Resolve(t.Context()); !strings.Contains(fmt.Sprint(err), "x509") {
		t.Errorf("with the certificates of the system: %v", err)
	}
}

// TestHostile answers lists and watches in ways of which each is an error. The resolver stays bounded, and says what is wrong.
func TestHostile(t *testing.T) {
	ok := `{"metadata":{"resourceVersion":"1"},"items":[]}`
	many := func(n int, element string) string { return strings.Repeat(element+",", n-1) + element }
	for _, tt := range []struct {
		name, list, watch, want string
	}{
		{"no JSON", `{"metadata":`, "", "cannot be read"},
		{"a page without end", `{"x":"` + strings.Repeat("x", maxPageBytes) + `"}`, "", "more than 8388608 bytes"},
		{"pages without end", `{"metadata":{"continue":"1"},"items":[]}`, "", "more than 256 pages"},
		{"a long mark", `{"metadata":{"continue":"` + strings.Repeat("x", maxContinue+1) + `"}}`, "", "too long"},
		{"many items", `{"items":[` + many(maxElements+1, "{}") + `]}`, "", "more than 1000 elements"},
		{"many endpoints", `{"items":[{"metadata":{"name":"a"},"endpoints":[` + many(maxElements+1, "{}") + `]}]}`, "", "more than 1000 elements"},
		{"no array", `{"items":{}}`, "", "in place of an array"},
		{"no name", `{"items":[{}]}`, "", "has 0 bytes"},
		{"a port that is none", `{"items":[{"metadata":{"name":"a"},"ports":[{"port":65536}]}]}`, "", "cannot be read"},
		{"an event without end", ok, `{"type":"` + strings.Repeat("x", maxEvent) + `"}`, "more than 2097152 bytes"},
		{"an unknown event", ok, `{"type":"EXPLODED","object":{}}`, `"EXPLODED", which is unknown`},
		{"an event of half", ok, `{"type":"ADDED","object":{"metadata"`, "unexpected EOF"},
		{"an error", ok, `{"type":"ERROR","object":{"code":500,"message":"` + strings.Repeat("x", 2*maxMessage) + `"}}`, "xxx..."},
		{"nothing", ok, ``, "ends the watch at once"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				if req.URL.Query().Has("watch") {
					_, _ = io.WriteString(w, tt.watch)
				} else {
					_, _ = io.WriteString(w, tt.list)
				}
			}))
			defer s.Close()
			await(t, resolver(t, &Config{Protocol: "ofi+tcp", Service: "store", Server: s.URL}), tt.want)
		})
	}
	slicesWithoutEnd := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		slicesWithoutEnd += 100
		w.Header().Set("Content-Type", "application/json")
		var items []string
		for n := range 100 {
			items = append(items, fmt.Sprintf(`{"metadata":{"name":"s%d"}}`, slicesWithoutEnd+n))
		}
		_, _ = fmt.Fprintf(w, `{"metadata":{"continue":"1"},"items":[%s]}`, strings.Join(items, ","))
	}))
	defer s.Close()
	await(t, resolver(t, &Config{Protocol: "ofi+tcp", Service: "store", Server: s.URL}), "more than 256 EndpointSlices")
}

// TestAnswers reads answers other than JSON with status 200.
func TestAnswers(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") }))
	defer elsewhere.Close()
	for _, tt := range []struct {
		code         int
		head, value  string
		want         string
		retry        time.Duration
		resultFailed bool
	}{
		{200, "Content-Type", "text/html", `content type "text/html"`, 0, false},
		{302, "Location", elsewhere.URL, "302 Found", 0, true},
		{403, "Content-Type", "application/json", "403 Forbidden", 0, true},
		{429, "Retry-After", "7", "429 Too Many", 7 * time.Second, true},
		{503, "Retry-After", "99999999999", "503", maxRetry, true},
		{503, "Retry-After", "-5", "503", 0, true},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(tt.head, tt.value)
			w.WriteHeader(tt.code)
			_, _ = w.Write([]byte("\xff\n\x1b[31m"))
		}))
		r, err := newResolver(&Config{Protocol: "ofi+tcp", Service: "store", Server: s.URL})
		must(t, err)
		err = r.list(t.Context())
		if err == nil || !strings.Contains(err.Error(), tt.want) || !utf8.ValidString(err.Error()) || strings.ContainsAny(err.Error(), "\x1b\n") {
			t.Errorf("%d: %v, want %q", tt.code, err, tt.want)
		}
		status, ok := errors.AsType[*statusError](err)
		if ok != tt.resultFailed || ok && status.retry != tt.retry {
			t.Errorf("%d: %+v, want a pause of %v", tt.code, status, tt.retry)
		}
		r.api.close()
		s.Close()
	}
}

// TestNew refuses configurations.
func TestNew(t *testing.T) {
	good := Config{Protocol: "ofi+tcp", Service: "store", Server: "https://127.0.0.1:6443"}
	for want, change := range map[string]func(*Config){
		"Server is \"\"":           func(c *Config) { c.Server = "" },
		"Server is \"ftp://x\"":    func(c *Config) { c.Server = "ftp://x" },
		"Server: ":                 func(c *Config) { c.Server = "https://[" },
		"in the clear":             func(c *Config) { c.Server, c.TokenFile = "http://127.0.0.1", "token" },
		"Protocol is empty":        func(c *Config) { c.Protocol = "" },
		"Service is \"a/b\"":       func(c *Config) { c.Service = "a/b" },
		"Service is \"\"":          func(c *Config) { c.Service = "" },
		"Namespace is \"-a\"":      func(c *Config) { c.Namespace = "-a" },
		"Service is \"store,x=y\"": func(c *Config) { c.Service = "store,x=y" },
	} {
		cfg := good
		change(&cfg)
		if _, err := New(&cfg); codes.Of(err) != codes.InvalidArg || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := New(nil); codes.Of(err) != codes.InvalidArg {
		t.Errorf("without a Config: %v", err)
	}
}

// TestInCluster reads the environment of a Pod.
func TestInCluster(t *testing.T) {
	env := map[string]string{"KUBERNETES_SERVICE_HOST": "2001:db8::1", "KUBERNETES_SERVICE_PORT": "443"}
	dir := t.TempDir()
	if _, err := inCluster(func(k string) string { return env[k] }, dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without files: %v", err)
	}
	must(t, os.WriteFile(filepath.Join(dir, "namespace"), []byte("prod\n"), 0o600))
	cfg, err := inCluster(func(k string) string { return env[k] }, dir)
	must(t, err)
	if cfg.Server != "https://[2001:db8::1]:443" || cfg.Namespace != "prod" || cfg.TokenFile != filepath.Join(dir, "token") || cfg.CAFile != filepath.Join(dir, "ca.crt") {
		t.Errorf("%+v", cfg)
	}
	if _, err := inCluster(func(string) string { return "" }, dir); codes.Of(err) != codes.InvalidArg {
		t.Errorf("outside of a Pod: %v", err)
	}
}

// TestClient makes calls by a balance.Client to servers of a slice, of which one goes.
func TestClient(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	where := native.New[struct{}, string]("where", native.Idempotent())
	c := newCluster(t)
	var servers []*cinnabar.Engine
	for n := range 2 {
		s, err := cinnabar.Listen(ctx, "ofi+tcp://127.0.0.1", nil)
		must(t, err)
		defer s.Close()
		must(t, where.Handle(s, func(context.Context, struct{}) (string, error) { return s.Addr(), nil }))
		at := slice("127.0.0.1")
		var port int
		_, err = fmt.Sscanf(s.Addr()[strings.LastIndexByte(s.Addr(), ':'):], ":%d", &port)
		must(t, err)
		at["ports"] = []object{{"name": "rpc", "port": port}}
		c.put(fmt.Sprint("s", n), at)
		servers = append(servers, s)
	}
	e, err := cinnabar.Open(ctx, "ofi+tcp://127.0.0.1", nil)
	must(t, err)
	defer e.Close()
	client, err := balance.New(e, &balance.Config{Resolver: resolver(t, c.config()), Refresh: time.Hour, MinRefresh: time.Millisecond})
	must(t, err)
	defer client.Close()
	seen := map[string]bool{}
	for len(seen) < len(servers) {
		at, err := balance.Call(ctx, client, where, struct{}{})
		must(t, err)
		seen[at] = true
	}
	c.remove("s0")
	for n := 0; n < 5; n++ { // five in succession at the one that is left
		at, err := balance.Call(ctx, client, where, struct{}{})
		must(t, err)
		if at == servers[0].Addr() {
			n = 0
		}
	}
}
