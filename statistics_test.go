package cinnabar

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cinnabar/internal/na/natest"
	"github.com/google/go-cmp/cmp"
)

// report returns what the statistics dump.
func report(t *testing.T, s *Statistics, reset bool) (v map[string]any) {
	t.Helper()
	var b bytes.Buffer
	must(t, s.Dump(&b, reset))
	if err := json.Unmarshal(b.Bytes(), &v); err != nil {
		t.Fatalf("%v in %s", err, b.Bytes())
	}
	return v
}

// at returns what v has at a path.
func at(t *testing.T, v any, path ...string) any {
	t.Helper()
	for i, name := range path {
		m, ok := v.(map[string]any)
		if v, ok = m[name], ok && m[name] != nil; !ok {
			t.Fatalf("no %q in %v", path[:i+1], slices.Sorted(maps.Keys(m)))
		}
	}
	return v
}

var (
	rpcKey = regexp.MustCompile(`^\d+:\d+:\d+:\d+$`)
	peer   = regexp.MustCompile(`[a-z+]+://[^ ]*|<unknown>`)
)

// keysOf adds the paths of v to keys, without ids and addresses.
func keysOf(v any, path string, keys map[string]bool) {
	m, ok := v.(map[string]any)
	if !ok {
		keys[path] = true
		return
	}
	for k, v := range m {
		k = peer.ReplaceAllString(k, "PEER")
		if rpcKey.MatchString(k) {
			k = "RPC"
		}
		keysOf(v, strings.TrimPrefix(path+"/"+k, "/"), keys)
	}
}

// TestStatisticsKeys compares the keys with those of files that Margo wrote.
// parity(recorded): G87 G89
func TestStatisticsKeys(t *testing.T) {
	there, here := new(Statistics), new(Statistics)
	server := listening(t, &Config{Statistics: there})
	client := calling(t, &Config{Statistics: here, NoEager: true})
	ep := reach(t, client, server)
	fetch := NewRPC[BulkHandle, int64]("fetch")
	store := NewRPC[BulkHandle, int64]("store")
	must(t, add.Handle(server, handleAdd))
	must(t, fetch.Handle(server, func(ctx context.Context, h BulkHandle) (int64, error) {
		b, err := server.Expose(WriteOnly, make([]byte, 1000))
		if err != nil {
			return 0, err
		}
		n, err := h.On(PeerFrom(ctx)).Pull(ctx, b)
		return n, errors.Join(err, b.Close())
	}))
	must(t, store.Handle(server, func(ctx context.Context, h BulkHandle) (int64, error) {
		b, err := server.Expose(ReadOnly, make([]byte, 100))
		if err != nil {
			return 0, err
		}
		n, err := h.On(PeerFrom(ctx)).StartPush(ctx, b).Wait()
		return n, errors.Join(err, b.Close())
	}))
	for range 3 {
		callAdd(t, ep)
	}
	for r, mode := range map[*RPC[BulkHandle, int64]]Mode{fetch: ReadOnly, store: WriteOnly} {
		b, err := client.Expose(mode, make([]byte, 1000))
		must(t, err)
		_, err = r.Start(patient(t), ep, b.Handle()).Wait()
		must(t, err)
		must(t, b.Close())
	}
	waitFor(t, func() bool { return server.Stats().Handlers.Running == 0 })

	got, want := map[string]bool{}, map[string]bool{}
	keysOf(report(t, here, false), "", got)
	keysOf(report(t, there, false), "", got)
	data, err := os.ReadFile("testdata/margo-statistics.txt")
	must(t, err)
	for line := range strings.Lines(string(data)) {
		if !strings.HasPrefix(line, "#") {
			want[strings.TrimSpace(line)] = true
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("keys (-Margo's +ours):\n%s", diff)
	}
	key := "65535:65535:" + decimal(add.ID(65535)) + ":65535"
	if got := at(t, report(t, here, true), "rpcs", key, "origin", "sent to "+server.Addr(), "iforward", "duration", "num"); got != 3.0 {
		t.Errorf("%v calls, want 3", got)
	}
	if got := at(t, report(t, there, false), "rpcs", key, "target", "received from "+client.Addr(), "ult", "duration", "num"); got != 3.0 {
		t.Errorf("%v handlers, want 3", got)
	}
	if left := at(t, report(t, here, false), "rpcs").(map[string]any); len(left) != 0 {
		t.Errorf("after a reset there are %v", left)
	}
}

// TestStatisticsTimes compares the figures with what a simulated network and handlers take.
// parity: G87
func TestStatisticsTimes(t *testing.T) {
	stats := new(Statistics)
	cfg := &Config{Checksums: NoChecksums, Statistics: stats, Pools: []PoolConfig{{Name: "p"}}}
	simulate(t, natest.Config{}, cfg, func(t *testing.T, s *sim) { // the server's and the client's
		p, err := s.server.Provider(5, "naps")
		must(t, err)
		outer := NewRPC[int64, int64]("outer")
		must(t, nap.Handle(p, handleNap, InPool(s.server.Pool("p"))))
		must(t, outer.Handle(s.server, func(ctx context.Context, ms int64) (int64, error) {
			return nap.Call(ctx, s.server.Self().Provider(5), ms)
		}))
		var ps []*Pending[int64]
		for _, ms := range []int64{2000, 4000} {
			ps = append(ps, nap.Start(t.Context(), s.ep.Provider(5), ms))
			elapse(time.Millisecond)
		}
		for _, p := range ps {
			_, err := p.Wait()
			must(t, err)
		}
		if _, err := outer.Call(t.Context(), s.ep, 1000); err != nil {
			t.Fatal(err)
		}
		elapse(time.Second)
		v := report(t, stats, false)
		server, client := s.server.Addr(), s.client.Addr()
		figure := func(num, least, most, avg, variance, sum float64) map[string]any {
			return map[string]any{"num": num, "min": least, "max": most, "avg": avg, "var": variance, "sum": sum}
		}
		naps := at(t, v, "rpcs", "65535:65535:"+decimal(nap.ID(65535))+":5")
		for _, c := range []struct {
			path []string
			want map[string]any
		}{
			{[]string{"target", "received from " + client, "ult", "duration"}, figure(2, 2, 4, 3, 2, 6)},
			{[]string{"target", "received from " + client, "ult", "relative_timestamp_from_handler_start"}, figure(2, 0, 1.999, 0.9995, 1.9980005, 1.999)},
			{[]string{"origin", "sent to " + server, "iforward_wait", "duration"}, figure(2, 2, 5.999, 3.9995, 7.9960005, 7.999)},
			{[]string{"origin", "sent to " + server, "forward_cb", "relative_timestamp_from_iforward_start"}, figure(2, 2, 5.999, 3.9995, 7.9960005, 7.999)},
		} {
			if diff := cmp.Diff(c.want, at(t, naps, c.path...)); diff != "" {
				t.Errorf("%v (-want +got):\n%s", c.path, diff)
			}
		}
		nested := at(t, v, "rpcs", decimal(outer.ID(65535))+":65535:"+decimal(nap.ID(65535))+":5").(map[string]any)
		want := map[string]any{
			"name": "nap", "provider_id": 5.0, "parent_provider_id": 65535.0,
			"rpc_id": nested["rpc_id"], "parent_rpc_id": nested["parent_rpc_id"], "origin": nested["origin"], "target": nested["target"],
		}
		if diff := cmp.Diff(want, nested); diff != "" {
			t.Errorf("nested (-want +got):\n%s", diff)
		}
		at(t, nested, "target", "received from "+server, "ult")
	})
}

// TestStatisticsBounded makes calls with more parents than there is room for, as a hostile peer can.
// parity: G89
func TestStatisticsBounded(t *testing.T) {
	stats := new(Statistics)
	server := listening(t, &Config{Statistics: stats})
	must(t, add.Handle(server, handleAdd))
	ep := reach(t, calling(t, nil), server)
	stats.mu.Lock()
	for i := range uint64(maxPaths) {
		entry(&stats.targets, callPath{add.ID(65535), i, "peer"})
	}
	stats.mu.Unlock()
	const more = 10
	for i := range uint64(more) {
		within := &serving{svc: &service{e: ep.e}, id: maxPaths + i}
		within.job.Init(nil, ep.e.handlers.pools.other, &within.svc.pace)
		_, err := add.Call(context.WithValue(t.Context(), servingKey{}, within), ep, addIn{})
		must(t, err)
	}
	waitFor(t, func() bool { return server.Stats().Handlers.Running == 0 })
	stats.mu.Lock()
	defer stats.mu.Unlock()
	if n := len(stats.targets); n != maxPaths+1 {
		t.Errorf("figures of %d paths, want %d", n, maxPaths+1)
	}
	if x := stats.targets[callPath{add.ID(65535), 65535, others}]; x == nil || x.handler.num != more {
		t.Errorf("figures of others: %+v", x)
	}
}

// TestStatisticsMerged checks what becomes of each kind of path beyond the bound.
func TestStatisticsMerged(t *testing.T) {
	var m map[transferPath]*transferStats
	for i := range uint64(maxPaths + 10) {
		counted(&m, transferPath{callPath{i % 2, i, "peer"}, pull, "remote"}, transferPath.merged).size.add(1)
	}
	merged := transferPath{callPath{1, 0xffff, others}, pull, others}
	if len(m) != maxPaths+2 || m[merged] == nil || m[merged].size.num != 5 {
		t.Errorf("%d paths, merged %+v", len(m), m[merged])
	}
}

func TestStatisticsWriter(t *testing.T) {
	if err := new(Statistics).Dump(errWriter{}, false); !errors.Is(err, context.Canceled) {
		t.Errorf("Dump = %v", err)
	}
}

func decimal(n uint64) string { return strconv.FormatUint(n, 10) }
