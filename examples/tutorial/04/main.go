// Command 04 is the fourth tutorial, bulk memory: the client exposes an array, and the server reads the array from the client's
// memory. The programs in examples/sum do the same as two processes, either of which works with the other half in C.
package main

import (
	"context"
	"fmt"
	"log"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/regmem"
)

// VectorIn has the number of values and a handle for the memory where they are. The values themselves do not travel in the request.
type VectorIn struct {
	N      int32
	Values cinnabar.BulkHandle
}

// VectorOut has the sum of the values.
type VectorOut struct{ Ret int32 }

var Sum = cinnabar.NewRPC[VectorIn, VectorOut]("sum")

// adder serves Sum for at most most values, because N comes from the client and decides how much memory a request takes.
type adder struct {
	engine *cinnabar.Engine
	most   int32
}

func (a *adder) sum(ctx context.Context, in VectorIn) (VectorOut, error) {
	if in.N < 0 || in.N > a.most {
		return VectorOut{}, fmt.Errorf("%w: %d values, at most %d are taken", codes.InvalidArg, in.N, a.most)
	}
	values := make([]int32, in.N)
	local, err := a.engine.Expose(cinnabar.WriteOnly, regmem.Bytes(values))
	if err != nil {
		return VectorOut{}, err
	}
	defer local.Close()
	if _, err := in.Values.On(cinnabar.InfoFrom(ctx).Peer).Pull(ctx, local); err != nil {
		return VectorOut{}, err
	}
	var out VectorOut
	for _, x := range values {
		out.Ret += x
	}
	return out, nil
}

// sumOf exposes values to the server for the time of one call.
func sumOf(ctx context.Context, engine *cinnabar.Engine, server *cinnabar.Endpoint, n int32, values []int32) (int32, error) {
	exposed, err := engine.Expose(cinnabar.ReadOnly, regmem.Bytes(values))
	if err != nil {
		return 0, err
	}
	defer exposed.Close()
	out, err := Sum.Call(ctx, server, VectorIn{N: n, Values: exposed.Handle()})
	return out.Ret, err
}

func run(ctx context.Context) error {
	engine, err := cinnabar.Listen(ctx, "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		return err
	}
	defer engine.Close()
	a := &adder{engine: engine, most: 1 << 20}
	if err := Sum.Handle(engine, a.sum); err != nil {
		return err
	}
	client, err := cinnabar.Open(ctx, "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		return err
	}
	defer client.Close()
	server, err := client.Lookup(engine.Addr())
	if err != nil {
		return err
	}

	values := []int32{1, 4, 2, 5, 6, 3, 5, 3, 2, 5}
	for range 4 {
		sum, err := sumOf(ctx, client, server, int32(len(values)), values)
		if err != nil {
			return err
		}
		fmt.Println("Got response:", sum)
	}
	_, err = sumOf(ctx, client, server, 1<<30, values)
	fmt.Println("Too many:", codes.Of(err))
	return nil
}

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
