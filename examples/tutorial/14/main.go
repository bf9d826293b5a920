// Command 14 is the fourteenth tutorial, several engines: two engines of one process have their own addresses and RPCs, and the same
// workers. They may end in any order.
package main

import (
	"context"
	"fmt"
	"log"

	"cinnabar"
)

var Double = cinnabar.NewRPC[int32, int32]("double")

func double(_ context.Context, n int32) (int32, error) { return 2 * n, nil }

func run(ctx context.Context) error {
	parent, err := cinnabar.Listen(ctx, "ofi+tcp://127.0.0.1", &cinnabar.Config{
		Pools: []cinnabar.PoolConfig{{Name: "shared", Workers: 2}},
	})
	if err != nil {
		return err
	}
	defer parent.Close()
	child, err := cinnabar.Listen(ctx, "ofi+tcp://127.0.0.1", &cinnabar.Config{Parent: parent, RPCPool: "shared"})
	if err != nil {
		return err
	}
	defer child.Close()

	shared := parent.LookupPool("shared")
	if err := Double.Handle(parent, double, cinnabar.WithPool(shared)); err != nil {
		return err
	}
	if err := Double.Handle(child, double); err != nil { // in the engine's RPCPool
		return err
	}
	fmt.Println("the same pool:", child.LookupPool("shared") == shared, "the same address:", child.Addr() == parent.Addr())
	for _, e := range []*cinnabar.Engine{parent, child} {
		if _, err := Double.Call(ctx, e.Self(), 1); err != nil {
			return err
		}
	}
	fmt.Println("served by the pool:", parent.Stats().Pools["shared"].Served)

	if err := parent.Close(); err != nil {
		return err
	}
	out, err := Double.Call(ctx, child.Self(), 21)
	fmt.Println("without its parent:", out, err)
	return nil
}

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
