package top

import (
	"context"
	"strings"
	"sync"
	"testing"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/margo"
)

// TestFigures compares the figures of top with the counts of a load generator: callers with a known number of calls in a pool, and requests that are
// held at their handlers and in the queue. debugpage.TestFigures and metrics.TestPrometheus do the same with the debug page and with Prometheus.
// parity: P03
func TestFigures(t *testing.T) {
	const callers, each, workers, held = 4, 100, 2, 5
	server := clitest.Queried(t, &cinnabar.Config{Pools: []cinnabar.PoolConfig{{Name: "load", Workers: workers}}})
	pool := cinnabar.WithPool(server.LookupPool("load"))
	half, hold := cinnabar.NewRPC[int32, int32]("half"), cinnabar.NewRPC[struct{}, struct{}]("hold")
	release, entered := make(chan struct{}), make(chan struct{}, held)
	err := half.Handle(server, func(_ context.Context, n int32) (int32, error) { return n / 2, nil }, pool)
	if err == nil {
		err = hold.Handle(server, func(context.Context, struct{}) (struct{}, error) {
			entered <- struct{}{}
			<-release
			return struct{}{}, nil
		}, pool)
	}
	if err != nil {
		t.Fatal(err)
	}
	client := clitest.Engine(t, nil)
	ep, err := client.Lookup(server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	var load sync.WaitGroup
	for range callers {
		load.Go(func() {
			for n := range int32(each) {
				if _, err := half.Call(t.Context(), ep, n); err != nil {
					t.Error(err)
				}
			}
		})
	}
	load.Wait()
	var waiting []*cinnabar.Pending[struct{}]
	for range held {
		waiting = append(waiting, hold.Start(t.Context(), ep, struct{}{}))
	}
	for range workers {
		<-entered
	}
	// The server has all requests once it has answered one that the same connection carries behind them.
	if _, err := margo.QueryState(t.Context(), ep, 0); err != nil {
		t.Fatal(err)
	}
	state, err := margo.QueryState(t.Context(), ep, 100)
	if err != nil {
		t.Fatal(err)
	}
	cells := func(v view, name string) string {
		for _, r := range tableOf(v, state, filter{}).rows {
			if r.cells[0].text == name {
				var list []string
				for _, c := range r.cells[1:] {
					list = append(list, c.text)
				}
				return strings.Join(list, " ")
			}
		}
		return "no row"
	}
	if got, want := cells(viewPools, "load"), "2 0 3 402 0"; got != want { // the held ones that run have begun, and so are served
		t.Errorf("the pool has %q, want %q", got, want)
	}
	if got, want := cells(viewRPCs, "hold"), "2 0 3 0 "; !strings.HasPrefix(got, want) {
		t.Errorf("the RPC has %q, want %q", got, want)
	}
	close(release)
	for _, w := range waiting {
		if _, err := w.Wait(); err != nil {
			t.Error(err)
		}
	}
	cli.Shut(client)
}
