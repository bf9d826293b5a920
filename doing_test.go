package cinnabar

import "testing"

// BenchmarkDoing measures what it costs to record an operation as under way.
func BenchmarkDoing(b *testing.B) {
	e := &Engine{}
	e.doing.init()
	rt := &route{e: e, proc: add.proc, ep: &Endpoint{e: e}}
	b.ReportAllocs()
	for b.Loop() {
		rt.begin(nil).end()
	}
}

// BenchmarkDoingParallel is the same from all processors.
func BenchmarkDoingParallel(b *testing.B) {
	e := &Engine{}
	e.doing.init()
	b.RunParallel(func(pb *testing.PB) {
		rt := &route{e: e, proc: add.proc, ep: &Endpoint{e: e}}
		for pb.Next() {
			rt.begin(nil).end()
		}
	})
}
