package margo

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"cinnabar"
	"cinnabar/stats"

	"github.com/google/go-cmp/cmp"
)

// TestDumpText compares the lines about a server that hangs.
// parity: H09 G90
func TestDumpText(t *testing.T) {
	const ms = time.Millisecond
	seven := uint16(7)
	var b strings.Builder
	must(t, writeState(&b, stats.Inventory{
		Addr: "ofi+tcp://10.0.0.1:1", Listening: true, Age: 4500 * ms, Delayed: 1,
		Calls:     []stats.Operation{{Op: "call", RPC: "nap@7", Peer: "ofi+tcp://10.0.0.1:1", Age: 2500*ms + 17, Within: "relay"}},
		Transfers: []stats.Operation{{Op: "pull", Peer: "ofi+tcp://10.0.0.2:2", Bytes: 60, Age: time.Minute}},
		Requests: []stats.Request{
			{State: "waiting", RPC: "relay", Peer: "ofi+tcp://10.0.0.2:2", Age: 2500 * ms},
			{State: "queued", RPC: "nap@7", Peer: "ofi+tcp://10.0.0.2:2", Pool: "p", Age: 500 * ms},
			{State: "held", RPC: "add", Peer: "ofi+tcp://10.0.0.2:2", Age: 3500 * ms},
		},
		Memory: []stats.Memory{
			{Kind: "read-only bulk of 100 bytes in 1 segments", Count: 1, Bytes: 100, Place: "main.main at main.go:7"},
			{Kind: "read-write bulk of 64 bytes in 1 segments", Count: 3, Bytes: 192, Place: "main.serve at main.go:70"},
		},
		Providers: []stats.Provider{{ID: 7, Identity: "sleepers"}},
		RPCs:      []stats.RPC{{Name: "nap", ID: 0x70000007, Provider: &seven, Flavor: "Margo", Pool: "p"}, {Name: "relay", ID: 0x123400000000ffff, Flavor: "Margo"}},
	}, []poolState{
		{"handlers in no pool", "fifo_wait", 4096, stats.Pool{Waiting: 1, Most: 1, Served: 2}},
		{"p", "prio_wait", 2, stats.Pool{Running: 2, Queued: 1, Most: 2, Served: 2, Refused: 3}},
	}, []stats.Counter{{Name: "rpc_req_sent_count", Value: 0}, {Name: "bulk_count", Value: 4}}))
	const want = `engine ofi+tcp://10.0.0.1:1, listening, for 4.5s
calls under way: 1
  call  nap@7  ofi+tcp://10.0.0.1:1  2.5s  within relay
transfers under way: 1
  pull  60 bytes  ofi+tcp://10.0.0.2:2  1m0s
requests: 3
  waiting  relay  ofi+tcp://10.0.0.2:2  2.5s   in no pool
  queued   nap@7  ofi+tcp://10.0.0.2:2  500ms  in pool p
  held     add    ofi+tcp://10.0.0.2:2  3.5s   since its handler has returned
memory exposed: 4, 292 bytes
  1 × read-only bulk of 100 bytes in 1 segments  main.main at main.go:7
  3 × read-write bulk of 64 bytes in 1 segments  main.serve at main.go:70
pools: 1
  handlers in no pool  fifo_wait  4096  running 0, waiting 1, queued 0, most 1, served 2, refused 0
  p                    prio_wait  2     running 2, waiting 0, queued 1, most 2, served 2, refused 3
timers started: 1
providers: 1
  7  sleepers
RPCs: 2
  nap@7  0x0000000070000007  Margo  in pool p
  relay  0x123400000000ffff  Margo  in no pool
counters: 2
  rpc_req_sent_count  0
  bulk_count          4
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
}

// TestDumpState dumps an engine with a parent while a handler of its waits.
// parity: G90
func TestDumpState(t *testing.T) {
	parent := listening(t, &cinnabar.Config{MaxHandlers: 77, Pools: []cinnabar.PoolConfig{{Name: "p", Workers: 2, Kind: cinnabar.PoolEarliestFirst}}})
	e := listening(t, &cinnabar.Config{Parent: parent})
	must(t, relay.Handle(e, func(ctx context.Context, _ addIn) (addOut, error) {
		<-ctx.Done()
		return addOut{}, ctx.Err()
	}, cinnabar.WithPool(e.LookupPool("p"))))
	relay.Start(t.Context(), e.Self(), addIn{})
	waitFor(t, func() bool { return e.Stats().Pools["p"].Running == 1 })
	var b strings.Builder
	must(t, DumpState(e, &b))
	lines := strings.Split(strings.Join(strings.FieldsFunc(b.String(), func(r rune) bool { return r == ' ' }), " "), "\n")
	rest := lines
	for _, want := range []string{
		"engine " + e.Addr() + ", listening, for ", "calls under way: 1", " call relay " + e.Addr(), "requests: 1", " running relay " + e.Addr(),
		"pools: 1", " handlers in no pool fifo_wait 77 running 0", " p earliest_first 2 running 1", "providers: 0", "RPCs: 3", "counters: 9",
	} {
		for len(rest) > 0 && !strings.HasPrefix(rest[0], want) {
			rest = rest[1:]
		}
		if len(rest) == 0 {
			t.Fatalf("no line %q, in this place, in:\n%s", want, &b)
		}
	}
	if err := DumpState(e, errWriter{}); !errors.Is(err, context.Canceled) {
		t.Errorf("DumpState = %v", err)
	}
}
