//go:build !race

package xfer

import (
	"context"
	"net/netip"
	"runtime"
	"testing"

	"cinnabar/verbs/iwarp"
)

// TestNoAllocationsPerChunk checks that a chunk allocates nothing on either side. With the race detector, sync.Pool loses some of its elements
// on purpose, and the device allocates others.
func TestNoAllocationsPerChunk(t *testing.T) {
	ctx := testContext(t)
	srv := serve(t, device(t, iwarp.Config{}), Receiver{Open: func(context.Context, netip.AddrPort, string, Meta, int64) (File, error) { return discard{}, nil }}, DirOptions{})
	dev := device(t, iwarp.Config{})
	for _, p := range []Protocol{Basic, Fast} {
		allocs := func(chunks int64) float64 {
			s := Sender{Protocol: p, Chunk: minChunk}
			var m0, m1 runtime.MemStats
			runtime.ReadMemStats(&m0)
			if _, err := s.Send(ctx, dev, srv.addr, Source{Name: "f", Data: zeros{}, Size: chunks * minChunk}); err != nil {
				t.Fatal(err)
			}
			runtime.ReadMemStats(&m1)
			return float64(m1.Mallocs - m0.Mallocs)
		}
		few := allocs(100)
		if more := allocs(3100); (more-few)/3000 > 0.05 {
			t.Errorf("%v: %v allocations for 100 chunks, %v for 3100", p, few, more)
		}
	}
}
