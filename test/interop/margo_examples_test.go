//go:build linux

package interop

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"cinnabar"
	"cinnabar/regmem"
)

// What the examples, tests and tutorials that come with Margo send each other.
type (
	lent struct { // my_rpc_hang_in_t, svc1_do_thing_in_t and its like
		Value int32
		Data  cinnabar.BulkHandle
	}
	lentDump struct { // my_rpc_in_t
		Value, Dump int32
		Data        cinnabar.BulkHandle
	}
	vector struct { // sum_in_t of tutorial 04
		N      int32
		Values cinnabar.BulkHandle
	}
)

// theirs is a server for the clients that come with Margo. It has one worker, so that it answers requests that come at
// once in their order, as their servers do.
type theirs struct {
	t      *testing.T
	engine *cinnabar.Engine
	heard  chan string // what has been called without an answer
}

func listenTheirs(t *testing.T) *theirs {
	t.Helper()
	e, err := cinnabar.Listen(t.Context(), network, &cinnabar.Config{
		Pools:   []cinnabar.PoolConfig{{Name: "one", Workers: 1, Kind: cinnabar.PoolEarliestFirst}},
		RPCPool: "one", AllowRemoteShutdown: true,
	})
	must(t, err)
	t.Cleanup(func() { closeEngine(t, e) })
	return &theirs{t, e, make(chan string, 1)}
}

// pull reads what a client of theirs has lent: a greeting in 512 bytes.
func (s *theirs) pull(ctx context.Context, data cinnabar.BulkHandle) (sumOut, error) {
	memory := make([]byte, 512)
	local, err := s.engine.Expose(cinnabar.WriteOnly, memory)
	if err != nil {
		return sumOut{}, err
	}
	defer local.Close() // its transfer has ended
	n, err := data.On(cinnabar.InfoFrom(ctx).Peer).Pull(ctx, local)
	if text, _, _ := bytes.Cut(memory, []byte{0}); n != 512 || string(text) != "Hello world!\n" {
		return sumOut{}, fmt.Errorf("%d bytes, %q: %w", n, text, err)
	}
	return sumOut{}, err
}

func (s *theirs) serveExample() {
	s.t.Helper()
	must(s.t,
		cinnabar.NewRPC[lentDump, sumOut]("my_rpc").Handle(s.engine, func(ctx context.Context, in lentDump) (sumOut, error) {
			return s.pull(ctx, in.Data)
		}),
		cinnabar.NewRPC[none, none]("my_shutdown_rpc").Handle(s.engine, func(ctx context.Context, _ none) (none, error) {
			return none{}, s.engine.Shutdown(ctx)
		}))
}

func (s *theirs) serveMultiplex() {
	s.t.Helper()
	s.serveExample()
	for id, service := range map[uint16]string{1: "svc1", 2: "svc1", 3: "svc2"} {
		p, err := s.engine.NewProvider(id, service)
		must(s.t, err)
		for _, name := range []string{"_do_thing", "_do_other_thing"} {
			must(s.t, cinnabar.NewRPC[lent, sumOut](service+name).Handle(p, func(ctx context.Context, in lent) (sumOut, error) {
				return s.pull(ctx, in.Data)
			}))
		}
	}
}

func (s *theirs) serveHello() {
	s.t.Helper()
	must(s.t, cinnabar.NewOneWay[none]("hello").Handle(s.engine, func(context.Context, none) error {
		s.heard <- "hello"
		return nil
	}))
}

func (s *theirs) serveSum() {
	s.t.Helper()
	must(s.t, cinnabar.NewRPC[sumIn, sumOut]("sum").Handle(s.engine, func(_ context.Context, in sumIn) (sumOut, error) {
		return sumOut{in.A + in.B}, nil
	}))
}

func (s *theirs) serveBulk() {
	s.t.Helper()
	must(s.t, cinnabar.NewRPC[vector, sumOut]("sum").Handle(s.engine, func(ctx context.Context, in vector) (out sumOut, _ error) {
		values := make([]int32, min(in.N, 1000))
		local, err := s.engine.Expose(cinnabar.WriteOnly, regmem.Bytes(values))
		if err != nil {
			return out, err
		}
		defer local.Close() // its transfer has ended
		_, err = in.Values.On(cinnabar.InfoFrom(ctx).Peer).Pull(ctx, local)
		for _, v := range values {
			out.Ret += v
		}
		return out, err
	}))
}

func (s *theirs) serveAlpha() {
	s.t.Helper()
	p, err := s.engine.NewProvider(42, "alpha")
	must(s.t, err)
	must(s.t, cinnabar.NewRPC[sumIn, sumOut]("alpha_sum").Handle(p, func(_ context.Context, in sumIn) (sumOut, error) {
		return sumOut{in.A + in.B}, nil
	}))
}

// TestReplayMargoExamples plays what the clients of Margo's examples, tests and tutorials have sent to their servers, to
// a server in Go, which must answer the same.
// parity(recorded): H47 G07 G12 G20 G30 G95 G96
func TestReplayMargoExamples(t *testing.T) {
	apart(t)
	for _, tt := range []struct {
		name  string
		serve func(*theirs)
		ends  bool // the client ends the server
		heard string
	}{
		{name: "margo_example", serve: (*theirs).serveExample, ends: true},
		{name: "margo_test", serve: (*theirs).serveExample, ends: true},
		{name: "margo_multiplex", serve: (*theirs).serveMultiplex, ends: true},
		{name: "margo_multiplex_crc", serve: (*theirs).serveMultiplex, ends: true},
		{name: "tutorial_hello", serve: (*theirs).serveHello, heard: "hello"},
		{name: "tutorial_sum", serve: (*theirs).serveSum},
		{name: "tutorial_bulk", serve: (*theirs).serveBulk},
		{name: "tutorial_async", serve: (*theirs).serveSum},
		{name: "tutorial_provider", serve: (*theirs).serveAlpha},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := listenTheirs(t)
			tt.serve(s)
			replay(t, s.engine.Addr(), conversation(t, tt.name))
			if tt.heard != "" && !t.Failed() {
				if got := <-s.heard; got != tt.heard {
					t.Errorf("heard %q; want %q", got, tt.heard)
				}
			}
			if tt.ends && !t.Failed() {
				<-s.engine.Done()
			}
		})
	}
}
