package cinnabar

import (
	"context"
	"strings"
	"testing"

	"cinnabar/internal/sched"
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

// TestTransferringHandlerIsQuick checks that the goroutine that reads requests comes to run handlers that only transfer with their callers,
// although the transfer alone takes longer than a quick run. It must not run handlers that transfer with a third process, because the
// requests behind such a handler would wait for that process.
func TestTransferringHandlerIsQuick(t *testing.T) {
	if strings.HasPrefix(network, "na+sm") {
		t.Skip("over na+sm one goroutine reads for many peers, and so does not run handlers that transfer")
	}
	const size = 4 << 20
	server, third := listening(t, nil), listening(t, nil)
	there, err := third.Alloc(ReadOnly, size)
	must(t, err)
	client := calling(t, nil)
	here, err := client.Alloc(WriteOnly, size)
	must(t, err)
	local, err := server.Alloc(ReadWrite, size)
	must(t, err)
	own, other := NewRPC[struct{}, struct{}]("own"), NewRPC[struct{}, struct{}]("other")
	must(t, own.Handle(server, func(ctx context.Context, _ struct{}) (struct{}, error) {
		_, err := here.Handle().On(InfoFrom(ctx).Peer).Push(ctx, local)
		return struct{}{}, err
	}))
	from := reach(t, server, third)
	must(t, other.Handle(server, func(ctx context.Context, _ struct{}) (struct{}, error) {
		_, err := there.Handle().On(from).Pull(ctx, local)
		return struct{}{}, err
	}))
	ep := reach(t, client, server)
	isQuick := func(r *RPC[struct{}, struct{}]) bool {
		_, id, _, err := r.proc.place(server)
		must(t, err)
		entry, _ := server.handlers.table.Lookup(id)
		return entry.Value.pace.Quick(sched.Alone)
	}
	for ctx := patient(t); !isQuick(own); { // a run may take long on a busy machine, and is then remembered for a while
		_, err := own.Call(ctx, ep, struct{}{})
		must(t, err)
	}
	for range 100 { // the reader runs these
		_, err := own.Call(patient(t), ep, struct{}{})
		must(t, err)
	}
	for range 100 {
		_, err := other.Call(patient(t), ep, struct{}{})
		must(t, err)
	}
	if isQuick(other) {
		t.Error("a handler that waits for another process is quick")
	}
}
