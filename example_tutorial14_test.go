package cinnabar_test

import (
	"context"
	"fmt"
	"log"

	"cinnabar"
)

// family makes two engines, of which the second uses the first one's pools.
func family() (parent, child *cinnabar.Engine, err error) {
	parent, err = cinnabar.Listen("ofi+tcp://127.0.0.1", &cinnabar.Config{
		Pools: []cinnabar.PoolConfig{{Name: "shared", Workers: 2}},
	})
	if err != nil {
		return nil, nil, err
	}
	child, err = cinnabar.Listen("ofi+tcp://127.0.0.1", &cinnabar.Config{Parent: parent, RPCPool: "shared"})
	if err != nil {
		_ = parent.Close()
		return nil, nil, err
	}
	return parent, child, nil
}

// Tutorial 14, several engines: a process may have more than one, for several networks for example. Each has its own
// address and RPCs; with [cinnabar.Config.Parent] they have their workers in common. They may end in any order.
// parity: G96
func Example_tutorial14() {
	parent, child, err := family()
	if err != nil {
		log.Fatal(err)
	}
	defer child.Close()
	shared := parent.Pool("shared")
	if err := AddPair.Handle(parent, addTwo, cinnabar.InPool(shared)); err != nil {
		log.Fatal(err)
	}
	if err := AddPair.Handle(child, addTwo); err != nil { // in its RPCPool
		log.Fatal(err)
	}
	fmt.Println("the same pool:", child.Pool("shared") == shared, "the same address:", child.Addr() == parent.Addr())
	ctx := context.Background()
	for _, e := range []*cinnabar.Engine{parent, child} {
		if _, err := AddPair.Call(ctx, e.Self(), PairIn{X: 1, Y: 2}); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("served by the pool:", shared.Stats().Served)
	if err := parent.Close(); err != nil {
		log.Fatal(err)
	}
	out, err := AddPair.Call(ctx, child.Self(), PairIn{X: 20, Y: 22})
	fmt.Println("without its parent:", out.Ret, err)
	// Output:
	// the same pool: true the same address: false
	// served by the pool: 2
	// without its parent: 42 <nil>
}

func addTwo(_ context.Context, in PairIn) (PairOut, error) { return PairOut{Ret: in.X + in.Y}, nil }
