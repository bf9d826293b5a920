package ring

import (
	"strconv"
	"sync"
	"testing"
)

// BenchmarkAllocFree is beside BenchmarkSyncPool: the bar is three times that.
func BenchmarkAllocFree(b *testing.B) {
	for _, n := range []int{64, 4096, 65536} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			r := newRing(b, 1<<20)
			b.ReportAllocs()
			for b.Loop() {
				block, err := r.Alloc(n)
				if err != nil || block.Free() != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkInFlight has 64 blocks in use at a time.
func BenchmarkInFlight(b *testing.B) {
	r := newRing(b, 1<<20)
	var blocks [64]block
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		slot := &blocks[i%len(blocks)]
		if !slot.IsZero() && slot.Free() != nil {
			b.Fatal("not freed")
		}
		var err error
		if *slot, err = r.Alloc(4096); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSyncPool(b *testing.B) {
	for _, n := range []int{64, 4096, 65536} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			pool := sync.Pool{New: func() any { s := make([]byte, n); return &s }}
			b.ReportAllocs()
			for b.Loop() {
				pool.Put(pool.Get())
			}
		})
	}
}
