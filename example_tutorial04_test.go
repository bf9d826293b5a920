package cinnabar_test

import (
	"context"
	"fmt"
	"log"

	"cinnabar"
)

// VectorIn says how many values there are and where; the server fetches them from there.
type VectorIn struct {
	N      int32
	Values cinnabar.BulkHandle
}

var AddVector = cinnabar.NewRPC[VectorIn, PairOut]("sum")

// vectors serves AddVector. It decides how much memory a request may cost.
type vectors struct {
	engine *cinnabar.Engine
	most   int32
}

func (v *vectors) add(ctx context.Context, in VectorIn) (PairOut, error) {
	if in.N < 0 || in.N > v.most {
		return PairOut{}, fmt.Errorf("%w: %d values, at most %d are taken", cinnabar.CodeInvalidArg, in.N, v.most)
	}
	values := make([]int32, in.N)
	local, err := cinnabar.ExposeSlice(v.engine, cinnabar.WriteOnly, values)
	if err != nil {
		return PairOut{}, err
	}
	defer local.Close()
	if _, err := in.Values.On(cinnabar.PeerFrom(ctx)).Pull(ctx, local); err != nil {
		return PairOut{}, err
	}
	var out PairOut
	for _, x := range values {
		out.Ret += x
	}
	return out, nil
}

// addVector lends values to the server for as long as the call takes.
func addVector(ctx context.Context, engine *cinnabar.Engine, server *cinnabar.Endpoint, n int32, values []int32) (int32, error) {
	lent, err := cinnabar.ExposeSlice(engine, cinnabar.ReadOnly, values)
	if err != nil {
		return 0, err
	}
	defer lent.Close()
	out, err := AddVector.Call(ctx, server, VectorIn{N: n, Values: lent.Handle()})
	return out.Ret, err
}

// Tutorial 4, bulk memory: data does not travel in the arguments. The client lends memory, and the server reads it when it
// wants to. examples/sum has the same as two programs, each of which works with the other half in C.
// parity: G96
func Example_tutorial04() {
	client, server, ep := twoEngines()
	defer client.Close()
	defer server.Close()
	v := &vectors{engine: server, most: 1 << 20}
	if err := AddVector.Handle(server, v.add); err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	values := []int32{1, 4, 2, 5, 6, 3, 5, 3, 2, 5}
	for range 4 {
		sum, err := addVector(ctx, client, ep, int32(len(values)), values)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("Got response:", sum)
	}
	_, err := addVector(ctx, client, ep, 1<<30, values)
	fmt.Println("Too many:", cinnabar.CodeOf(err))
	// Output:
	// Got response: 36
	// Got response: 36
	// Got response: 36
	// Got response: 36
	// Too many: HG_INVALID_ARG
}
