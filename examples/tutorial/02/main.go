// Command 02 is the second tutorial, hello world: a client sends four requests without response, and the server ends itself after
// the fourth.
package main

import (
	"context"
	"fmt"
	"log"
	"sync/atomic"

	"cinnabar"
)

// Hello has no argument and no response, so Send returns when the request has left.
var Hello = cinnabar.NewOneWay[struct{}]("hello")

// greeter is a server with data of its own. Its handler is a method, so the handler reaches the data.
type greeter struct {
	engine *cinnabar.Engine
	most   int32
	served atomic.Int32 // atomic, because handlers run at the same time
}

// hello serves one request. The last one ends the server.
func (g *greeter) hello(ctx context.Context, _ struct{}) error {
	fmt.Println("Hello World!")
	if g.served.Add(1) == g.most {
		return g.engine.Shutdown(ctx) // returns at once in a handler
	}
	return nil
}

func run(ctx context.Context) error {
	engine, err := cinnabar.Listen(ctx, "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		return err
	}
	defer engine.Close()
	g := &greeter{engine: engine, most: 4}
	if err := Hello.Handle(engine, g.hello); err != nil {
		return err
	}
	if err := sayHello(ctx, engine.Addr(), 4); err != nil {
		return err
	}
	<-engine.Done()
	fmt.Println("ended after", g.served.Load())
	return engine.Shutdown(ctx)
}

// sayHello is the client: it sends as many requests as times says.
func sayHello(ctx context.Context, address string, times int) error {
	client, err := cinnabar.Open(ctx, "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		return err
	}
	defer client.Close()
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

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
