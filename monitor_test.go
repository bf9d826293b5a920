package cinnabar

import (
	"context"
	"sync"
	"testing"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/na/natest"
	"cinnabar/stats"

	"github.com/google/go-cmp/cmp"
)

// recorder is a Monitor that keeps the events that end an operation.
type recorder struct {
	mu     sync.Mutex
	events []stats.Event
}

// Event implements [stats.Monitor].
func (r *recorder) Event(_ context.Context, ev stats.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ev.End {
		r.events = append(r.events, ev)
	}
}

// take removes the events and returns them in a recorder of their own.
func (r *recorder) take() *recorder {
	r.mu.Lock()
	defer r.mu.Unlock()
	events := r.events
	r.events = nil
	return &recorder{events: events}
}

// find returns the event of a kind and side for an RPC.
func (r *recorder) find(t *testing.T, kind stats.EventKind, rpc string) stats.Event {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ev := range r.events {
		if ev.Kind == kind && ev.Info.RPC == rpc {
			return ev
		}
	}
	t.Fatalf("no %v of %s in %+v", kind, rpc, r.events)
	return stats.Event{}
}

// TestMonitorTimes compares the times of steps with those of a simulated network and handler. The second request waits 2 s for the
// only worker of its pool.
// parity: G87
func TestMonitorTimes(t *testing.T) {
	both := &recorder{} // monitor of server and client
	cfg := &Config{Checksums: NoChecksums, Monitor: both, Pools: []PoolConfig{{Name: "p"}}}
	simulate(t, natest.Config{}, cfg, func(t *testing.T, s *sim) {
		must(t, nap.Handle(s.server, handleNap, WithPool(s.server.LookupPool("p"))))
		start := time.Now()
		one := nap.Start(t.Context(), s.ep, 2000)
		elapse(time.Millisecond)
		two := nap.Start(t.Context(), s.ep, 4000)
		_, err := one.Wait()
		must(t, err)
		elapse(time.Second)
		first := both.take() // of the first call
		_, err = two.Wait()
		must(t, err)
		elapse(time.Second)
		second := both.take()

		at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
		for _, c := range []struct {
			what      string
			got, want stats.Timing
		}{
			{"first call", first.find(t, stats.EventCall, "nap").Times, stats.Timing{Began: at(0), Encoded: at(0), Sent: at(0), Ended: at(2000), Decoded: at(2000)}},
			{"first request", first.find(t, stats.EventRequest, "nap").Times, stats.Timing{Began: at(0), Admitted: at(0), Running: at(0), Decoded: at(0), Ended: at(2000)}},
			{"first response", first.find(t, stats.EventRespond, "nap").Times, stats.Timing{Running: at(0), Began: at(2000), Encoded: at(2000), Ended: at(2000)}},
			{"second call", second.find(t, stats.EventCall, "nap").Times, stats.Timing{Began: at(1), Encoded: at(1), Sent: at(1), Ended: at(6000), Decoded: at(6000)}},
			{"second request", second.find(t, stats.EventRequest, "nap").Times, stats.Timing{Began: at(1), Admitted: at(1), Running: at(2000), Decoded: at(2000), Ended: at(6000)}},
			{"second response", second.find(t, stats.EventRespond, "nap").Times, stats.Timing{Running: at(2000), Began: at(6000), Encoded: at(6000), Ended: at(6000)}},
		} {
			if diff := cmp.Diff(c.want, c.got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.what, diff)
			}
		}
	})
}

// TestMonitorUnsent makes a call that fails before it is sent, a call whose response cannot be decoded, and a request with bad arguments.
func TestMonitorUnsent(t *testing.T) {
	here, there := &recorder{}, &recorder{}
	server := listening(t, &Config{Monitor: there})
	ep := reach(t, calling(t, &Config{Monitor: here}), server)
	must(t, add.Handle(server, handleAdd))
	_, err := NewRPC[addIn, struct{ A, B, C, D int64 }]("add").Call(patient(t), ep, addIn{})
	wantCode(t, err, codes.Overflow)
	call := here.find(t, stats.EventCall, "add")
	if x := call.Times; x.Sent.IsZero() || x.Ended.IsZero() || x.Decoded.IsZero() || call.Err == nil {
		t.Errorf("a call whose response is too short: %+v", call)
	}
	waitFor(t, func() bool { return server.Stats().Handlers.Running == 0 })
	there.take()
	_, err = NewRPC[int16, addOut]("add").Call(patient(t), ep, 1)
	wantCode(t, err, codes.Overflow)
	waitFor(t, func() bool { return server.Stats().Handlers.Running == 0 })
	if x := there.find(t, stats.EventRequest, "add").Times; x.Running.IsZero() || x.Decoded.IsZero() || x.Ended.IsZero() {
		t.Errorf("a request whose arguments are too short: %+v", x)
	}

	late := reach(t, calling(t, &Config{Monitor: here}), server)
	must(t, late.e.Close())
	here.take()
	_, err = add.Call(patient(t), late, addIn{})
	wantCode(t, err, codes.Permission)
	if x := here.find(t, stats.EventCall, "add").Times; x.Began.IsZero() || !x.Sent.IsZero() || !x.Ended.IsZero() {
		t.Errorf("a call by a closed engine: %+v", x)
	}
}

// TestMonitorMemory has a monitor see an exposure of memory, and a transfer with the handler's procedure as its parent.
// parity: G86
func TestMonitorMemory(t *testing.T) {
	here := &recorder{}
	server := listening(t, &Config{Monitor: here})
	client := calling(t, nil)
	lent, err := client.Expose(ReadOnly, make([]byte, 5000))
	must(t, err)
	fetch := NewRPC[BulkHandle, int64]("fetch")
	must(t, fetch.Handle(server, func(ctx context.Context, h BulkHandle) (int64, error) {
		b, err := server.Expose(WriteOnly, make([]byte, 5000))
		if err != nil {
			return 0, err
		}
		defer func() { _ = b.Close() }()
		return h.On(InfoFrom(ctx).Peer).Pull(ctx, b)
	}))
	_, err = fetch.Call(patient(t), reach(t, client, server), lent.Handle())
	must(t, err)
	must(t, lent.Close())
	if ev := here.find(t, stats.EventExpose, "expose"); ev.Bytes != 5000 || ev.Err != nil || ev.Times.Began.IsZero() || ev.Times.Ended.IsZero() || ev.Info.Peer.String() != server.Addr() {
		t.Errorf("exposure: %+v", ev)
	}
	ev := here.find(t, stats.EventTransfer, "pull")
	if ev.Bytes != 5000 || ev.Info.Parent != fetch.ID(65535) || ev.Info.Peer.String() != client.Addr() || ev.Times.Sent.IsZero() || ev.Times.Ended.Before(ev.Times.Sent) {
		t.Errorf("transfer: %+v", ev)
	}
	if _, err := server.Expose(Mode(9), nil); err == nil {
		t.Error("memory is exposed in a mode that does not exist")
	}
}
