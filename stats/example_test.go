package stats_test

import (
	"context"
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
