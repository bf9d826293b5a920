package arena

import (
	"strconv"
	"sync"
	"testing"

	"cinnabar/regmem"
)

// BenchmarkAllocFree is beside BenchmarkSyncPool: the bar is three times that.
func BenchmarkAllocFree(b *testing.B) {
	for _, n := range []int{256, 4096, 65536, 1 << 20} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			a := newArena(b, 64<<20)
			b.ReportAllocs()
			for b.Loop() {
				block, err := a.Alloc(n)
				if err != nil || block.Free() != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkScattered allocates and frees in memory that is full of holes.
func BenchmarkScattered(b *testing.B) {
	a := newArena(b, 64<<20)
	blocks := make([]regmem.Block[*memory], 0, 4096)
	for i := range cap(blocks) {
		blocks = append(blocks, must(a.Alloc(1+i*31%12000))(b))
	}
	for i := 0; i < len(blocks); i += 2 {
		freeAll(b, blocks[i])
	}
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		block, err := a.Alloc(1 + n*577%12000)
		n++
		if err != nil || block.Free() != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSyncPool(b *testing.B) {
	for _, n := range []int{256, 4096, 65536, 1 << 20} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			pool := sync.Pool{New: func() any { s := make([]byte, n); return &s }}
			b.ReportAllocs()
			for b.Loop() {
				pool.Put(pool.Get())
			}
		})
	}
}
