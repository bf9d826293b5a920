package cinnabar

import (
	"bytes"
	"context"
	"errors"
	"math"
	"runtime"
	"slices"
	"sync"
	"testing"

	"cinnabar/codes"
	"cinnabar/internal/hostmem"
	"cinnabar/internal/na"
	"cinnabar/internal/na/natest"
)

func newPool(t *testing.T, e *Engine, count int, size int64) *BulkPool {
	t.Helper()
	p, err := e.AllocPool(ReadWrite, count, size)
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
func take(t *testing.T, get func() (*Bulk, error)) *Bulk {
	t.Helper()
	b, err := get()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A pool of four: the fifth Get waits for a Release.
// parity: G67
func TestPoolGetWaits(t *testing.T) {
	p := newPool(t, bulkEngine(t, nil), 4, 100)
	if p.Count() != 4 || p.Size() != 100 {
		t.Errorf("%d buffers of %d bytes", p.Count(), p.Size())
	}
	var taken []*Bulk
	for range 4 {
		b := take(t, p.TryGet)
		for _, other := range taken {
			if &b.Bytes()[0] == &other.Bytes()[0] {
				t.Fatal("one buffer for two")
			}
		}
		if b.Len() != 100 || hostmem.Addr(b.Bytes())%bufferAlign != 0 {
			t.Errorf("%d bytes at %#x", b.Len(), hostmem.Addr(b.Bytes()))
		}
		taken = append(taken, b)
	}
	if b, err := p.TryGet(); b != nil || !errors.Is(err, ErrNoBuffer) {
		t.Errorf("a fifth: %v, %v", b, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := p.Get(ended)
	wantCode(t, err, codes.Canceled, "get buffer")

	fifth := make(chan *Bulk)
	go func() {
		b, err := p.Get(t.Context())
		if err != nil {
			t.Error(err)
		}
		fifth <- b
	}()
	want := &taken[2].Bytes()[0]
	if err := p.Release(taken[2]); err != nil {
		t.Fatal(err)
	}
	if b := <-fifth; &b.Bytes()[0] != want {
		t.Error("not the buffer that was released")
	}
	if b, err := p.Get(ended); err == nil {
		t.Errorf("a sixth: %v", b)
	}
	if err := taken[0].Close(); err != nil { // the same as Release
		t.Error(err)
	}
	if b, err := p.Get(ended); err != nil || b == nil { // need not wait
		t.Errorf("a free buffer and an ended context: %v", err)
	}
}

// parity: G67
func TestPoolRelease(t *testing.T) {
	e := bulkEngine(t, nil)
	p, other := newPool(t, e, 2, 100), newPool(t, e, 1, 100)
	b := take(t, p.TryGet)
	view := b.Slice(10, 10)
	wantCode(t, p.Release(view), codes.InvalidArg, "not from this pool")
	wantCode(t, p.Release(nil), codes.InvalidArg, "not from this pool")
	wantCode(t, other.Release(b), codes.InvalidArg, "not from this pool")
	wantCode(t, p.Release(expose(t, e, ReadOnly, nil)), codes.InvalidArg, "not from this pool")
	if err := p.Release(b); err != nil {
		t.Fatal(err)
	}
	again := take(t, p.TryGet)
	_ = take(t, p.TryGet)
	err := p.Release(b)
	wantCode(t, err, codes.InvalidArg, "released before")
	if !errors.Is(err, ErrReleased) {
		t.Errorf("%v is not ErrReleased", err)
	}
	if err := b.Close(); err != nil {
		t.Errorf("closing what was released: %v", err)
	}
	if _, err := p.TryGet(); !errors.Is(err, ErrNoBuffer) {
		t.Errorf("the second release has freed something: %v", err)
	}
	_, err = view.WriteAt([]byte("x"), 0)
	wantCode(t, err, codes.InvalidArg, "given back")
	if _, err := again.WriteAt([]byte("x"), 0); err != nil {
		t.Errorf("the present user: %v", err)
	}
}

// Release waits for the transfer that its user has forgotten, so that the next user has the buffer alone.
func TestPoolReleaseWaits(t *testing.T) {
	pair := newBulkPair(t)
	p := newPool(t, pair.here, 1, 100)
	b := take(t, p.TryGet)
	op := pair.remote(t, expose(t, pair.there, ReadOnly, make([]byte, 100))).h.On(silentPeer(t, pair.here)).StartPull(t.Context(), b)
	released := make(chan error)
	go func() { released <- p.Release(b) }()
	for b.use("test") == nil {
		b.life.Release()
		runtime.Gosched()
	}
	if _, err := p.TryGet(); !errors.Is(err, ErrNoBuffer) {
		t.Errorf("free while the transfer is under way: %v", err)
	}
	op.cancel()
	if err := <-released; err != nil {
		t.Error(err)
	}
	if err := p.Release(take(t, p.TryGet)); err != nil {
		t.Error(err)
	}
}

// parity: D23
func TestPoolTransfers(t *testing.T) {
	pair := newBulkPair(t)
	p := newPool(t, pair.here, 4, 10_000)
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
	b := take(t, p.TryGet)
	back := travel(t, b.Handle())
	if back.Len() != 10_000 || back.Mode() != ReadWrite {
		t.Errorf("a buffer's handle is %v", back)
	}
}

// parity: G67
func TestPoolClose(t *testing.T) {
	e := bulkEngine(t, nil)
	before := hostmem.Mapped()
	p, err := e.AllocPool(ReadWrite, 2, 100)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := take(t, p.TryGet), take(t, p.TryGet)
	waiting := make(chan error)
	go func() {
		_, err := p.Get(t.Context())
		waiting <- err
	}()
	for range 2 {
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
	wantCode(t, <-waiting, codes.InvalidArg, "pool is closed")
	_, err = p.TryGet()
	wantCode(t, err, codes.InvalidArg, "pool is closed")
	_, err = b.ReadAt(make([]byte, 1), 0)
	wantCode(t, err, codes.InvalidArg, "closed")
	if err := p.Release(b); !errors.Is(err, ErrReleased) {
		t.Errorf("release after close: %v", err)
	}
	if got := hostmem.Mapped(); got != before {
		t.Errorf("%d mappings, want %d", got, before)
	}
}

func TestPoolRefused(t *testing.T) {
	e := bulkEngine(t, nil)
	before := hostmem.Mapped()
	for _, c := range []struct {
		count int
		size  int64
	}{{0, 1}, {-1, 1}, {1, 0}, {1, -1}, {2, math.MaxInt64}, {math.MaxInt, 1 << 40}, {1, math.MaxInt64}} {
		_, err := e.AllocPool(ReadWrite, c.count, c.size)
		wantCode(t, err, codes.InvalidArg, "make pool")
	}
	_, err := e.AllocPool(7, 1, 1)
	wantCode(t, err, codes.InvalidArg, "mode 7")
	_, err = e.AllocPoolSet(ReadWrite, 1)
	wantCode(t, err, codes.InvalidArg, "no sizes")
	_, err = e.AllocPoolSet(ReadWrite, 1, 10, 20, 20)
	wantCode(t, err, codes.InvalidArg, "size 20 follows size 20")
	if got := hostmem.Mapped(); got != before {
		t.Errorf("%d mappings, want %d", got, before)
	}
}

// parity: G68
func TestPoolSet(t *testing.T) {
	s, err := bulkEngine(t, nil).AllocPoolSet(ReadWrite, 1, 10, 100, 1000)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	if s.MaxSize() != 1000 {
		t.Errorf("the largest have %d bytes", s.MaxSize())
	}
	for _, c := range []struct{ ask, want int64 }{{0, 10}, {1, 10}, {10, 10}, {11, 100}, {100, 100}, {101, 1000}, {1000, 1000}} {
		b, err := s.Get(t.Context(), c.ask)
		if err != nil || b.Len() != c.want {
			t.Fatalf("asked for %d bytes: %v", c.ask, err)
		}
		if err := s.Release(b); err != nil {
			t.Error(err)
		}
		wantCode(t, s.Release(b), codes.InvalidArg, "released before")
	}
	for _, ask := range []int64{1001, -1} {
		_, err = s.Get(t.Context(), ask)
		wantCode(t, err, codes.InvalidArg, "up to 1000")
		_, err = s.TryGet(ask, true)
		wantCode(t, err, codes.InvalidArg, "up to 1000")
	}
	wantCode(t, s.Release(nil), codes.InvalidArg, "not from this set")

	small := take(t, func() (*Bulk, error) { return s.TryGet(5, false) })
	if _, err := s.TryGet(5, false); !errors.Is(err, ErrNoBuffer) {
		t.Errorf("the small one is in use: %v", err)
	}
	if b := take(t, func() (*Bulk, error) { return s.TryGet(5, true) }); b.Len() != 100 {
		t.Errorf("any larger one has %d bytes, want 100", b.Len())
	}
	if b := take(t, func() (*Bulk, error) { return s.TryGet(5, true) }); b.Len() != 1000 {
		t.Errorf("any larger one has %d bytes, want 1000", b.Len())
	}
	if _, err := s.TryGet(5, true); !errors.Is(err, ErrNoBuffer) {
		t.Errorf("all are in use: %v", err)
	}
	if err := s.Release(small); err != nil {
		t.Error(err)
	}
}

// memoryLog is a network that notes in which order its memory is revoked and closed.
type memoryLog struct {
	na.Endpoint
	log []string
}

// loggedMemory is memory of a memoryLog.
type loggedMemory struct {
	na.Memory
	of *memoryLog
}

func (e *memoryLog) Register(mem []byte, access na.Access) (na.Memory, error) {
	m, err := e.Endpoint.Register(mem, access)
	return &loggedMemory{m, e}, err
}

func (m *loggedMemory) Revoke() {
	m.of.log = append(m.of.log, "revoke")
	m.Memory.Revoke()
}

func (m *loggedMemory) Close() {
	m.of.log = append(m.of.log, "close")
	m.Memory.Close()
}

// Closing a pool, or a set of pools, revokes the keys of all buffers before it waits for the first peer, because each peer
// that reads slowly may take na.DrainTime from then on.
func TestPoolCloseRevokesFirst(t *testing.T) {
	for name, closing := range map[string]func(*Engine) (interface{ Close() error }, error){
		"pool": func(e *Engine) (interface{ Close() error }, error) { return e.AllocPool(ReadWrite, 6, 100) },
		"set": func(e *Engine) (interface{ Close() error }, error) {
			return e.AllocPoolSet(ReadWrite, 2, 100, 200, 300)
		},
	} {
		t.Run(name, func(t *testing.T) {
			var net memoryLog
			e, err := newEngine(nil, func(_ *Config, h na.Handler) (na.Endpoint, error) {
				net.Endpoint = natest.New(natest.Config{Direct: true}).Open(h)
				return &net, nil
			})
			must(t, err)
			p, err := closing(e)
			must(t, err)
			must(t, p.Close())
			first := slices.Index(net.log, "close")
			if revoked := len(slices.DeleteFunc(slices.Clone(net.log[:max(0, first)]), func(s string) bool { return s != "revoke" })); revoked < 6 {
				t.Errorf("%d of 6 keys are revoked before the first is waited for: %v", revoked, net.log)
			}
			must(t, e.Close())
		})
	}
}
