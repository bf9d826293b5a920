package cinnabar_test

import (
	"context"
	"fmt"
	"log"
	"sync/atomic"

	"cinnabar"
)

// Hello has no argument and no response, so the caller only learns that the request has left.
var Hello = cinnabar.NewOneWay[struct{}]("hello")

// greeter is a server with data of its own, which its handler reaches as any method does.
type greeter struct {
	engine *cinnabar.Engine
	most   int32
	served atomic.Int32 // handlers run at the same time
}

// hello serves a request. The last one ends the server.
func (g *greeter) hello(ctx context.Context, _ struct{}) error {
	fmt.Println("Hello World!")
	if g.served.Add(1) == g.most {
		return g.engine.Shutdown(ctx) // returns at once, in a handler
	}
	return nil
}

func sayHello(ctx context.Context, client *cinnabar.Engine, address string, times int) error {
	server, err := client.Lookup(address)
	if err != nil {
		return err
	}
	for range times {
		if err := Hello.Send(ctx, server, struct{}{}); err != nil {
			return err
		}
	}
	return nil
}

// Tutorial 2, hello world: a client has a server do something, four times, after which the server ends itself.
// parity: G96
func Example_tutorial02() {
	engine, err := cinnabar.Listen("ofi+tcp://127.0.0.1", nil)
	if err != nil {
		log.Fatal(err)
	}
	g := &greeter{engine: engine, most: 4}
	if err := Hello.Handle(engine, g.hello); err != nil {
		log.Fatal(err)
	}
	client, err := cinnabar.Open("ofi+tcp://127.0.0.1", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	if err := sayHello(context.Background(), client, engine.Addr(), 4); err != nil {
		log.Fatal(err)
	}
	<-engine.Done()
	fmt.Println("ended after", g.served.Load())
	// Output:
	// Hello World!
	// Hello World!
	// Hello World!
	// Hello World!
	// ended after 4
}
