// Command 03 is the third tutorial, arguments and results: a client adds pairs of numbers on a server, and a call runs out of time.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"cinnabar"
	"cinnabar/codes"
)

// PairIn and PairOut have the fields of the C program's MERCURY_GEN_PROC, in the same order.
type (
	PairIn  struct{ X, Y int32 }
	PairOut struct{ Ret int32 }
)

var (
	Sum    = cinnabar.NewRPC[PairIn, PairOut]("sum")
	Dawdle = cinnabar.NewRPC[PairIn, PairOut]("dawdle")
)

func run(ctx context.Context) error {
	server, err := cinnabar.Listen(ctx, "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		return err
	}
	defer server.Close()
	stop := make(chan struct{})
	defer close(stop)
	if err := serve(server, stop); err != nil {
		return err
	}
	client, err := cinnabar.Open(ctx, "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		return err
	}
	defer client.Close()
	return call(ctx, client, server.Addr())
}

// serve registers a handler that responds at once and one that does not respond before stop is closed.
func serve(engine *cinnabar.Engine, stop <-chan struct{}) error {
	err := Sum.Handle(engine, func(_ context.Context, in PairIn) (PairOut, error) {
		return PairOut{Ret: in.X + in.Y}, nil
	})
	if err != nil {
		return err
	}
	return Dawdle.Handle(engine, func(context.Context, PairIn) (PairOut, error) {
		<-stop
		return PairOut{}, nil
	})
}

func call(ctx context.Context, client *cinnabar.Engine, address string) error {
	server, err := client.Lookup(address)
	if err != nil {
		return err
	}
	for i := range int32(4) {
		in := PairIn{X: 42 + 2*i, Y: 43 + 2*i}
		out, err := Sum.Call(ctx, server, in)
		if err != nil {
			return err
		}
		fmt.Printf("Got response: %d+%d = %d\n", in.X, in.Y, out.Ret)
	}

	// A call that is out of time ends for the caller only: the server is not informed, and its handler runs on.
	ctx, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	_, err = Dawdle.Call(ctx, server, PairIn{})
	fmt.Println("out of time:", errors.Is(err, codes.Timeout), errors.Is(err, context.DeadlineExceeded))
	return nil
}

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
