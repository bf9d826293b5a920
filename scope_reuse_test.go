package cinnabar

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cinnabar/codec"
	"cinnabar/codec/cereal"
	"cinnabar/codes"
)

// inlined is a value whose bytes lie in itself as long as they are few, as types with small buffers of their own do.
type inlined struct {
	few [8]byte
	b   []byte
}

// AppendProc implements [codec.Appender].
func (x *inlined) AppendProc(b []byte) ([]byte, error) { return append(b, x.b...), nil }

// DecodeProc implements [codec.Decoder].
func (x *inlined) DecodeProc(b []byte) (int, error) {
	if len(b) < len(x.few) {
		return 0, codec.ErrOverflow
	}
	copy(x.few[:], b)
	x.b = x.few[:]
	return len(x.few), nil
}

// TestArgumentsThatReferToThemselves keeps arguments of a type that decodes itself and refers to its own memory. Further requests do not change
// them, although the handlers have returned.
func TestArgumentsThatReferToThemselves(t *testing.T) {
	server := listening(t, nil)
	var kept []inlined // the calls follow one another
	keep := NewRPC[inlined, struct{}]("keep inlined")
	must(t, keep.Handle(server, func(_ context.Context, in inlined) (struct{}, error) {
		kept = append(kept, in)
		return struct{}{}, nil
	}))
	to := reach(t, calling(t, nil), server)
	for n := range uint64(20) {
		_, err := keep.Call(patient(t), to, inlined{b: binary.BigEndian.AppendUint64(nil, n+1)})
		must(t, err)
	}
	for n, in := range kept {
		if want := binary.BigEndian.AppendUint64(nil, uint64(n)+1); !bytes.Equal(in.b, want) {
			t.Errorf("the arguments of call %d have become %v, want %v", n, in.b, want)
		}
	}
}

// TestHeld checks of which types arguments and results are assumed to be kept by their own methods.
func TestHeld(t *testing.T) {
	held := func(init func(), held *bool) bool { init(); return *held }
	flat, handle := new(handler[flatIn, flatOut]), new(handler[struct{ H [2]BulkHandle }, withBytes])
	rest, in := new(handler[cereal.Rest, struct{}]), new(handler[struct{ X [2]struct{ Y inlined } }, struct{}])
	out, behind := new(handler[struct{}, inlined]), new(handler[struct{ S []inlined }, struct{}])
	for _, tt := range []struct {
		what      string
		got, want bool
	}{
		{"numbers", held(flat.init, &flat.held), false},
		{"handles", held(handle.init, &handle.held), false},
		{"rest", held(rest.init, &rest.held), false},
		{"part of the arguments", held(in.init, &in.held), true},
		{"result", held(out.init, &out.held), true},
		{"elements in memory of their own", held(behind.init, &behind.held), false},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: held is %v, want %v", tt.what, tt.got, tt.want)
		}
	}
}

type (
	wildIn  struct{ Kind, N uint32 }
	wildOut struct {
		N uint32
		B []byte `proc:"counted=uint64"`
	}
)

var (
	wild     = NewRPC[wildIn, wildOut]("wild")
	wildLong = NewRPC[wildIn, wildOut]("wild long")
	wildWay  = NewOneWay[wildIn]("wild way")
	strict   = NewRPC[wildIn, wildOut]("strict")
)

// TestWildHandlers has handlers end in every way while goroutines of theirs go on with their contexts, and clients leave. In the end the pools
// count no handler, and the contexts of handlers that have returned have given away no worker of another handler.
func TestWildHandlers(t *testing.T) {
	for _, end := range []string{"quiet", "shutdown", "close"} {
		t.Run(end, func(t *testing.T) { wildHandlers(t, end) })
	}
}

// turns gives other goroutines n turns.
func turns(n int) {
	for range n {
		runtime.Gosched()
	}
}

func wildHandlers(t *testing.T, end string) {
	const clients = 6
	rounds := uint32(60)
	if brief() {
		rounds = 30
	}
	cfg := &Config{Logger: slog.New(slog.DiscardHandler), Pools: []PoolConfig{{Name: "wild", Workers: 3, Queue: 6}, {Name: "tight", Workers: 1, Queue: -1}, {Name: "strict", Workers: 1, Queue: 64}}}
	server, back := listening(t, cfg), listening(t, nil)
	must(t, add.Handle(back, handleAdd))
	must(t, add.Handle(server, handleAdd))
	at, self := reach(t, server, back), reach(t, server, server)
	lent, err := back.Expose(ReadWrite, make([]byte, 64<<10))
	must(t, err)
	memory := lent.Handle()
	var late, callers sync.WaitGroup
	var over atomic.Bool
	var served atomic.Int32 // requests of the pool strict
	const halfway = clients * 10
	use := func(ctx context.Context, n uint32) {
		Block(ctx, func() { turns(int(n%5) * 20) })
		_, _ = add.Call(ctx, at, addIn{1, 2})
		p := add.Start(ctx, self, addIn{1, 2})
		own, err := server.Expose(ReadWrite, make([]byte, 64<<10))
		if err == nil {
			_, _ = memory.On(at).Pull(ctx, own)
			_, _ = memory.On(at).Push(ctx, own)
			_ = own.Close()
		}
		_, _ = p.Wait()
		_ = InfoFrom(ctx)
	}
	stale := make(chan *scope, 1)
	do := func(ctx context.Context, in wildIn) (wildOut, error) {
		out := wildOut{N: in.N}
		after := func() { late.Go(func() { use(ctx, in.N) }) }
		switch in.Kind % 9 {
		case 0:
			after()
		case 1:
			after()
			panic("wild")
		case 2:
			after()
			runtime.Goexit()
		case 3:
			after()
			out.B = bytes.Repeat([]byte{byte(in.N)}, 100<<10)
		case 4:
			after()
			return out, codes.NoEntry
		case 5:
			use(ctx, in.N)
		case 6: // waits across the end of the handler
			in, s := make(chan struct{}), scopeFrom(ctx)
			late.Go(func() {
				Block(ctx, func() {
					close(in)
					for s.holds.Load() > 0 && !over.Load() {
						runtime.Gosched()
					}
				})
			})
			<-in
		case 7:
			derived, cancel := context.WithTimeout(ctx, 200*time.Microsecond)
			late.Go(func() { use(derived, in.N); cancel() })
		case 8:
			late.Go(func() {
				s := scopeFrom(ctx)
				for s.holds.Load() > 0 && !over.Load() {
					runtime.Gosched()
				}
				select {
				case stale <- s:
				default:
				}
			})
		}
		return out, nil
	}
	pools := func(name string) HandleOption { return WithPool(server.LookupPool(name)) }
	must(t, wild.Handle(server, do, pools("wild")))
	must(t, wildWay.Handle(server, func(ctx context.Context, in wildIn) error { _, err := do(ctx, in); return err }, pools("tight")))
	must(t, wildLong.HandleCall(server, func(c *Call[wildIn, wildOut]) {
		answer := func() {
			out, err := do(c.Context(), wildIn{c.In.Kind % 9 / 3 * 3, c.In.N})
			if err != nil {
				_ = c.Fail(err)
				return
			}
			_ = c.Respond(context.Background(), out)
		}
		switch c.In.N % 4 {
		case 0:
			answer()
			use(c.Context(), c.In.N)
		case 1:
			late.Go(answer)
		case 2:
			late.Go(func() { use(c.Context(), 1); answer() })
		case 3:
			answer()
			panic("wild")
		}
	}, pools("wild")))
	var inside atomic.Int32
	must(t, strict.Handle(server, func(_ context.Context, in wildIn) (wildOut, error) {
		if n := inside.Add(1); n > 1 {
			t.Errorf("%d handlers of a pool with one worker", n)
		}
		turns(20)
		inside.Add(-1)
		served.Add(1)
		return wildOut{N: in.N}, nil
	}, pools("strict")))
	late.Go(func() { // uses contexts of handlers that have returned, and whose Calls serve others
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for !over.Load() {
			select {
			case s := <-stale:
				for range 50 {
					s.pause()
					s.ref.PauseMoving()
					s.ref.BeginMoving()
					runtime.Gosched()
					s.ref.EndMoving()
					s.ref.ResumeMoving()
					s.resume()
				}
			case <-tick.C:
			}
			server.State(-1)
		}
	})
	for n := range uint32(clients) {
		client := calling(t, nil)
		to := reach(t, client, server)
		callers.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), testLimit)
			defer cancel()
			for i := range rounds {
				in := wildIn{(n + i) % 9, n<<16 | i}
				out, err := wild.Call(ctx, to, in)
				if err == nil && (out.N != in.N || len(out.B) > 0 && out.B[len(out.B)-1] != byte(in.N)) {
					t.Errorf("result %d, want %d", out.N, in.N)
				}
				if out, err = wildLong.Call(ctx, to, in); err == nil && out.N != in.N {
					t.Errorf("result %d, want %d", out.N, in.N)
				}
				if out, err = strict.Call(ctx, to, in); err == nil && out.N != in.N {
					t.Errorf("result %d, want %d", out.N, in.N)
				}
				_ = wildWay.Send(ctx, to, in)
				if errors.Is(err, codes.Canceled) {
					return
				}
				if n == 0 && i == rounds/2 {
					_ = client.Close()
					return
				}
			}
		})
	}
	switch end {
	case "shutdown":
		waitFor(t, func() bool { return served.Load() >= halfway })
		must(t, server.Shutdown(patient(t)))
	case "close":
		waitFor(t, func() bool { return served.Load() >= halfway })
		must(t, server.Close())
	}
	callers.Wait()
	over.Store(true)
	for _, name := range []string{"wild", "tight", "strict"} {
		p := server.LookupPool(name)
		waitFor(t, func() bool { s := p.stats(); return s.Running == 0 && s.Waiting == 0 && s.Queued == 0 })
	}
	if end == "quiet" { // because one-way requests may still come, whose handlers call late.Go
		must(t, server.Shutdown(patient(t)))
	}
	late.Wait()
	must(t, lent.Close())
}
