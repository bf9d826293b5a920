// Command 05 is the fifth tutorial, calls that do not wait: the client starts three calls and takes their results in the order in
// which they end. The server responds after its handler has returned.
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"cinnabar"
)

type (
	PairIn  struct{ X, Y int32 }
	PairOut struct{ Ret int32 }
)

// SumLater is answered when the turn of the call comes.
var SumLater = cinnabar.NewRPC[PairIn, PairOut]("sum_later")

// turns has a channel for each call, by the call's X. The server responds to a call when its channel is closed.
type turns [3]chan struct{}

// serve is a handler that returns at once. A goroutine of its own responds later.
func (t turns) serve(c *cinnabar.Call[PairIn, PairOut]) {
	go func() {
		<-t[c.In.X]
		if err := c.Respond(c.Context(), PairOut{Ret: c.In.X + c.In.Y}); err != nil {
			fmt.Println("respond:", err)
		}
	}()
}

// startThree starts three calls, then takes the results in the order in which the calls end.
func startThree(ctx context.Context, server *cinnabar.Endpoint, t turns) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // bounds all three calls
	defer cancel()
	var calls []*cinnabar.Pending[PairOut]
	for i := range int32(len(t)) {
		calls = append(calls, SumLater.Start(ctx, server, PairIn{X: i, Y: 100}))
	}
	fmt.Println("all calls are under way")
	next := []int{2, 0, 1}
	close(t[next[0]])
	for i, call := range cinnabar.Completed(ctx, calls...) {
		out, err := call.Wait()
		if err != nil {
			return err
		}
		fmt.Printf("call %d: %d\n", i, out.Ret)
		if next = next[1:]; len(next) > 0 {
			close(t[next[0]])
		}
	}
	return ctx.Err()
}

func run(ctx context.Context) error {
	server, err := cinnabar.Listen(ctx, "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		return err
	}
	defer server.Close()
	var t turns
	for i := range t {
		t[i] = make(chan struct{})
	}
	if err := SumLater.HandleCall(server, t.serve); err != nil {
		return err
	}
	return startThree(ctx, server.Self(), t) // Self is the endpoint of the engine itself
}

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
