package cinnabar

import (
	"context"
	"testing"

	"cinnabar/internal/invariants"
	"cinnabar/internal/na/sm"
)

// flatIn and flatOut hold no pointers, so that encoding and decoding them needs no memory.
type (
	flatIn  struct{ A, B uint64 }
	flatOut struct{ Sum uint64 }
)

var flatAdd = NewRPC[flatIn, flatOut]("flat add")

// steadyPair returns an engine, and the address of another one that serves flatAdd and lends memory, over a network.
func steadyPair(t *testing.T, address string) (here, there *Engine, to *Endpoint) {
	t.Helper()
	open := func(open func(context.Context, string, *Config) (*Engine, error)) *Engine {
		e, err := open(t.Context(), address, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { must(t, e.Close()) })
		return e
	}
	there, here = open(Listen), open(Open)
	to, err := here.Lookup(there.Addr())
	must(t, err)
	must(t, flatAdd.Handle(there, func(_ context.Context, in flatIn) (flatOut, error) { return flatOut{in.A + in.B}, nil }))
	return here, there, to
}

// TestSteadyAllocs counts the allocations of calls and transfers in both engines together, once both have their buffers. A transfer has none.
// A call has one, in the server: the context of its handler. The engine does not use that object again, because the program may keep it.
func TestSteadyAllocs(t *testing.T) {
	if invariants.Race {
		t.Skip("the race detector allocates, and sync.Pool drops at random under it")
	}
	for _, address := range []string{"ofi+tcp://127.0.0.1:0", "na+sm"} {
		t.Run(address, func(t *testing.T) {
			if err := sm.Available(); address == "na+sm" && err != nil {
				t.Skipf("no shared memory: %v", err)
			}
			here, there, to := steadyPair(t, address)
			const size = 64 << 10
			lent, err := there.Expose(ReadWrite, make([]byte, size))
			must(t, err)
			own, err := here.Expose(ReadWrite, make([]byte, size))
			must(t, err)
			remote, ctx := lent.Handle().On(to), context.Background()
			for _, tt := range []struct {
				name string
				do   func() error
				want float64
			}{
				{"call", func() error { _, err := flatAdd.Call(ctx, to, flatIn{1, 2}); return err }, 1},
				{"pull", func() error { _, err := remote.Pull(ctx, own); return err }, 0},
				{"push", func() error { _, err := remote.Push(ctx, own); return err }, 0},
			} {
				t.Run(tt.name, func(t *testing.T) {
					one := func() {
						if err := tt.do(); err != nil {
							t.Fatal(err)
						}
					}
					for range 1000 {
						one()
					}
					if n := testing.AllocsPerRun(2000, one); n > tt.want {
						t.Errorf("%v allocations, want at most %v", n, tt.want)
					}
				})
			}
		})
	}
}
