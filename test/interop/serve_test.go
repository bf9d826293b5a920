//go:build linux

package interop

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cinnabar"
	"cinnabar/codes"
)

// procedures are the RPCs of the peer programs in one flavour.
type procedures struct {
	sum      *cinnabar.RPC[sumIn, sumOut]
	void     *cinnabar.RPC[none, none]
	echo     *cinnabar.RPC[all, all]
	notify   *cinnabar.OneWay[note]
	notified *cinnabar.RPC[none, count]
	blob     *cinnabar.RPC[blobIn, blobOut]
	pull     *cinnabar.RPC[moveIn, moveOut]
	push     *cinnabar.RPC[moveIn, moveOut]
	null     *cinnabar.RPC[none, none]
	unknown  *cinnabar.RPC[none, none]

	// Of hg_peer only.
	relay    *cinnabar.RPC[relayIn, moveOut]
	hold     *cinnabar.RPC[none, none]
	release  *cinnabar.RPC[none, count]
	callback *cinnabar.RPC[sumIn, sumOut]

	// Of margo_peer only.
	which  *cinnabar.RPC[none, idOut]
	nested *cinnabar.RPC[nestedIn, nestedOut]
	slow   *cinnabar.RPC[slowIn, none]

	quit *cinnabar.RPC[none, none]
}

func makeProcedures(f cinnabar.Flavor) *procedures {
	o := cinnabar.WithFlavor(f)
	return &procedures{
		sum:      cinnabar.NewRPC[sumIn, sumOut]("sum", o),
		void:     cinnabar.NewRPC[none, none]("void", o),
		echo:     cinnabar.NewRPC[all, all]("echo", o),
		notify:   cinnabar.NewOneWay[note]("notify", o),
		notified: cinnabar.NewRPC[none, count]("notified", o),
		blob:     cinnabar.NewRPC[blobIn, blobOut]("blob", o),
		pull:     cinnabar.NewRPC[moveIn, moveOut]("pull", o),
		push:     cinnabar.NewRPC[moveIn, moveOut]("push", o),
		null:     cinnabar.NewRPC[none, none]("null", o),
		unknown:  cinnabar.NewRPC[none, none]("no_such_rpc", o),
		relay:    cinnabar.NewRPC[relayIn, moveOut]("relay", o),
		hold:     cinnabar.NewRPC[none, none]("hold", o),
		release:  cinnabar.NewRPC[none, count]("release", o),
		callback: cinnabar.NewRPC[sumIn, sumOut]("callback", o),
		which:    cinnabar.NewRPC[none, idOut]("which", o),
		nested:   cinnabar.NewRPC[nestedIn, nestedOut]("nested", o),
		slow:     cinnabar.NewRPC[slowIn, none]("slow", o),
		quit:     cinnabar.NewRPC[none, none]("quit", o),
	}
}

var (
	mercury = makeProcedures(cinnabar.Mercury)
	margo   = makeProcedures(cinnabar.Margo)
)

// server is the Go side's answer to the peer programs.
type server struct {
	*cinnabar.Engine
	rpc      *procedures
	notified atomic.Int32
	notes    chan note

	mu   sync.Mutex
	held []*cinnabar.Call[none, none]

	holds chan struct{} // capacity 1: there is one in held
}

// listen makes an engine that serves what both peer programs serve.
func listen(t *testing.T, p *procedures, cfg *cinnabar.Config) *server {
	t.Helper()
	return listenAt(t, network, p, cfg)
}

// listenAt is listen at an address that matters.
func listenAt(t *testing.T, addr string, p *procedures, cfg *cinnabar.Config) *server {
	t.Helper()
	e, err := cinnabar.Listen(t.Context(), addr, configured(t, cfg))
	if err != nil {
		t.Fatal(err)
	}
	s := &server{Engine: e, rpc: p, notes: make(chan note, 100), holds: make(chan struct{}, 1)} // more notes than any test sends
	t.Cleanup(func() { closeEngine(t, e) })
	must(t,
		p.sum.Handle(e, s.sum),
		p.void.Handle(e, func(context.Context, none) (none, error) { return none{}, nil }),
		p.echo.Handle(e, func(_ context.Context, v all) (all, error) { return v, nil }),
		p.notify.Handle(e, s.note),
		p.notified.Handle(e, func(context.Context, none) (count, error) { return count{s.notified.Load()}, nil }),
		p.blob.Handle(e, s.blob),
		p.pull.Handle(e, s.pull),
		p.push.Handle(e, s.push),
		p.null.Handle(e, nil),
	)
	return s
}

// must fails the test for each error.
func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// closeEngine shuts an engine down, which must have nothing left to do then.
func closeEngine(t *testing.T, e *cinnabar.Engine) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience) // the test's own has ended
	defer cancel()
	if err := e.Shutdown(ctx); err != nil {
		t.Errorf("shutting down the engine at %s: %v", e.Addr(), err)
	}
	if s := e.Stats(); s.RequestsActive != 0 || s.CallsActive != 0 || s.TransfersActive != 0 {
		t.Errorf("the closed engine at %s is still at work: %+v", e.Addr(), s)
	}
}

func (s *server) sum(_ context.Context, in sumIn) (sumOut, error) { return sumOut{in.A + in.B}, nil }

func (s *server) note(_ context.Context, n note) error {
	s.notified.Add(1)
	s.notes <- n
	return nil
}

// takeNotes wants the two notifications of moveSteps, in either order: handlers run side by side.
func (s *server) takeNotes(t *testing.T) {
	t.Helper()
	sizes := map[uint32]int{}
	for range 2 {
		n := <-s.notes
		sizes[uint32(n.Seq)] = len(n.Text)
	}
	if diff := cmp.Diff(map[uint32]int{1: 3, 2: 1 << 20}, sizes); diff != "" {
		t.Errorf("bytes of notifications (-want +got):\n%s", diff)
	}
}

func (s *server) blob(_ context.Context, in blobIn) (blobOut, error) {
	out := blobOut{OK: bytes.Equal(in.Blob.Bytes, pattern(len(in.Blob.Bytes), in.Seed))}
	out.Blob = blob{in.Reply, pattern(int(in.Reply), in.Seed+1)}
	return out, nil
}

func (s *server) pull(ctx context.Context, in moveIn) (moveOut, error) {
	memory := make([]byte, in.LocalSize)
	return s.move(ctx, in, memory, cinnabar.WriteOnly, cinnabar.RemoteBulk.Pull)
}

func (s *server) push(ctx context.Context, in moveIn) (moveOut, error) {
	memory := pattern(int(in.LocalSize), in.Seed)
	return s.move(ctx, in, memory, cinnabar.ReadOnly, cinnabar.RemoteBulk.Push)
}

// move does what a pull or push asks for. The transfer's own error travels in the result, as it does in C.
func (s *server) move(ctx context.Context, in moveIn, memory []byte, mode cinnabar.Mode,
	transfer func(cinnabar.RemoteBulk, context.Context, *cinnabar.Bulk) (int64, error),
) (moveOut, error) {
	local, err := s.Expose(mode, cut(memory, int(in.LocalSegments))...)
	if err != nil {
		return moveOut{}, err
	}
	defer local.Close() // its transfers have ended
	owner, err := s.owner(ctx, in)
	if err != nil {
		return moveOut{}, err
	}
	remote := in.Bulk.On(owner).Slice(int64(in.Offset), int64(in.Size))
	n, err := transfer(remote, ctx, local.Slice(int64(in.LocalOffset), int64(in.Size)))
	return moveOut{Ret: int32(codes.Of(err)), Count: uint64(n), Hash: fnv1a(memory)}, nil
}

// owner finds the process that holds the memory.
func (s *server) owner(ctx context.Context, in moveIn) (*cinnabar.Endpoint, error) {
	switch in.Origin {
	case "":
		return cinnabar.InfoFrom(ctx).Peer, nil
	case "bound":
		return in.Bulk.Owner(s.Engine)
	}
	return s.Lookup(in.Origin)
}

// serveMercury adds what only hg_peer serves.
func (s *server) serveMercury(t *testing.T) *server {
	t.Helper()
	must(t,
		s.rpc.relay.Handle(s.Engine, s.relay),
		s.rpc.hold.HandleCall(s.Engine, func(c *cinnabar.Call[none, none]) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.held = append(s.held, c)
			select {
			case s.holds <- struct{}{}:
			default:
			}
		}),
		s.rpc.release.Handle(s.Engine, s.release),
		s.rpc.callback.Handle(s.Engine, func(ctx context.Context, in sumIn) (sumOut, error) {
			return s.rpc.sum.Call(ctx, cinnabar.InfoFrom(ctx).Peer, in)
		}),
	)
	return s
}

// relay sends the handle on as it is.
func (s *server) relay(ctx context.Context, in relayIn) (moveOut, error) {
	to, err := s.Lookup(in.To)
	if err != nil {
		return moveOut{}, err
	}
	if in.Push {
		return s.rpc.push.Call(ctx, to, in.Move)
	}
	return s.rpc.pull.Call(ctx, to, in.Move)
}

// release answers all held calls; those whose callers have given up are answered as well, as in C. It waits for one, since
// handlers run side by side.
func (s *server) release(ctx context.Context, _ none) (count, error) {
	select {
	case <-s.holds:
	case <-ctx.Done():
		return count{}, ctx.Err()
	}
	s.mu.Lock()
	held := s.held
	s.held = nil
	s.mu.Unlock()
	for _, c := range held {
		if err := c.Respond(c.Context(), none{}); err != nil {
			return count{}, err
		}
	}
	return count{int32(len(held))}, nil
}
