package cinnabar_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/regmem"
)

// SumIn are the arguments of the tutorial's RPC: how many values there are, and where.
type SumIn struct {
	N    int32
	Data cinnabar.BulkHandle
}

// SumOut is its result.
type SumOut struct{ Ret int32 }

// Sum has the same name, types and bytes as the C tutorial's RPC.
var Sum = cinnabar.NewRPC[SumIn, SumOut]("sum")

// serveSum makes an engine that serves Sum: the handler pulls the values out of the caller's memory.
func serveSum() (*cinnabar.Engine, error) {
	eng, err := cinnabar.Listen(context.Background(), "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		return nil, err
	}
	return eng, Sum.Handle(eng, func(ctx context.Context, in SumIn) (SumOut, error) {
		const most = 1 << 20
		if in.N < 0 || in.N > most {
			return SumOut{}, codes.InvalidArg
		}
		values := make([]int32, in.N)
		local, err := eng.Expose(cinnabar.WriteOnly, regmem.Bytes(values))
		if err != nil {
			return SumOut{}, err
		}
		defer local.Close()
		if _, err := in.Data.On(cinnabar.InfoFrom(ctx).Peer).Pull(ctx, local); err != nil {
			return SumOut{}, err
		}
		var out SumOut
		for _, v := range values {
			out.Ret += v
		}
		return out, nil
	})
}

// callSum has the server at addr add up values.
func callSum(ctx context.Context, eng *cinnabar.Engine, addr string, values []int32) (int32, error) {
	server, err := eng.Lookup(addr)
	if err != nil {
		return 0, err
	}
	local, err := eng.Expose(cinnabar.ReadOnly, regmem.Bytes(values))
	if err != nil {
		return 0, err
	}
	defer local.Close()
	out, err := Sum.Call(ctx, server, SumIn{N: int32(len(values)), Data: local.Handle()})
	return out.Ret, err
}

// The tutorial: the client exposes values, the server pulls them and answers with their sum.
func Example() {
	server, err := serveSum()
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	client, err := cinnabar.Open(context.Background(), "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	sum, err := callSum(context.Background(), client, server.Addr(), []int32{1, 4, 2, 5, 6, 3, 5, 3, 2, 5})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("Got response:", sum)
	// Output: Got response: 36
}

var (
	greet = cinnabar.NewRPC[struct{ Name string }, struct{ Text string }]("greet")
	quit  = cinnabar.NewOneWay[struct{}]("quit")
)

// A server that a one-way request ends.
func ExampleOneWay() {
	server, err := cinnabar.Listen(context.Background(), "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		log.Fatal(err)
	}
	err = quit.Handle(server, func(ctx context.Context, _ struct{}) error { return server.Shutdown(ctx) })
	if err != nil {
		log.Fatal(err)
	}
	client, err := cinnabar.Open(context.Background(), "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ep, err := client.Lookup(server.Addr())
	if err != nil {
		log.Fatal(err)
	}
	if err := quit.Send(context.Background(), ep, struct{}{}); err != nil {
		log.Fatal(err)
	}
	<-server.Done()
	fmt.Println("ended:", server.Shutdown(context.Background()))
	// Output: ended: <nil>
}

// Two providers in one process serve the same procedure.
func ExampleEngine_NewProvider() {
	server, err := cinnabar.Listen(context.Background(), "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	type (
		in  = struct{ Name string }
		out = struct{ Text string }
	)
	for id, word := range map[uint16]string{1: "Hello", 2: "Bonjour"} {
		p, err := server.NewProvider(id, "greeter")
		if err != nil {
			log.Fatal(err)
		}
		err = greet.Handle(p, func(_ context.Context, arg in) (out, error) {
			return out{Text: word + ", " + arg.Name}, nil
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	ctx := context.Background()
	for _, id := range []uint16{1, 2, 3} {
		answer, err := greet.Call(ctx, server.Self().Provider(id), in{Name: "Ada"})
		if errors.Is(err, codes.NoEntry) {
			fmt.Println("no provider", id)
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(answer.Text)
	}
	// Output:
	// Hello, Ada
	// Bonjour, Ada
	// no provider 3
}

// Several calls at once, dealt with in the order in which they end.
func ExampleCompleted() {
	server, err := cinnabar.Listen(context.Background(), "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	square := cinnabar.NewRPC[int32, int32]("square")
	err = square.Handle(server, func(_ context.Context, n int32) (int32, error) { return n * n, nil })
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	var calls []*cinnabar.Pending[int32]
	for n := range int32(10) {
		calls = append(calls, square.Start(ctx, server.Self(), n))
	}
	total := int32(0)
	for _, call := range cinnabar.Completed(ctx, calls...) {
		n, err := call.Wait()
		if err != nil {
			log.Fatal(err)
		}
		total += n
	}
	fmt.Println("sum of squares:", total)
	// Output: sum of squares: 285
}
