package cinnabar_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"sync"

	"cinnabar"
)

// tally is a monitor of one's own: it counts what has ended, by kind and procedure.
type tally struct {
	mu     sync.Mutex // events come from many goroutines
	counts map[string]int
}

func (t *tally) Event(_ context.Context, ev cinnabar.Event) {
	if !ev.End {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts[ev.Kind.String()+" "+ev.Info.RPC]++
}

// count asks for one of the counts.
func (t *tally) count(what string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.counts[what]
}

// measured reads from what Margo's tools read how many calls of each procedure were made.
func measured(s *cinnabar.Statistics) (map[string]int, error) {
	var file bytes.Buffer // margo.HOST.PID.stats.json
	if err := s.Dump(&file, false); err != nil {
		return nil, err
	}
	var parts struct {
		RPCs map[string]struct {
			Name   string
			Origin map[string]struct {
				Forward struct{ Duration struct{ Num int } } `json:"iforward"`
			}
		}
	}
	if err := json.Unmarshal(file.Bytes(), &parts); err != nil {
		return nil, err
	}
	calls := map[string]int{}
	for _, rpc := range parts.RPCs {
		for _, peer := range rpc.Origin {
			calls[rpc.Name] += peer.Forward.Duration.Num
		}
	}
	return calls, nil
}

// Tutorial 12, monitoring: an engine counts what it does, without being asked. If it is given [cinnabar.Statistics] it
// measures how long the steps of calls and transfers take, and writes that as Margo does; and it tells a monitor of one's
// own about each call, handler, response and transfer.
// parity: G86 G96
func Example_tutorial12() {
	t := &tally{counts: map[string]int{}}
	statistics := new(cinnabar.Statistics)
	client, err := cinnabar.Open("ofi+tcp://127.0.0.1", &cinnabar.Config{Monitor: t, Statistics: statistics})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	server, err := cinnabar.Listen("ofi+tcp://127.0.0.1", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	if err := servePairs(server, nil); err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	ep, err := client.Lookup(server.Addr())
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		if _, err := AddPair.Call(ctx, ep, PairIn{X: 1, Y: 2}); err != nil {
			log.Fatal(err)
		}
	}
	calls, err := measured(statistics)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the monitor has seen", t.count("call sum"), "calls, the statistics have", calls["sum"])
	fmt.Println("the server has run", server.Stats().Handlers.Served, "handlers")
	fmt.Println("the client has", client.Stats().CallsActive, "calls under way")
	// Output:
	// the monitor has seen 3 calls, the statistics have 3
	// the server has run 3 handlers
	// the client has 0 calls under way
}
