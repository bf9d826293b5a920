// Command 12 is the twelfth tutorial, monitoring: an engine counts its operations, Margo's statistics add up their times, and a
// monitor of the program's own counts them by kind and procedure.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"sync"

	"cinnabar"
	"cinnabar/margo"
	"cinnabar/stats"
)

var Double = cinnabar.NewRPC[int32, int32]("double")

func double(_ context.Context, n int32) (int32, error) { return 2 * n, nil }

// tally is a monitor. It counts the operations that have ended, and passes all events on to another monitor.
type tally struct {
	next   stats.Monitor
	mu     sync.Mutex // events come from many goroutines
	counts map[string]int
}

func (t *tally) Event(ctx context.Context, ev stats.Event) {
	t.next.Event(ctx, ev)
	if !ev.End {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts[ev.Kind.String()+" "+ev.Info.RPC]++
}

// count returns one of the counts, such as that of "call double".
func (t *tally) count(operation string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.counts[operation]
}

// measured returns the number of calls of each procedure from the JSON that Margo's tools read (margo.HOST.PID.stats.json).
func measured(e *cinnabar.Engine, s *margo.Statistics) (map[string]int, error) {
	var file bytes.Buffer
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

func run(ctx context.Context) error {
	server, err := cinnabar.Listen(ctx, "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		return err
	}
	defer server.Close()
	if err := Double.Handle(server, double); err != nil {
		return err
	}

	statistics := new(margo.Statistics)
	t := &tally{next: statistics, counts: map[string]int{}}
	client, err := cinnabar.Open(ctx, "ofi+tcp://127.0.0.1", &cinnabar.Config{Monitor: t})
	if err != nil {
		return err
	}
	defer client.Close()
	ep, err := client.Lookup(server.Addr())
	if err != nil {
		return err
	}
	for range 3 {
		if _, err := Double.Call(ctx, ep, 1); err != nil {
			return err
		}
	}
	calls, err := measured(client, statistics)
	if err != nil {
		return err
	}
	fmt.Println("the monitor has seen", t.count("call double"), "calls, the statistics have", calls["double"])
	fmt.Println("the server has run", server.Stats().Handlers.Served, "handlers")
	fmt.Println("the client has", client.Stats().CallsActive, "calls under way")
	return nil
}

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
