package verbstest

import (
	"errors"
	"math/rand/v2"
	"testing"

	"cinnabar/verbs"
)

// count waits for n completions and counts those that were flushed; none may be
// of another failure. Afterwards nothing more may come.
func (s *Side) count(n int) (flushed int) {
	s.t.Helper()
	seen := make(map[uint64]bool)
	for _, wc := range s.Take(n) {
		if seen[wc.ID] {
			s.t.Errorf("request %d completed twice", wc.ID)
		}
		seen[wc.ID] = true
		switch wc.Status {
		case verbs.StatusSuccess:
		case verbs.StatusWRFlushErr:
			flushed++
		default:
			s.t.Errorf("request %d: %v, want success or flushed", wc.ID, wc.Status)
		}
	}
	s.Quiet()
	return flushed
}

// testFlush moves a queue pair with receives posted to ERR: all of them come back,
// here and at the peer. Requests posted in ERR come back too, signaled or not.
func testFlush(t *testing.T, dev *verbs.Device) {
	const sends, recvs = 20, 30
	p := NewPair(t, dev, PairConfig{})
	for i := range uint64(recvs) {
		p.Passive.PostRecv(i, 0, 8)
		p.Active.PostRecv(1000+i, 0, 8)
	}
	p.Passive.Break()
	if f := p.Passive.count(recvs); f != recvs {
		t.Errorf("%d of %d receives were flushed", f, recvs)
	}
	p.Active.AwaitEnd()
	for i := range uint64(sends) {
		wr := p.Active.Send(i, 0, 8)
		if i%2 == 0 {
			wr.Flags = 0
		}
		p.Active.PostSend(wr) // in ERR, since the peer has gone
	}
	if f := p.Active.count(sends + recvs); f != sends+recvs {
		t.Errorf("%d of %d requests were flushed", f, sends+recvs)
	}
}

// testFlushAfterError fails one request of many.
// parity: V35
func testFlushAfterError(t *testing.T, dev *verbs.Device) {
	const n, bad = 20, 7
	p := NewPair(t, dev, PairConfig{})
	wrs := make([]verbs.SendWR, n)
	for i := range wrs {
		wrs[i] = p.Active.RDMA(uint64(i), verbs.OpRead, 0, 8, p.Passive)
	}
	wrs[bad].Remote.RKey ^= 1
	p.Active.PostSend(wrs...)
	for i := range uint64(n) {
		want := verbs.StatusSuccess
		switch {
		case i == bad:
			want = verbs.StatusRemAccessErr
		case i > bad:
			want = verbs.StatusWRFlushErr
		}
		p.Active.Expect(i, want, verbs.WCRead)
	}
	p.Active.Quiet()
}

// testDisconnectFlushes ends a connection in order: messages posted before are
// delivered, the remaining receives of both sides are flushed.
// parity: V52
func testDisconnectFlushes(t *testing.T, dev *verbs.Device) {
	const n = 16
	p := NewPair(t, dev, PairConfig{})
	for i := range uint64(n + 5) {
		p.Passive.PostRecv(i, 0, 8)
	}
	p.Active.PostRecv(500, 0, 8)
	for i := range uint64(n) {
		p.Active.PostSend(p.Active.Send(i, 0, 8))
	}
	if err := p.Active.Conn.Disconnect(p.Ctx); err != nil {
		t.Fatalf("Disconnect: %v", err)
	}
	if f := p.Active.count(n + 1); f != 1 {
		t.Errorf("%d of the active side's requests were flushed, want the receive alone", f)
	}
	if f := p.Passive.count(n + 5); f != 5 {
		t.Errorf("%d receives were flushed, want 5", f)
	}
	for _, s := range []*Side{p.Active, p.Passive} {
		s.AwaitEnd()
		if err := s.Conn.Err(); !errors.Is(err, verbs.ErrDisconnected) {
			t.Errorf("cause of the end = %v, want ErrDisconnected", err)
		}
		if got := s.QP.State(); got != verbs.StateErr {
			t.Errorf("state = %v, want ERR", got)
		}
		if err := s.Conn.Disconnect(p.Ctx); err != nil && !errors.Is(err, verbs.ErrDisconnected) {
			t.Errorf("second Disconnect: %v", err)
		}
	}
}

// testPeerGone closes one side without a word.
func testPeerGone(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	for i := range uint64(4) {
		p.Active.PostRecv(i, 0, 8)
	}
	closeAll(t, "queue pair", p.Passive.QP.Close)
	p.Active.AwaitEnd()
	if err := p.Active.Conn.Err(); err == nil {
		t.Error("the connection ended without a cause")
	}
	if f := p.Active.count(4); f != 4 {
		t.Errorf("%d of 4 receives were flushed", f)
	}
}

// testCloseAddsNothing destroys a queue pair with work outstanding: no completion
// of it is added afterwards, and its completion queue is still good.
func testCloseAddsNothing(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	for i := range uint64(10) {
		p.Active.PostRecv(i, 0, 8)
	}
	closeAll(t, "queue pair", p.Active.QP.Close)
	p.Active.Quiet()
	p.Passive.AwaitEnd()
	other := p.Active.NewQP(verbs.QPConfig{})
	p.Active.QP = other
	p.Active.PostRecv(50, 0, 8)
	p.Active.Break()
	p.Active.Expect(50, verbs.StatusWRFlushErr, 0)
}

// testRandomHistories posts at random, breaks the connection at a random moment
// in a random way, and counts: each request that makes a completion makes one.
// parity: V35
func testRandomHistories(t *testing.T, dev *verbs.Device) {
	for seed := range uint64(sized(60, 15)) {
		h := &history{p: NewPair(t, dev, PairConfig{}), rnd: rand.New(rand.NewPCG(seed, 1))}
		h.run()
		if t.Failed() {
			t.Fatalf("history with seed %d", seed)
		}
		closeAll(t, "queue pairs", h.p.Active.QP.Close, h.p.Passive.QP.Close)
	}
}

// history is one random run. Requests have ids from 0 on each side.
type history struct {
	p      *Pair
	rnd    *rand.Rand
	posted [2]uint64          // requests by side
	silent [2]map[uint64]bool // those that need not complete
	taken  [2][]verbs.WC
}

func (h *history) run() {
	t := h.p.Active.t
	for i := range h.silent {
		h.silent[i] = make(map[uint64]bool)
	}
	for range 10 + h.rnd.IntN(40) {
		h.step(h.rnd.IntN(2))
	}
	// A message that waits for a receive may keep the bytes behind it, be it the
	// end of the stream, from being seen.
	for i, s := range h.sides() {
		for range 60 {
			s.PostRecv(h.posted[i], 0, 4096)
			h.posted[i]++
		}
	}
	switch h.rnd.IntN(3) {
	case 0:
		h.p.Active.Break()
	case 1:
		h.p.Passive.Break()
	case 2:
		bad := h.p.Active.RDMA(h.posted[0], verbs.OpRead, 0, 8, h.p.Passive)
		bad.Remote.RKey ^= 1
		h.p.Active.PostSend(bad)
		h.posted[0]++
	}
	h.p.Active.AwaitEnd()
	h.p.Passive.AwaitEnd()
	for range h.rnd.IntN(5) {
		h.step(h.rnd.IntN(2)) // in ERR
	}
	for i, s := range h.sides() {
		h.drain(i, s)
		for id := range h.posted[i] {
			n := 0
			for _, wc := range h.taken[i] {
				if wc.ID == id {
					n++
				}
			}
			if n > 1 || n == 0 && !h.silent[i][id] {
				t.Errorf("side %d: request %d of %d completed %d times", i, id, h.posted[i], n)
			}
		}
	}
}

func (h *history) sides() [2]*Side { return [2]*Side{h.p.Active, h.p.Passive} }

// step posts something or polls.
func (h *history) step(i int) {
	s, peer := h.sides()[i], h.sides()[1-i]
	id := h.posted[i]
	switch h.rnd.IntN(5) {
	case 0:
		h.p.Active.t.Helper()
		var wc [3]verbs.WC
		n, err := s.CQ.Poll(wc[:])
		if err != nil {
			s.t.Fatal(err)
		}
		h.taken[i] = append(h.taken[i], wc[:n]...)
		return
	case 1:
		s.PostRecv(id, 0, 4096)
	case 2:
		s.PostSend(s.Send(id, 0, h.rnd.IntN(4096)))
	case 3:
		s.PostSend(s.RDMA(id, verbs.OpRead, 0, h.rnd.IntN(4096), peer))
	case 4:
		wr := s.RDMA(id, verbs.OpWrite, 0, h.rnd.IntN(4096), peer)
		wr.Flags = 0
		s.PostSend(wr)
		h.silent[i][id] = true
	}
	h.posted[i]++
}

// drain takes completions until those that must come are there and nothing more
// comes.
func (h *history) drain(i int, s *Side) {
	need := map[uint64]bool{}
	for id := range h.posted[i] {
		if !h.silent[i][id] {
			need[id] = true
		}
	}
	for _, wc := range h.taken[i] {
		delete(need, wc.ID)
	}
	for len(need) > 0 {
		wc := s.Take(1)[0]
		h.taken[i] = append(h.taken[i], wc)
		delete(need, wc.ID)
	}
	var wc [16]verbs.WC
	for range quietPolls {
		n, err := s.CQ.Poll(wc[:])
		if err != nil {
			s.t.Fatal(err)
		}
		h.taken[i] = append(h.taken[i], wc[:n]...)
	}
}
