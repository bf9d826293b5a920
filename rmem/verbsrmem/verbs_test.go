package verbsrmem

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"testing"
	"time"

	"cinnabar/internal/devicetest"
	"cinnabar/rmem"
	"cinnabar/verbs"
)

func serveVerbs(t testing.TB, cfg rmem.Config) (*Server, *verbs.Device) {
	t.Helper()
	dev := devicetest.MustOpen(t)
	s, err := Listen(dev, devicetest.MustAddr(t, dev), cfg)
	must(t, err)
	closing(t, s)
	return s, dev
}

// verbsClient serves on a software device and returns a client of that server on the same device.
func verbsClient(t testing.TB, dev *verbs.Device) *rmem.Client {
	t.Helper()
	s, err := Listen(dev, netip.MustParseAddrPort("127.0.0.1:0"), rmem.Config{})
	must(t, err)
	closing(t, s)
	return dialVerbs(t, s, dev)
}

func dialVerbs(t testing.TB, s *Server, dev *verbs.Device) *rmem.Client {
	t.Helper()
	c, _ := dialBoth(t, s, dev)
	return c
}

// dialBoth returns a client and its connection.
func dialBoth(t testing.TB, s *Server, dev *verbs.Device) (*rmem.Client, *transport) {
	t.Helper()
	w, err := connect(devicetest.Context(t), dev, s.Addr())
	must(t, err)
	c, err := network.NewClient(devicetest.Context(t), w)
	must(t, err)
	closing(t, c)
	return c, w
}

// TestVerbs does over a queue pair what clients do.
// parity: S22 D43
func TestVerbs(t *testing.T) {
	s, dev := serveVerbs(t, rmem.Config{Quota: 10 << 20})
	c := dialVerbs(t, s, dev)
	ctx := devicetest.Context(t)
	for _, size := range []int64{16, 5000, 3 << 20} {
		r := alloc(t, c, size)
		data := bytes.Repeat([]byte{byte(size), 2, 3}, int(size))[:size]
		if n, err := r.WriteAt(data, 0); int64(n) != size || err != nil {
			t.Fatal(n, err)
		}
		got := make([]byte, size+1)
		if n, err := r.ReadAt(got, 0); int64(n) != size || any(err) != any(io.EOF) || !bytes.Equal(got[:size], data) {
			t.Errorf("%d bytes: %d, %v", size, n, err)
		}
		must(t, r.WriteParts(ctx, []rmem.Part{{Data: make([]byte, 8), Offset: 8}, {Data: make([]byte, 8)}}))
		if v, err := r.FetchAdd(ctx, 8, 5); v != 0 || err != nil {
			t.Error(v, err)
		}
		if ok, err := r.CompareAndSwap(ctx, 8, 5, 6); !ok || err != nil {
			t.Error(ok, err)
		}
		other := alloc(t, c, 16)
		must(t, other.CopyFrom(ctx, 0, r, 0, 16))
		if _, err := other.ReadAt(got[:16], 0); err != nil || got[8] != 6 {
			t.Error(got[:16], err)
		}
		must(t, r.Free(ctx))
		wantError(t, "free again", r.Free(ctx), rmem.ErrFreed)
		must(t, other.Free(ctx))
	}
	_, err := c.Alloc(ctx, 11<<20)
	wantError(t, "size", err, rmem.ErrSize)
	if st := s.Stats(); st.Used != 0 || st.Clients != 1 {
		t.Errorf("%+v", st)
	}
}

// TestVerbsRevoked has a client use what it has no more: it loses its connection and what it had, and nobody else anything.
// parity: Y10 D38
func TestVerbsRevoked(t *testing.T) {
	s, dev := serveVerbs(t, rmem.Config{})
	a, b := dialVerbs(t, s, dev), dialVerbs(t, s, dev)
	mine, other := alloc(t, a, 100), alloc(t, b, 100)
	leased, err := a.AllocLease(devicetest.Context(t), 100, time.Hour)
	must(t, err)
	if !s.Revoke(mine.ID()) {
		t.Error("not revoked")
	}
	if _, err := mine.WriteAt(make([]byte, 10), 0); err == nil {
		t.Error("written into a region that is gone")
	}
	<-a.Done()
	if _, err := a.Alloc(devicetest.Context(t), 1); err == nil {
		t.Error("memory without a connection")
	}
	if _, err := other.WriteAt(make([]byte, 10), 0); err != nil {
		t.Error(err)
	}
	eventually(t, "the client is gone", func() bool { return s.Stats().Clients == 1 })
	if st := s.Stats(); len(st.Regions) != 2 {
		t.Errorf("%+v", st)
	}
	if !s.Revoke(leased.ID()) {
		t.Error("the lease did not outlive the client")
	}
}

// TestVerbsCloses ends clients with their server.
// parity: S22
func TestVerbsCloses(t *testing.T) {
	s, dev := serveVerbs(t, rmem.Config{})
	c := dialVerbs(t, s, dev)
	r := alloc(t, c, 1<<20)
	must(t, s.Close())
	<-c.Done()
	if _, err := r.ReadAt(make([]byte, 1<<20), 0); err == nil {
		t.Error("read from a closed server")
	}
	if _, err := Dial(devicetest.Context(t), dev, s.Addr()); err == nil {
		t.Error("dialed a closed server")
	}
}

// TestVerbsStranger is refused by what it sends.
// parity: S22
func TestVerbsStranger(t *testing.T) {
	s, dev := serveVerbs(t, rmem.Config{})
	c, w := dialBoth(t, s, dev)
	must(t, w.c.Send(devicetest.Context(t), []byte{1, 2, 3}))
	<-c.Done()
	eventually(t, "the client is gone", func() bool { return s.Stats().Clients == 0 })
	_, err := c.Alloc(devicetest.Context(t), 5)
	if e := new(rmem.Error); !errors.As(err, &e) {
		t.Error(err)
	}
}
