package cinnabar_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"cinnabar"
)

// AddLater is answered when its turn comes.
var AddLater = cinnabar.NewRPC[PairIn, PairOut]("sum_later")

// turns are the moments at which the requests are answered, by their X.
type turns [3]chan struct{}

// serve answers from another goroutine than the handler's, which has returned by then.
func (t turns) serve(c *cinnabar.Call[PairIn, PairOut]) {
	go func() {
		<-t[c.In.X]
		if err := c.Respond(PairOut{Ret: c.In.X + c.In.Y}); err != nil {
			fmt.Println("respond:", err)
		}
	}()
}

// startThree starts three calls, does something else, and takes the results in the order in which they come.
func startThree(ctx context.Context, server *cinnabar.Endpoint, t turns) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // for all of them
	defer cancel()
	var calls []*cinnabar.Pending[PairOut]
	for i := range int32(len(t)) {
		calls = append(calls, AddLater.Start(ctx, server, PairIn{X: i, Y: 100}))
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

// Tutorial 5, calls that do not wait: Start returns at once, Wait, Done and [cinnabar.Completed] tell when a call is over.
// A server may answer later than its handler returns.
// parity: G96
func Example_tutorial05() {
	client, server, ep := twoEngines()
	defer client.Close()
	defer server.Close()
	var t turns
	for i := range t {
		t[i] = make(chan struct{})
	}
	if err := AddLater.HandleCall(server, t.serve); err != nil {
		log.Fatal(err)
	}
	if err := startThree(context.Background(), ep, t); err != nil {
		log.Fatal(err)
	}
	// Output:
	// all calls are under way
	// call 2: 102
	// call 0: 100
	// call 1: 101
}
