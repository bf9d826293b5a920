package stats_test

import (
	"context"
	"encoding/json"
	"expvar"
	"fmt"
	"log"
	"sync/atomic"

	"cinnabar"
	"cinnabar/stats"
)

// calls is a Monitor that counts the calls of its process that have ended.
type calls struct{ failed, succeeded atomic.Int64 }

// Event implements [stats.Monitor].
func (c *calls) Event(_ context.Context, ev stats.Event) {
	switch {
	case ev.Kind != stats.EventCall || !ev.End:
	case ev.Err != nil:
		c.failed.Add(1)
	default:
		c.succeeded.Add(1)
	}
}

var double = cinnabar.NewRPC[int32, int32]("double")

// A client watches its calls by a Monitor, and reads the counters of its engine.
func Example() {
	server, err := cinnabar.Listen(context.Background(), "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	if err := double.Handle(server, func(_ context.Context, n int32) (int32, error) { return 2 * n, nil }); err != nil {
		log.Fatal(err)
	}

	monitor := new(calls)
	client, err := cinnabar.Open(context.Background(), "ofi+tcp://127.0.0.1", &cinnabar.Config{Monitor: monitor})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ep, err := client.Lookup(server.Addr())
	if err != nil {
		log.Fatal(err)
	}
	for n := range int32(3) {
		if _, err := double.Call(context.Background(), ep, n); err != nil {
			log.Fatal(err)
		}
	}
	s := client.Stats()
	fmt.Println("monitor:", monitor.succeeded.Load(), "calls succeeded,", monitor.failed.Load(), "failed")
	fmt.Println("counters:", s.ResponsesRecvd > 0, s.CallsActive)
	// Output:
	// monitor: 3 calls succeeded, 0 failed
	// counters: true 0
}

// engines has the counters of the engines of this program, each under a name of the program's choice.
var engines = expvar.NewMap("cinnabar")

// A program publishes the counters of its engines by expvar. The page debug/vars of net/http shows them as JSON.
// parity: Y07
func ExampleSnapshot_expvar() {
	engine, err := cinnabar.Listen(context.Background(), "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	engines.Set("server", expvar.Func(func() any { return engine.Stats() }))

	if _, err := engine.Alloc(cinnabar.ReadOnly, 4096); err != nil { // the engine frees it when it closes
		log.Fatal(err)
	}
	var page map[string]stats.Snapshot
	if err := json.Unmarshal([]byte(expvar.Get("cinnabar").String()), &page); err != nil {
		log.Fatal(err)
	}
	fmt.Println("exposures of memory:", page["server"].Bulks)
	// Output: exposures of memory: 1
}
