package cinnabar

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"cinnabar/codes"
	"cinnabar/internal/hostmem"
	"cinnabar/regmem/pool"
)

func newPool(t testing.TB, e *Engine, mode Mode, n int, size int64) *pool.Pool[*Bulk] {
	t.Helper()
	p, err := pool.New(n, func() (*Bulk, error) { return e.Alloc(mode, size) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close pool: %v", err)
		}
	})
	return p
}

// take gets a buffer that must be free.
func take(t *testing.T, p *pool.Pool[*Bulk]) *Bulk {
	t.Helper()
	b, err := p.TryGet()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Recycle ends a Bulk and its views, and the next Bulk has the memory, the bytes and the keys.
func TestRecycle(t *testing.T) {
	e := bulkEngine(t, nil)
	before := hostmem.Mapped()
	old := alloc(t, e, ReadWrite, 100)
	view, handle := old.Slice(10, 10), old.Handle()
	if _, err := view.WriteAt([]byte("0123456789"), 0); err != nil {
		t.Fatal(err)
	}
	b, err := old.Recycle()
	must(t, err)
	if b == old || b.Len() != 100 || b.Handle() != handle || string(b.Bytes()[10:20]) != "0123456789" {
		t.Errorf("the next Bulk has %d bytes, and its handle is %v, want %v", b.Len(), b.Handle(), handle)
	}
	for name, void := range map[string]*Bulk{"Bulk": old, "view": view} {
		_, err = void.WriteAt([]byte("x"), 0)
		wantCode(t, err, codes.InvalidArg, "was recycled")
		if void.Bytes() != nil || void.Handle() != (BulkHandle{}) {
			t.Errorf("the %s is not void after Recycle", name)
		}
		if _, err := void.Recycle(); err == nil {
			t.Errorf("the %s is recycled again", name)
		}
		must(t, void.Close())
	}
	_, err = b.Slice(0, 1).Recycle()
	wantCode(t, err, codes.InvalidArg, "it is a view")
	if _, err := b.WriteAt([]byte("x"), 0); err != nil {
		t.Errorf("the next user after Close of the old Bulk: %v", err)
	}
	must(t, b.Close())
	if got := hostmem.Mapped(); got != before {
		t.Errorf("%d mappings, want %d", got, before)
	}
	_, err = b.Recycle()
	wantCode(t, err, codes.InvalidArg, "is closed")
}

// Memory of every kind can be recycled, and Close of the last Bulk ends its exposure.
func TestRecycleKinds(t *testing.T) {
	e := bulkEngine(t, nil)
	name := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(name, []byte("content"), 0o600))
	file, err := os.Open(name)
	must(t, err)
	defer func() { _ = file.Close() }()
	for name, make := range map[string]func() (*Bulk, error){
		"segments": func() (*Bulk, error) { return e.Expose(ReadOnly, []byte("con"), []byte("tent")) },
		"file":     func() (*Bulk, error) { return e.ExposeFile(ReadOnly, file) },
		"empty":    func() (*Bulk, error) { return e.Expose(ReadOnly, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			b, err := make()
			if errors.Is(err, errors.ErrUnsupported) {
				t.Skipf("this system cannot expose the memory of a file: %v", err)
			}
			must(t, err)
			n := b.Len()
			for range 3 {
				b, err = b.Recycle()
				must(t, err)
			}
			if got, err := io.ReadAll(io.NewSectionReader(b, 0, n)); err != nil || string(got) != "content"[:n] {
				t.Errorf("the memory has %q, %v, want %q", got, err, "content"[:n])
			}
			if _, err := b.WriteAt([]byte("x"), 0); name == "file" {
				wantCode(t, err, codes.Permission)
			}
			must(t, b.Close())
			if left := e.State(-1).Memory; len(left) != 0 {
				t.Errorf("exposed after Close: %v", left)
			}
		})
	}
}

// Close and Recycle at the same time: one of them wins, and the memory is open only if Recycle does.
func TestRecycleMeetsClose(t *testing.T) {
	e := bulkEngine(t, nil)
	rounds := 300
	if testing.Short() {
		rounds = 50
	}
	for range rounds {
		b := alloc(t, e, ReadWrite, 10)
		var next *Bulk
		var err error
		var wg sync.WaitGroup
		wg.Go(func() { next, err = b.Recycle() })
		wg.Go(func() { must(t, b.Close()) })
		wg.Wait()
		if err == nil {
			if _, err := next.WriteAt([]byte("0123456789"), 0); err != nil {
				t.Fatal(err)
			}
			must(t, next.Close())
		} else {
			wantCode(t, err, codes.InvalidArg, "is closed")
		}
		if left := e.State(-1).Memory; len(left) != 0 {
			t.Fatalf("exposed after Close: %v", left)
		}
	}
}

// Release waits for the transfer that its user has forgotten, so that the next user has the buffer alone.
func TestRecycleWaits(t *testing.T) {
	pair := newBulkPair(t)
	p := newPool(t, pair.here, ReadWrite, 1, 100)
	b := take(t, p)
	op := pair.remote(t, expose(t, pair.there, ReadOnly, make([]byte, 100))).h.On(silentPeer(t, pair.here)).StartPull(t.Context(), b)
	released := make(chan error)
	go func() { released <- p.Release(b) }()
	for b.use("test") == nil {
		b.life.Release()
		runtime.Gosched()
	}
	if _, err := p.TryGet(); !errors.Is(err, pool.ErrEmpty) {
		t.Errorf("free while the transfer is under way: %v", err)
	}
	op.cancel()
	must(t, <-released)
	must(t, p.Release(take(t, p)))
}

// A pool of Bulks takes back what Get returned, once.
// parity: G67
func TestPoolOfBulks(t *testing.T) {
	e := bulkEngine(t, nil)
	before := hostmem.Mapped()
	p, other := newPool(t, e, ReadWrite, 2, 100), newPool(t, e, ReadWrite, 1, 100)
	b := take(t, p)
	view := b.Slice(10, 10)
	for name, wrong := range map[string]error{"view": p.Release(view), "nil": p.Release(nil), "other pool": other.Release(b), "other bulk": p.Release(expose(t, e, ReadOnly, nil))} {
		if !errors.Is(wrong, pool.ErrReleased) {
			t.Errorf("release of %s: %v", name, wrong)
		}
	}
	must(t, p.Release(b))
	_, again := take(t, p), take(t, p)
	if err := p.Release(b); !errors.Is(err, pool.ErrReleased) {
		t.Errorf("a second release: %v", err)
	}
	must(t, b.Close()) // of a buffer that is now of another user
	_, err := p.TryGet()
	if !errors.Is(err, pool.ErrEmpty) {
		t.Errorf("the second release has freed something: %v", err)
	}
	_, err = view.WriteAt([]byte("x"), 0)
	wantCode(t, err, codes.InvalidArg, "given back")
	if _, err := again.WriteAt([]byte("x"), 0); err != nil {
		t.Errorf("the present user: %v", err)
	}

	must(t, again.Close()) // its user may not; the pool replaces it
	wantCode(t, p.Release(again), codes.InvalidArg, "is closed")
	if _, err := take(t, p).WriteAt([]byte("x"), 0); err != nil {
		t.Errorf("the buffer in the place of a closed one: %v", err)
	}
	must(t, errors.Join(p.Close(), other.Close()))
	if got := hostmem.Mapped(); got != before {
		t.Errorf("%d mappings, want %d", got, before)
	}
}

// parity: D23
func TestPoolTransfers(t *testing.T) {
	pair := newBulkPair(t)
	p := newPool(t, pair.here, ReadWrite, 4, 10_000)
	data := noise(10_000)
	r := pair.remote(t, expose(t, pair.there, ReadOnly, data))
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 20 {
				b, err := p.Get(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				clear(b.Bytes())
				if _, err := r.Pull(t.Context(), b); err != nil || !bytes.Equal(b.Bytes(), data) {
					t.Errorf("pull: %v", err)
				}
				if err := p.Release(b); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	b := take(t, p)
	back := travel(t, b.Handle())
	if back.Len() != 10_000 || back.Mode() != ReadWrite {
		t.Errorf("a buffer's handle is %v", back)
	}
}

// A Get that waits ends with the engine of the buffers, although no user gives one back.
func TestPoolEndsWithEngine(t *testing.T) {
	e, err := Listen(t.Context(), network, withDevice(t, nil))
	must(t, err)
	p := newPool(t, e, ReadWrite, 1, 100)
	b := take(t, p)
	waiting := make(chan error, 1)
	go func() {
		_, err := p.Get(context.Background())
		waiting <- err
	}()
	must(t, e.Close())
	if err := soon(t, "the Get that waits", waiting); !errors.Is(err, pool.ErrClosed) {
		t.Errorf("error %v, want ErrClosed", err)
	}
	must(t, p.Release(b))
	if _, err := p.TryGet(); !errors.Is(err, pool.ErrClosed) {
		t.Errorf("error %v, want ErrClosed", err)
	}
}

// TestRecycleAllocs checks that a use of a pool's buffer costs one allocation, that of its Bulk.
func TestRecycleAllocs(t *testing.T) {
	p := newPool(t, bulkEngine(t, nil), ReadWrite, 4, 4096)
	if n := testing.AllocsPerRun(100, func() { must(t, p.Release(take(t, p))) }); n > 1 {
		t.Errorf("%v allocations for Get and Release, want 1", n)
	}
}
