// Command 07 is the seventh tutorial, pools: a service has a pool with one worker of its own, so that its handlers and those of
// other services do not delay each other.
package main

import (
	"context"
	"fmt"
	"log"

	"cinnabar"
	"cinnabar/codes"
)

type (
	pairIn  struct{ X, Y int32 }
	pairOut struct{ Ret int32 }
)

var (
	sum    = cinnabar.NewRPC[pairIn, pairOut]("sum")
	occupy = cinnabar.NewRPC[struct{}, struct{}]("occupy")
)

// add returns a handler that prints the name of its service.
func add(name string) func(context.Context, pairIn) (pairOut, error) {
	return func(_ context.Context, in pairIn) (pairOut, error) {
		fmt.Printf("%s computes %d + %d\n", name, in.X, in.Y)
		return pairOut{Ret: in.X + in.Y}, nil
	}
}

// servePooled registers provider 42 in a pool with one worker. A call of occupy keeps that worker busy until stop is closed.
func servePooled(engine *cinnabar.Engine, started chan<- struct{}, stop <-chan struct{}) (*cinnabar.Provider, error) {
	pool, err := engine.AddPool(cinnabar.PoolConfig{Name: "alpha", Workers: 1})
	if err != nil {
		return nil, err
	}
	p, err := engine.NewProvider(42, "alpha")
	if err != nil {
		return nil, err
	}
	if err := sum.Handle(p, add("the pool"), cinnabar.WithPool(pool)); err != nil {
		return nil, err
	}
	return p, occupy.Handle(p, func(context.Context, struct{}) (struct{}, error) {
		close(started)
		<-stop
		return struct{}{}, nil
	}, cinnabar.WithPool(pool))
}

func run(ctx context.Context) error {
	server, err := cinnabar.Listen(ctx, "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		return err
	}
	defer server.Close()
	started, stop := make(chan struct{}), make(chan struct{})
	pooled, err := servePooled(server, started, stop)
	if err != nil {
		return err
	}
	if err := sum.Handle(server, add("the engine")); err != nil { // in no pool
		return err
	}

	ep := server.Self()
	busy := occupy.Start(ctx, ep.Provider(42), struct{}{})
	<-started
	waiting := sum.Start(ctx, ep.Provider(42), pairIn{X: 1, Y: 2}) // waits, because the only worker is busy
	if _, err := sum.Call(ctx, ep, pairIn{X: 3, Y: 4}); err != nil {
		return err
	}
	fmt.Println("remove:", codes.Of(server.RemovePool("alpha")))
	close(stop)
	if _, err := busy.Wait(); err != nil {
		return err
	}
	if _, err := waiting.Wait(); err != nil {
		return err
	}
	fmt.Println("served by the pool:", server.Stats().Pools["alpha"].Served)
	fmt.Println("close:", pooled.Close())
	return nil
}

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
