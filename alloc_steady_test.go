package cinnabar

import (
	"context"
	"strings"
	"testing"

	"cinnabar/internal/invariants"
	"cinnabar/internal/na/sm"
	"cinnabar/internal/tlstest"
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
	var cfg *Config
	if strings.HasPrefix(address, "ofi+tcps") {
		cfg = &Config{TLS: tlstest.NewCA(t).Local(t)}
	}
	open := func(open func(context.Context, string, *Config) (*Engine, error)) *Engine {
		e, err := open(t.Context(), address, cfg)
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

// TestSteadyAllocs counts the allocations of calls and transfers in both engines together, once both have their buffers. There are none, except inside TLS:
// crypto/tls allocates 24 bytes for each of its reads, which are one for each record that has come, or two if the record has come in parts.
// The contexts of handlers come in blocks, which AllocsPerRun rounds down to 0 for each call. A handler that waits for a transfer over TCP costs one
// allocation, which starts the goroutine that reads the connection meanwhile.
func TestSteadyAllocs(t *testing.T) {
	if invariants.Race {
		t.Skip("the race detector allocates, and sync.Pool drops at random under it")
	}
	for _, address := range []string{"ofi+tcp://127.0.0.1:0", "ofi+tcps://127.0.0.1:0", "na+sm"} {
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
			fetch := NewRPC[flatIn, flatOut]("fetch")
			var from RemoteBulk
			waiting, inTLS, moveInTLS := 1.0, 0.0, 0.0
			switch {
			case address == "na+sm":
				waiting = 0
			case strings.HasPrefix(address, "ofi+tcps"):
				inTLS, moveInTLS = 2, 7
			}
			must(t, fetch.Handle(there, func(ctx context.Context, _ flatIn) (flatOut, error) {
				if from.Len() == 0 {
					from = own.Handle().On(InfoFrom(ctx).Peer)
				}
				n, err := from.Pull(ctx, lent)
				return flatOut{uint64(n)}, err
			}))
			for _, tt := range []struct {
				name string
				do   func() error
				want float64
			}{
				{"call", func() error { _, err := flatAdd.Call(ctx, to, flatIn{1, 2}); return err }, inTLS},
				{"pull", func() error { _, err := remote.Pull(ctx, own); return err }, moveInTLS},
				{"push", func() error { _, err := remote.Push(ctx, own); return err }, moveInTLS},
				{"fetch", func() error { _, err := fetch.Call(ctx, to, flatIn{}); return err }, waiting + inTLS + moveInTLS},
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
