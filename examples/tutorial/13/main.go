// Command 13 is the thirteenth tutorial, lifetime: functions run at the end of an engine, and values that belong to it stay valid
// after its end.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"

	"cinnabar"
)

var Double = cinnabar.NewRPC[int32, int32]("double")

func double(_ context.Context, n int32) (int32, error) { return 2 * n, nil }

// register adds functions that run at the end of an engine. Functions of OnShutdown can still make calls, functions of OnClose
// cannot. The function that was registered last runs first.
func register(engine *cinnabar.Engine, other *cinnabar.Endpoint) {
	for i := range 2 {
		engine.OnShutdown(func(ctx context.Context) {
			out, err := Double.Call(ctx, other, 21)
			fmt.Println("before the end, function", i, "calls and gets", out, err)
		})
		engine.OnClose(func() {
			_, err := Double.Call(context.Background(), other, 21)
			fmt.Println("at the end, function", i, "cannot:", errors.Is(err, cinnabar.ErrClosed))
		})
	}
	remove := engine.OnClose(func() { fmt.Println("this function is removed again") })
	remove()
}

func run(ctx context.Context) error {
	server, err := cinnabar.Listen(ctx, "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		return err
	}
	defer server.Close()
	if err := Double.Handle(server, double); err != nil {
		return err
	}
	client, err := cinnabar.Open(ctx, "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		return err
	}
	defer client.Close()
	ep, err := client.Lookup(server.Addr())
	if err != nil {
		return err
	}

	register(client, ep)
	if err := client.Shutdown(ctx); err != nil {
		return err
	}
	// The engine has ended. Its values are still valid: using them is an error and never a crash.
	_, err = Double.Call(ctx, ep, 0)
	fmt.Println("a call after that:", errors.Is(err, cinnabar.ErrClosed))
	fmt.Println("the address is still there:", ep.String() == server.Addr())
	fmt.Println("a second end:", client.Shutdown(ctx), client.Close())
	return nil
}

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
