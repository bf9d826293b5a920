package rmem

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/internal/devicetest"
)

// TestReadWrite moves bytes both ways, clipped at the end of the region, small and large.
// parity: S22
func TestReadWrite(t *testing.T) {
	for _, strict := range []bool{false, true} {
		t.Run(fmt.Sprintf("strict %v", strict), func(t *testing.T) {
			_, e := serve(t, Config{Strict: strict})
			c, _ := dial(t, e)
			for _, size := range []int64{1, 9, 5000, 3 << 20} {
				r := alloc(t, c, size)
				data := bytes.Repeat([]byte("cinnabar"), int(size)/8+1)[:size]
				if got, err := io.ReadAll(r.Reader()); err != nil || !bytes.Equal(got, make([]byte, size)) {
					t.Errorf("new memory: %v", err)
				}
				if n, err := r.WriteAt(data, 0); n != len(data) || err != nil {
					t.Fatal(n, err)
				}
				got := make([]byte, size+3)
				if n, err := r.ReadAt(got, 0); int64(n) != size || !same(err, io.EOF) || !bytes.Equal(got[:size], data) {
					t.Errorf("%d bytes: %d, %v", size, n, err)
				}
				if n, err := r.WriteAt(data, size-1); n != 1 || size > 1 && !same(err, io.ErrShortWrite) {
					t.Error(n, err)
				}
				if n, err := r.ReadAt(got, size); n != 0 || !same(err, io.EOF) {
					t.Error(n, err)
				}
				_, err := r.ReadAt(got, -1)
				wantError(t, "before the start", err, ErrRange)
				must(t, r.Free(devicetest.Context(t)))
			}
		})
	}
}

// same tells whether err is want itself: io wants readers and writers to return it as it is.
func same(err, want error) bool { return any(err) == any(want) }

// TestUseAfterFree names what is wrong with a region that is gone.
// parity: S22 Y10 D38
func TestUseAfterFree(t *testing.T) {
	s, e := serve(t, Config{})
	c, _ := dial(t, e)
	ctx, p := devicetest.Context(t), make([]byte, 100)
	freed, revoked := alloc(t, c, 100), alloc(t, c, 100)
	expired, err := c.AllocLease(ctx, 100, time.Millisecond)
	must(t, err)
	must(t, freed.Free(ctx))
	if !s.Revoke(revoked.ID()) || s.Revoke(revoked.ID()) {
		t.Error("revoked once")
	}
	eventually(t, "the lease ends", func() bool {
		_, err := expired.ReadAt(p, 0) // its key goes a moment after its entry
		return err != nil && len(s.Stats().Regions) == 0
	})
	for _, c := range []struct {
		r    *Region
		want error
	}{{freed, ErrFreed}, {revoked, ErrRevoked}, {expired, ErrExpired}} {
		_, readErr := c.r.ReadAt(p, 0)
		_, writeErr := c.r.WriteAt(p, 0)
		_, casErr := c.r.CompareAndSwap(ctx, 0, 0, 1)
		_, addErr := c.r.FetchAdd(ctx, 0, 1)
		_, renewErr := c.r.Renew(ctx, time.Second)
		for what, err := range map[string]error{
			"read": readErr, "write": writeErr, "compare and swap": casErr, "add": addErr, "free": c.r.Free(ctx), "renew": renewErr,
			"copy to": c.r.CopyFrom(ctx, 0, c.r, 0, 10), "batch": c.r.ReadParts(ctx, []Part{{p, 0}}),
		} {
			wantError(t, what, err, c.want)
		}
	}
	if st := s.Stats(); st.Used != 0 || st.Clients != 1 {
		t.Errorf("%+v", st)
	}
}

// TestQuota refuses what is over a limit, says what is left, and lends it when something is freed.
// parity: S22
func TestQuota(t *testing.T) {
	_, e := serve(t, Config{Quota: 1000, HostQuota: 1000, ClientQuota: 700, MaxRegionSize: 600})
	a, _ := dial(t, e)
	b, _ := dial(t, e)
	ctx := devicetest.Context(t)
	if a.MaxRegionSize() != 600 {
		t.Error(a.MaxRegionSize())
	}
	for _, size := range []int64{0, -1, 601, 1 << 62} {
		_, err := a.Alloc(ctx, size)
		wantError(t, fmt.Sprint(size), err, ErrSize)
	}
	first := alloc(t, a, 600)
	_, err := a.Alloc(ctx, 101)
	wantError(t, "the client's", err, ErrQuota)
	if !strings.Contains(err.Error(), "100 are left") {
		t.Error(err)
	}
	alloc(t, b, 400)
	_, err = b.Alloc(ctx, 1)
	wantError(t, "the server's", err, ErrQuota)
	must(t, first.Free(ctx))
	alloc(t, b, 300)
	_, err = a.AllocLease(ctx, 10, -time.Second)
	wantError(t, "lease", err, ErrNoLease)
	must(t, b.Close())
	must(t, b.Close())
	alloc(t, a, 600)
	_, err = b.Alloc(ctx, 1)
	wantError(t, "closed", err, ErrClosed)
}

// TestThirdProcess has a third engine use a region by its handle, and free it by its token only.
// parity: S21 Y10
func TestThirdProcess(t *testing.T) {
	s, e := serve(t, Config{})
	c, _ := dial(t, e)
	_, third := dial(t, e)
	ctx := devicetest.Context(t)
	r, err := c.AllocLease(ctx, 1<<20, time.Hour)
	must(t, err)
	text, err := json.Marshal(r.Handle())
	must(t, err)
	var h Handle
	must(t, json.Unmarshal(text, &h))
	if h != r.Handle() || h.String() != strings.Trim(string(text), `"`) {
		t.Errorf("%s became %v", text, h)
	}
	other, err := Open(ctx, third, h)
	must(t, err)
	data := bytes.Repeat([]byte{7}, 1<<20)
	if _, err := other.WriteAt(data, 0); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 1<<20)
	if _, err := r.ReadAt(got, 0); err != nil || !bytes.Equal(got, data) {
		t.Error(err)
	}
	wantError(t, "free without a token", other.Free(ctx), ErrNotOwner)
	if other.Token() != "" {
		t.Error("a token from nothing")
	}
	must(t, c.Close()) // the lease outlives the client
	owner, err := OpenToken(ctx, third, r.Token())
	must(t, err)
	if d, err := owner.Renew(ctx, 100*time.Hour); err != nil || d > 24*time.Hour || d < 23*time.Hour {
		t.Error(d, err)
	}
	must(t, owner.Free(ctx))
	wantError(t, "free again", FreeToken(ctx, third, r.Token()), ErrFreed)
	if st := s.Stats(); len(st.Regions) != 0 {
		t.Errorf("%+v", st)
	}
	h.ID++
	_, err = Open(ctx, third, h)
	wantError(t, "unknown", err, ErrUnknown)
}

// TestServerCloses revokes everything, and ends its clients.
// parity: S22
func TestServerCloses(t *testing.T) {
	s, e := serve(t, Config{})
	c, _ := dial(t, e)
	r, err := c.AllocLease(devicetest.Context(t), 100, time.Hour)
	must(t, err)
	must(t, s.Close())
	<-c.Done()
	if _, err := r.ReadAt(make([]byte, 100), 0); err == nil {
		t.Error("read from a closed server")
	}
	if _, err := c.Alloc(devicetest.Context(t), 1); err == nil {
		t.Error("memory from a closed server")
	}
	if n := s.Stats().Used; n != 0 {
		t.Errorf("%d bytes are lent", n)
	}
}

// TestServerClosesEarly ends a client whose session is gone before the server has ever watched it.
// parity: S22
func TestServerClosesEarly(t *testing.T) {
	s, e := serve(t, Config{})
	_, mine := dial(t, e)
	must(t, s.Close())
	ep, err := mine.Lookup(e.Addr())
	must(t, err)
	c := &Client{done: make(chan struct{})}
	c.watch(devicetest.Context(t), ep.Provider(provider))
	<-c.Done()
}

// TestAtomics has several clients count in one word.
// parity: S22
func TestAtomics(t *testing.T) {
	_, e := serve(t, Config{})
	c, _ := dial(t, e)
	r := alloc(t, c, 16)
	ctx := devicetest.Context(t)
	const each = 200
	var wg sync.WaitGroup
	for range 4 {
		_, other := dial(t, e)
		wg.Go(func() {
			r, err := Open(ctx, other, r.Handle())
			if err != nil {
				t.Error(err)
				return
			}
			for range each {
				if _, err := r.FetchAdd(ctx, 8, 1); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if ok, err := r.CompareAndSwap(ctx, 8, 4*each+1, 0); ok || err != nil {
		t.Error(ok, err)
	}
	if ok, err := r.CompareAndSwap(ctx, 8, 4*each, 5); !ok || err != nil {
		t.Error(ok, err)
	}
	if v, err := r.FetchAdd(ctx, 8, ^uint64(0)); v != 5 || err != nil {
		t.Error(v, err)
	}
	_, err := r.FetchAdd(ctx, 4, 1)
	wantError(t, "alignment", err, ErrAligned)
	_, err = r.FetchAdd(ctx, 16, 1)
	wantError(t, "range", err, ErrRange)
}

// TestCopy copies between regions of one server, within one, and between servers.
// parity: S22
func TestCopy(t *testing.T) {
	_, e := serve(t, Config{})
	_, far := serve(t, Config{CopyFrom: func(server string) bool { return server == e.Addr() }})
	a, mine := dial(t, e)
	ep, err := mine.Lookup(far.Addr())
	must(t, err)
	b, err := Dial(devicetest.Context(t), ep.Provider(provider))
	must(t, err)
	closing(t, b)
	ctx := devicetest.Context(t)
	src, near, there := alloc(t, a, 1000), alloc(t, a, 1000), alloc(t, b, 1000)
	data := make([]byte, 1000)
	for i := range data {
		data[i] = byte(i)
	}
	if _, err := src.WriteAt(data, 0); err != nil {
		t.Fatal(err)
	}
	must(t, near.CopyFrom(ctx, 10, src, 100, 500))
	must(t, there.CopyFrom(ctx, 20, src, 200, 300))
	must(t, src.CopyFrom(ctx, 1, src, 0, 999)) // overlapping
	for name, c := range map[string]struct {
		r    *Region
		off  int64
		want []byte
	}{"near": {near, 10, data[100:600]}, "there": {there, 20, data[200:500]}, "itself": {src, 1, data[:999]}} {
		got := make([]byte, len(c.want))
		if _, err := c.r.ReadAt(got, c.off); err != nil || !bytes.Equal(got, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	wantError(t, "target's range", near.CopyFrom(ctx, 900, src, 0, 101), ErrRange)
	wantError(t, "source's range", near.CopyFrom(ctx, 0, src, 900, 101), ErrRange)
	wantError(t, "negative", near.CopyFrom(ctx, 0, src, 0, -1), ErrRange)
	wantError(t, "own range", src.CopyFrom(ctx, 0, src, 2, 999), ErrRange)
}

// TestParts reads and writes many pieces at once, or none.
// parity: S22
func TestParts(t *testing.T) {
	_, e := serve(t, Config{})
	c, _ := dial(t, e)
	r := alloc(t, c, 100_000)
	var in, out []Part
	for i := range 100 {
		in = append(in, Part{bytes.Repeat([]byte{byte(i)}, 900), int64(i) * 1000})
		out = append(out, Part{make([]byte, 900), int64(i) * 1000})
	}
	must(t, r.WriteParts(devicetest.Context(t), in))
	must(t, r.ReadParts(devicetest.Context(t), out))
	for i := range in {
		if !bytes.Equal(in[i].Data, out[i].Data) {
			t.Errorf("part %d", i)
		}
	}
	wantError(t, "range", r.WriteParts(devicetest.Context(t), append(in, Part{make([]byte, 2), 99_999})), ErrRange)
	must(t, r.ReadParts(devicetest.Context(t), nil))
}

// TestHandles refuses what is no handle or token.
// parity: S21
func TestHandles(t *testing.T) {
	h := Handle{Server: "ofi+tcp://127.0.0.1:5", Provider: 3, ID: 99}
	good := h.String()
	if got, err := ParseHandle(good); err != nil || got != h {
		t.Error(got, err)
	}
	e := engine(t)
	for _, bad := range []string{"", "rmem:", "rmem:!!", good[1:], good[:len("rmem:")+13], handleScheme + strings.Repeat("A", 2000), encode(handleScheme, Handle{Server: "a\nb"}, nil)} {
		if _, err := ParseHandle(bad); err == nil {
			t.Errorf("%q", bad)
		}
		if _, err := OpenToken(devicetest.Context(t), e, bad); err == nil {
			t.Errorf("%q", bad)
		}
		if FreeToken(devicetest.Context(t), e, bad) == nil {
			t.Errorf("%q", bad)
		}
	}
}

// TestHostileRequests sends what no client sends.
// parity: S21 Y10
func TestHostileRequests(t *testing.T) {
	s, e := serve(t, Config{Quota: 1 << 20})
	c, mine := dial(t, e)
	r := alloc(t, c, 100)
	ctx := devicetest.Context(t)
	const far = 1<<63 - 1
	for _, q := range []request{
		{Op: uint32(opRead), ID: r.id, Offset: -1, Size: 1}, {Op: uint32(opRead), ID: r.id, Offset: 1, Size: far}, {Op: uint32(opRead), ID: r.id, Size: -1},
		{Op: uint32(opRead), ID: r.id, Offset: far, Size: far}, {Op: uint32(opWrite), ID: r.id, Offset: 99, Length: 2, Data: make([]byte, 2)},
		{Op: uint32(opCopy), ID: r.id, SourceID: r.id, Size: far, SourceOffset: far}, {Op: uint32(opCopy), ID: r.id, SourceID: r.id, Size: 1, SourceOffset: -far},
		{Op: uint32(opCopy), ID: r.id, SourceID: 5}, {Op: uint32(opCompareAndSwap), ID: r.id, Offset: 96}, {Op: uint32(opFetchAdd), ID: r.id, Offset: -8},
		{Op: uint32(opAlloc), Session: 5, Size: 1}, {Op: uint32(opAlloc), Session: c.session, Size: far, Lease: far}, {Op: uint32(opRenew), ID: r.id, Secret: r.secret, Lease: far},
	} {
		a, err := c.srv.ask(ctx, &q)
		if a == nil || err == nil {
			t.Errorf("%+v: %v", q, err)
		}
	}
	if _, err := c.srv.ask(ctx, &request{Op: 99}); !errors.Is(err, codes.OpNotSupported) {
		t.Error(err)
	}
	_ = mine
	if st := s.Stats(); st.Used != 100 || len(st.Regions) != 1 {
		t.Errorf("%+v", st)
	}
	a, err := rpcWatch.Call(ctx, c.srv.wire.(rpcWire).to, request{Session: c.session + 1})
	if err != nil || status(a.Status) != statusSession {
		t.Errorf("another's session: %+v, %v", a, err)
	}
}

// TestErrorSaysThingsOnce wants the server's address once in a line, and no name of the RPC that the protocol uses.
func TestErrorSaysThingsOnce(t *testing.T) {
	e, err := cinnabar.Open(t.Context(), "ofi+tcp://127.0.0.1", nil)
	must(t, err)
	t.Cleanup(func() { must(t, e.Close()) })
	const nobody = "ofi+tcp://127.0.0.1:1"
	to, err := e.Lookup(nobody)
	must(t, err)
	_, dialed := Dial(t.Context(), to.Provider(3))
	_, opened := Open(t.Context(), e, Handle{Server: nobody, Provider: 3, ID: 5})
	for err, want := range map[error]string{
		dialed: "rmem: dial at " + nobody + ": HG_HOSTUNREACH: ",
		opened: "rmem: open region 0000000000000005 at " + nobody + ": HG_HOSTUNREACH: ",
	} {
		if got := fmt.Sprint(err); !strings.HasPrefix(got, want) || strings.Count(got, nobody) != 1 || strings.Contains(got, "rmem_request") {
			t.Errorf("got %q, want %q first and the address once", got, want)
		}
		c, ok := errors.AsType[*cinnabar.Error](err)
		if !ok || c.Code != codes.HostUnreach || c.Addr != nobody || c.RPC != "rmem_request@3" {
			t.Errorf("%v has the cause %+v, want the failed call", err, c)
		}
	}
}
