package debugpage

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"cinnabar"
	"cinnabar/internal/querylimit"
	"cinnabar/stats"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// engine opens an engine that page watches.
func engine(t testing.TB, page *Page, cfg cinnabar.Config) *cinnabar.Engine {
	t.Helper()
	page.Install(&cfg)
	e, err := cinnabar.Listen(t.Context(), "ofi+tcp://127.0.0.1", &cfg)
	must(t, err)
	t.Cleanup(func() { must(t, e.Close()) })
	return e
}

// get asks for a page at a time at which the limits on questions are not yet used up.
func get(t testing.TB, page *Page, query string) *httptest.ResponseRecorder {
	t.Helper()
	page.limiter = querylimit.New()
	page.mu.Lock()
	page.seen = nil
	page.mu.Unlock()
	w := httptest.NewRecorder()
	page.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://127.0.0.1:6060/page"+query, nil))
	if w.Code != http.StatusOK {
		t.Fatalf("%s: status %d, %s", query, w.Code, w.Body)
	}
	return w
}

// hostile is a text that no browser should obey.
const hostile = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{.}}\u202e\x00\x1b[2J\r\nX: y`${1}javascript:"

// TestHostileNames shows names of RPCs and pools that try to be more than text.
func TestHostileNames(t *testing.T) {
	page := New(nil)
	e := engine(t, page, cinnabar.Config{Pools: []cinnabar.PoolConfig{{Name: hostile + strings.Repeat("x", 1<<16), Workers: 1}}})
	held, entered := make(chan struct{}), make(chan struct{})
	rpc := cinnabar.NewRPC[struct{}, struct{}](hostile)
	must(t, rpc.Handle(e, func(context.Context, struct{}) (struct{}, error) { close(entered); <-held; return struct{}{}, nil }))
	call := rpc.Start(t.Context(), e.Self(), struct{}{})
	<-entered
	page.mon.server.of(hostile).observe(time.Second)
	page.mon.server.of(strings.Repeat("y", maxName)).observe(time.Second)
	for _, view := range views {
		text := get(t, page, "?view="+view).Body.String()
		if strings.ContainsAny(text, "\u202e\x00\x1b\r") || strings.Contains(text, "<script") || strings.Contains(text, "<img") {
			t.Errorf("%s has a text that is not escaped: %s", view, text)
		}
		if shown := strings.Contains(text, "&lt;script&gt;alert(1)"); shown != (view != "peers" && view != "memory") {
			t.Errorf("%s shows the name of the RPC: %v", view, shown)
		}
		if len(text) > 1<<16 {
			t.Errorf("%s has %d bytes", view, len(text))
		}
	}
	if text := get(t, page, "?view=json").Body.String(); strings.Contains(text, "<script") || !json.Valid([]byte(text)) {
		t.Errorf("JSON: %s", text)
	}
	close(held)
	_, err := call.Wait()
	must(t, err)
}

// TestBounds shows more of everything than a page has rows.
func TestBounds(t *testing.T) {
	page := New(&Config{Rows: 3})
	var e *cinnabar.Engine
	for range maxEngines + 2 {
		e = engine(t, page, cinnabar.Config{})
	}
	for i := range 8 {
		_, err := e.Alloc(cinnabar.ReadOnly, int64(i+1))
		must(t, err)
	}
	for i := range 10 * maxNames {
		page.mon.client.of(fmt.Sprint("name ", i)).observe(time.Duration(i) * time.Millisecond)
	}
	page.mon.client.of(strings.Repeat("z", maxName+1)).observe(time.Second)
	if n := len(page.Latencies()); n != maxNames+1 {
		t.Errorf("%d histograms, want %d", n, maxNames+1)
	}
	if l := page.Latencies()[0]; l.RPC != others || l.Count != 9*maxNames+1 {
		t.Errorf("the other RPCs: %+v", l)
	}
	page.mu.Lock()
	page.engines[0] = e // the one with memory is on the page
	page.mu.Unlock()
	for query, want := range map[string]string{"?view=memory": "… and 5 more</td>", "?view=latency": fmt.Sprintf("… and %d more</p>", maxNames+1-3), "": "… and 2 more engines"} {
		if text := get(t, page, query).Body.String(); !strings.Contains(text, want) {
			t.Errorf("%q lacks %q: %s", query, want, text)
		}
	}
}

// TestHosts refuses the names that a foreign page may have given to this host.
func TestHosts(t *testing.T) {
	page := New(&Config{Hosts: []string{"Debug.Example."}})
	for host, want := range map[string]int{
		"127.0.0.1": 200, "127.0.0.1:6060": 200, "[::1]:6060": 200, "[::1]": 200, "[fe80::1%25eth0]:80": 200, "10.0.0.7:80": 200, "localhost": 200, "LOCALHOST:6060": 200, "localhost.": 200,
		"debug.example": 200, "DEBUG.EXAMPLE.:80": 200,
		"": 403, "evil.example": 403, "evil.example:6060": 403, "localhost.evil.example": 403, "127.0.0.1.evil.example": 403, "xlocalhost": 403, "127.1": 403, "0x7f000001": 403, "debug.example.evil": 403,
		"evil.example:127.0.0.1": 403, "127.0.0.1:80:80": 403, "[::1": 200,
	} {
		page.limiter = querylimit.New()
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host = host
		w := httptest.NewRecorder()
		page.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("Host %q: status %d, want %d", host, w.Code, want)
		}
	}
}

// TestHeaders checks the policy against the style of the page, and the other headers and methods.
func TestHeaders(t *testing.T) {
	page := New(nil)
	w := get(t, page, "")
	text := w.Body.String()
	_, css, ok := strings.Cut(text, "<style>")
	css, _, ok2 := strings.Cut(css, "</style>")
	sum := sha256.Sum256([]byte(css))
	if !ok || !ok2 || !strings.Contains(w.Header().Get("Content-Security-Policy"), "default-src 'none'; style-src 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'") {
		t.Errorf("the policy %q does not allow the style", w.Header().Get("Content-Security-Policy"))
	}
	if strings.Contains(text, " style=") || strings.Contains(text, "<script") || strings.Contains(text, " on") && strings.Contains(text, "onload") {
		t.Error("the page has scripts, or styles that the policy refuses")
	}
	for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "X-Frame-Options": "DENY", "Refresh": "2", "Content-Type": "text/html; charset=utf-8"} {
		if got := w.Header().Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if got := get(t, page, "?refresh=0").Header().Get("Refresh"); got != "" {
		t.Errorf("a paused page has Refresh %q", got)
	}
	if text := get(t, page, "?refresh=7&view=peers").Body.String(); !strings.Contains(text, `href="?view=memory&amp;refresh=7"`) || !strings.Contains(text, `aria-current="page">peers`) {
		t.Errorf("links: %s", text)
	}
	for _, tc := range []struct {
		method, query string
		want          int
	}{
		{"HEAD", "", 200}, {"POST", "", 405}, {"PUT", "", 405}, {"DELETE", "", 405}, {"OPTIONS", "", 405}, {"GET", "?view=nosuch", 400}, {"GET", "?view=%3Cscript%3E", 400},
		{"GET", "?refresh=-1", 400}, {"GET", "?refresh=99999", 400}, {"GET", "?refresh=x%0d%0aA:b", 400},
	} {
		page.limiter = querylimit.New()
		w := httptest.NewRecorder()
		page.ServeHTTP(w, httptest.NewRequest(tc.method, "http://localhost/"+tc.query, nil))
		if w.Code != tc.want || tc.method == "HEAD" && w.Body.Len() > 0 || strings.Contains(w.Body.String(), "script") || w.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s %s: status %d, %q", tc.method, tc.query, w.Code, w.Body)
		}
	}
	if New(&Config{Refresh: -1}).refresh != 0 || New(&Config{Refresh: time.Millisecond}).refresh != 1 || New(&Config{Refresh: 1 << 62}).refresh != mostRefresh {
		t.Error("Config.Refresh is not kept within its bounds")
	}
}

// TestAskedTooOften: the limit of one host does not concern another one.
func TestAskedTooOften(t *testing.T) {
	page := New(nil)
	ask := func(from string) int {
		r := httptest.NewRequest(http.MethodGet, "http://localhost/", nil)
		r.RemoteAddr = from
		w := httptest.NewRecorder()
		page.ServeHTTP(w, r)
		if w.Code == http.StatusTooManyRequests && w.Header().Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
		if w.Header().Get("Refresh") != "2" {
			t.Errorf("status %d: the page does not load itself again", w.Code)
		}
		return w.Code
	}
	refused := 0
	for range 10 * querylimit.HostRate * querylimit.Seconds {
		if ask("192.0.2.1:1") == http.StatusTooManyRequests {
			refused++
		}
	}
	if refused == 0 {
		t.Error("no request of a host that asks without end is refused")
	}
	if code := ask("192.0.2.2:1"); code != http.StatusOK {
		t.Errorf("another host: status %d", code)
	}
}

var errOdd = errors.New("odd")

// TestFigures compares the page with the counts of a load generator, while others read it.
// parity: P03
func TestFigures(t *testing.T) {
	page := New(nil)
	var events atomic.Int64
	server := engine(t, page, cinnabar.Config{Monitor: counter{&events}})
	client := engine(t, page, cinnabar.Config{})
	rpc := cinnabar.NewRPC[int32, int32]("half")
	must(t, rpc.Handle(server, func(_ context.Context, n int32) (int32, error) {
		if n%2 != 0 {
			return 0, errOdd
		}
		return n / 2, nil
	}))
	ep, err := client.Lookup(server.Addr())
	must(t, err)
	web := httptest.NewServer(page)
	defer web.Close()
	const callers, each = 4, 250
	var load, readers sync.WaitGroup
	var failed atomic.Int64
	over := make(chan struct{})
	for range callers {
		load.Go(func() {
			for range each {
				if _, err := rpc.Call(t.Context(), ep, rand.Int32N(100)); err != nil {
					failed.Add(1)
				}
			}
		})
	}
	for i := range 4 {
		readers.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				r, err := web.Client().Get(web.URL + "/?view=" + views[i])
				if err != nil {
					t.Error(err)
					return
				}
				_, err = io.Copy(io.Discard, r.Body)
				if err = errors.Join(err, r.Body.Close()); err != nil || r.StatusCode != 200 && r.StatusCode != 429 {
					t.Errorf("status %d, %v", r.StatusCode, err)
				}
			}
		})
	}
	load.Wait()
	close(over)
	readers.Wait()
	must(t, client.Close()) // the last event of a call may come after its result
	must(t, server.Close())
	got := map[string]*Latency{}
	for _, l := range page.Latencies() {
		if l.RPC == "half" {
			got[l.Side] = l
		}
	}
	for _, side := range []string{"client", "server"} {
		l := got[side]
		if l == nil || l.Count != callers*each || l.Failed != uint64(failed.Load()) {
			t.Errorf("%s: %+v, want %d calls and %d failures", side, l, callers*each, failed.Load())
		} else if l.P50 <= 0 || l.P50 > l.P90 || l.P90 > l.P99 || l.P99 > l.Max {
			t.Errorf("%s: times %v %v %v %v", side, l.P50, l.P90, l.P99, l.Max)
		}
	}
	text := get(t, page, "?view=latency").Body.String()
	for _, side := range []string{"client", "server"} {
		want := fmt.Sprintf("<strong><bdi>half</bdi></strong> <small>%s</small><br><small>%d calls, %d failed;", side, callers*each, failed.Load())
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q: %s", want, text)
		}
	}
	if events.Load() == 0 {
		t.Error("the program's own monitor gets no events any more")
	}
	if text := get(t, page, "").Body.String(); !strings.Contains(text, "no engine is open") {
		t.Errorf("closed engines are on the page: %s", text)
	}
}

// TestCurrentFigures compares the pages of a server and a client with the requests that run and that are queued at a pool, the pending calls, the exposed
// memory, and the bytes that the server has pulled.
// parity: P03
func TestCurrentFigures(t *testing.T) {
	const workers, held, each, size = 2, 5, 40, 3 << 20
	atServer, atClient := New(nil), New(nil)
	server := engine(t, atServer, cinnabar.Config{Pools: []cinnabar.PoolConfig{{Name: "load", Workers: workers}}})
	client := engine(t, atClient, cinnabar.Config{})
	pool := cinnabar.WithPool(server.LookupPool("load"))
	release, entered := make(chan struct{}), make(chan struct{}, held)
	end := sync.OnceFunc(func() { close(release) })
	defer end()
	half, hold := cinnabar.NewRPC[int32, int32]("half"), cinnabar.NewRPC[struct{}, struct{}]("hold")
	must(t, half.Handle(server, func(_ context.Context, n int32) (int32, error) { return n / 2, nil }, pool))
	must(t, hold.Handle(server, func(context.Context, struct{}) (struct{}, error) {
		entered <- struct{}{}
		<-release
		return struct{}{}, nil
	}, pool))
	fetch := cinnabar.NewRPC[cinnabar.BulkHandle, int64]("fetch")
	must(t, fetch.Handle(server, func(ctx context.Context, h cinnabar.BulkHandle) (int64, error) {
		b, err := server.Alloc(cinnabar.ReadWrite, size)
		if err != nil {
			return 0, err
		}
		n, err := h.On(cinnabar.InfoFrom(ctx).Peer).Pull(ctx, b)
		return n, errors.Join(err, b.Close())
	}))
	ep, err := client.Lookup(server.Addr())
	must(t, err)
	lent, err := client.Alloc(cinnabar.ReadOnly, size)
	must(t, err)
	for n := range int32(each) {
		_, err := half.Call(t.Context(), ep, n)
		must(t, err)
	}
	var waiting []*cinnabar.Pending[struct{}]
	for range held {
		waiting = append(waiting, hold.Start(t.Context(), ep, struct{}{}))
	}
	for range workers {
		<-entered
	}
	// The server has received all requests once it has answered this one, because one connection carries them in order.
	_, err = fetch.Call(t.Context(), ep, lent.Handle())
	must(t, err)
	count := func(text, part string) int { return strings.Count(text, part) }
	overview, calls, memory := get(t, atServer, "").Body.String(), get(t, atClient, "?view=calls").Body.String(), get(t, atClient, "?view=memory").Body.String()
	for _, want := range []string{
		// The columns Running, Waiting, Queued, Served (which includes the running ones) and Refused.
		fmt.Sprintf(`<bdi>load</bdi></td><td class="n">%d</td><td class="n">0</td><td class="n">%d</td><td class="n">%d</td><td class="n">0</td>`, workers, held-workers, each+workers),
		"<dt>bytes read</dt><dd>3.0 MiB</dd>", "<dt>requests refused</dt><dd>0</dd>",
	} {
		if !strings.Contains(overview, want) {
			t.Errorf("the server's page lacks %q: %s", want, overview)
		}
	}
	_, requests, _ := strings.Cut(overview, "Requests of peers")
	if running, queued := count(requests, `<td>running</td><td class="t"><bdi>hold`), count(requests, `<td>queued</td><td class="t"><bdi>hold`); running != workers || queued != held-workers {
		t.Errorf("%d requests run and %d are queued on the page, want %d and %d: %s", running, queued, workers, held-workers, requests)
	}
	_, own, _ := strings.Cut(calls, "Calls of this process")
	if n := count(own, "<bdi>hold</bdi>"); n != held {
		t.Errorf("%d calls are on the client's page, want %d: %s", n, held, own)
	}
	if !strings.Contains(memory, "Exposed memory: 1, 3.0 MiB") || !strings.Contains(memory, "page_test.go") {
		t.Errorf("the client's page lacks the memory or the place where it was made: %s", memory)
	}
	end()
	for _, w := range waiting {
		_, err := w.Wait()
		must(t, err)
	}
	must(t, lent.Close())
}

// counter is a Monitor of the program.
type counter struct{ n *atomic.Int64 }

func (c counter) Event(context.Context, stats.Event) { c.n.Add(1) }

// TestSetupIsKept: Install calls the program's Setup, and does not show an engine whose Setup failed.
func TestSetupIsKept(t *testing.T) {
	page := New(nil)
	cfg := cinnabar.Config{Setup: func(*cinnabar.Engine) error { return errOdd }}
	page.Install(&cfg)
	if _, err := cinnabar.Listen(t.Context(), "ofi+tcp://127.0.0.1", &cfg); !errors.Is(err, errOdd) {
		t.Errorf("Listen = %v", err)
	}
	if s := page.look(); len(s.engines) != 0 {
		t.Errorf("%+v", s.engines)
	}
}

// TestBuckets: each time is in the bucket between its bounds.
func TestBuckets(t *testing.T) {
	for i := range numBuckets - 1 {
		from, to := bucketStart(i), bucketStart(i+1)
		if from >= to || bucketOf(from) != i || bucketOf(to-1) != i {
			t.Errorf("bucket %d from %v to %v: %d, %d", i, from, to, bucketOf(from), bucketOf(to-1))
		}
	}
	if bucketOf(1<<62) != numBuckets-1 || bucketOf(-5) != 0 {
		t.Error("the last bucket, or the first, does not have the rest")
	}
}

// TestQuantiles: quantiles are exact to a quarter, and charts stay within their frame.
func TestQuantiles(t *testing.T) {
	for _, unit := range []time.Duration{1, time.Microsecond, 50 * time.Microsecond, time.Millisecond, time.Second, time.Hour} {
		var h histogram
		for i := range 1000 {
			h.observe(time.Duration(i+1) * unit / 100)
		}
		l := h.latency("x", "client")
		if l.Count != 1000 || l.Max != 10*unit || l.P50 > l.P99 || l.P99 > l.Max {
			t.Errorf("%v: %+v", unit, l)
		}
		if off := float64(l.P50) / float64(5*unit); unit > 100*time.Nanosecond && unit <= time.Second && (off < 0.75 || off > 1.25) {
			t.Errorf("median of times to %v is %v", 10*unit, l.P50)
		}
		c := chartOf(l)
		if c == nil || strings.Contains(c.Bars, "NaN") || strings.Contains(c.Bars, "Inf") || len(c.Ticks) == 0 || len(c.Ticks) > 9 {
			t.Errorf("%v: %+v", unit, c)
		}
	}
	if chartOf(new(histogram).latency("x", "client")) != nil {
		t.Error("an empty histogram has a chart")
	}
}

// TestObserveAllocates nothing, once an RPC is known.
func TestObserveAllocates(t *testing.T) {
	page := New(nil)
	ev := stats.Event{Kind: stats.EventCall, End: true, Info: stats.CallInfo{RPC: "x"}, Times: stats.Timing{Began: time.Now(), Ended: time.Now()}}
	page.mon.Event(t.Context(), ev)
	if n := testing.AllocsPerRun(100, func() { page.mon.Event(context.Background(), ev) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzClean: a text of a peer becomes short and printable.
func FuzzClean(f *testing.F) {
	f.Add(hostile)
	f.Add("\xff\xfe")
	f.Fuzz(func(t *testing.T, s string) {
		got := clean(s)
		if len([]rune(got)) > maxText+1 || got == "" || bytes.ContainsAny([]byte(got), "\x00\x1b\r\n\t") {
			t.Errorf("%q", got)
		}
	})
}

// Example shows the engines of a server on http://127.0.0.1:6060/cinnabar.
func Example() {
	page := New(nil)
	cfg := &cinnabar.Config{}
	page.Install(cfg)
	engine, err := cinnabar.Listen(context.Background(), "ofi+tcp://", cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer engine.Close()
	mux := http.NewServeMux()
	mux.Handle("/cinnabar", page)
	web := httptest.NewServer(mux) // a program calls http.ListenAndServe("127.0.0.1:6060", mux)
	defer web.Close()
	r, err := web.Client().Get(web.URL + "/cinnabar?view=peers")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer r.Body.Close()
	fmt.Println(r.Status)
	// Output: 200 OK
}
