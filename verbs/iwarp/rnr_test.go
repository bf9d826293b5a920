package iwarp_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"runtime"
	"sync"
	"testing"
	"time"

	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// eventually gives way to other goroutines until cond holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !cond(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("still not: %s", what)
		}
	}
}

// holds waits until s holds n messages, or requests behind messages, at least.
func (s *side) holds(t testing.TB, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d messages held", n), func() bool {
		got, _, _ := iwarp.Held(s.dev)
		return got >= n
	})
}

// receiver posts receives where a side's queue pair takes them from.
type receiver interface {
	PostRecv([]verbs.RecvWR) (int, error)
}

// share gives s a shared receive queue and a queue pair on it.
func (s *side) share(t testing.TB) *verbs.SRQ {
	t.Helper()
	srq, err := s.pd.CreateSRQ(verbs.SRQConfig{MaxWR: 256, MaxSGE: 4})
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, srq.Close)
	s.qp = s.on(t, srq)
	return srq
}

// on makes a queue pair that receives from srq.
func (s *side) on(t testing.TB, srq *verbs.SRQ) *verbs.QP {
	t.Helper()
	qp, err := s.pd.CreateQP(verbs.QPConfig{SendCQ: s.cq, RecvCQ: s.cq, SRQ: srq})
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, qp.Close)
	return qp
}

// TestHeld sends messages of all kinds before a receive is posted. Each is held and
// delivered, in order, by the receives that come later, alone or together, to the
// queue pair's own queue or to a shared one.
func TestHeld(t *testing.T) {
	for _, shared := range []bool{false, true} {
		for _, together := range []bool{false, true} {
			t.Run(fmt.Sprintf("shared=%t/together=%t", shared, together), func(t *testing.T) { testHeld(t, shared, together) })
		}
	}
}

func testHeld(t *testing.T, shared, together bool) {
	const room = 200 << 10
	a, b := newSide(t, iwarp.Config{}, nil), newSide(t, iwarp.Config{}, nil)
	var queue receiver = b.qp
	if shared {
		queue = b.share(t)
	}
	connect(t, a, b, verbs.ConnParam{}, verbs.ConnParam{})
	src, dst, key := a.region(t, room), b.region(t, 6*room), b.revocable(t, 64)
	fill(src.Bytes(), 9)
	piece := func(n int) []verbs.SGE { return []verbs.SGE{src.SGE(n%97, n)} }
	wrs := []verbs.SendWR{
		{ID: 0, Op: verbs.OpSend},
		{ID: 1, Op: verbs.OpSend, SGL: piece(100)},
		{ID: 2, Op: verbs.OpSendImm, SGL: piece(100 << 10), Imm: 22},
		{ID: 3, Op: verbs.OpWriteImm, SGL: piece(5000), Imm: 33, Remote: dst.RemoteAt(3 * room)},
		{ID: 4, Op: verbs.OpSendInvalidate, SGL: piece(1), InvKey: key.RKey()},
		{ID: 5, Op: verbs.OpSend, SGL: piece(room - 100)},
	}
	for i := range wrs {
		wrs[i].Flags = verbs.Signaled
	}
	a.send(t, wrs...)
	for range wrs {
		a.wait(t)
	}
	b.holds(t, len(wrs))
	const held = 100 + 100<<10 + 1 + room - 100
	for ctx := testContext(t); b.dev.Stats()["rx_held_bytes"] < held && ctx.Err() == nil; { // otherwise the rest of the last message goes to its receive
		runtime.Gosched()
	}
	if !zero(dst.Bytes()[:3*room]) || !bytes.Equal(dst.Bytes()[3*room:3*room+5000], src.Bytes()[5000%97:5000%97+5000]) {
		t.Error("held messages: only the Write may have been placed")
	}
	var recvs []verbs.RecvWR
	for i := range wrs {
		recvs = append(recvs, verbs.RecvWR{ID: uint64(100 + i), SGL: []verbs.SGE{dst.SGE(i*room, 10), dst.SGE(i*room+10, room-10)}})
	}
	if together {
		if _, err := queue.PostRecv(recvs); err != nil {
			t.Fatal(err)
		}
	}
	for i, wr := range wrs {
		if !together {
			if _, err := queue.PostRecv(recvs[i : i+1]); err != nil {
				t.Fatal(err)
			}
		}
		wc := b.wait(t)
		var n int
		if len(wr.SGL) > 0 {
			n = int(wr.SGL[0].Length)
		}
		op, hasImm := verbs.WCRecv, wr.Imm != 0
		if wr.Op == verbs.OpWriteImm {
			op = verbs.WCRecvRDMAImm
		}
		if wc.ID != uint64(100+i) || wc.Status != verbs.StatusSuccess || wc.Op != op || int(wc.Len) != n || wc.HasImm != hasImm || hasImm && wc.Imm != wr.Imm ||
			wc.HasInv != (wr.InvKey != 0) || wc.InvKey != wr.InvKey {
			t.Errorf("message %d: completion %+v", i, wc)
		}
		if op == verbs.WCRecv && !bytes.Equal(dst.Bytes()[i*room:i*room+n], src.Bytes()[n%97:n%97+n]) {
			t.Errorf("message %d: data differs", i)
		}
	}
	if n, size, stalled := iwarp.Held(b.dev); n != 0 || size != 0 || stalled {
		t.Errorf("still held: %d messages, %d bytes, stalled %t", n, size, stalled)
	}
	if got := b.dev.Stats()["rx_held_bytes"]; got != held {
		t.Errorf("rx_held_bytes is %d", got)
	}
}

// TestHeldMidway posts the receive when a part of the message has come: between two
// segments, and in the middle of one. The rest goes straight to its place.
func TestHeldMidway(t *testing.T) {
	for _, shared := range []bool{false, true} {
		for _, pause := range []int{0, 7, 25, 30, 52} { // octets of the second segment that come before the receive
			t.Run(fmt.Sprintf("shared=%t/%d", shared, pause), func(t *testing.T) {
				s := newSide(t, iwarp.Config{}, nil)
				var queue receiver = s.qp
				if shared {
					queue = s.share(t)
				}
				mr := s.region(t, 256)
				p := acceptRaw(t, s, request(), verbs.ConnParam{})
				data := make([]byte, 128)
				fill(data, 5)
				h := p.untagged(rdmap.OpSend)
				h.Last = false
				p.send(h, data[:64])
				eventually(t, "64 bytes held", func() bool { return s.dev.Stats()["rx_held_bytes"] == 64 })
				second := h.Advance(64)
				b := p.fpdu(second, data[64:96])
				p.write(b[:pause])
				if pause > 16 { // the head has been read: the device has decided where the segment goes
					eventually(t, "second segment placed", func() bool { _, size, _ := iwarp.Held(s.dev); return size >= 128+96 })
				}
				if _, err := queue.PostRecv([]verbs.RecvWR{{ID: 3, SGL: []verbs.SGE{mr.SGE(0, 70), mr.SGE(80, 100)}}}); err != nil {
					t.Fatal(err)
				}
				p.write(b[pause:])
				third := second.Advance(32)
				third.Last = true
				p.send(third, data[96:])
				if wc := s.want(t, 3, verbs.WCRecv, verbs.StatusSuccess); wc.Len != 128 {
					t.Errorf("received %d bytes, want 128", wc.Len)
				}
				if got := append(bytes.Clone(mr.Bytes()[:70]), mr.Bytes()[80:138]...); !bytes.Equal(got, data) {
					t.Error("data differs")
				}
				want := uint64(64)
				if pause > 16 {
					want = 96
				}
				if got := s.dev.Stats()["rx_held_bytes"]; pause != 7 && got != want {
					t.Errorf("%d bytes were held, want %d", got, want)
				}
			})
		}
	}
}

// TestHoldLimit sends more than may be held: the device stops reading within its
// limit, and loses nothing.
func TestHoldLimit(t *testing.T) {
	const limit = 64 << 10
	for _, c := range []struct{ size, count int }{{16 << 10, 100}, {1 << 20, 6}, {1, 3000}, {0, 3000}} {
		t.Run(fmt.Sprintf("%d of %d bytes", c.count, c.size), func(t *testing.T) {
			a, b := newPair(t, iwarp.Config{}, iwarp.Config{HoldLimit: limit})
			src, dst := a.region(t, c.size+4096), b.region(t, c.size+1)
			fill(src.Bytes(), 1)
			sent := sha256.New()
			var wg sync.WaitGroup
			wg.Go(func() { sendMany(t, a, src, c.size, c.count, sent) })
			eventually(t, "the receiver stops reading", func() bool {
				_, held, stalled := iwarp.Held(b.dev)
				if held > limit {
					t.Fatalf("%d bytes held, limit %d", held, limit)
				}
				return stalled
			})
			got := sha256.New()
			for i := range c.count {
				b.recv(t, verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{dst.SGE(0, c.size)}})
				if wc := b.want(t, uint64(i), verbs.WCRecv, verbs.StatusSuccess); int(wc.Len) != c.size {
					t.Fatalf("message %d: %d bytes", i, wc.Len)
				}
				got.Write(dst.Bytes()[:c.size])
				if _, held, _ := iwarp.Held(b.dev); held > limit {
					t.Fatalf("%d bytes held, limit %d", held, limit)
				}
			}
			wg.Wait()
			if !bytes.Equal(got.Sum(nil), sent.Sum(nil)) {
				t.Error("what was received differs from what was sent")
			}
		})
	}
}

// sendMany sends count messages of size bytes, each from another place of src.
func sendMany(t *testing.T, s *side, src *verbs.MR, size, count int, digest hash.Hash) {
	ctx := testContext(t)
	var wc [64]verbs.WC
	for i, done := 0, 0; done < count; {
		for i < count && i-done < 64 {
			at := i % 4096
			digest.Write(src.Bytes()[at : at+size])
			if _, err := s.qp.PostSend([]verbs.SendWR{{ID: uint64(i), Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{src.SGE(at, size)}}}); err != nil {
				t.Error(err)
				return
			}
			i++
		}
		n, err := s.cq.Wait(ctx, wc[:])
		if err != nil {
			t.Error(err)
			return
		}
		done += n
	}
}

// TestRNRRetry: a message waits for RNRRetry times MinRNRTimer and no shorter, then the
// connection ends with "no buffer".
func TestRNRRetry(t *testing.T) {
	const code = 18 // 5.12 ms
	for retry := range uint8(7) {
		t.Run(fmt.Sprint(retry), func(t *testing.T) {
			s := newSide(t, iwarp.Config{}, nil)
			p := acceptRaw(t, s, request(), verbs.ConnParam{})
			if err := s.qp.Modify(verbs.QPAttr{Mask: verbs.AttrRNRRetry | verbs.AttrMinRNRTimer, RNRRetry: retry, MinRNRTimer: code}); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			p.send(p.untagged(rdmap.OpSend), make([]byte, 8))
			if term := p.terminate(); term.Cause() != rdmap.TermDDPNoBuffer {
				t.Errorf("Terminate %v, want %v", term, rdmap.TermDDPNoBuffer)
			}
			if took, least := time.Since(start), time.Duration(retry)*verbs.RNRDelay(code); took < least {
				t.Errorf("ended after %v, before %v were over", took, least)
			}
			v := victim{side: s, t: t}
			v.gone(0, rdmap.TermDDPNoBuffer, nil)
			v.raised(verbs.EventQPReqErr, rdmap.TermDDPNoBuffer)
		})
	}
}

// TestRNRInTime: a receive that comes in time stops the clock.
func TestRNRInTime(t *testing.T) {
	s := newSide(t, iwarp.Config{}, nil)
	p := acceptRaw(t, s, request(), verbs.ConnParam{RNRRetry: 1})
	if err := s.qp.Modify(verbs.QPAttr{Mask: verbs.AttrMinRNRTimer, MinRNRTimer: 0}); err != nil { // 655 ms
		t.Fatal(err)
	}
	p.send(p.untagged(rdmap.OpSend), make([]byte, 8))
	s.holds(t, 1)
	s.recv(t, verbs.RecvWR{ID: 1, SGL: []verbs.SGE{s.region(t, 8).SGE(0, 8)}})
	s.want(t, 1, verbs.WCRecv, verbs.StatusSuccess)
	p.hello(t, s, false)
}

// TestRNRProgress: the time is that of one message. A receiver that is always one
// message behind, and posts in time for each, keeps its connection.
func TestRNRProgress(t *testing.T) {
	a, b := newPair(t, iwarp.Config{}, iwarp.Config{})
	if err := b.qp.Modify(verbs.QPAttr{Mask: verbs.AttrRNRRetry | verbs.AttrMinRNRTimer, RNRRetry: 1, MinRNRTimer: 0}); err != nil {
		t.Fatal(err)
	}
	patient := verbs.RNRDelay(0)
	msg := verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.Signaled}
	a.send(t, msg)
	b.holds(t, 1)
	for start := time.Now(); time.Since(start) < patient*5/4; {
		a.send(t, msg)
		a.want(t, 1, verbs.WCSend, verbs.StatusSuccess)
		b.holds(t, 2)
		b.recv(t, verbs.RecvWR{ID: 2})
		b.want(t, 2, verbs.WCRecv, verbs.StatusSuccess)
	}
}

// TestRequestBehindHeld: the answer to a read or atomic behind a message says that the
// message was received: it waits for that.
func TestRequestBehindHeld(t *testing.T) {
	a, b := newPair(t, iwarp.Config{}, iwarp.Config{})
	own, sink := b.region(t, 4096), a.region(t, 4096)
	fill(own.Bytes(), 4)
	want := bytes.Clone(own.Bytes())
	a.send(t,
		verbs.SendWR{ID: 1, Op: verbs.OpSend},
		verbs.SendWR{ID: 2, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{sink.SGE(0, 4096)}, Remote: own.Remote()},
		verbs.SendWR{ID: 3, Op: verbs.OpFetchAdd, Flags: verbs.Signaled, SGL: []verbs.SGE{sink.SGE(0, 8)}, Remote: own.Remote(), CompareAdd: 1},
		verbs.SendWR{ID: 4, Op: verbs.OpSend},
		verbs.SendWR{ID: 5, Op: verbs.OpRead, Flags: verbs.Signaled})
	b.holds(t, 5)
	var wc [1]verbs.WC
	if n, err := a.cq.Poll(wc[:]); n != 0 || err != nil || !bytes.Equal(own.Bytes(), want) {
		t.Errorf("answered before the message was received: %+v, error %v", wc[0], err)
	}
	b.recv(t, verbs.RecvWR{ID: 1})
	a.want(t, 2, verbs.WCRead, verbs.StatusSuccess)
	a.want(t, 3, verbs.WCFetchAdd, verbs.StatusSuccess)
	if !bytes.Equal(sink.Bytes()[8:], want[8:]) || !bytes.Equal(sink.Bytes()[:8], want[:8]) {
		t.Error("data read differs")
	}
	if n, _, _ := iwarp.Held(b.dev); n != 2 {
		t.Errorf("%d messages and requests held, want 2", n)
	}
	b.recv(t, verbs.RecvWR{ID: 2})
	a.want(t, 5, verbs.WCRead, verbs.StatusSuccess)
}

// TestReadBehindHeld: the program that has a message waiting for its receive reads
// first: the answer, which comes behind the message, is not held up.
func TestReadBehindHeld(t *testing.T) {
	a, b := newPair(t, iwarp.Config{}, iwarp.Config{})
	own, sink := a.region(t, 1<<20), b.region(t, 1<<20)
	fill(own.Bytes(), 3)
	for range 3 {
		a.send(t, verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{own.SGE(0, 100<<10)}})
		a.want(t, 1, verbs.WCSend, verbs.StatusSuccess)
	}
	for id := range uint64(20) {
		b.send(t, verbs.SendWR{ID: id, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{sink.SGE(0, 1<<20)}, Remote: own.Remote()})
		b.want(t, id, verbs.WCRead, verbs.StatusSuccess)
	}
	if n, _, _ := iwarp.Held(b.dev); n != 3 {
		t.Errorf("%d messages held, want 3", n)
	}
	if !bytes.Equal(sink.Bytes(), own.Bytes()) {
		t.Error("data read differs")
	}
	for range 3 {
		b.recv(t, verbs.RecvWR{ID: 30, SGL: []verbs.SGE{sink.SGE(0, 100<<10)}})
		b.want(t, 30, verbs.WCRecv, verbs.StatusSuccess)
	}
}

// TestHeldEnd: messages that the peer sent before it disconnected are delivered to
// receives that are posted after it has.
func TestHeldEnd(t *testing.T) {
	a, b := newPair(t, iwarp.Config{}, iwarp.Config{})
	src, dst := a.region(t, 1000), b.region(t, 1000)
	fill(src.Bytes(), 2)
	for i := range 3 {
		a.send(t, verbs.SendWR{ID: uint64(i), Op: verbs.OpSend, SGL: []verbs.SGE{src.SGE(100*i, 100)}})
	}
	gone := make(chan error, 1)
	go func() { gone <- a.conn.Disconnect(testContext(t)) }()
	b.holds(t, 3)
	for i := range 3 {
		b.recv(t, verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{dst.SGE(100*i, 100)}})
		b.want(t, uint64(i), verbs.WCRecv, verbs.StatusSuccess)
	}
	if err := <-gone; err != nil {
		t.Error("disconnect:", err)
	}
	<-b.conn.Done()
	if err := b.conn.Err(); !errors.Is(err, verbs.ErrDisconnected) {
		t.Errorf("error %v, want an orderly end", err)
	}
	if !bytes.Equal(dst.Bytes()[:300], src.Bytes()[:300]) {
		t.Error("data differs")
	}
}

// TestHeldBothEnd: a side that disconnects itself wants no more of what it holds;
// neither side waits for the other's receives.
func TestHeldBothEnd(t *testing.T) {
	for _, first := range []bool{true, false} { // the side that holds messages disconnects first, or second
		a, b := newPair(t, iwarp.Config{}, iwarp.Config{})
		a.send(t, verbs.SendWR{ID: 1, Op: verbs.OpSend}, verbs.SendWR{ID: 2, Op: verbs.OpSend})
		b.holds(t, 2)
		ends := [2]*side{a, b}
		if first {
			ends = [2]*side{b, a}
		}
		gone := make(chan error, 2)
		for _, s := range ends {
			go func() { gone <- s.conn.Disconnect(testContext(t)) }()
			eventually(t, "the other side has seen the end", func() bool { return first || s == b || iwarp.Ended(b.dev) })
		}
		for range 2 {
			if err := <-gone; err != nil {
				t.Errorf("holder first %t: disconnect: %v", first, err)
			}
		}
	}
}

// TestSharedStress has several connections hold messages for one shared queue, to
// which receives are posted one at a time: each post delivers a message.
func TestSharedStress(t *testing.T) {
	const senders, messages = 4, 300
	b := newSide(t, iwarp.Config{}, nil)
	srq := b.share(t)
	var wg sync.WaitGroup
	for i := range senders {
		if i > 0 {
			b.qp = b.on(t, srq)
		}
		a := newSide(t, iwarp.Config{}, nil)
		connect(t, a, b, verbs.ConnParam{}, verbs.ConnParam{})
		src := a.region(t, 4096+8)
		wg.Go(func() { sendMany(t, a, src, 8, messages, sha256.New()) })
	}
	dst := b.region(t, 64)
	for i := range senders * messages {
		if _, err := srq.PostRecv([]verbs.RecvWR{{ID: uint64(i), SGL: []verbs.SGE{dst.SGE(0, 8)}}}); err != nil {
			t.Fatal(err)
		}
		b.want(t, uint64(i), verbs.WCRecv, verbs.StatusSuccess)
	}
	wg.Wait()
}
