package balance_test

import (
	"context"
	"fmt"
	"log"

	"cinnabar"
	"cinnabar/balance"
	"cinnabar/native"
)

// greet may be executed twice without harm.
var greet = native.New[string, string]("greet", native.Idempotent())

// A client of two servers, of which one shuts down.
func Example() {
	ctx := context.Background()
	var servers []*cinnabar.Engine
	var addrs []string
	for range 2 {
		s, err := cinnabar.Listen(ctx, "ofi+tcp://127.0.0.1", nil)
		if err != nil {
			log.Fatal(err)
		}
		defer s.Close()
		var health native.Health
		if err := health.Handle(s); err != nil {
			log.Fatal(err)
		}
		err = greet.Handle(s, func(_ context.Context, name string) (string, error) { return "hello " + name, nil })
		if err != nil {
			log.Fatal(err)
		}
		servers, addrs = append(servers, s), append(addrs, s.Addr())
	}

	client, err := cinnabar.Open(ctx, "ofi+tcp", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	c, err := balance.New(client, &balance.Config{Resolver: balance.StaticAddrs(addrs...), Policy: balance.PickFirst})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	for _, name := range []string{"ann", "bob"} {
		text, err := balance.Call(ctx, c, greet, name)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(text)
		if err := servers[0].Shutdown(ctx); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// hello ann
	// hello bob
}
