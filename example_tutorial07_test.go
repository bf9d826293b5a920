package cinnabar_test

import (
	"context"
	"fmt"
	"log"

	"cinnabar"
)

var occupy = cinnabar.NewRPC[struct{}, struct{}]("occupy")

// servePooled gives the service a pool with one worker, and lets it be kept busy until stop.
func servePooled(engine *cinnabar.Engine, started chan<- struct{}, stop <-chan struct{}) (*AlphaProvider, error) {
	pool, err := engine.AddPool(cinnabar.PoolConfig{Name: "alpha", Workers: 1})
	if err != nil {
		return nil, err
	}
	alpha, err := NewAlphaProvider(engine, 42, "the pool", cinnabar.InPool(pool))
	if err != nil {
		return nil, err
	}
	return alpha, occupy.Handle(alpha.provider, func(context.Context, struct{}) (struct{}, error) {
		close(started)
		<-stop
		return struct{}{}, nil
	}, cinnabar.InPool(pool))
}

// Tutorial 7, pools: a pool is a number of workers for the handlers of some RPCs, so that these and others do not delay
// each other. It may come and go while the engine runs.
// parity: G96
func Example_tutorial07() {
	client, server, ep := twoEngines()
	defer client.Close()
	defer server.Close()
	started, stop := make(chan struct{}), make(chan struct{})
	pooled, err := servePooled(server, started, stop)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := NewAlphaProvider(server, 43, "somebody else"); err != nil {
		log.Fatal(err)
	}

	ctx := context.Background()
	busy := occupy.Start(ctx, ep.Provider(42), struct{}{})
	<-started
	waiting := alphaSum.Start(ctx, ep.Provider(42), PairIn{X: 1, Y: 2}) // there is one worker, and it is taken
	if _, err := alphaSum.Call(ctx, ep.Provider(43), PairIn{X: 3, Y: 4}); err != nil {
		log.Fatal(err)
	}
	fmt.Println("remove:", cinnabar.CodeOf(server.RemovePool("alpha")))
	close(stop)
	if _, err := busy.Wait(); err != nil {
		log.Fatal(err)
	}
	if _, err := waiting.Wait(); err != nil {
		log.Fatal(err)
	}
	fmt.Println("served by the pool:", server.Pool("alpha").Stats().Served)
	fmt.Println("close:", pooled.Close())
	// Output:
	// somebody else computes 3 + 4
	// remove: HG_BUSY
	// the pool computes 1 + 2
	// served by the pool: 2
	// close: <nil>
}
