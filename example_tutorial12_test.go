package cinnabar_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"sync"

	"cinnabar"
	"cinnabar/margo"
)

// tally is a monitor that counts the operations that have ended, by kind and procedure, and passes events on to another monitor.
type tally struct {
	next   cinnabar.Monitor
	mu     sync.Mutex // events come from many goroutines
	counts map[string]int
}

func (t *tally) Event(ctx context.Context, ev cinnabar.Event) {
	t.next.Event(ctx, ev)
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
func measured(e *cinnabar.Engine, s *margo.Statistics) (map[string]int, error) {
	var file bytes.Buffer // margo.HOST.PID.stats.json
	if err := s.Dump(e, &file, false); err != nil {
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

// Tutorial 12, monitoring: an engine counts its operations in any case ([cinnabar.Stats]). It reports each call, request, response
// and transfer with its times to Config.Monitor. [margo.Statistics] is a monitor that adds these times up and writes them as Margo
// does; a monitor of the program's own can pass its events on to it.
// parity: G86 G96
func Example_tutorial12() {
	statistics := new(margo.Statistics)
	t := &tally{next: statistics, counts: map[string]int{}}
	client, err := cinnabar.Open("ofi+tcp://127.0.0.1", &cinnabar.Config{Monitor: t})
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
	calls, err := measured(client, statistics)
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
