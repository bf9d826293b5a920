package cinnabar

import (
	"context"
	"fmt"
	"testing"
)

// benchTransfer measures transfers of size bytes in that many segments at the owner. Both engines are in this process.
func benchTransfer(b *testing.B, size, segments int, do func(context.Context, RemoteBulk, *Bulk) (int64, error)) {
	p := newBulkPair(b)
	r := p.remote(b, expose(b, p.there, ReadWrite, pieces(make([]byte, size), repeat(size/segments, segments)...)...))
	local := alloc(b, p.here, ReadWrite, int64(size))
	ctx := context.Background()
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		if n, err := do(ctx, r, local); n != int64(size) || err != nil {
			b.Fatal(n, err)
		}
	}
}

func doPull(ctx context.Context, r RemoteBulk, b *Bulk) (int64, error) { return r.Pull(ctx, b) }
func doPush(ctx context.Context, r RemoteBulk, b *Bulk) (int64, error) { return r.Push(ctx, b) }

var benchSizes = []struct {
	name string
	size int
}{{"64", 64}, {"4KiB", 4 << 10}, {"64KiB", 64 << 10}, {"1MiB", 1 << 20}, {"16MiB", 16 << 20}}

func BenchmarkPull(b *testing.B) {
	for _, s := range benchSizes {
		b.Run(s.name, func(b *testing.B) { benchTransfer(b, s.size, 1, doPull) })
	}
}

func BenchmarkPush(b *testing.B) {
	for _, s := range benchSizes {
		b.Run(s.name, func(b *testing.B) { benchTransfer(b, s.size, 1, doPush) })
	}
}

// What many segments cost: the same MiB in one and in 1,024.
func BenchmarkSegments(b *testing.B) {
	for _, n := range []int{1, 16, 1024} {
		b.Run(fmt.Sprintf("pull/%d", n), func(b *testing.B) { benchTransfer(b, 1<<20, n, doPull) })
		b.Run(fmt.Sprintf("push/%d", n), func(b *testing.B) { benchTransfer(b, 1<<20, n, doPush) })
	}
}

func BenchmarkPullChunks(b *testing.B) {
	for _, chunk := range []int64{64 << 10, 1 << 20, 4 << 20} {
		b.Run(fmt.Sprintf("%dKiB", chunk>>10), func(b *testing.B) {
			benchTransfer(b, 16<<20, 1, func(ctx context.Context, r RemoteBulk, l *Bulk) (int64, error) {
				return r.PullChunks(ctx, l, chunk, 0)
			})
		})
	}
}

func BenchmarkStartPull(b *testing.B) {
	benchTransfer(b, 4<<10, 1, func(ctx context.Context, r RemoteBulk, l *Bulk) (int64, error) { return r.StartPull(ctx, l).Wait() })
}

func BenchmarkReadAt(b *testing.B) {
	p := newBulkPair(b)
	r := p.remote(b, expose(b, p.there, ReadOnly, make([]byte, 4<<10)))
	buf := make([]byte, 4<<10)
	b.SetBytes(4 << 10)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.ReadAt(b.Context(), buf, 0); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkExpose(b *testing.B) {
	e := bulkEngine(b, nil)
	mem := make([]byte, 4096)
	b.ReportAllocs()
	for b.Loop() {
		bulk, err := e.Expose(ReadWrite, mem)
		if err != nil {
			b.Fatal(err)
		}
		if err := bulk.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPoolGet(b *testing.B) {
	p := newPool(b, bulkEngine(b, nil), ReadWrite, 4, 4096)
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		buf, err := p.Get(ctx)
		if err != nil {
			b.Fatal(err)
		}
		if err := p.Release(buf); err != nil {
			b.Fatal(err)
		}
	}
}
