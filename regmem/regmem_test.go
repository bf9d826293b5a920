package regmem

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is a region of the Go heap.
type memory struct{ b []byte }

func (m *memory) Bytes() []byte { return m.b }

// heap is an allocator that makes a region for each block, up to a limit.
type heap struct {
	limit int
	live  int
}

func (h *heap) Alloc(n int) (Block[*memory], error) {
	if n > h.limit {
		return Block[*memory]{}, ErrTooLarge
	}
	h.live++
	return NewBlock(&Source[*memory]{Owner: h, Region: &memory{make([]byte, n+10)}}, 10, n, uint64(h.live)), nil
}

func (h *heap) FreeBlock(uint64, int, int) error { h.live--; return nil }

func TestBlock(t *testing.T) {
	h := &heap{limit: 100}
	b, err := h.Alloc(20)
	if err != nil {
		t.Fatal(err)
	}
	b.Bytes()[0] = 7
	if mem := b.Region().Bytes(); mem[10] != 7 || len(b.Bytes()) != 20 || cap(b.Bytes()) != 20 || b.Offset() != 10 || b.Len() != 20 {
		t.Errorf("%v", b)
	}
	if got := b.String(); got != "20 bytes at offset 10" {
		t.Error(got)
	}
	b.Region().b = nil
	if b.Bytes() != nil {
		t.Error("bytes of a closed region")
	}
	if err := b.Free(); err != nil || h.live != 0 {
		t.Error(err)
	}
	var none Block[*memory]
	if err := none.Free(); !errors.Is(err, ErrForeign) || none.Bytes() != nil || none.Region() != nil || !none.IsZero() || none.String() != "no block" {
		t.Error(err, none)
	}
}

// waiting is heap as an Allocator.
type waiting struct{ *heap }

func (w waiting) AllocContext(_ context.Context, n int) (Block[*memory], error) { return w.Alloc(n) }

func newBuffer(limit int) (*Buffer[*memory], *heap) {
	h := &heap{limit: limit}
	return NewBuffer(Allocator[*memory](waiting{h})), h
}

// parity: S15
func TestBuffer(t *testing.T) {
	b, h := newBuffer(1 << 20)
	text := strings.Repeat("registered memory ", 1000)
	if _, err := b.WriteString(text[:5]); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Write([]byte(text[5:9])); err != nil {
		t.Fatal(err)
	}
	if err := b.WriteByte(text[9]); err != nil {
		t.Fatal(err)
	}
	if n, err := b.ReadFrom(iotest.OneByteReader(strings.NewReader(text[10:]))); err != nil || n != int64(len(text)-10) {
		t.Fatal(n, err)
	}
	if b.Copied() == 0 || b.Len() != len(text) || h.live != 1 {
		t.Errorf("copied %d, len %d, %d blocks", b.Copied(), b.Len(), h.live)
	}
	var out bytes.Buffer
	head := make([]byte, 100)
	if _, err := io.ReadFull(b, head); err != nil {
		t.Fatal(err)
	}
	block, skip := b.Block()
	if !bytes.Equal(block.Bytes()[skip:skip+20], []byte(text[100:120])) {
		t.Errorf("at %d: %q", skip, block.Bytes()[skip:skip+20])
	}
	if _, err := b.WriteTo(&out); err != nil || string(head)+out.String() != text {
		t.Errorf("%v: %d bytes", err, out.Len())
	}
	if _, err := b.Read(head); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	if err := b.Close(); err != nil || h.live != 0 {
		t.Error(err, h.live)
	}
}

// TestBufferTake builds a record in place and takes it without a copy.
// parity: S15
func TestBufferTake(t *testing.T) {
	b, h := newBuffer(1 << 20)
	if err := b.Grow(1000); err != nil {
		t.Fatal(err)
	}
	mem, err := b.Extend(4)
	if err != nil {
		t.Fatal(err)
	}
	copy(mem, "head")
	if _, err := b.WriteString("body"); err != nil {
		t.Fatal(err)
	}
	block, n := b.Take()
	if got := string(block.Bytes()[:n]); got != "headbody" || b.Copied() != 0 || b.Len() != 0 || &block.Bytes()[0] != &mem[0] {
		t.Errorf("%q, copied %d", got, b.Copied())
	}
	if err := block.Free(); err != nil {
		t.Error(err)
	}
	if none, n := b.Take(); !none.IsZero() || n != 0 || h.live != 0 || b.Close() != nil {
		t.Error(none, n)
	}
}

// TestBufferFull keeps what was written when there is no room for more.
func TestBufferFull(t *testing.T) {
	b, h := newBuffer(1000)
	if n, err := b.Write(make([]byte, 900)); n != 900 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := b.Write(make([]byte, 101)); n != 0 || !errors.Is(err, ErrTooLarge) {
		t.Error(n, err)
	}
	if n, err := b.Write(make([]byte, 100)); n != 100 || err != nil || b.Len() != 1000 {
		t.Error(n, err)
	}
	if _, err := b.ReadFrom(strings.NewReader("x")); !errors.Is(err, ErrTooLarge) {
		t.Error(err)
	}
	if b.Grow(-1) == nil {
		t.Error("grown by -1")
	}
	if _, err := b.Extend(-1); err == nil {
		t.Error("extended by -1")
	}
	if err := b.Close(); err != nil || h.live != 0 {
		t.Error(err)
	}
}

// registrar counts registrations.
type registrar struct {
	mu         sync.Mutex
	live, most int
}

func (r *registrar) cache(t *testing.T, bytes int64, regions int) *Cache[*memory] {
	c, err := NewCache(CacheConfig[*memory]{
		Register: func(b []byte) (*memory, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.live++
			r.most = max(r.most, r.live)
			return &memory{b}, nil
		},
		Release: func(*memory) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.live--
			return nil
		},
		MaxBytes: bytes, MaxRegions: regions,
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestCacheFlat uses a few buffers ten thousand times: the count of registrations stays flat.
// parity: S12
func TestCacheFlat(t *testing.T) {
	var r registrar
	c := r.cache(t, 0, 0)
	buffers := make([][]byte, 8)
	for i := range buffers {
		buffers[i] = make([]byte, 4096)
	}
	for i := range 10_000 {
		buf := buffers[i%len(buffers)][i%100:]
		if i < len(buffers) {
			buf = buffers[i]
		}
		l, err := c.Acquire(buf)
		if err != nil {
			t.Fatal(err)
		}
		if &l.Region().Bytes()[l.Offset()] != &buf[0] {
			t.Fatal("another place")
		}
		if err := l.Release(); err != nil {
			t.Fatal(err)
		}
	}
	if s := c.Stats(); s.Registrations != 8 || s.Hits != 9992 || s.Releases != 0 || s.Bytes != 8*4096 || s.InUse != 0 {
		t.Errorf("%+v", s)
	}
	if err := c.Close(); err != nil || r.live != 0 {
		t.Error(err, r.live)
	}
}

// TestCacheLimits releases what was not used for longest, and never what is in use.
// parity: S12
func TestCacheLimits(t *testing.T) {
	for _, c := range []struct {
		bytes   int64
		regions int
	}{{250, 0}, {0, 2}} {
		var r registrar
		cache := r.cache(t, c.bytes, c.regions)
		mem := make([]byte, 1000)
		used, err := cache.Acquire(mem[900:])
		if err != nil {
			t.Fatal(err)
		}
		for i := range 5 {
			l, err := cache.Acquire(mem[i*100 : i*100+100])
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Release(); err != nil {
				t.Fatal(err)
			}
			if err := l.Release(); !errors.Is(err, ErrDoubleFree) {
				t.Error(err)
			}
		}
		if s := cache.Stats(); s.Regions != 3 || s.InUse != 1 || s.Releases != 3 || r.live != 3 {
			t.Errorf("%+v, %d", s, r.live)
		}
		if err := cache.Close(); !errors.Is(err, ErrInUse) || r.live != 1 {
			t.Error(err, r.live)
		}
		if _, err := cache.Acquire(mem); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		if err := errors.Join(used.Release(), cache.Close()); err != nil || r.live != 0 {
			t.Error(err, r.live)
		}
	}
}

// TestCacheInside finds the registration that covers what is asked for among others.
func TestCacheInside(t *testing.T) {
	var r registrar
	c := r.cache(t, 0, 0)
	mem := make([]byte, 1000)
	for _, s := range [][2]int{{0, 500}, {100, 200}, {150, 160}, {400, 700}} {
		l, err := c.Acquire(mem[s[0]:s[1]])
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := l.Release(); err != nil {
				t.Error(err)
			}
		}()
	}
	// The second and third lie in the first; the last does not.
	if s := c.Stats(); s.Registrations != 2 || s.Hits != 2 {
		t.Errorf("%+v", s)
	}
	l, err := c.Acquire(mem[450:650])
	if err != nil || l.Offset() != 50 {
		t.Error(err, l.Offset())
	}
	if err := l.Release(); err != nil {
		t.Error(err)
	}
	if _, err := c.Acquire(nil); err == nil {
		t.Error("no bytes")
	}
}

// TestCacheConcurrent uses one cache from everywhere.
func TestCacheConcurrent(t *testing.T) {
	var r registrar
	c := r.cache(t, 1000, 4)
	mem := make([]byte, 4000)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 500 {
				off := (i*7 + g*13) % 39 * 100
				l, err := c.Acquire(mem[off : off+100])
				if err != nil || l.Release() != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := c.Close(); err != nil || r.live != 0 {
		t.Error(err, r.live)
	}
}
