package kubernetes

import (
	"cmp"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"cinnabar/balance"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testLimit is the longest time for anything in a test that should take no time.
const testLimit = time.Minute

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// object is a JSON object.
type object map[string]any

// cluster is an API server with the EndpointSlices of one service. It behaves as the real one: lists have pages, watches begin after a version, and both end
// with 410 if the version is older than the history.
type cluster struct {
	*httptest.Server
	ca    string // name of the file with the certificate
	token string // name of the file with the token

	mu      sync.Mutex
	secret  string // the token that it takes
	slices  map[string]object
	version int
	oldest  int           // watches begin after this version or a later one
	history []object      // events, with their version
	news    chan struct{} // closed by the next event or watch
	cut     chan struct{} // closed to end the watches
	page    int           // slices in a page at most; 0: as many as asked for
	lists   int           // requests of first pages
	watches []string      // versions of the requests of watches
	gone    bool          // an expired watch is answered 410; otherwise an event says so
	expire  int           // so many further pages are answered 410
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{slices: map[string]object{}, version: 100, news: make(chan struct{}), cut: make(chan struct{})}
	c.Server = httptest.NewTLSServer(c)
	t.Cleanup(func() {
		c.end()
		c.Close()
	})
	dir := t.TempDir()
	c.ca, c.token = filepath.Join(dir, "ca.crt"), filepath.Join(dir, "token")
	must(t, os.WriteFile(c.ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate().Raw}), 0o600))
	c.replaceToken(t, "first")
	return c
}

// replaceToken makes the server take another token, and writes it to the file.
func (c *cluster) replaceToken(t *testing.T, token string) {
	t.Helper()
	c.mu.Lock()
	c.secret = token
	c.mu.Unlock()
	must(t, os.WriteFile(c.token, []byte(token+"\n"), 0o600))
}

// config returns the configuration for the service "store".
func (c *cluster) config() *Config {
	return &Config{Protocol: "ofi+tcp", Service: "store", Namespace: "prod", Port: "rpc", Server: c.URL, TokenFile: c.token, CAFile: c.ca}
}

// put adds or changes a slice, and remove removes one.
func (c *cluster) put(name string, slice object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kind := "MODIFIED"
	if c.slices[name] == nil {
		kind = "ADDED"
	}
	c.slices[name] = slice
	c.addLocked(kind, name, slice)
}

func (c *cluster) remove(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	slice := c.slices[name]
	delete(c.slices, name)
	c.addLocked("DELETED", name, slice)
}

// bookmark sends a version without a change, which it returns.
func (c *cluster) bookmark() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addLocked("BOOKMARK", "", object{})
	return c.version
}

func (c *cluster) addLocked(kind, name string, slice object) {
	c.version++
	slice = maps.Clone(slice)
	slice["metadata"] = object{"name": name, "resourceVersion": strconv.Itoa(c.version), "labels": object{"kubernetes.io/service-name": "store"}}
	c.history = append(c.history, object{"type": kind, "object": slice})
	close(c.news)
	c.news = make(chan struct{})
}

// compact forgets the history up to a version; 0: all.
func (c *cluster) compact(to int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.oldest = cmp.Or(to, c.version+1)
	c.version = max(c.version, c.oldest)
}

// end ends the watches.
func (c *cluster) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.cut)
	c.cut = make(chan struct{})
}

// awaitWatch waits for the next watch.
func (c *cluster) awaitWatch(t *testing.T, before int) {
	t.Helper()
	timer := time.NewTimer(testLimit)
	defer timer.Stop()
	for {
		c.mu.Lock()
		n, news := len(c.watches), c.news
		c.mu.Unlock()
		if n > before {
			return
		}
		select {
		case <-news:
		case <-timer.C:
			t.Fatalf("%d watches, want more", n)
		}
	}
}

// seen returns the number of lists, and the versions of the watches.
func (c *cluster) seen() (lists int, watches []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lists, slices.Clone(c.watches)
}

func (c *cluster) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	c.mu.Lock()
	secret := c.secret
	c.mu.Unlock()
	q := req.URL.Query()
	switch {
	case req.Header.Get("Authorization") != "Bearer "+secret:
		fail(w, http.StatusUnauthorized, "Unauthorized")
	case strings.TrimPrefix(req.URL.Path, "/") != "apis/discovery.k8s.io/v1/namespaces/prod/endpointslices" || q.Get("labelSelector") != "kubernetes.io/service-name=store":
		fail(w, http.StatusForbidden, "endpointslices is forbidden: "+req.URL.String())
	case q.Get("watch") == "1":
		c.watch(w, req)
	default:
		c.list(w, q.Get("continue"), q.Get("limit"))
	}
}

func fail(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(status(code, text)) // the client sees it if it can
}

func status(code int, text string) object {
	return object{"kind": "Status", "status": "Failure", "code": code, "message": text}
}

func (c *cluster) list(w http.ResponseWriter, next, limit string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if next == "" {
		c.lists++
	} else if c.expire > 0 {
		c.expire--
		fail(w, http.StatusGone, "The provided continue parameter is too old")
		return
	}
	from, _ := strconv.Atoi(next)
	n, err := strconv.Atoi(limit)
	if err != nil {
		fail(w, http.StatusBadRequest, "limit is missing")
		return
	}
	if c.page > 0 {
		n = c.page
	}
	names := slices.Sorted(maps.Keys(c.slices))
	to := min(len(names), from+n)
	meta := object{"resourceVersion": strconv.Itoa(c.version)}
	if to < len(names) {
		meta["continue"] = strconv.Itoa(to)
	}
	items := []object{}
	for _, name := range names[from:to] {
		s := maps.Clone(c.slices[name])
		s["metadata"] = object{"name": name}
		items = append(items, s)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(object{"kind": "EndpointSliceList", "metadata": meta, "items": items}) // as in fail
}

func (c *cluster) watch(w http.ResponseWriter, req *http.Request) {
	since, err := strconv.Atoi(req.URL.Query().Get("resourceVersion"))
	c.mu.Lock()
	c.watches = append(c.watches, req.URL.Query().Get("resourceVersion"))
	close(c.news)
	c.news = make(chan struct{})
	expired, gone, sent, cut, last := since < c.oldest, c.gone, 0, c.cut, false
	c.mu.Unlock()
	if err != nil || expired && gone {
		fail(w, http.StatusGone, "too old resource version")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	if expired {
		_ = e.Encode(object{"type": "ERROR", "object": status(http.StatusGone, "too old resource version")}) // as in fail
		return
	}
	flush := http.NewResponseController(w)
	for {
		c.mu.Lock()
		events, news := c.history[sent:], c.news
		sent = len(c.history)
		c.mu.Unlock()
		for _, ev := range events {
			if v, _ := strconv.Atoi(ev["object"].(object)["metadata"].(object)["resourceVersion"].(string)); v > since && e.Encode(ev) != nil {
				return
			}
		}
		if flush.Flush() != nil || last {
			return
		}
		select {
		case <-news:
		case <-cut:
			last = true // after the events that came before
		case <-req.Context().Done():
			return
		}
	}
}

// slice returns an EndpointSlice for IPv4 with the port 4321, named rpc.
func slice(addrs ...string) object {
	var endpoints []object
	for _, a := range addrs {
		endpoints = append(endpoints, object{"addresses": []string{a}, "conditions": object{"ready": true}})
	}
	return object{"addressType": "IPv4", "endpoints": endpoints, "ports": []object{{"name": "http", "port": 80}, {"name": "rpc", "port": 4321, "protocol": "TCP"}}}
}

// resolver opens a Resolver, which the end of the test closes.
func resolver(t *testing.T, cfg *Config) *Resolver {
	t.Helper()
	r, err := New(cfg)
	must(t, err)
	t.Cleanup(func() { must(t, r.Close()) })
	return r
}

// await waits until the resolver has the servers, given by the hosts at port 4321, and an error with that text, or none.
func await(t *testing.T, r *Resolver, problem string, hosts ...string) {
	t.Helper()
	var want []string
	for _, h := range hosts {
		want = append(want, "ofi+tcp://"+h+":4321")
	}
	timer := time.NewTimer(testLimit)
	defer timer.Stop()
	for {
		changed := r.Changed()
		list, err := r.Resolve(t.Context())
		var have []string
		for _, a := range list {
			have = append(have, a.String())
		}
		if slices.Equal(have, want) && (err == nil) == (problem == "") && (err == nil || strings.Contains(err.Error(), problem)) {
			return
		}
		select {
		case <-changed:
		case <-timer.C:
			t.Fatalf("the servers are %v, with %v; want %v, with %q", have, err, want, problem)
		}
	}
}

var _ balance.Resolver = (*Resolver)(nil)

func hostNumber(n int) string { return fmt.Sprintf("192.0.2.%d", n) }
