package hg

import (
	"context"
	"testing"

	"cinnabar/codes"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
	"cinnabar/internal/na/natest"
)

// inline answers where the request comes in.
type inline struct{}

func (inline) Unknown(ID) codes.Code { return 0 }

func (inline) Dispatch(r *Request) na.Task {
	echo(r)
	r.Free()
	return nil
}

// newPair makes two processes on a network without goroutines.
func newPair(t testing.TB, mode wire.ChecksumMode) (client, server *node) {
	n := natest.New(natest.Config{Direct: true})
	return open(t, n, Config{Checksums: mode}), open(t, n, Config{Checksums: mode, Dispatch: inline{}})
}

func TestCallsDoNotAllocate(t *testing.T) {
	for name, mode := range map[string]wire.ChecksumMode{"without checksums": wire.NoChecksums, "with checksums": wire.Checksums, "detect": wire.Detect} {
		t.Run(name, func(t *testing.T) {
			client, server := newPair(t, mode)
			to, ctx, input := server.ep.Addr(), context.Background(), []byte("an argument")
			allocs := testing.AllocsPerRun(1000, func() {
				k := client.NewCall()
				k.Start(to, 1, CallOptions{}, append(k.Input(), input...))
				if err := k.Wait(ctx); err != nil {
					t.Fatal(err)
				}
				k.Free()
			})
			if allocs != 0 && !invariants.Race {
				t.Errorf("%v allocations per call at both ends together, want 0", allocs)
			}
		})
	}
}

func TestTransfersDoNotAllocate(t *testing.T) {
	client, server := newPair(t, wire.NoChecksums)
	d := travel(t, expose(t, server, na.ReadOnly, evenly(make([]byte, 4096), 4)...).Desc())
	to, ctx, local := server.ep.Addr(), context.Background(), [][]byte{make([]byte, 4096)}
	allocs := testing.AllocsPerRun(1000, func() {
		x := client.NewTransfer()
		x.Start(Pull, to, d, 0, local, 4096)
		if n, err := x.Wait(ctx); n != 4096 || err != nil {
			t.Fatal(n, err)
		}
		x.Free()
	})
	if allocs != 0 && !invariants.Race {
		t.Errorf("%v allocations per transfer, want 0", allocs)
	}
}

func BenchmarkCall(b *testing.B) {
	for name, mode := range map[string]wire.ChecksumMode{"plain": wire.NoChecksums, "checksums": wire.Checksums, "detect": wire.Detect} {
		b.Run(name, func(b *testing.B) {
			client, server := newPair(b, mode)
			to, ctx, input := server.ep.Addr(), context.Background(), make([]byte, 64)
			b.ReportAllocs()
			for b.Loop() {
				k := client.NewCall()
				k.Start(to, 1, CallOptions{}, append(k.Input(), input...))
				if err := k.Wait(ctx); err != nil {
					b.Fatal(err)
				}
				k.Free()
			}
		})
	}
}
