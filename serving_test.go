package cinnabar

import (
	"context"
	"testing"
)

// TestQuickHandlerWaits has the handler of an RPC that has proved quick, which the network's own goroutine runs, wait on its
// context for what only that goroutine can bring: the next request of the same peer, and the end of the connection.
func TestQuickHandlerWaits(t *testing.T) {
	server := listening(t, nil)
	next, over := make(chan struct{}), make(chan error, 1)
	turn := NewRPC[int32, struct{}]("turn")
	must(t, turn.Handle(server, func(ctx context.Context, what int32) (struct{}, error) {
		switch what {
		case 1:
			select {
			case <-next:
			case <-ctx.Done():
			}
			return struct{}{}, ctx.Err()
		case 2:
			next <- struct{}{}
		case 3:
			<-ctx.Done()
			over <- context.Cause(ctx)
		}
		return struct{}{}, nil
	}))
	client := calling(t, nil)
	ep := reach(t, client, server)
	quick := func() {
		for range 50 {
			_, err := turn.Call(patient(t), ep, 0)
			must(t, err)
		}
	}
	for range 3 {
		quick()
		waits := turn.Start(patient(t), ep, 1)
		_, err := turn.Call(patient(t), ep, 2)
		must(t, err)
		_, err = waits.Wait()
		must(t, err)
	}
	quick()
	turn.Start(context.Background(), ep, 3)
	quick() // it has begun
	must(t, client.Close())
	if err := soon(t, "the end of the handler's context", over); err == nil {
		t.Error("the context has not ended")
	}
}
