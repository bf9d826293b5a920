package hg

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/na"
	"cinnabar/internal/na/natest"
)

// scenario is everything that two processes do with each other: calls, one-way calls, overflow in all directions, and
// transfers both ways within a call. It returns the error of the caller's first failure.
type scenario struct {
	client, server *node
	mem            []byte
	oneWays        chan int
}

func newScenario(t *testing.T, n *natest.Network) *scenario {
	s := &scenario{mem: pattern(3000), oneWays: make(chan int, 10)}
	s.server = open(t, n, Config{Dispatch: handler(s.serve)})
	s.client = open(t, n, Config{})
	return s
}

const (
	rpcEcho ID = iota + 1
	rpcBulk
)

func (s *scenario) serve(r *Request) {
	ctx := context.Background()
	switch {
	case r.OneWay():
		s.oneWays <- len(r.Input())
	case r.ID() == rpcBulk:
		d, _, err := DecodeProc(r.Input(), OverNetwork)
		if err != nil {
			_ = r.Fail(codes.InvalidArg)
			return
		}
		if err := s.rotate(ctx, r.From(), d); err != nil {
			_ = r.Fail(rewrap("", nil, err).Code)
			return
		}
		_ = r.Respond(ctx, nil)
	default:
		_ = r.Respond(ctx, append(r.Output(), r.Input()...))
	}
}

// rotate pulls memory of a caller, and pushes it back changed.
func (s *scenario) rotate(ctx context.Context, from na.Addr, d *Desc) error {
	buf := make([]byte, d.Len())
	for _, dir := range []Direction{Pull, Push} {
		x := s.server.NewTransfer()
		x.Start(dir, from, d, 0, evenly(buf, 2), d.Len())
		_, err := x.Wait(ctx)
		x.Free()
		if err != nil {
			return err
		}
		for i := range buf {
			buf[i]++
		}
	}
	return nil
}

// run does it all and stops at the first error.
func (s *scenario) run(ctx context.Context) error {
	to, err := s.client.ep.Lookup(s.server.ep.Addr().String())
	if err != nil {
		return err
	}
	for _, c := range []struct {
		id     ID
		size   int
		oneWay bool
	}{{rpcEcho, 10, false}, {rpcEcho, 10, true}, {rpcEcho, 9000, false}, {rpcEcho, 9000, true}} {
		k := s.client.NewCall()
		k.Start(to, c.id, CallOptions{OneWay: c.oneWay}, append(k.Input(), pattern(c.size)...))
		err := k.Wait(ctx)
		ok := c.oneWay || bytes.Equal(k.Output(), pattern(c.size))
		k.Free()
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("wrong answer to %+v", c)
		}
	}
	b, err := s.client.Expose(evenly(s.mem, 3), na.ReadWrite)
	if err != nil {
		return err
	}
	defer b.Close()
	k := s.client.NewCall()
	defer k.Free()
	k.Start(to, rpcBulk, CallOptions{}, b.Desc().AppendProc(k.Input(), 0, OverNetwork))
	return k.Wait(ctx)
}

// TestFaultAtEachStep runs the scenario with one fault at its first step, then at its second, and so on until nothing
// is left to fail. Nobody may wait for ever (the bubble of synctest would notice), everything has to be given back, and
// what is not told to be lost must be right.
func TestFaultAtEachStep(t *testing.T) {
	for _, tc := range []struct {
		name   string
		action natest.Action
		again  bool // the same processes can go on afterwards
	}{{"cut", natest.CutLink, true}, {"kill the sender", natest.KillFrom, false}, {"kill the receiver", natest.KillTo, false}, {"lose", natest.Lose, true}} {
		t.Run(tc.name, func(t *testing.T) {
			steps := 0
			for hit := true; hit; {
				steps++
				hit = false
				synctest.Test(t, func(t *testing.T) {
					n := natest.New(natest.Config{Seed: uint64(steps), Chunk: 500, Delay: time.Millisecond, Fault: func(s *natest.Step) natest.Action {
						if s.N == steps {
							hit = true
							return tc.action
						}
						return natest.Proceed
					}})
					s := newScenario(t, n)
					ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
					defer cancel()
					err := s.run(ctx)
					if !hit && err != nil {
						t.Errorf("without a fault: %v", err)
					}
					if err != nil {
						_ = codeFrom(t, err) // fails the test if err has none
					}
					if hit && tc.again {
						again, cancel := context.WithTimeout(t.Context(), time.Hour)
						defer cancel()
						if err := s.run(again); err != nil {
							t.Errorf("after a fault at step %d (%v): %v", steps, tc.action, err)
						}
					}
					elapse(time.Hour) // what still waits for acks gives up
				})
				if t.Failed() {
					return
				}
			}
			if steps < 50 {
				t.Errorf("the scenario has %d steps only", steps)
			}
		})
	}
}

// TestRandomDelays runs many scenarios at once with delays that differ each time.
func TestRandomDelays(t *testing.T) {
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			n := natest.New(natest.Config{Seed: seed, Chunk: 700, Delay: 10 * time.Millisecond})
			a, b, c := newScenario(t, n), newScenario(t, n), newScenario(t, n)
			a.server, b.server, c.server = b.server, c.server, a.server // everybody calls somebody else's server
			ended := make(chan error)
			for _, s := range []*scenario{a, b, c} {
				go func() { ended <- s.run(t.Context()) }()
			}
			for range 3 {
				if err := <-ended; err != nil {
					t.Errorf("seed %d: %v", seed, err)
				}
			}
			synctest.Wait()
		})
	}
}

// TestReconnect kills a server, starts another at its address and calls on.
func TestReconnect(t *testing.T) {
	n := natest.New(natest.Config{})
	server, client := open(t, n, Config{Dispatch: handler(echo)}), open(t, n, Config{})
	if _, err := call(t, client, server.ep.Addr(), 1, nil); err != nil {
		t.Fatal(err)
	}
	n.Kill(server.ep)
	if _, err := call(t, client, server.ep.Addr(), 1, nil); codeFrom(t, err) != codes.HostUnreach {
		t.Errorf("call of a dead process: %v", err)
	}
	c := New(Config{Dispatch: handler(echo)})
	ep := n.Reopen(server.ep, c)
	c.Attach(ep)
	c.Serve()
	if out, err := call(t, client, server.ep.Addr(), 1, []byte("again")); err != nil || string(out) != "again" {
		t.Errorf("%q, %v", out, err)
	}
	closeEmpty(t, c, ep)
}

// TestCancelTransfer cancels a large pull half-way: it ends once, its memory is not written to any more.
func TestCancelTransfer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 64 << 20
		n := natest.New(natest.Config{Delay: time.Millisecond})
		origin, target := open(t, n, Config{}), open(t, n, Config{})
		theirs := bytes.Repeat([]byte{1}, size)
		d := travel(t, expose(t, origin, na.ReadOnly, theirs).Desc())
		mine := make([]byte, size)
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		x := target.NewTransfer()
		x.Start(Pull, origin.ep.Addr(), d, 0, [][]byte{mine}, size)
		if _, err := x.Wait(ctx); codeFrom(t, err) != codes.Timeout {
			t.Errorf("%v, want Timeout", err)
		}
		x.Free()
		moved := bytes.Count(mine, []byte{1})
		if moved == 0 || moved == size {
			t.Errorf("%d of %d bytes were moved", moved, size)
		}
		clear(mine)
		elapse(time.Minute)
		if late := bytes.Count(mine, []byte{1}); late != 0 {
			t.Errorf("%d bytes are written after the end", late)
		}
	})
}

// TestCloseDuringTransfer closes the memory that a peer pulls: the peer learns it, and reads nothing afterwards.
func TestCloseDuringTransfer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := natest.New(natest.Config{Delay: time.Millisecond, Chunk: 1000})
		origin, target := open(t, n, Config{}), open(t, n, Config{})
		theirs := bytes.Repeat([]byte{1}, 1<<20)
		b := expose(t, origin, na.ReadOnly, theirs)
		mine := make([]byte, 1<<20)
		x := target.NewTransfer()
		x.Start(Pull, origin.ep.Addr(), travel(t, b.Desc()), 0, [][]byte{mine}, 1<<20)
		elapse(50 * time.Millisecond)
		b.Close()
		for i := range theirs {
			theirs[i] = 2
		}
		if _, err := x.Wait(t.Context()); codeFrom(t, err) != codes.HostUnreach {
			t.Errorf("%v, want the loss of the connection", err)
		}
		x.Free()
		if bytes.IndexByte(mine, 2) >= 0 {
			t.Error("memory is read after Close")
		}
	})
}
