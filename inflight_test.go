package cinnabar

import "testing"

// BenchmarkOpTable measures what it costs to record an operation as under way.
func BenchmarkOpTable(b *testing.B) {
	e := &Engine{}
	e.ops.init()
	rt := &route{e: e, proc: add.proc, ep: &Endpoint{e: e}}
	b.ReportAllocs()
	for b.Loop() {
		rt.begin(nil).end()
	}
}

// BenchmarkOpTableParallel is the same from all processors.
func BenchmarkOpTableParallel(b *testing.B) {
	e := &Engine{}
	e.ops.init()
	b.RunParallel(func(pb *testing.PB) {
		rt := &route{e: e, proc: add.proc, ep: &Endpoint{e: e}}
		for pb.Next() {
			rt.begin(nil).end()
		}
	})
}
