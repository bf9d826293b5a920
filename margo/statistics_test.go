package margo

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

	"cinnabar"
	"cinnabar/stats"
	"github.com/google/go-cmp/cmp"
)

// report returns the file that the statistics write.
func report(t *testing.T, e *cinnabar.Engine, s *Statistics, reset bool) (v map[string]any) {
	t.Helper()
	var b bytes.Buffer
	must(t, s.Dump(e, &b, reset))
	if err := json.Unmarshal(b.Bytes(), &v); err != nil {
		t.Fatalf("%v in %s", err, b.Bytes())
	}
	return v
}

// find returns the value that v has at a path.
func find(t *testing.T, v any, path ...string) any {
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
	server := listening(t, &cinnabar.Config{Monitor: there})
	client := calling(t, &cinnabar.Config{Monitor: here, NoEager: true})
	ep := reach(t, client, server)
	fetch := cinnabar.NewRPC[cinnabar.BulkHandle, int64]("fetch")
	store := cinnabar.NewRPC[cinnabar.BulkHandle, int64]("store")
	must(t, add.Handle(server, handleAdd))
	must(t, fetch.Handle(server, func(ctx context.Context, h cinnabar.BulkHandle) (int64, error) {
		b, err := server.Expose(cinnabar.WriteOnly, make([]byte, 1000))
		if err != nil {
			return 0, err
		}
		n, err := h.On(cinnabar.InfoFrom(ctx).Peer).Pull(ctx, b)
		return n, errors.Join(err, b.Close())
	}))
	must(t, store.Handle(server, func(ctx context.Context, h cinnabar.BulkHandle) (int64, error) {
		b, err := server.Expose(cinnabar.ReadOnly, make([]byte, 100))
		if err != nil {
			return 0, err
		}
		n, err := h.On(cinnabar.InfoFrom(ctx).Peer).StartPush(ctx, b).Wait()
		return n, errors.Join(err, b.Close())
	}))
	for range 3 {
		_, err := add.Call(t.Context(), ep, addIn{})
		must(t, err)
	}
	for r, mode := range map[*cinnabar.RPC[cinnabar.BulkHandle, int64]]cinnabar.Mode{fetch: cinnabar.ReadOnly, store: cinnabar.WriteOnly} {
		b, err := client.Expose(mode, make([]byte, 1000))
		must(t, err)
		_, err = r.Start(t.Context(), ep, b.Handle()).Wait()
		must(t, err)
		must(t, b.Close())
	}
	idle(t, server)

	got, want := map[string]bool{}, map[string]bool{}
	keysOf(report(t, client, here, false), "", got)
	keysOf(report(t, server, there, false), "", got)
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
	if got := find(t, report(t, client, here, true), "rpcs", key, "origin", "sent to "+server.Addr(), "iforward", "duration", "num"); got != 3.0 {
		t.Errorf("%v calls, want 3", got)
	}
	if got := find(t, report(t, server, there, false), "rpcs", key, "target", "received from "+client.Addr(), "ult", "duration", "num"); got != 3.0 {
		t.Errorf("%v handlers, want 3", got)
	}
	if left := find(t, report(t, client, here, false), "rpcs").(map[string]any); len(left) != 0 {
		t.Errorf("after a reset there are %v", left)
	}
}

// TestStatisticsTimes compares the figures with the times of events.
// parity: G87
func TestStatisticsTimes(t *testing.T) {
	server := listening(t, nil)
	peer := server.Self()
	began := time.Now()
	at := func(ms int) time.Time { return began.Add(time.Duration(ms) * time.Millisecond) }
	const id, parent = 0x1234<<32 | 5, 0x5678<<32 | 0xffff
	call := func(waited int) stats.Event {
		return stats.Event{
			Kind: stats.EventCall, End: true, Info: stats.CallInfo{RPC: "nap", ID: id, Parent: 65535, Peer: peer},
			Times: stats.Timing{Began: began, Encoded: at(1), Sent: at(3), Ended: at(3 + waited), Decoded: at(7 + waited)},
		}
	}
	request := stats.Event{
		Kind: stats.EventRequest, End: true, Info: stats.CallInfo{RPC: "nap", ID: id, Parent: parent, Peer: peer},
		Times: stats.Timing{Began: began, Admitted: at(1), Running: at(10), Decoded: at(12), Ended: at(50)},
	}
	response := request
	response.Kind = stats.EventRespond
	response.Times = stats.Timing{Running: at(10), Began: at(40), Encoded: at(43), Ended: at(45)}
	pull := stats.Event{
		Kind: stats.EventTransfer, End: true, Info: stats.CallInfo{RPC: "pull", Parent: 65535, Peer: peer}, Bytes: 4096,
		Times: stats.Timing{Began: began, Sent: at(2), Ended: at(9)},
	}
	exposed := stats.Event{Kind: stats.EventExpose, End: true, Bytes: 100, Times: stats.Timing{Began: began, Ended: at(6)}}
	unsent, failed := call(0), call(100)
	unsent.Times.Sent, unsent.Times.Ended, unsent.Times.Decoded = time.Time{}, time.Time{}, time.Time{}
	failed.Times.Decoded = time.Time{}
	statistics := new(Statistics)
	for _, ev := range []stats.Event{call(20), call(40), failed, unsent, request, response, pull, exposed} {
		start := ev
		start.End, start.Times = false, stats.Timing{}
		statistics.Event(t.Context(), start)
		statistics.Event(t.Context(), ev)
	}
	v := report(t, server, statistics, false)
	figure := func(num, least, most, avg, variance, sum float64) map[string]any {
		return map[string]any{"num": num, "min": least, "max": most, "avg": avg, "var": variance, "sum": sum}
	}
	one := func(x float64) map[string]any { return figure(1, x, x, x, 0, x) }
	to, from := "sent to "+server.Addr(), "received from "+server.Addr()
	nap := "65535:65535:" + decimal(id|0xffff) + ":5"
	nested := decimal(parent|0xffff) + ":65535:" + decimal(id|0xffff) + ":5"
	for _, c := range []struct {
		path []string
		want map[string]any
	}{
		{[]string{nap, "origin", to, "set_input", "duration"}, figure(3, 0.001, 0.001, 0.001, 0, 0.003)},
		{[]string{nap, "origin", to, "iforward", "duration"}, figure(3, 0.003, 0.003, 0.003, 0, 0.009)},
		{[]string{nap, "origin", to, "iforward_wait", "duration"}, figure(3, 0.02, 0.1, 0.053333333, 0.003466667, 0.16)},
		{[]string{nap, "origin", to, "forward_cb", "relative_timestamp_from_iforward_start"}, figure(3, 0.023, 0.103, 0.056333333, 0.003466667, 0.169)},
		{[]string{nap, "origin", to, "get_output", "duration"}, figure(2, 0.004, 0.004, 0.004, 0, 0.008)},
		{[]string{nested, "target", from, "handler", "duration"}, one(0.001)},
		{[]string{nested, "target", from, "ult", "duration"}, one(0.04)},
		{[]string{nested, "target", from, "ult", "relative_timestamp_from_handler_start"}, one(0.01)},
		{[]string{nested, "target", from, "get_input", "duration"}, one(0.002)},
		{[]string{nested, "target", from, "set_output", "duration"}, one(0.003)},
		{[]string{nested, "target", from, "irespond", "duration"}, one(0.005)},
		{[]string{nested, "target", from, "irespond", "relative_timestamp_from_ult_start"}, one(0.03)},
		{[]string{nested, "target", from, "respond_cb", "relative_timestamp_from_irespond_start"}, one(0.005)},
		{[]string{"65535:65535:65535:65535", "target", "received from <unknown>", "bulk", "pull from " + server.Addr(), "itransfer", "duration"}, one(0.002)},
		{[]string{"65535:65535:65535:65535", "target", "received from <unknown>", "bulk", "pull from " + server.Addr(), "itransfer", "size"}, one(4096)},
		{[]string{"65535:65535:65535:65535", "target", "received from <unknown>", "bulk", "pull from " + server.Addr(), "itransfer_wait", "duration"}, one(0.007)},
		{[]string{"65535:65535:65535:65535", "target", "received from <unknown>", "bulk", "pull from " + server.Addr(), "transfer_cb", "relative_timestamp_from_itransfer_start"}, one(0.009)},
		{[]string{"65535:65535:65535:65535", "target", "received from <unknown>", "bulk", "create", "duration"}, one(0.006)},
		{[]string{"65535:65535:65535:65535", "target", "received from <unknown>", "bulk", "create", "size"}, one(100)},
	} {
		if diff := cmp.Diff(c.want, find(t, v, append([]string{"rpcs"}, c.path...)...)); diff != "" {
			t.Errorf("%v (-want +got):\n%s", c.path, diff)
		}
	}
	rpc := find(t, v, "rpcs", nested).(map[string]any)
	want := map[string]any{
		"name": "nap", "provider_id": 5.0, "parent_provider_id": 65535.0,
		"rpc_id": rpc["rpc_id"], "parent_rpc_id": rpc["parent_rpc_id"], "target": rpc["target"],
	}
	if diff := cmp.Diff(want, rpc); diff != "" {
		t.Errorf("nested (-want +got):\n%s", diff)
	}
}

// TestStatisticsNested makes calls within handlers of providers, and looks for their parents.
// parity: G87
func TestStatisticsNested(t *testing.T) {
	statistics := new(Statistics)
	server := listening(t, &cinnabar.Config{Monitor: statistics})
	must(t, add.Handle(server, handleAdd))
	p, err := server.NewProvider(5, "outer")
	must(t, err)
	must(t, relay.Handle(p, func(ctx context.Context, in addIn) (addOut, error) { return add.Call(ctx, server.Self(), in) }))
	_, err = relay.Call(t.Context(), server.Self().Provider(5), addIn{})
	must(t, err)
	idle(t, server)
	key := decimal(relay.ID(65535)) + ":5:" + decimal(add.ID(65535)) + ":65535"
	nested := find(t, report(t, server, statistics, false), "rpcs", key)
	for _, path := range [][]string{{"origin", "sent to " + server.Addr(), "iforward"}, {"target", "received from " + server.Addr(), "ult"}} {
		if got := find(t, nested, append(path, "duration", "num")...); got != 1.0 {
			t.Errorf("%v: %v calls, want 1", path, got)
		}
	}
}

// TestStatisticsBounded serves calls with more parents than there is room for, as a hostile peer can make them.
// parity: G89
func TestStatisticsBounded(t *testing.T) {
	statistics := new(Statistics)
	server := listening(t, &cinnabar.Config{Monitor: statistics})
	must(t, add.Handle(server, handleAdd))
	client := listening(t, nil) // it serves the calls within which add is called
	ep := reach(t, client, server)
	ev := stats.Event{Kind: stats.EventRequest, End: true, Info: stats.CallInfo{RPC: "add", ID: add.ID(65535), Peer: server.Self()}}
	for i := range uint64(maxPaths) {
		ev.Info.Parent = i
		statistics.Event(t.Context(), ev)
	}
	const more = 10
	for i := range uint16(more) {
		p, err := client.NewProvider(i+1, "parent")
		must(t, err)
		must(t, relay.Handle(p, func(ctx context.Context, in addIn) (addOut, error) { return add.Call(ctx, ep, in) }))
		_, err = relay.Call(t.Context(), client.Self().Provider(i+1), addIn{})
		must(t, err)
	}
	idle(t, server)
	statistics.mu.Lock()
	defer statistics.mu.Unlock()
	if n := len(statistics.targets); n != maxPaths+1 {
		t.Errorf("figures of %d paths, want %d", n, maxPaths+1)
	}
	if x := statistics.targets[callPath{add.ID(65535), 65535, others}]; x == nil || x.handler.num != more {
		t.Errorf("figures of others: %+v", x)
	}
}

// TestStatisticsMerged checks what becomes of each kind of path beyond the bound.
func TestStatisticsMerged(t *testing.T) {
	var m map[transferPath]*transferStats
	for i := range uint64(maxPaths + 10) {
		counted(&m, transferPath{callPath{i % 2, i, "peer"}, "pull", "remote"}, transferPath.merged).size.add(1)
	}
	merged := transferPath{callPath{1, 0xffff, others}, "pull", others}
	if len(m) != maxPaths+2 || m[merged] == nil || m[merged].size.num != 5 {
		t.Errorf("%d paths, merged %+v", len(m), m[merged])
	}
}

func TestStatisticsWriter(t *testing.T) {
	if err := new(Statistics).Dump(listening(t, nil), errWriter{}, false); !errors.Is(err, context.Canceled) {
		t.Errorf("Dump = %v", err)
	}
}

func decimal(n uint64) string { return strconv.FormatUint(n, 10) }
