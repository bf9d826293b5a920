// Command 14 is the fourteenth tutorial, several engines: two engines of one process have their own addresses and RPCs, and the same
// workers. They may end in any order.
package main

import (
	"context"
	"fmt"
	"log"

	"cinnabar"
)

type (
	PairIn  struct{ X, Y int32 }
	PairOut struct{ Ret int32 }
)

var Sum = cinnabar.NewRPC[PairIn, PairOut]("sum")

func add(_ context.Context, in PairIn) (PairOut, error) { return PairOut{Ret: in.X + in.Y}, nil }

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

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
	if err := Sum.Handle(parent, add, cinnabar.WithPool(shared)); err != nil {
		return err
	}
	if err := Sum.Handle(child, add); err != nil { // in the engine's RPCPool
		return err
	}
	fmt.Println("the same pool:", child.LookupPool("shared") == shared, "the same address:", child.Addr() == parent.Addr())
	for _, e := range []*cinnabar.Engine{parent, child} {
		if _, err := Sum.Call(ctx, e.Self(), PairIn{X: 1, Y: 2}); err != nil {
			return err
		}
	}
	fmt.Println("served by the pool:", shared.Stats().Served)

	if err := parent.Close(); err != nil {
		return err
	}
	out, err := Sum.Call(ctx, child.Self(), PairIn{X: 20, Y: 22})
	fmt.Println("without its parent:", out.Ret, err)
	return nil
}
