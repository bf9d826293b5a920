package cinnabar

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/audit"
	"cinnabar/internal/hostmem"
	"cinnabar/regmem"
	"cinnabar/regmem/pool"
)

// bulkPair is two engines: there owns the memory, here starts the transfers.
type bulkPair struct {
	here, there *Engine
	ep          *Endpoint // of there
}

func newBulkPair(t testing.TB) bulkPair {
	t.Helper()
	p := bulkPair{here: bulkEngine(t, nil), there: bulkEngine(t, nil)}
	ep, err := p.here.Lookup(p.there.Addr())
	if err != nil {
		t.Fatal(err)
	}
	p.ep = ep
	return p
}

func bulkEngine(t testing.TB, cfg *Config) *Engine {
	t.Helper()
	e, err := Listen(t.Context(), network, withDevice(t, cfg))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close engine: %v", err)
		}
	})
	return e
}

// remote is b as here knows it: its handle has travelled in bytes.
func (p bulkPair) remote(t testing.TB, b *Bulk) RemoteBulk {
	t.Helper()
	return travel(t, b.Handle()).On(p.ep)
}

// travel returns a handle as it arrives at a peer.
func travel(t testing.TB, h BulkHandle) BulkHandle {
	t.Helper()
	data, err := h.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	var got BulkHandle
	if err := got.UnmarshalBinary(data); err != nil {
		t.Fatal(err)
	}
	return got
}

func expose(t testing.TB, e *Engine, mode Mode, segs ...[]byte) *Bulk {
	t.Helper()
	b, err := e.Expose(mode, segs...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeBulk(t, b) })
	return b
}

func alloc(t testing.TB, e *Engine, mode Mode, size int64) *Bulk {
	t.Helper()
	b, err := e.Alloc(mode, size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeBulk(t, b) })
	return b
}

func closeBulk(t testing.TB, b *Bulk) {
	t.Helper()
	if err := b.Close(); err != nil {
		t.Errorf("close bulk: %v", err)
	}
}

// noise returns n bytes that are the same each time.
func noise(n int) []byte {
	b := make([]byte, n)
	fillNoise(b)
	return b
}

// fillNoise fills b with noise that repeats after a prime number of bytes: what is moved to a wrong place shows, and
// filling large memory takes no time.
func fillNoise(b []byte) {
	const period = 65_537
	var seed [32]byte
	n, _ := rand.NewChaCha8(seed).Read(b[:min(period, len(b))])
	for n < len(b) {
		n += copy(b[n:], b[:n])
	}
}

// pieces cuts b into segments of the given sizes, each in an array of its own so that none are neighbours.
func pieces(b []byte, sizes ...int) [][]byte {
	var segs [][]byte
	for _, n := range sizes {
		segs = append(segs, slices.Clone(b[:n:n]))
		b = b[n:]
	}
	return segs
}

// repeat returns n times size.
func repeat(size, n int) []int { return slices.Repeat([]int{size}, n) }

// contents returns all bytes of b.
func contents(b *Bulk) []byte { return bytes.Join(b.pieces(), nil) }

// wantCode fails the test unless err is an *Error of that code whose text has all the words.
func wantCode(t testing.TB, err error, code codes.Code, words ...string) {
	t.Helper()
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Code != code || !errors.Is(err, code) {
		t.Fatalf("error %v, want one of %v", err, code)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}

// parity: H70 H75 G61 T44 D24
func TestExposeSegments(t *testing.T) {
	p := newBulkPair(t)
	for _, count := range []int{1, 2, 8, 9, 1024, 1025} {
		t.Run(fmt.Sprint(count), func(t *testing.T) {
			data := noise(count * 100)
			b := expose(t, p.there, ReadWrite, pieces(data, repeat(100, count)...)...)
			r := p.remote(t, b)
			if got := r.h.d.Segments(); got != count {
				t.Errorf("%d segments after the trip, want %d", got, count)
			}
			if r.Len() != int64(len(data)) || b.Len() != r.Len() || r.h.Mode() != ReadWrite || b.Handle().Mode() != ReadWrite {
				t.Errorf("%v after the trip, want %v", r.h, b.Handle())
			}
			into := expose(t, p.here, WriteOnly, make([]byte, len(data)))
			if n, err := r.Pull(t.Context(), into); err != nil || n != int64(len(data)) {
				t.Fatalf("pull: %d, %v", n, err)
			}
			if !bytes.Equal(into.Bytes(), data) {
				t.Error("pulled other bytes than were exposed")
			}
		})
	}
}

func TestExposeRefused(t *testing.T) {
	e := bulkEngine(t, nil)
	one := [][]byte{make([]byte, 1)}
	for _, c := range []struct {
		name string
		mode Mode
		segs [][]byte
		want string
	}{
		{"no mode", 0, one, "no access"},
		{"other mode", 4, one, "mode 4"},
		{"no segments", ReadOnly, nil, "segment"},
		{"too many segments", ReadOnly, slices.Repeat(one, 1<<20+1), "1048576"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := e.Expose(c.mode, c.segs...)
			if b != nil {
				t.Error("a Bulk besides the error")
			}
			wantCode(t, err, codes.InvalidArg, "expose", c.want)
		})
	}
}

func TestExposeEmptySegments(t *testing.T) {
	p := newBulkPair(t)
	b := expose(t, p.there, ReadWrite, nil, []byte("ab"), nil, []byte("c"), nil)
	r := p.remote(t, b)
	own := 0
	for _, s := range b.pieces() {
		own++
		if len(s) == 0 {
			t.Error("an empty segment travels")
		}
	}
	if r.h.d.Segments() != 2 || own != 2 || b.Handle().d.Segments() != 2 {
		t.Errorf("%d segments at the peer, %d and %d here, want 2", r.h.d.Segments(), own, b.Handle().d.Segments())
	}
	got := make([]byte, 3)
	if n, err := r.ReadAt(t.Context(), got, 0); n != 3 || err != nil || string(got) != "abc" {
		t.Errorf("read %q, %d, %v", got, n, err)
	}
	if n, err := p.remote(t, expose(t, p.there, ReadOnly, nil)).Pull(t.Context(), expose(t, p.here, WriteOnly, nil)); n != 0 || err != nil {
		t.Errorf("pull of nothing: %d, %v", n, err)
	}
	for _, b := range []*Bulk{expose(t, p.there, ReadOnly, nil, []byte{}, nil), b.Slice(1, 0)} {
		own := len(b.pieces())
		if got := p.remote(t, b).h.d.Segments(); got != 1 || own != 1 {
			t.Errorf("%d segments at the peer and %d here of memory that is empty, want 1", got, own)
		}
	}
}

// TestExposeMostSegments has a handle of the largest number of segments travel: it is longer than a message can be.
func TestExposeMostSegments(t *testing.T) {
	count := 1 << 20
	if brief() {
		count = 20_000
	}
	p := newBulkPair(t)
	data := noise(count)
	b := expose(t, p.there, ReadOnly, pieces(data, repeat(1, count)...)...)
	r := p.remote(t, b)
	if got := r.h.d.Segments(); got != count || r.Len() != int64(count) {
		t.Fatalf("%d segments of %d bytes after the trip, want %d of 1 byte each", got, r.Len(), count)
	}
	last := expose(t, p.here, WriteOnly, make([]byte, 1000))
	if n, err := r.Slice(int64(count-1000), 1000).Pull(patient(t), last); n != 1000 || err != nil || !bytes.Equal(last.Bytes(), data[count-1000:]) {
		t.Errorf("the last bytes: %d, %v", n, err)
	}
	must(t, b.Close())
}

// TestExposeNumbersBesideBytes exposes slices of several types together.
func TestExposeNumbersBesideBytes(t *testing.T) {
	p := newBulkPair(t)
	header, ints, floats := []byte("head"), []int32{1, -2}, []float64{0.5}
	b := expose(t, p.there, ReadWrite, header, regmem.Bytes(ints), regmem.Bytes([]int64{}), regmem.Bytes(floats))
	r := p.remote(t, b)
	if got := r.h.d.Segments(); got != 3 || r.Len() != 20 {
		t.Fatalf("%d segments of %d bytes, want 3 of 20", got, r.Len())
	}
	into, from := make([]int32, 2), []float64{2.5}
	if _, err := r.ReadAt(t.Context(), regmem.Bytes(into), 4); err != nil || !slices.Equal(into, ints) {
		t.Errorf("read %v, %v, want %v", into, err, ints)
	}
	if _, err := r.WriteAt(t.Context(), regmem.Bytes(from), 12); err != nil || !slices.Equal(floats, from) {
		t.Errorf("wrote %v, %v, want %v", floats, err, from)
	}
	if regmem.Bytes([]uint8(nil)) != nil {
		t.Error("bytes of an empty slice")
	}
}

func TestExposeSlice(t *testing.T) {
	p := newBulkPair(t)
	values := []int32{1, 4, 2, 5, 6, 3, 5, 3, 2, -5}
	b, err := p.there.Expose(ReadOnly, regmem.Bytes(values))
	if err != nil {
		t.Fatal(err)
	}
	defer closeBulk(t, b)
	if b.Len() != 40 {
		t.Errorf("%d bytes, want 40", b.Len())
	}
	got := make([]int32, 10)
	into, err := p.here.Expose(WriteOnly, regmem.Bytes(got))
	if err != nil {
		t.Fatal(err)
	}
	defer closeBulk(t, into)
	if _, err := p.remote(t, b).Pull(t.Context(), into); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, values) {
		t.Errorf("got %v, want %v", got, values)
	}
}

// Memory of the library's own is zeroed, aligned, and gone with the Bulk.
// parity: H72 G61 D41
func TestAlloc(t *testing.T) {
	e := bulkEngine(t, nil)
	before := hostmem.Mapped()
	b, err := e.Alloc(ReadWrite, 10_000)
	if err != nil {
		t.Fatal(err)
	}
	if got := b.Bytes(); len(got) != 10_000 || !bytes.Equal(got, make([]byte, 10_000)) {
		t.Errorf("%d bytes, or not all zero", len(got))
	}
	if off := hostmem.Addr(b.Bytes()) % uint64(os.Getpagesize()); off != 0 {
		t.Errorf("begins %d bytes into a page", off)
	}
	closeBulk(t, b)
	closeBulk(t, b)
	if got := hostmem.Mapped(); got != before {
		t.Errorf("%d mappings after Close, want %d", got, before)
	}
	if b.Bytes() != nil {
		t.Error("closed memory is still handed out")
	}
	_, err = e.Alloc(ReadWrite, -1)
	wantCode(t, err, codes.InvalidArg, "-1 bytes")
	if _, err := e.Alloc(0, 100); err == nil || hostmem.Mapped() != before {
		t.Errorf("error %v; %d mappings, want %d", err, hostmem.Mapped(), before)
	}
	empty, err := e.Alloc(ReadWrite, 0)
	if err != nil || empty.Len() != 0 {
		t.Fatalf("no bytes: %v", err)
	}
	closeBulk(t, empty)
}

// A view gives the right pieces for ranges that straddle segments.
// parity: H76 G61 D23
func TestBulkSegmentsOfSlice(t *testing.T) {
	e := bulkEngine(t, nil)
	b := expose(t, e, ReadOnly, []byte("0123"), nil, []byte("456"), []byte("789"))
	for _, c := range []struct {
		off, n int64
		want   string
	}{
		{0, 10, "0123|456|789"},
		{0, 4, "0123"},
		{4, 3, "456"},
		{3, 2, "3|4"},
		{2, 7, "23|456|78"},
		{9, 1, "9"},
		{5, 0, ""},
		{10, 0, ""},
	} {
		view := b.Slice(c.off, c.n)
		got := string(bytes.Join(view.pieces(), []byte("|")))
		if got != c.want || view.Len() != c.n {
			t.Errorf("Slice(%d, %d) is %q of %d bytes, want %q", c.off, c.n, got, view.Len(), c.want)
		}
	}
	if got := contents(b.Slice(2, 7).Slice(1, 3)); string(got) != "345" {
		t.Errorf("view of a view is %q, want 345", got)
	}
}

// parity: H82
func TestSliceOutOfRange(t *testing.T) {
	p := newBulkPair(t)
	b := expose(t, p.there, ReadWrite, make([]byte, 10))
	r := p.remote(t, b)
	local := expose(t, p.here, ReadWrite, make([]byte, 100))
	for _, c := range []struct{ off, n int64 }{
		{-1, 1}, {0, -1}, {0, 11}, {10, 1}, {11, 0}, {5, 6}, {1 << 62, 1 << 62}, {5, 1<<63 - 1}, {-1 << 63, 1},
	} {
		words := []string{fmt.Sprint(c.off), fmt.Sprint(c.n), "10 bytes"}
		view, far := b.Slice(c.off, c.n).Slice(0, 0), r.Slice(c.off, c.n).Slice(0, 0)
		if view.Len() != 0 || far.Len() != 0 || len(contents(view)) != 0 || view.Handle() != (BulkHandle{}) {
			t.Errorf("a view of what does not exist has %d and %d bytes", view.Len(), far.Len())
		}
		_, err := far.Pull(t.Context(), local)
		wantCode(t, err, codes.InvalidArg, words...)
		_, err = far.StartPush(t.Context(), local).Wait()
		wantCode(t, err, codes.InvalidArg, words...)
		_, err = far.ReadAt(t.Context(), make([]byte, 1), 0)
		wantCode(t, err, codes.InvalidArg, words...)
		_, err = p.remote(t, b).PushChunks(t.Context(), view, 1, 1)
		wantCode(t, err, codes.InvalidArg, words...)
		_, err = view.ReadAt(make([]byte, 1), 0)
		wantCode(t, err, codes.InvalidArg, words...)
	}
}

func TestBulkReadAtWriteAt(t *testing.T) {
	e := bulkEngine(t, nil)
	b := expose(t, e, WriteOnly, make([]byte, 3), make([]byte, 4), make([]byte, 5))
	if n, err := b.WriteAt([]byte("hello, worl!"), 0); n != 12 || err != nil {
		t.Fatalf("write: %d, %v", n, err)
	}
	if n, err := b.WriteAt([]byte("d!!"), 11); n != 1 || err == nil || err.Error() != "short write" {
		t.Errorf("write beyond the end: %d, %v", n, err)
	}
	want := []byte("hello, world")
	if got := contents(b); !bytes.Equal(got, want) {
		t.Fatalf("memory is %q, want %q", got, want)
	}
	if err := iotest.TestReader(io.NewSectionReader(b, 0, b.Len()), want); err != nil {
		t.Error(err)
	}
	_, err := b.ReadAt(nil, -1)
	wantCode(t, err, codes.InvalidArg, "-1")
}

// A closed Bulk refuses everything by name, and its peers' transfers.
func TestBulkClose(t *testing.T) {
	p := newBulkPair(t)
	b := expose(t, p.there, ReadWrite, noise(100))
	r := p.remote(t, b)
	view := b.Slice(10, 10)
	narrow := p.remote(t, view)
	if err := view.Close(); err != nil || view.Bytes() == nil {
		t.Errorf("closing a view: %v, and it has %d bytes", err, len(view.Bytes()))
	}
	closeBulk(t, b)
	closeBulk(t, b)

	local := expose(t, p.here, ReadWrite, make([]byte, 100))
	for _, remote := range []RemoteBulk{r, narrow} {
		if _, err := remote.Pull(t.Context(), local); err == nil {
			t.Error("pulled memory that is closed")
		}
	}
	if !bytes.Equal(local.Bytes(), make([]byte, 100)) {
		t.Error("bytes moved")
	}
	_, err := b.ReadAt(make([]byte, 1), 0)
	wantCode(t, err, codes.InvalidArg, "closed")
	_, err = view.WriteAt(make([]byte, 1), 0)
	wantCode(t, err, codes.InvalidArg, "closed")
	if b.Handle() != (BulkHandle{}) || view.Bound() != (BulkHandle{}) || len(contents(b)) != 0 {
		t.Error("a closed Bulk is described or handed out")
	}
	closed := expose(t, p.here, ReadWrite, make([]byte, 1))
	closeBulk(t, closed)
	_, err = p.remote(t, expose(t, p.there, ReadOnly, make([]byte, 1))).Pull(t.Context(), closed)
	wantCode(t, err, codes.InvalidArg, "pull", "closed")
}

// Close waits for a transfer that this process has started: when it returns, the operation is over.
// parity: H74
func TestBulkCloseWaits(t *testing.T) {
	p := newBulkPair(t)
	r := p.remote(t, expose(t, p.there, ReadOnly, make([]byte, 100)))
	local := expose(t, p.here, WriteOnly, make([]byte, 100))
	op := r.h.On(silentPeer(t, p.here)).StartPull(t.Context(), local)
	closed := make(chan error)
	go func() { closed <- local.Close() }()
	for local.use("test") == nil {
		local.life.Release()
		runtime.Gosched()
	}
	select {
	case err := <-closed:
		t.Fatalf("closed while the transfer is under way: %v", err)
	default:
	}
	op.cancel()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	_, err := op.Wait()
	wantCode(t, err, codes.Canceled, "pull")
}

// silentPeer is a process that accepts connections and says nothing, as a frozen one does.
func silentPeer(t testing.TB, e *Engine) *Endpoint {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	ep, err := e.Lookup("ofi+tcp://" + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return ep
}

// Memory from the stack and from the heap survives the collector during a transfer.
// parity: G60 D41
func TestExposeSurvivesCollector(t *testing.T) {
	p := newBulkPair(t)
	const size = 16 << 20
	var array [4096]byte
	fillNoise(array[:])
	heap := noise(size)
	b := expose(t, p.there, ReadOnly, array[:], heap)
	want := append(slices.Clone(array[:]), heap...)
	r := p.remote(t, b)
	into := expose(t, p.here, WriteOnly, make([]byte, len(want)))
	heap = nil //nolint:ineffassign,wastedassign // from here on only the exposure holds the memory

	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	}()
	for range 4 {
		if _, err := r.Pull(t.Context(), into); err != nil {
			t.Error(err)
		}
		if !bytes.Equal(into.Bytes(), want) {
			t.Error("pulled other bytes than were exposed")
		}
	}
	close(stop)
	<-stopped
}

// warnings is a log handler that passes the text of warnings on.
type warnings struct {
	slog.Handler
	got chan string
}

func (w warnings) WithAttrs([]slog.Attr) slog.Handler { return w }

func (w warnings) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

func (w warnings) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool {
		text += " " + a.String()
		return true
	})
	select {
	case w.got <- text:
	default:
	}
	return nil
}

// A Bulk that nobody can close any more is reported by what it is and where it was made; a closed one is not.
// parity: G94
func TestForgottenCloseIsReported(t *testing.T) {
	log := warnings{got: make(chan string, 10)}
	audit.Reset()
	e := bulkEngine(t, &Config{Logger: slog.New(log)})
	for _, c := range []struct {
		name string
		make func() (interface{ Close() error }, error)
		want string
	}{
		{"expose", func() (interface{ Close() error }, error) { return e.Expose(ReadOnly, make([]byte, 7)) }, "read-only bulk of 7 bytes in 1 segments"},
		{"alloc", func() (interface{ Close() error }, error) { return e.Alloc(ReadWrite, 8) }, "read-write bulk of 8 bytes"},
		{"slice", func() (interface{ Close() error }, error) { return e.Expose(WriteOnly, regmem.Bytes(make([]int32, 2))) }, "write-only bulk of 8 bytes"},
		{"recycled", func() (interface{ Close() error }, error) {
			b, err := e.Alloc(ReadWrite, 9)
			return recycle(b, err)
		}, "read-write bulk of 9 bytes"},
		{"pool", func() (interface{ Close() error }, error) {
			p, err := pool.New(1, func() (*Bulk, error) { return e.Alloc(ReadOnly, 10) })
			if err == nil {
				err = p.Release(take(t, p))
			}
			return p, err
		}, "read-only bulk of 10 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			kept, err := c.make()
			if err != nil {
				t.Fatal(err)
			}
			if err := kept.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := c.make(); err != nil { // forgotten
				t.Fatal(err)
			}
			got := firstWarning(t, log.got)
			if !strings.Contains(got, c.want) || !strings.Contains(got, "bulk_test.go") {
				t.Errorf("reported %q, want %q and this file", got, c.want)
			}
			runtime.GC()
			select {
			case more := <-log.got:
				t.Errorf("reported also %q", more)
			default:
			}
		})
	}
}

// recycle recycles b twice.
func recycle(b *Bulk, err error) (*Bulk, error) {
	for range 2 {
		if err == nil {
			b, err = b.Recycle()
		}
	}
	return b, err
}

// firstWarning collects garbage until something is reported.
func firstWarning(t *testing.T, got <-chan string) string {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for time.Now().Before(deadline) {
		runtime.GC()
		select {
		case text := <-got:
			return text
		default:
			runtime.Gosched()
		}
	}
	t.Fatal("nothing was reported")
	return ""
}

// What was exposed can be closed after its engine, and the engine refuses more.
func TestBulkAfterEngineClose(t *testing.T) {
	e, err := Listen(t.Context(), network, withDevice(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	b, err := e.Alloc(ReadWrite, 100)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if len(b.Bytes()) != 100 {
		t.Error("the memory went with the engine")
	}
	closeBulk(t, b)
	if _, err := e.Expose(ReadOnly, make([]byte, 1)); !errors.Is(err, ErrClosed) {
		t.Errorf("error %v, want ErrClosed", err)
	}
}
