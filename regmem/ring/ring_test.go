package ring

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"cinnabar/internal/hostmem"
	"cinnabar/regmem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is a region of the Go heap.
type memory struct{ b []byte }

func (m *memory) Bytes() []byte { return m.b }

func newRing(t testing.TB, n int) *Ring[*memory] {
	t.Helper()
	b := make([]byte, n+line)
	b = b[int(-hostmem.Addr(b)&(line-1)):][:n:n]
	r, err := New(&memory{b})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

type block = regmem.Block[*memory]

func alloc(t testing.TB, r *Ring[*memory], n int) block {
	t.Helper()
	b, err := r.Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func free(t testing.TB, blocks ...block) {
	t.Helper()
	for _, b := range blocks {
		if err := b.Free(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestWrap lets blocks come round: what does not fit before the end begins at the start, when that is free.
// parity: S13
func TestWrap(t *testing.T) {
	r := newRing(t, 10*line)
	a, b := alloc(t, r, 4*line), alloc(t, r, 4*line-1)
	if a.Offset() != 0 || b.Offset() != 4*line || len(b.Bytes()) != 4*line-1 || cap(b.Bytes()) != 4*line-1 {
		t.Fatal(a, b)
	}
	if _, err := r.Alloc(3 * line); !errors.Is(err, regmem.ErrFull) {
		t.Fatalf("two lines are left at the end, and none at the start: %v", err)
	}
	free(t, a)
	c := alloc(t, r, 3*line)
	if s := r.Stats(); c.Offset() != 0 || s.Wraps != 1 || s.InUse != 9*line || s.Blocks != 2 {
		t.Errorf("%v: %+v", c, s)
	}
	if d := alloc(t, r, line); d.Offset() != 3*line {
		t.Error(d)
	} else {
		free(t, b, d, c)
	}
	if s := r.Stats(); s.InUse != 0 || s.Blocks != 0 || s.Held != 0 {
		t.Errorf("%+v", s)
	}
	free(t, alloc(t, r, 10*line)) // all of it, wherever head was
}

// TestOutOfOrder frees behind a block in use: the memory comes back with that one.
// parity: S13
func TestOutOfOrder(t *testing.T) {
	r := newRing(t, 10*line)
	a, b, c := alloc(t, r, line), alloc(t, r, line), alloc(t, r, 8*line)
	free(t, c, b)
	if s := r.Stats(); s.Held != 9*line || s.InUse != 10*line || s.Blocks != 1 {
		t.Errorf("%+v", s)
	}
	free(t, a)
	if s := r.Stats(); s.Held != 0 || s.InUse != 0 || s.Peak != 10*line {
		t.Errorf("%+v", s)
	}
}

// TestMisuse frees twice, late, or what was never ours, and asks for what there never is.
// parity: S13
func TestMisuse(t *testing.T) {
	r := newRing(t, 4*line)
	a, b := alloc(t, r, 1), alloc(t, r, 1)
	free(t, b)
	second := b.Free()
	closing := r.Close()
	free(t, a)
	_, zero := r.Alloc(0)
	_, large := r.AllocContext(t.Context(), 4*line+1)
	strange := regmem.NewBlock(&r.source, 0, 1, 99)
	for name, c := range map[string]struct{ err, want error }{
		"behind another": {second, regmem.ErrDoubleFree},
		"long ago":       {a.Free(), regmem.ErrDoubleFree},
		"foreign":        {strange.Free(), regmem.ErrForeign},
		"too large":      {large, regmem.ErrTooLarge},
		"in use":         {closing, regmem.ErrInUse},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v", name, c.err)
		}
	}
	if zero == nil {
		t.Error("a block of nothing")
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if _, err := r.AllocContext(t.Context(), 1); !errors.Is(err, regmem.ErrClosed) {
		t.Error(err)
	}
	if _, err := New(&memory{make([]byte, line-1)}); err == nil {
		t.Error("a ring without a line")
	}
}

// TestUnaligned begins at a multiple of 64, wherever the region does.
func TestUnaligned(t *testing.T) {
	mem := make([]byte, 1000)
	for i := range line {
		r, err := New(&memory{mem[i:]})
		if err != nil {
			t.Fatal(err)
		}
		b := alloc(t, r, r.Size())
		if hostmem.Addr(b.Bytes())%line != 0 || r.Size() < 1000-2*line {
			t.Errorf("from %d: %v of %d", i, b, r.Size())
		}
		free(t, b)
	}
}

// TestWait serves those who wait in order, ends with the context, and with Close.
// parity: S13
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRing(t, 4*line)
		all := alloc(t, r, 4*line)
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("patience")
		got := make(chan error, 2)
		for _, n := range []int{4 * line, line} {
			go func() {
				b, err := r.AllocContext(ctx, n)
				if err == nil {
					err = b.Free()
				}
				got <- err
			}()
			synctest.Wait()
		}
		if _, err := r.Alloc(1); !errors.Is(err, regmem.ErrFull) || r.Stats().Waiting != 2 {
			t.Errorf("pushed in: %v", err)
		}
		free(t, all)
		if err := errors.Join(<-got, <-got); err != nil {
			t.Error(err)
		}
		all = alloc(t, r, 1)
		go func() {
			_, err := r.AllocContext(ctx, 4*line)
			got <- err
		}()
		synctest.Wait()
		cancel(cause)
		if err := <-got; !errors.Is(err, cause) {
			t.Error(err)
		}
		free(t, all)
	})
}

// TestStream has several writers and a reader that frees late and out of order; everybody finds what was written.
// parity: S13
func TestStream(t *testing.T) {
	r := newRing(t, 64*line)
	blocks := make(chan block, 16)
	var writers, readers sync.WaitGroup
	for g := range 4 {
		writers.Go(func() {
			for i := range 2000 {
				b, err := r.AllocContext(t.Context(), 1+(i*7+g*131)%(16*line))
				if err != nil {
					t.Error(err)
					return
				}
				for i := range b.Bytes() {
					b.Bytes()[i] = byte(b.Len())
				}
				blocks <- b
			}
		})
	}
	readers.Go(func() {
		var held []block
		for b := range blocks {
			if bytes.Count(b.Bytes(), []byte{byte(b.Len())}) != b.Len() {
				t.Error("somebody else wrote here")
			}
			held = append(held, b)
			if i := rand.IntN(3); i < len(held) {
				free(t, held[i])
				held = append(held[:i], held[i+1:]...)
			}
			if len(held) > 2 || len(blocks) == 0 { // the writers may need what is held
				free(t, held...)
				held = nil
			}
		}
	})
	done := make(chan struct{})
	go func() { writers.Wait(); close(blocks); close(done) }()
	readers.Wait()
	<-done
	if s := r.Stats(); s.InUse != 0 || s.Allocs != 8000 || s.Wraps == 0 {
		t.Errorf("%+v", s)
	}
}

// TestNoGarbage allocates nothing on the Go heap.
// parity: S13
func TestNoGarbage(t *testing.T) {
	r := newRing(t, 64*line)
	free(t, alloc(t, r, 1))
	if n := testing.AllocsPerRun(1000, func() {
		b, err := r.Alloc(1000)
		if err != nil || b.Free() != nil {
			t.Error("no block")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
