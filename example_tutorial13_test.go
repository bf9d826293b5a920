package cinnabar_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"cinnabar"
)

// remind registers what is to be done at the end of an engine. OnShutdown's functions may still make calls, OnClose's
// not; in both the last one registered comes first.
func remind(engine *cinnabar.Engine, other *cinnabar.Endpoint) {
	for i := range 2 {
		engine.OnShutdown(func(ctx context.Context) {
			out, err := AddPair.Call(ctx, other, PairIn{X: 20, Y: 22})
			fmt.Println("before the end, function", i, "calls and gets", out.Ret, err)
		})
		engine.OnClose(func() {
			_, err := AddPair.Call(context.Background(), other, PairIn{X: 20, Y: 22})
			fmt.Println("at the end, function", i, "cannot:", errors.Is(err, cinnabar.ErrClosed))
		})
	}
	remove := engine.OnClose(func() { fmt.Println("this function is taken out again") })
	remove()
}

// Tutorial 13, lifetime: Shutdown ends an engine in good order, what has been registered is called, and the values that
// belong to it stay valid: using them is an error, not a crash. There is nothing to count and nothing to free.
// parity: G96
func Example_tutorial13() {
	client, server, ep := twoEngines()
	defer server.Close()
	if err := servePairs(server, nil); err != nil {
		log.Fatal(err)
	}
	remind(client, ep)
	ctx := context.Background()
	if err := client.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	_, err := AddPair.Call(ctx, ep, PairIn{})
	fmt.Println("a call after that:", errors.Is(err, cinnabar.ErrClosed))
	fmt.Println("the address is still there:", ep.String() == server.Addr())
	fmt.Println("a second end:", client.Shutdown(ctx), client.Close())
	// Output:
	// before the end, function 1 calls and gets 42 <nil>
	// before the end, function 0 calls and gets 42 <nil>
	// at the end, function 1 cannot: true
	// at the end, function 0 cannot: true
	// a call after that: true
	// the address is still there: true
	// a second end: <nil> <nil>
}
