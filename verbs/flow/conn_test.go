package flow

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"cinnabar/internal/devicetest"
	"cinnabar/internal/invariants"
	"cinnabar/regmem"
	"cinnabar/verbs"
	"cinnabar/verbs/rdmacm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var loopback = netip.MustParseAddrPort("127.0.0.1:0")

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pair makes the two ends of a connection. They are closed at the end of the test, if they are not before.
func pair(t testing.TB, active, passive Config) (a, p *Conn) {
	t.Helper()
	dev, ctx := devicetest.MustOpen(t), devicetest.Context(t)
	l, err := Listen(dev, devicetest.MustAddr(t, dev), passive)
	must(t, err)
	accepted := make(chan error, 1)
	go func() {
		var err error
		p, err = l.Accept(ctx)
		accepted <- err
	}()
	a, err = Dial(ctx, dev, l.Addr(), active)
	must(t, errors.Join(err, <-accepted, l.Close()))
	t.Cleanup(func() {
		var wg sync.WaitGroup
		for _, c := range []*Conn{a, p} {
			wg.Go(func() {
				if err := c.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			})
		}
		wg.Wait()
	})
	return a, p
}

// fill makes a record that tells its number and length.
func fill(b []byte, seq int) []byte {
	for i := range b {
		b[i] = byte(seq + i*7)
	}
	return b
}

func recv(t testing.TB, c *Conn) Record {
	t.Helper()
	r, err := c.Recv(devicetest.Context(t))
	must(t, err)
	return r
}

// TestBothWays sends records of all lengths both ways at once, with little room.
// parity: S13
func TestBothWays(t *testing.T) {
	for _, cfg := range []Config{
		{}, {Records: 1, Bytes: 64}, {Records: 3, Bytes: 1024, Inline: 100}, {Records: 16, Bytes: 4096, Inline: -1}, {Records: 8, Bytes: 300, Inline: 300},
	} {
		t.Run(fmt.Sprintf("%d-%d-%d", cfg.Records, cfg.Bytes, cfg.Inline), func(t *testing.T) { bothWays(t, cfg, 1, 1) })
	}
}

// TestReleaseOrder releases records in another order than they came in. What is held leaves room for the next ones.
// parity: S17
func TestReleaseOrder(t *testing.T) {
	bothWays(t, Config{Records: 8, Bytes: 4096, Inline: 50}, 8, 3)
}

// bothWays sends records up to a part of the longest both ways at once; of each few that are received the last is released
// first.
func bothWays(t *testing.T, cfg Config, part, few int) {
	records := 400
	if invariants.Race {
		records = 150
	}
	a, p := pair(t, cfg, cfg)
	var wg sync.WaitGroup
	for i, c := range []*Conn{a, p} {
		wg.Go(func() { sendMany(t, c, records, c.MaxRecord()/part, uint64(i)) })
		wg.Go(func() { receiveMany(t, c, records, few) })
	}
	wg.Wait()
	for _, c := range []*Conn{a, p} {
		if s := c.Stats(); s.Sent != uint64(records) || s.Received != uint64(records) {
			t.Errorf("%+v", s)
		}
	}
}

func sendMany(t *testing.T, c *Conn, n, longest int, seed uint64) {
	ctx, rnd := devicetest.Context(t), rand.New(rand.NewPCG(seed, 1))
	for i := range n {
		if err := c.Send(ctx, fill(make([]byte, rnd.IntN(min(longest, 100_000)+1)), i)); err != nil {
			t.Errorf("record %d: %v", i, err)
			return
		}
	}
	if err := c.CloseWrite(); err != nil {
		t.Error(err)
	}
}

func receiveMany(t *testing.T, c *Conn, n, few int) {
	ctx := devicetest.Context(t)
	var held []Record
	for i := range n {
		r, err := c.Recv(ctx)
		if err != nil {
			t.Errorf("record %d: %v", i, err)
			return
		}
		if want := fill(make([]byte, len(r.Bytes())), i); !bytes.Equal(r.Bytes(), want) {
			t.Errorf("record %d of %d bytes is not what was sent", i, len(want))
		}
		if held = append(held, r); len(held) < few && i < n-1 {
			continue
		}
		for len(held) > 0 {
			if err := held[len(held)-1].Release(); err != nil {
				t.Error(err)
			}
			held = held[:len(held)-1]
		}
	}
	if _, err := c.Recv(ctx); !errors.Is(err, io.EOF) {
		t.Errorf("after the last: %v", err)
	}
}

// TestSlowReceiver has a receiver that takes its time: nothing is lost, the sender waits, and no message comes without a
// receive, which would show as an error of the connection.
// parity: S17
func TestSlowReceiver(t *testing.T) {
	n := 100_000
	if testing.Short() || invariants.Race {
		n = 10_000
	}
	a, p := pair(t, Config{}, Config{Records: 32, Bytes: 4096})
	go func() {
		for i := range n {
			if err := a.Send(devicetest.Context(t), []byte{byte(i), byte(i >> 8), byte(i >> 16)}); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for i := range n {
		r := recv(t, p)
		if b := r.Bytes(); len(b) != 3 || b[0] != byte(i) || b[1] != byte(i>>8) {
			t.Fatalf("record %d is % x", i, b)
		}
		if i%1000 == 0 {
			runtime.Gosched()
		}
		must(t, r.Release())
	}
	s := a.Stats()
	if s.Waited == 0 {
		t.Error("the sender never waited")
	}
	if held := p.PD().Device().Stats()["rx_held_bytes"]; held != 0 {
		t.Errorf("%d bytes came without a receive", held)
	}
	t.Logf("%d records: waited %d times, asked %d times, %d answers", n, s.Waited, s.Asked, p.Stats().Control)
}

// TestSenderContext has a sender wait for room until its context ends; what was not sent is not received later.
// parity: S17
func TestSenderContext(t *testing.T) {
	a, p := pair(t, Config{}, Config{Records: 2, Bytes: 256, Inline: -1})
	must(t, a.Send(devicetest.Context(t), make([]byte, 200)))
	ctx, cancel := context.WithCancelCause(devicetest.Context(t))
	cause, sent := errors.New("patience"), make(chan error)
	go func() { sent <- a.Send(ctx, make([]byte, 100)) }()
	for a.Stats().Waited == 0 {
		runtime.Gosched()
	}
	cancel(cause)
	if err := <-sent; !errors.Is(err, cause) {
		t.Error(err)
	}
	first := recv(t, p)
	must(t, first.Release())
	must(t, a.Send(devicetest.Context(t), []byte("next")))
	if r := recv(t, p); string(r.Bytes()) != "next" {
		t.Errorf("%q", r.Bytes())
	}
	if err := first.Release(); !errors.Is(err, regmem.ErrDoubleFree) {
		t.Error(err)
	}
	if err := (Record{}).Release(); !errors.Is(err, regmem.ErrForeign) {
		t.Error(err)
	}
}

// TestSendFrom sends from the program's own region, in pieces, without a copy, short and long.
// parity: S15 S23
func TestSendFrom(t *testing.T) {
	a, p := pair(t, Config{}, Config{})
	mr, err := a.PD().RegMR(fill(make([]byte, 100_000), 1), 0)
	must(t, err)
	defer func() { must(t, mr.Close()) }()
	for _, sizes := range [][]int{{}, {10}, {10, 20, 30}, {50_000}, {40_000, 1, 30_000}} {
		var sgl []verbs.SGE
		var want []byte
		for i, n := range sizes {
			sgl = append(sgl, mr.SGE(i*1000, n))
			want = append(want, mr.Bytes()[i*1000:i*1000+n]...)
		}
		must(t, a.SendFrom(devicetest.Context(t), sgl))
		r := recv(t, p)
		if !bytes.Equal(r.Bytes(), want) {
			t.Errorf("%v: %d bytes", sizes, len(r.Bytes()))
		}
		must(t, r.Release())
	}
	if s := a.Stats(); s.Copied != 0 || s.Sent != 5 {
		t.Errorf("%+v", s)
	}
	if err := a.SendFrom(devicetest.Context(t), make([]verbs.SGE, mostPieces+1)); err == nil {
		t.Error("too many pieces")
	}
}

// TestOneSided reads, writes and counts in memory that the peer has told of, beside records.
func TestOneSided(t *testing.T) {
	a, p := pair(t, Config{}, Config{})
	there, err := p.PD().RegMR(make([]byte, 4096), verbs.LocalWrite|verbs.RemoteRead|verbs.RemoteWrite|verbs.RemoteAtomic)
	must(t, err)
	defer func() { must(t, there.Close()) }()
	here, err := a.PD().RegMR(fill(make([]byte, 4096), 3), verbs.LocalWrite)
	must(t, err)
	defer func() { must(t, here.Close()) }()
	ctx := devicetest.Context(t)
	must(t, a.Do(ctx, verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{here.SGE(0, 4096)}, Remote: there.Remote()}))
	must(t, a.Send(ctx, []byte("look"))) // delivered after the write
	must(t, recv(t, p).Release())
	if !bytes.Equal(there.Bytes(), here.Bytes()) {
		t.Error("written bytes")
	}
	var wg sync.WaitGroup
	adds := 100
	if attr, err := a.PD().Device().Query(); err != nil || !attr.Caps.Has(verbs.CapAtomics) {
		adds = 0
		must(t, err)
	}
	for i := range adds {
		wg.Go(func() {
			to := there.Remote()
			to.Addr += 8
			if err := a.Do(ctx, verbs.SendWR{Op: verbs.OpFetchAdd, SGL: []verbs.SGE{here.SGE(8*i, 8)}, Remote: to, CompareAdd: 1}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	must(t, a.Do(ctx, verbs.SendWR{Op: verbs.OpRead, SGL: []verbs.SGE{here.SGE(0, 4096)}, Remote: there.Remote()}))
	if !bytes.Equal(there.Bytes(), here.Bytes()) {
		t.Error("read bytes")
	}
	if err := p.Do(ctx, verbs.SendWR{Op: verbs.OpRead, SGL: []verbs.SGE{there.SGE(0, 8)}, Remote: verbs.RemoteAddr{RKey: 1}}); err == nil {
		t.Error("a key that nobody gave")
	}
	<-p.Done()
	if _, err := p.Recv(ctx); err == nil {
		t.Error("the connection lives on")
	}
}

// TestTooLong names the limit of the peer.
func TestTooLong(t *testing.T) {
	a, _ := pair(t, Config{}, Config{Bytes: 1000, Inline: 10})
	if n := a.MaxRecord(); n != 960 {
		t.Errorf("longest %d", n)
	}
	if err := a.Send(devicetest.Context(t), make([]byte, 961)); !errors.Is(err, ErrTooLong) {
		t.Error(err)
	}
	must(t, a.Send(devicetest.Context(t), make([]byte, 960)))
}

// TestPassiveFirst has the passive side send at once.
// parity: S17
func TestPassiveFirst(t *testing.T) {
	a, p := pair(t, Config{}, Config{})
	must(t, p.Send(devicetest.Context(t), []byte("hello")))
	if r := recv(t, a); string(r.Bytes()) != "hello" {
		t.Errorf("%q", r.Bytes())
	}
}

// TestPeerCloses ends what waits on the other side, and keeps what was received.
// parity: S17
func TestPeerCloses(t *testing.T) {
	a, p := pair(t, Config{}, Config{})
	must(t, p.Send(devicetest.Context(t), []byte("last words")))
	must(t, p.Close())
	must(t, p.Close())
	if r := recv(t, a); string(r.Bytes()) != "last words" || r.Release() != nil {
		t.Errorf("%q", r.Bytes())
	}
	if _, err := a.Recv(devicetest.Context(t)); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	<-a.Done()
	if err := a.Send(devicetest.Context(t), []byte("x")); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	for name, err := range map[string]error{"send": p.Send(devicetest.Context(t), nil), "long": p.Send(devicetest.Context(t), make([]byte, 5000)), "close for writing": p.CloseWrite()} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := p.Recv(devicetest.Context(t)); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// TestCloseWakes has Close end those who wait.
// parity: S17
func TestCloseWakes(t *testing.T) {
	a, p := pair(t, Config{Linger: -1}, Config{Records: 1, Inline: -1})
	must(t, a.Send(devicetest.Context(t), make([]byte, 2000)))
	ended := make(chan error, 2)
	go func() { ended <- a.Send(context.Background(), make([]byte, 2000)) }()
	go func() { _, err := a.Recv(context.Background()); ended <- err }()
	for a.Stats().Waited == 0 {
		runtime.Gosched()
	}
	must(t, a.Close())
	for range 2 {
		if err := <-ended; !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	}
	r := recv(t, p)
	if len(r.Bytes()) != 2000 || r.Release() != nil {
		t.Error("the first record")
	}
}

// TestStranger rejects a peer that speaks something else, and goes on.
func TestStranger(t *testing.T) {
	dev, ctx := devicetest.MustOpen(t), devicetest.Context(t)
	l, err := Listen(dev, devicetest.MustAddr(t, dev), Config{})
	must(t, err)
	accepted := make(chan *Conn, 1)
	go func() {
		c, err := l.Accept(ctx)
		if err != nil {
			t.Error(err)
		}
		accepted <- c
	}()
	ep, err := rdmacm.NewEndpoint(dev, rdmacm.EndpointConfig{})
	must(t, err)
	if err := ep.Connect(ctx, l.Addr(), verbs.ConnParam{PrivateData: []byte("hello")}); err == nil {
		t.Error("accepted")
	}
	must(t, ep.Close())
	c, err := Dial(ctx, dev, l.Addr(), Config{})
	must(t, err)
	must(t, c.Close())
	must(t, (<-accepted).Close())
	must(t, l.Close())
	if _, err := Listen(dev, loopback, Config{Records: 1 << 20}); err == nil {
		t.Error("too many records")
	}
}

// BenchmarkRecords sends records one way.
func BenchmarkRecords(b *testing.B) {
	for _, n := range []int{64, 4096, 65536, 1 << 20} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			a, p := pair(b, Config{}, Config{Bytes: 4 << 20})
			mr, err := a.PD().AllocMR(n, 0)
			must(b, err)
			defer mr.Close()
			go func() {
				for range b.N {
					if err := a.SendFrom(context.Background(), []verbs.SGE{mr.SGE(0, n)}); err != nil {
						b.Error(err)
					}
				}
			}()
			b.SetBytes(int64(n))
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				r, err := p.Recv(context.Background())
				if err != nil {
					b.Fatal(err)
				}
				if err := r.Release(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
