package cinnabar

import (
	"context"
	"testing"
)

// BenchmarkCall measures one small call at a time between two engines of one process.
func BenchmarkCall(b *testing.B) {
	server, ep := pair(b, nil)
	must(b, add.Handle(server, handleAdd))
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := add.Call(ctx, ep, addIn{X: 1, Y: 2}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCallsInFlight measures small calls of which 64 are in flight.
func BenchmarkCallsInFlight(b *testing.B) {
	server, ep := pair(b, nil)
	must(b, add.Handle(server, handleAdd))
	ctx := context.Background()
	b.ReportAllocs()
	ps := make([]*Pending[addOut], 0, 64)
	i := 0
	for b.Loop() {
		p := add.Start(ctx, ep, addIn{X: 1, Y: 2})
		if len(ps) < cap(ps) {
			ps = append(ps, p)
			continue
		}
		if _, err := ps[i].Wait(); err != nil {
			b.Fatal(err)
		}
		ps[i] = p
		i = (i + 1) % len(ps)
	}
	for _, p := range ps {
		if _, err := p.Wait(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSelfCall measures a call of an engine to itself: everything but the network.
func BenchmarkSelfCall(b *testing.B) {
	server := listening(b, nil)
	must(b, add.Handle(server, handleAdd))
	ctx, ep := context.Background(), server.Self()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := add.Call(ctx, ep, addIn{X: 1, Y: 2}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCallProcess measures one small call at a time to another process.
func BenchmarkCallProcess(b *testing.B) {
	p := spawn(b, "server", "ofi+tcp://127.0.0.1")
	ctx, ep := context.Background(), find(b, calling(b, nil), p.Stdout.Line())
	b.ReportAllocs()
	for b.Loop() {
		if _, err := add.Call(ctx, ep, addIn{X: 1, Y: 2}); err != nil {
			b.Fatal(err)
		}
	}
}
