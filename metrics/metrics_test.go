package metrics

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/stats"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ended is a Monitor that wakes a test when a number of requests has been handled.
type ended struct {
	mu    sync.Mutex
	n     int
	goal  int
	reach chan struct{}
}

func (e *ended) Event(_ context.Context, ev stats.Event) {
	if ev.Kind != stats.EventRequest || !ev.End {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.n++; e.n == e.goal {
		close(e.reach)
	}
}

// Numbers of the load generator.
const (
	callers   = 4
	each      = 50
	fetchSize = 100_000
)

var errOdd = fmt.Errorf("odd: %w", codes.NoDev)

// rig is a server and a client with a collector each, after a load, and with one call under way.
type rig struct {
	server, client *Collector
	registry       *prometheus.Registry
	failed         float64       // calls of odd numbers
	released       chan struct{} // ends the call that is under way
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{server: New(nil), client: New(nil), registry: prometheus.NewPedanticRegistry(), released: make(chan struct{})}
	for name, c := range map[string]*Collector{"server": r.server, "client": r.client} {
		must(t, prometheus.WrapRegistererWith(prometheus.Labels{"engine": name}, r.registry).Register(c))
	}
	handled := &ended{goal: 2*callers*each + 2, reach: make(chan struct{})} // half and note, another half, and fetch
	scfg := &cinnabar.Config{Monitor: handled, Pools: []cinnabar.PoolConfig{{Name: "fast", Workers: 4}}, RPCPool: "fast"}
	r.server.Install(scfg)
	ccfg := &cinnabar.Config{NoEager: true}
	r.client.Install(ccfg)
	server, err := cinnabar.Listen(t.Context(), "ofi+tcp://127.0.0.1", scfg)
	must(t, err)
	t.Cleanup(func() { must(t, server.Close()) })
	client, err := cinnabar.Open(t.Context(), "ofi+tcp://127.0.0.1", ccfg)
	must(t, err)
	t.Cleanup(func() { must(t, client.Close()) })
	r.load(t, server, client)
	<-handled.reach
	return r
}

func (r *rig) load(t *testing.T, server, client *cinnabar.Engine) {
	t.Helper()
	half := cinnabar.NewRPC[int32, int32]("half")
	must(t, half.Handle(server, func(_ context.Context, n int32) (int32, error) {
		if n%2 != 0 {
			return 0, errOdd
		}
		return n / 2, nil
	}))
	note := cinnabar.NewOneWay[int32]("note")
	must(t, note.Handle(server, func(context.Context, int32) error { return nil }))
	fetch := cinnabar.NewRPC[cinnabar.BulkHandle, int64]("fetch")
	must(t, fetch.Handle(server, func(ctx context.Context, h cinnabar.BulkHandle) (int64, error) {
		b, err := server.Alloc(cinnabar.ReadWrite, fetchSize)
		if err != nil {
			return 0, err
		}
		remote := h.On(cinnabar.InfoFrom(ctx).Peer)
		n, err := remote.Pull(ctx, b)
		m, err2 := remote.Push(ctx, b)
		return n + m, errors.Join(err, err2, b.Close())
	}))
	hold := cinnabar.NewRPC[struct{}, struct{}]("hold")
	entered := make(chan struct{})
	must(t, hold.Handle(server, func(context.Context, struct{}) (struct{}, error) {
		close(entered)
		<-r.released
		return struct{}{}, nil
	}))
	ep, err := client.Lookup(server.Addr())
	must(t, err)

	var running sync.WaitGroup
	for range callers {
		running.Go(func() {
			for n := range int32(each) {
				if _, err := half.Call(t.Context(), ep, n); (err != nil) != (n%2 != 0) {
					t.Errorf("half of %d: %v", n, err)
				}
				if err := note.Send(t.Context(), ep, n); err != nil {
					t.Error(err)
				}
			}
		})
	}
	running.Wait()
	r.failed = callers * each / 2
	b, err := client.Alloc(cinnabar.ReadWrite, fetchSize)
	must(t, err)
	t.Cleanup(func() { must(t, b.Close()) })
	n, err := fetch.Call(t.Context(), ep, b.Handle())
	must(t, err)
	if n != 2*fetchSize {
		t.Errorf("fetch moved %d bytes, want %d", n, 2*fetchSize)
	}
	_, err = half.Call(t.Context(), ep, 2)
	must(t, err)
	_, err = cinnabar.NewRPC[struct{}, struct{}]("nosuch").Call(t.Context(), ep, struct{}{})
	if !errors.Is(err, codes.NoEntry) {
		t.Errorf("a call of an RPC that is not served: %v", err)
	}
	held := hold.Start(context.WithoutCancel(t.Context()), ep, struct{}{}) // it ends after the test
	<-entered
	t.Cleanup(func() {
		close(r.released)
		_, err := held.Wait()
		must(t, err)
	})
	// A transfer that fails would end the connection, so its event comes from the test.
	r.server.mon.Event(t.Context(), stats.Event{Kind: stats.EventTransfer, End: true, Err: codes.Timeout, Info: stats.CallInfo{RPC: "pull"}})
}

// want lists the values of the series that the load has made, by a query that selects one.
func (r *rig) want() map[string]float64 {
	const calls = callers*each + 1
	return map[string]float64{
		`cinnabar_rpc_duration_seconds_count{engine="client",rpc="half",side="client"}`:                       calls,
		`cinnabar_rpc_duration_seconds_count{engine="server",rpc="half",side="server"}`:                       calls,
		`cinnabar_rpc_duration_seconds_count{engine="client",rpc="note",side="client"}`:                       callers * each,
		`cinnabar_rpc_duration_seconds_count{engine="server",rpc="note",side="server"}`:                       callers * each,
		`cinnabar_rpc_duration_seconds_bucket{engine="client",le="+Inf",rpc="half",side="client"}`:            calls,
		`cinnabar_rpc_errors_total{code="HG_NODEV",engine="client",rpc="half",side="client"}`:                 r.failed,
		`cinnabar_rpc_errors_total{code="HG_NODEV",engine="server",rpc="half",side="server"}`:                 r.failed,
		`cinnabar_rpc_errors_total{code="HG_NOENTRY",engine="client",rpc="nosuch",side="client"}`:             1,
		`cinnabar_rpc_in_flight{engine="client",rpc="hold",side="client"}`:                                    1,
		`cinnabar_rpc_in_flight{engine="server",rpc="hold",side="server"}`:                                    1,
		`cinnabar_rpc_in_flight{engine="client",rpc="half",side="client"}`:                                    0,
		`cinnabar_calls_in_flight{engine="client"}`:                                                           1,
		`cinnabar_requests_in_flight{engine="server"}`:                                                        1,
		`cinnabar_bulk_transfers_total{direction="read",engine="server"}`:                                     1,
		`cinnabar_bulk_transfers_total{direction="write",engine="server"}`:                                    1,
		`cinnabar_bulk_bytes_total{direction="read",engine="server"}`:                                         fetchSize,
		`cinnabar_bulk_bytes_total{direction="write",engine="server"}`:                                        fetchSize,
		`cinnabar_transfer_duration_seconds_count{direction="pull",engine="server"}`:                          1,
		`cinnabar_transfer_duration_seconds_count{direction="push",engine="server"}`:                          1,
		`cinnabar_transfer_errors_total{code="HG_TIMEOUT",direction="pull",engine="server"}`:                  1,
		`cinnabar_memory_exposures_total{engine="client"}`:                                                    1,
		`cinnabar_memory_registration_duration_seconds_count{engine="server"}`:                                1,
		`cinnabar_exposed_memory_regions{engine="client"}`:                                                    1,
		`cinnabar_exposed_memory_bytes{engine="client"}`:                                                      fetchSize,
		`cinnabar_registered_rpcs{engine="client"}`:                                                           0,
		`cinnabar_pool_handlers_running{engine="server",pool="fast"}`:                                         1,
		`cinnabar_pool_requests_queued{engine="server",pool="fast"}`:                                          0,
		`cinnabar_pool_handlers_started_total{engine="server",pool="fast"}`:                                   2*callers*each + 3,
		`cinnabar_pool_requests_refused_total{engine="server",pool="(none)"}`:                                 0,
		`sum by (engine, direction) (cinnabar_connections{direction="outbound",engine="client"})`:             1,
		`sum by (engine, direction) (cinnabar_connections{direction="inbound",engine="server"})`:              1,
		`cinnabar_connections_evicted_total{engine="server"}`:                                                 0,
		`cinnabar_quota_used{engine="server",resource="connections"}`:                                         1,
		`cinnabar_quota_refused_total{engine="server",resource="connections"}`:                                0,
		`count(cinnabar_rpc_duration_seconds_count{engine="server",rpc="other"})`:                             2,
		`count by (engine) (cinnabar_rpc_duration_seconds_count{engine="client",rpc!="other",side="client"})`: 5,
	}
}

// gathered returns the values of all series, under their names and labels in the form that Prometheus prints.
func gathered(t *testing.T, g prometheus.Gatherer) map[string]float64 {
	t.Helper()
	list, err := g.Gather()
	must(t, err)
	values := map[string]float64{}
	for _, f := range list {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				if !utf8.ValidString(l.GetValue()) || len(l.GetValue()) > maxLabel {
					t.Errorf("%s has the label %q", f.GetName(), l)
				}
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			key := "{" + strings.Join(labels, ",") + "}"
			if key == "{}" {
				key = ""
			}
			switch {
			case m.GetHistogram() != nil:
				values[f.GetName()+"_count"+key] = float64(m.GetHistogram().GetSampleCount())
				values[f.GetName()+"_sum"+key] = m.GetHistogram().GetSampleSum()
			case m.GetCounter() != nil:
				values[f.GetName()+key] = m.GetCounter().GetValue()
			default:
				values[f.GetName()+key] = m.GetGauge().GetValue()
			}
		}
	}
	return values
}

// mostGathers is the number of times that TestFigures reads the metrics before it gives up.
const mostGathers = 5000

// differences lists the series with other values than the load generator has counted.
func (r *rig) differences(got map[string]float64) (list []string) {
	for series, want := range r.want() {
		if strings.Contains(series, "(") && !strings.Contains(series, "(none)") || strings.Contains(series, "_bucket") {
			continue // a query, which TestPrometheus evaluates
		}
		if v, ok := got[series]; !ok || v != want {
			list = append(list, fmt.Sprintf("%s is %v (%v), want %v", series, v, ok, want))
		}
	}
	return list
}

// TestFigures compares the metrics with the load generator's own counts.
func TestFigures(t *testing.T) {
	r := newRig(t)
	got := gathered(t, r.registry)
	// A pool counts a handler, and the engine a request, for a moment after the event of its end.
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for range mostGathers {
		if len(r.differences(got)) == 0 {
			break
		}
		<-again.C
		got = gathered(t, r.registry)
	}
	for _, text := range r.differences(got) {
		t.Error(text)
	}
	if n := got[`cinnabar_rpc_response_bytes_total{engine="server",rpc="half"}`]; n < 4*(callers*each+1-r.failed) {
		t.Errorf("%v bytes of results", n)
	}
	// The engine itself makes requests, too, such as probes.
	for series, least := range map[string]float64{`cinnabar_requests_sent_total{engine="client"}`: 2*callers*each + 4, `cinnabar_responses_received_total{engine="client"}`: callers*each + 3} {
		if got[series] < least {
			t.Errorf("%s is %v, want at least %v", series, got[series], least)
		}
	}
	age := float64(time.Now().Unix()) - got[`cinnabar_engine_start_time_seconds{engine="server"}`]
	if age < -1 || age > 3600 {
		t.Errorf("the engine was opened %v s ago", age)
	}
	if d := got[`cinnabar_rpc_duration_seconds_sum{engine="client",rpc="half",side="client"}`]; d <= 0 {
		t.Errorf("all calls together took %v s", d)
	}
}

// TestConventions applies the rules that Prometheus has for names, units and texts.
func TestConventions(t *testing.T) {
	r := newRig(t)
	for _, c := range []*Collector{r.server, r.client} {
		problems, err := testutil.CollectAndLint(c)
		must(t, err)
		for _, p := range problems {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

// hostile are names of RPCs and pools that are no good labels, or have the label of another one.
var hostile = []string{
	"", "other", "a\xff", "a\xfe", "a\u202e", "\x00", "new\nline", "\x1b[2J", `quote"\`, "{}", "le", strings.Repeat("x", maxLabel), strings.Repeat("x", maxLabel+1),
	strings.Repeat("\xff", maxLabel), strings.Repeat("\xff", 1<<12), "é", "世界",
}

// TestHostileNames makes more RPCs than the collector has series for, with names that are no good labels.
func TestHostileNames(t *testing.T) {
	c := New(&Config{MaxNames: 50})
	registry := prometheus.NewPedanticRegistry()
	must(t, registry.Register(c))
	names := append([]string(nil), hostile...)
	for i := range 10_000 {
		names = append(names, fmt.Sprint("name ", i))
	}
	for _, kind := range []stats.EventKind{stats.EventCall, stats.EventRequest} {
		for _, name := range names {
			info := stats.CallInfo{RPC: name}
			c.mon.Event(t.Context(), stats.Event{Kind: kind, Info: info})
			c.mon.Event(t.Context(), stats.Event{Kind: kind, Info: info, End: true, Err: codes.Code(uint32(len(name)) << 20), Times: stats.Timing{Began: time.Unix(1, 0), Ended: time.Unix(2, 0)}})
		}
	}
	got := gathered(t, registry)
	total, series := 0.0, 0
	for key, v := range got {
		if strings.HasPrefix(key, "cinnabar_rpc_duration_seconds_count") {
			total += v
			series++
		}
		if strings.HasPrefix(key, "cinnabar_rpc_in_flight") && v != 0 {
			t.Errorf("%s is %v after the end of all", key, v)
		}
	}
	if total != float64(2*len(names)) || series > 2*51 {
		t.Errorf("%v calls in %d series, want %d in at most %d", total, series, 2*len(names), 2*51)
	}
	if n := got[`cinnabar_rpc_duration_seconds_count{rpc="a`+"\ufffd"+`",side="server"}`]; n != 3 {
		t.Errorf("three names with one label have %v calls", n)
	}
	if len(*c.mon.client.byName.Load()) > 50 {
		t.Error("the collector remembers more names than its limit")
	}
	var text bytes.Buffer
	for key := range got {
		text.WriteString(key)
	}
	if strings.ContainsAny(text.String(), "\u202e\x00\x1b\n") {
		t.Error("a label has a character that is not printable")
	}
}

// TestManyPools: the series of pools are bounded, and add up to all pools.
func TestManyPools(t *testing.T) {
	v := &view{}
	for i := range 10 * maxSeries {
		v.state.Pools = append(v.state.Pools, stats.NamedPool{Name: fmt.Sprint(hostile[i%len(hostile)], i), Pool: stats.Pool{Served: 1}})
	}
	for i := range families {
		if families[i].name != "cinnabar_pool_handlers_started_total" {
			continue
		}
		var rows table
		families[i].read(v, &rows)
		total := 0.0
		for _, r := range rows.rows {
			total += r.value
		}
		if len(rows.rows) > maxSeries+1 || total != 10*maxSeries {
			t.Errorf("%d series with %v handlers, want at most %d with %d", len(rows.rows), total, maxSeries+1, 10*maxSeries)
		}
		return
	}
	t.Error("no such metric")
}

// TestCodes counts errors of every code.
func TestCodes(t *testing.T) {
	var f failures
	want := map[string]uint64{other: 3, "DRAINING": 1, "HG_OTHER_ERROR": 3, "HG_TIMEOUT": 2}
	for _, err := range []error{codes.Code(27), codes.Code(1 << 30), codes.Code(255), codes.Draining, codes.OtherError, codes.Code(0), errors.New("plain"), codes.Timeout, context.DeadlineExceeded} {
		f.add(err)
	}
	got := map[string]uint64{}
	for name, n := range f.all {
		got[name] = n
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for c := codes.Permission; c <= codes.OtherError; c++ {
		f.add(c)
	}
}

// TestEventAllocates nothing, except at the first event of a name.
func TestEventAllocates(t *testing.T) {
	c := New(nil)
	start := stats.Event{Kind: stats.EventCall, Info: stats.CallInfo{RPC: "half"}}
	end := start
	end.End, end.Err, end.Times = true, codes.NoEntry, stats.Timing{Began: time.Unix(1, 0), Ended: time.Unix(2, 0)}
	ctx := t.Context()
	if n := testing.AllocsPerRun(100, func() { c.mon.Event(ctx, start); c.mon.Event(ctx, end) }); n != 0 {
		t.Errorf("a call allocates %v times", n)
	}
}

// TestWatch: a collector that reads counters only leaves the engine without a monitor. A collector has one engine at a time.
func TestWatch(t *testing.T) {
	c := New(nil)
	registry := prometheus.NewPedanticRegistry()
	must(t, registry.Register(c))
	if n := len(gathered(t, registry)); n == 0 {
		t.Error("no series before the engine is opened")
	}
	open := func(cfg *cinnabar.Config) (*cinnabar.Engine, error) {
		return cinnabar.Listen(t.Context(), "ofi+tcp://127.0.0.1", cfg)
	}
	first, err := open(nil)
	must(t, err)
	must(t, c.Watch(first))
	must(t, c.Watch(first))
	if first.Config().Monitor != nil {
		t.Error("Watch has set a monitor")
	}
	if _, ok := gathered(t, registry)["cinnabar_requests_received_total"]; !ok {
		t.Error("no counters of the engine")
	}
	setups := 0
	cfg := &cinnabar.Config{Setup: func(*cinnabar.Engine) error { setups++; return nil }}
	c.Install(cfg)
	if _, err := open(cfg); !errors.Is(err, errSecond) {
		t.Errorf("a second engine: %v", err)
	}
	must(t, first.Close())
	if _, ok := gathered(t, registry)["cinnabar_requests_received_total"]; !ok {
		t.Error("no counters of the engine after its end")
	}
	second, err := open(cfg)
	must(t, err)
	must(t, second.Close())
	if setups != 2 {
		t.Errorf("the program's Setup was called %d times, want 2", setups)
	}
}

// TestLabel: every text becomes a label that a registry accepts.
func TestLabel(t *testing.T) {
	texts := slices.Clone(hostile)
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		text := make([]byte, random.IntN(2*maxLabel))
		for i := range text {
			text[i] = byte(random.Uint32())
		}
		texts = append(texts, string(text))
	}
	for _, s := range texts {
		got := label(s)
		if !utf8.ValidString(got) || len(got) > maxLabel || strings.ContainsAny(got, "\x00\n\x1b\u202e") {
			t.Errorf("%q became %q", s, got)
		}
		if label(got) != got {
			t.Errorf("the label of %q is %q", got, label(got))
		}
	}
}

// BenchmarkEvent measures the two events of a call.
func BenchmarkEvent(b *testing.B) {
	c := New(nil)
	start := stats.Event{Kind: stats.EventCall, Info: stats.CallInfo{RPC: "half"}}
	end := start
	end.End, end.Times = true, stats.Timing{Began: time.Unix(1, 0), Ended: time.Unix(1, 1000)}
	b.ReportAllocs()
	for b.Loop() {
		c.mon.Event(b.Context(), start)
		c.mon.Event(b.Context(), end)
	}
}

// BenchmarkCollect measures a scrape of an engine with 128 RPCs on each side.
func BenchmarkCollect(b *testing.B) {
	c := New(nil)
	e, err := cinnabar.Listen(b.Context(), "ofi+tcp://127.0.0.1", nil)
	must(b, err)
	defer e.Close()
	must(b, c.Watch(e))
	for i := range DefaultMaxNames {
		c.mon.client.of(fmt.Sprint("name ", i))
		c.mon.server.of(fmt.Sprint("name ", i))
	}
	registry := prometheus.NewRegistry()
	must(b, registry.Register(c))
	b.ReportAllocs()
	for b.Loop() {
		_, err := registry.Gather()
		must(b, err)
	}
}
