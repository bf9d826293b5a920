package cinnabar

import (
	"context"
	"errors"
	"testing"

	"cinnabar/codes"
	"cinnabar/internal/testproc"
)

// TestPeerKilled kills a server in the middle of calls: all of them end, and the same endpoint works with the server's
// successor on the same port.
// parity: H58 Y02 D01
func TestPeerKilled(t *testing.T) {
	client := calling(t, nil)
	p := spawn(t, "server", "ofi+tcp://127.0.0.1")
	addr := p.Stdout.Line()
	ep := find(t, client, addr)
	for range 3 {
		callAdd(t, ep)
		var ps []*Pending[struct{}]
		for range 20 {
			ps = append(ps, block.Start(context.Background(), ep, struct{}{}))
		}
		errs := make(chan error)
		go func() {
			_, err := block.Call(context.Background(), ep, struct{}{})
			errs <- err
		}()
		callAdd(t, ep)
		p.Kill()
		wantCode(t, soon(t, "call", errs), codes.HostUnreach, "block", addr)
		for _, pending := range ps {
			soon(t, "call", pending.Done())
			_, err := pending.Wait()
			wantCode(t, err, codes.HostUnreach, "block", addr)
		}
		_, err := add.Call(patient(t), ep, addIn{})
		wantCode(t, err, codes.HostUnreach, "add", addr)

		p = spawn(t, "server", addr)
		if again := p.Stdout.Line(); again != addr {
			t.Fatalf("the successor listens at %s", again)
		}
	}
}

// TestCallerKilled kills a client in the middle of a call: the handler's context ends and says why.
// parity: D05
func TestCallerKilled(t *testing.T) {
	server := listening(t, nil)
	ended, began := make(chan error, 1), make(chan struct{}, 1)
	must(t, block.Handle(server, func(ctx context.Context, _ struct{}) (struct{}, error) {
		derived, cancel := context.WithCancel(ctx)
		defer cancel()
		began <- struct{}{}
		<-derived.Done()
		if ctx.Err() == nil {
			t.Error("the derived context ends before the handler's")
		}
		ended <- context.Cause(derived)
		return struct{}{}, nil
	}))
	p := spawn(t, "caller", server.Addr())
	p.Stdout.Line()
	soon(t, "request", began)
	p.Kill()
	if err := soon(t, "handler", ended); !errors.Is(err, errPeerGone) {
		t.Errorf("cause %v", err)
	}
	waitFor(t, func() bool { return server.Stats().RequestsActive == 0 })
}

// fetching returns a server, a process that calls it, and the call, which the test answers. The process fetches the answer if it is
// too long for a message.
func fetching(t *testing.T) (*Engine, *testproc.Process, *Call[struct{}, largeOut]) {
	t.Helper()
	server := listening(t, nil)
	calls := make(chan *Call[struct{}, largeOut], 1)
	must(t, large.HandleCall(server, func(c *Call[struct{}, largeOut]) { calls <- c }))
	p := spawn(t, "fetcher", server.Addr())
	p.Stdout.Line()
	return server, p, soon(t, "request", calls)
}

// TestRespondToTheDead answers a client that is gone, with something that it would have had to fetch.
// parity: G36
func TestRespondToTheDead(t *testing.T) {
	server, p, c := fetching(t)
	p.Kill()
	answered := make(chan error, 1)
	go func() { answered <- c.Respond(c.Context(), largeOut{N: 1 << 20, Data: make([]byte, 1<<20)}) }()
	wantCode(t, soon(t, "answer", answered), codes.HostUnreach, "large")
	waitFor(t, func() bool { return server.Stats().RequestsActive == 0 })
}

// TestPeerFetches has a client in another process fetch what is too long for a message.
func TestPeerFetches(t *testing.T) {
	server := listening(t, nil)
	must(t, large.Handle(server, func(context.Context, struct{}) (largeOut, error) {
		return largeOut{N: 1 << 20, Data: make([]byte, 1<<20)}, nil
	}))
	p := spawn(t, "fetcher", server.Addr())
	p.Stdout.Line()
	if got := p.Stdout.Line(); got != "1048576" {
		t.Errorf("the peer has fetched %s bytes", got)
	}
}
