package cinnabar_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"cinnabar"
)

// The types are those of the C program's MERCURY_GEN_PROC: the same fields in the same order.
type (
	PairIn  struct{ X, Y int32 }
	PairOut struct{ Ret int32 }
)

var (
	AddPair = cinnabar.NewRPC[PairIn, PairOut]("sum")
	Dawdle  = cinnabar.NewRPC[PairIn, PairOut]("dawdle")
)

// servePairs registers a function that answers at once and one that does not answer before stop.
func servePairs(engine *cinnabar.Engine, stop <-chan struct{}) error {
	err := AddPair.Handle(engine, func(_ context.Context, in PairIn) (PairOut, error) {
		return PairOut{Ret: in.X + in.Y}, nil
	})
	if err != nil {
		return err
	}
	return Dawdle.Handle(engine, func(_ context.Context, in PairIn) (PairOut, error) {
		<-stop
		return PairOut{}, nil
	})
}

func addPairs(ctx context.Context, server *cinnabar.Endpoint) error {
	for i := range int32(4) {
		in := PairIn{X: 42 + 2*i, Y: 43 + 2*i}
		out, err := AddPair.Call(ctx, server, in)
		if err != nil {
			return err
		}
		fmt.Printf("Got response: %d+%d = %d\n", in.X, in.Y, out.Ret)
	}
	return nil
}

// Tutorial 3, arguments, results and time-outs: a handler is a function from one to the other. A call that is out of
// time ends for the caller only; the server is not told.
// parity: G96
func Example_tutorial03() {
	client, server, ep := twoEngines()
	defer client.Close()
	defer server.Close()
	stop := make(chan struct{})
	if err := servePairs(server, stop); err != nil {
		log.Fatal(err)
	}
	if err := addPairs(context.Background(), ep); err != nil {
		log.Fatal(err)
	}

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	_, err := Dawdle.Call(ctx, ep, PairIn{})
	fmt.Println(errors.Is(err, cinnabar.CodeTimeout), errors.Is(err, context.DeadlineExceeded))
	close(stop)
	// Output:
	// Got response: 42+43 = 85
	// Got response: 44+45 = 89
	// Got response: 46+47 = 93
	// Got response: 48+49 = 97
	// true true
}
