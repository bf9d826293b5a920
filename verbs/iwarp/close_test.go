package iwarp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// TestDisconnectDelivers: what was posted before Disconnect arrives, by either side
// or by both at once, as much as the sockets never hold.
func TestDisconnectDelivers(t *testing.T) {
	const size = 16 << 20
	for _, who := range []string{"active", "passive", "both"} {
		for _, confirm := range []bool{false, true} {
			if confirm && who == "both" {
				continue // each side's confirmations end with the other side
			}
			t.Run(fmt.Sprintf("%s/confirm=%t", who, confirm), func(t *testing.T) {
				a, b := newPair(t, iwarp.Config{ConfirmWrites: confirm}, iwarp.Config{ConfirmWrites: confirm})
				ends := [2]*side{a, b}
				var src, dst [2]*verbs.MR
				for i, s := range ends {
					src[i], dst[i] = s.region(t, size), s.region(t, size)
					fill(src[i].Bytes(), uint64(i))
				}
				var wg sync.WaitGroup
				for i, s := range ends {
					if who == "active" && s == b || who == "passive" && s == a {
						continue
					}
					s.send(t, verbs.SendWR{ID: 1, Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: []verbs.SGE{src[i].SGE(0, size)}, Remote: dst[1-i].Remote()})
					wg.Go(func() {
						if err := s.conn.Disconnect(testContext(t)); err != nil {
							t.Error("disconnect:", err)
						}
					})
				}
				wg.Wait()
				for i, s := range ends {
					<-s.conn.Done()
					if err := s.conn.Err(); !errors.Is(err, verbs.ErrDisconnected) {
						t.Errorf("error %v, want an orderly end", err)
					}
					if s.qp.State() != verbs.StateErr {
						t.Errorf("state %v, want ERR", s.qp.State())
					}
					if who == "active" && s == b || who == "passive" && s == a {
						continue
					}
					s.want(t, 1, verbs.WCWrite, verbs.StatusSuccess)
					<-ends[1-i].conn.Done()
					if !bytes.Equal(src[i].Bytes(), dst[1-i].Bytes()) {
						t.Error("what was posted before Disconnect has not arrived")
					}
				}
			})
		}
	}
}

// TestDisconnectAnswers: Disconnect waits for the answers to what was posted.
func TestDisconnectAnswers(t *testing.T) {
	const size = 8 << 20
	a, b := newPair(t, iwarp.Config{}, iwarp.Config{})
	src, dst := b.region(t, size), a.region(t, size)
	fill(src.Bytes(), 8)
	a.send(t, verbs.SendWR{ID: 1, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{dst.SGE(0, size)}, Remote: src.Remote()})
	if err := a.conn.Disconnect(testContext(t)); err != nil {
		t.Error("disconnect:", err)
	}
	a.want(t, 1, verbs.WCRead, verbs.StatusSuccess)
	if !bytes.Equal(dst.Bytes(), src.Bytes()) {
		t.Error("data read differs")
	}
}

// TestDisconnectUnanswered: reads that the other side's Disconnect leaves without an
// answer come back, at once.
func TestDisconnectUnanswered(t *testing.T) {
	s := newSide(t, iwarp.Config{}, nil)
	p := acceptRaw(t, s, request(), verbs.ConnParam{})
	p.open()
	mr := s.region(t, 64)
	s.send(t, verbs.SendWR{ID: 1, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.SGE(0, 8)}}, verbs.SendWR{ID: 2, Op: verbs.OpWrite, Flags: verbs.Signaled})
	p.expect(rdmap.OpReadRequest)
	p.expect(rdmap.OpWrite)
	gone := make(chan error, 1)
	go func() { gone <- s.conn.Disconnect(testContext(t)) }()
	if err := p.tc.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if err := <-gone; err != nil {
		t.Error("disconnect:", err)
	}
	s.want(t, 1, verbs.WCRead, verbs.StatusRetryExcErr)
	s.want(t, 2, verbs.WCWrite, verbs.StatusWRFlushErr) // behind an error everything is flushed
}

// TestDisconnectTwice: a second Disconnect, and one after the end, do nothing.
func TestDisconnectTwice(t *testing.T) {
	a, b := newPair(t, iwarp.Config{}, iwarp.Config{})
	var wg sync.WaitGroup
	for _, s := range []*side{a, a, b, b} {
		wg.Go(func() {
			if err := s.conn.Disconnect(testContext(t)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := a.conn.Disconnect(testContext(t)); err != nil {
		t.Error("after the end:", err)
	}
	if _, err := a.qp.PostSend([]verbs.SendWR{{ID: 5, Op: verbs.OpSend}}); err != nil {
		t.Errorf("post in state ERR: %v, want a flushed completion", err)
	}
	a.want(t, 5, verbs.WCSend, verbs.StatusWRFlushErr)
}

// TestDisconnectRefusesPosts: after Disconnect has begun nothing more is taken.
func TestDisconnectRefusesPosts(t *testing.T) {
	s := newSide(t, iwarp.Config{}, nil)
	p := acceptRaw(t, s, request(), verbs.ConnParam{})
	p.open()
	p.barrier()
	gone := make(chan error, 1)
	go func() { gone <- s.conn.Disconnect(testContext(t)) }()
	p.end() // the device has ended its side
	if _, err := s.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend}}); !errors.Is(err, verbs.ErrDisconnected) {
		t.Errorf("post while disconnecting: %v, want %v", err, verbs.ErrDisconnected)
	}
	// What the peer sends until it ends its side is still taken.
	mr := s.region(t, 16)
	p.send(writeTo(mr.Remote()), sixteen)
	if err := p.tc.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if err := <-gone; err != nil {
		t.Error(err)
	}
	if !bytes.Equal(mr.Bytes(), sixteen) {
		t.Error("a Write before the peer's end was not placed")
	}
}

// traffic keeps writes and reads of a going until the connection ends, and counts
// what was posted and what came back. It ends early when ctx does.
func traffic(ctx context.Context, t *testing.T, a *side, src *verbs.MR, to verbs.RemoteAddr, size int) (posted, back int) {
	var wc [64]verbs.WC
	for id := uint64(0); ; id++ {
		op := []verbs.Opcode{verbs.OpWrite, verbs.OpRead}[id%2]
		_, err := a.qp.PostSend([]verbs.SendWR{{ID: id, Op: op, Flags: verbs.Signaled, SGL: []verbs.SGE{src.SGE(0, size)}, Remote: to}})
		if err == nil {
			posted++
		} else if errors.Is(err, verbs.ErrClosed) {
			return posted, back
		}
		for posted-back > 8 || a.qp.State() == verbs.StateErr && posted > back {
			n, err := a.cq.Wait(ctx, wc[:])
			if err != nil {
				if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				return posted, back
			}
			back += n
		}
		if a.qp.State() == verbs.StateErr && posted == back {
			return posted, back
		}
	}
}

// TestMRCloseInTraffic closes a region while the peer writes and reads it: when
// Close returns nothing touches the memory any more, and the peer's requests fail.
func TestMRCloseInTraffic(t *testing.T) {
	const size = 1 << 20
	for _, crc := range []bool{true, false} {
		for range 5 {
			cfg := iwarp.Config{NoCRC: !crc}
			a, b := newPair(t, cfg, cfg)
			src := a.region(t, size)
			fill(src.Bytes(), 1)
			buf := make([]byte, size)
			mr, err := b.pd.RegMR(buf, verbs.LocalWrite|verbs.RemoteRead|verbs.RemoteWrite)
			if err != nil {
				t.Fatal(err)
			}
			remote := mr.Remote()
			var wg sync.WaitGroup
			wg.Go(func() {
				if posted, back := traffic(testContext(t), t, a, src, remote, size); posted != back {
					t.Errorf("%d posted, %d came back", posted, back)
				}
			})
			eventually(t, "traffic flows", func() bool { return b.dev.Stats()["rx_bytes"] > 3*size })
			if err := mr.Close(); err != nil {
				t.Error(err)
			}
			clear(buf) // ours again: the race detector and the comparison would see the device
			wg.Wait()
			<-b.conn.Done()
			if !zero(buf) {
				t.Error("the memory of a closed region was written")
			}
			term, ok := errors.AsType[rdmap.Terminate](b.conn.Err())
			if !ok || term.Layer == rdmap.LayerLLP {
				t.Errorf("target: %v, want a protection error", b.conn.Err())
			}
		}
	}
}

// TestLocalMRCloseInTraffic closes a region that the device itself sends from and
// reads into.
func TestLocalMRCloseInTraffic(t *testing.T) {
	const size = 1 << 20
	a, b := newPair(t, iwarp.Config{}, iwarp.Config{})
	dst := b.region(t, size)
	buf := make([]byte, size)
	mr, err := a.pd.RegMR(buf, verbs.LocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		ctx := testContext(t)
		var wc [1]verbs.WC
		sge := mr.SGE(0, size)
		for id := uint64(0); ; id++ {
			op := []verbs.Opcode{verbs.OpWrite, verbs.OpRead}[id%2]
			if _, err := a.qp.PostSend([]verbs.SendWR{{ID: id, Op: op, Flags: verbs.Signaled, SGL: []verbs.SGE{sge}, Remote: dst.Remote()}}); err != nil {
				t.Error(err)
				return
			}
			if _, err := a.cq.Wait(ctx, wc[:]); err != nil {
				t.Error(err)
				return
			}
			if s := wc[0].Status; s == verbs.StatusLocProtErr {
				return
			} else if s != verbs.StatusSuccess {
				t.Errorf("status %v, want %v", s, verbs.StatusLocProtErr)
				return
			}
		}
	})
	eventually(t, "traffic flows", func() bool { return b.dev.Stats()["rx_bytes"] > 3*size })
	if err := mr.Close(); err != nil {
		t.Error(err)
	}
	clear(buf)
	wg.Wait()
	if !zero(buf) {
		t.Error("the memory of a closed region was written")
	}
}

// TestQPCloseInTraffic closes a queue pair, the one that has dialled or the other,
// in the middle of traffic in both directions. At the other end all comes back.
func TestQPCloseInTraffic(t *testing.T) {
	const size = 256 << 10
	for i := range 10 {
		a, b := newPair(t, iwarp.Config{}, iwarp.Config{})
		ends := [2]*side{a, b}
		closed, other := ends[i%2], ends[1-i%2]
		own, others := closed.region(t, size), other.region(t, size)
		ctx, cancel := context.WithCancel(testContext(t))
		var wg sync.WaitGroup
		wg.Go(func() { traffic(ctx, t, closed, own, others.Remote(), size) })
		wg.Go(func() {
			if posted, back := traffic(testContext(t), t, other, others, own.Remote(), size); posted != back {
				t.Errorf("%d posted, %d came back", posted, back)
			}
		})
		eventually(t, "traffic flows", func() bool { return b.dev.Stats()["rx_bytes"] > 4*size })
		if err := closed.qp.Close(); err != nil {
			t.Error(err)
		}
		cancel() // its completions went with it
		wg.Wait()
		<-a.conn.Done()
		<-b.conn.Done()
		if err := other.conn.Err(); !errors.Is(err, verbs.ErrDisconnected) {
			t.Errorf("other side: %v, want an orderly end", err)
		}
	}
}
