package regmem

import (
	"errors"
	"math"
	"testing"
)

// TestBufferHugeGrowth refuses sizes that no memory has, with bytes in the buffer and without, and stays as it is.
// parity: S15
func TestBufferHugeGrowth(t *testing.T) {
	b, _ := newBuffer(1 << 20)
	for range 2 {
		if err := b.Grow(math.MaxInt); !errors.Is(err, ErrTooLarge) {
			t.Error(err)
		}
		if _, err := b.Extend(math.MaxInt - b.Len()); !errors.Is(err, ErrTooLarge) {
			t.Error(err)
		}
		if _, err := b.WriteString("kept"); err != nil {
			t.Fatal(err)
		}
	}
	if got := string(b.Bytes()); got != "keptkept" {
		t.Errorf("%q", got)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// TestBufferAsPipe is read as fast as it is written, and never empty: the buffer stays small.
// parity: S15
func TestBufferAsPipe(t *testing.T) {
	b, h := newBuffer(1 << 20)
	next, out := byte(0), make([]byte, 100)
	if _, err := b.Write([]byte{255}); err != nil {
		t.Fatal(err)
	}
	want := byte(255)
	for range 10_000 {
		in := make([]byte, 100)
		for i := range in {
			in[i], next = next, next+1
		}
		if _, err := b.Write(in); err != nil {
			t.Fatal(err)
		}
		if n, err := b.Read(out); err != nil || n != 100 || out[0] != want {
			t.Fatalf("%d bytes, %v: begins with %d, want %d", n, err, out[0], want)
		}
		want = out[99] + 1
	}
	block, _ := b.Block()
	if block.Len() > 1024 || h.live != 1 {
		t.Errorf("a block of %d bytes for %d", block.Len(), b.Len())
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// closed is an allocator whose region is closed.
type closed struct{ waiting }

func (c closed) Alloc(n int) (Block[*memory], error) {
	b, err := c.waiting.Alloc(n)
	if err == nil {
		b.Region().b = nil
	}
	return b, err
}

// TestBufferClosedRegion tells that the memory is gone, and loses no block.
func TestBufferClosedRegion(t *testing.T) {
	h := &heap{limit: 1000}
	b := NewBuffer(Allocator[*memory](closed{waiting{h}}))
	if _, err := b.WriteString("x"); !errors.Is(err, ErrClosed) || h.live != 0 || b.Len() != 0 {
		t.Error(err, h.live, b.Len())
	}
}

// TestCacheCloseAgainstRelease ends a use at the very moment at which the cache closes: its registration is given up.
// parity: S12
func TestCacheCloseAgainstRelease(t *testing.T) {
	var r registrar
	c := r.cache(t, 0, 0)
	mem := make([]byte, 200)
	idle, err := c.Acquire(mem[:100])
	if err != nil || idle.Release() != nil {
		t.Fatal(err)
	}
	used, err := c.Acquire(mem[100:])
	if err != nil {
		t.Fatal(err)
	}
	release := c.cfg.Release
	c.cfg.Release = func(m *memory) error {
		c.cfg.Release = release
		return errors.Join(used.Release(), release(m))
	}
	if err := c.Close(); !errors.Is(err, ErrInUse) {
		t.Error(err)
	}
	if s := c.Stats(); r.live != 0 || s.Regions != 0 || s.Releases != 2 {
		t.Errorf("%d registrations live on: %+v", r.live, s)
	}
}
