// Command server serves the greet procedure until it is interrupted.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync/atomic"
	"time"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/examples/hello"
)

func main() {
	if len(os.Args) != 2 {
		fail("usage: server ADDRESS")
	}
	if err := run(os.Args[1], os.Stdout); err != nil {
		fail(err)
	}
}

func fail(why any) {
	_, _ = fmt.Fprintln(os.Stderr, why)
	os.Exit(1)
}

func run(address string, stdout io.Writer) error {
	interrupted, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	engine, err := cinnabar.Listen(interrupted, address, nil)
	if err != nil {
		return err
	}
	defer func() { _ = engine.Close() }() // does nothing after Shutdown
	var count atomic.Int64
	greet := func(_ context.Context, in hello.In) (hello.Out, error) {
		if in.Name == "" {
			return hello.Out{}, fmt.Errorf("%w: the name is empty", codes.InvalidArg)
		}
		return hello.Out{Greeting: "hello, " + in.Name, Count: count.Add(1)}, nil
	}
	if err := hello.Greet.Handle(engine, greet); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(stdout, engine.Addr()); err != nil {
		return err
	}

	<-interrupted.Done()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return engine.Shutdown(ctx) // answers the calls under way
}
