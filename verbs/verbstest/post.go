package verbstest

import (
	"errors"
	"testing"

	"cinnabar/verbs"
)

// badWR is a request that every device refuses when it is posted.
func badWR() verbs.SendWR { return verbs.SendWR{ID: 2, Op: 99, Flags: verbs.Signaled} }

// testBadInList posts three requests of which the second is bad: the first is
// carried out, the count points to the second, the third is not looked at.
// parity: V27 S04 S06
func testBadInList(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	good := func(id uint64) verbs.SendWR { return p.Active.RDMA(id, verbs.OpRead, 0, 8, p.Passive) }
	n, err := p.Active.QP.PostSend([]verbs.SendWR{good(1), badWR(), good(3)})
	if n != 1 || err == nil {
		t.Fatalf("PostSend = %d, %v; want 1 and the reason for the second", n, err)
	}
	p.Active.Expect(1, verbs.StatusSuccess, verbs.WCRead)
	p.Active.Quiet()
	p.Active.PostSend(good(4)) // the queue pair is unharmed
	p.Active.Expect(4, verbs.StatusSuccess, verbs.WCRead)
}

func testBadRecvInList(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	_, cfg := p.Passive.QP.Query()
	good := verbs.RecvWR{ID: 1, SGL: []verbs.SGE{p.Passive.MR.SGE(0, 8)}}
	bad := verbs.RecvWR{ID: 2, SGL: make([]verbs.SGE, cfg.MaxRecvSGE+1)}
	if n, err := p.Passive.QP.PostRecv([]verbs.RecvWR{good, bad, good}); n != 1 || !errors.Is(err, verbs.ErrInvalid) {
		t.Fatalf("PostRecv = %d, %v; want 1, ErrInvalid", n, err)
	}
	p.Active.PostSend(p.Active.Send(1, 0, 8))
	p.Passive.Expect(1, verbs.StatusSuccess, verbs.WCRecv)
	p.Passive.Break()
	p.Passive.Quiet() // only the first was posted
}

// testQueueFull posts more than the depth. Nothing is polled meanwhile, so that
// even a device that is done at once must keep count.
// parity: S03
func testQueueFull(t *testing.T, dev *verbs.Device) {
	const depth = 8
	p := NewPair(t, dev, PairConfig{QP: verbs.QPConfig{MaxSendWR: depth}})
	_, cfg := p.Active.QP.Query()
	wrs := make([]verbs.SendWR, cfg.MaxSendWR+3)
	for i := range wrs {
		wrs[i] = p.Active.RDMA(uint64(i), verbs.OpRead, 0, 8, p.Passive)
	}
	n, err := p.Active.QP.PostSend(wrs)
	if n != cfg.MaxSendWR || !errors.Is(err, verbs.ErrQueueFull) {
		t.Fatalf("PostSend of %d = %d, %v; want %d, ErrQueueFull", len(wrs), n, err, cfg.MaxSendWR)
	}
	for i := range n {
		p.Active.Expect(uint64(i), verbs.StatusSuccess, verbs.WCRead)
	}
	p.Active.PostSend(wrs[:cfg.MaxSendWR]...) // all room is back
	p.Active.Take(cfg.MaxSendWR)
}

// parity: S03
func testRecvQueueFull(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{QP: verbs.QPConfig{MaxRecvWR: 4}})
	_, cfg := p.Passive.QP.Query()
	wrs := make([]verbs.RecvWR, cfg.MaxRecvWR+1)
	for i := range wrs {
		wrs[i] = verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{p.Passive.MR.SGE(0, 8)}}
	}
	n, err := p.Passive.QP.PostRecv(wrs)
	if n != cfg.MaxRecvWR || !errors.Is(err, verbs.ErrQueueFull) {
		t.Fatalf("PostRecv of %d = %d, %v; want %d, ErrQueueFull", len(wrs), n, err, cfg.MaxRecvWR)
	}
	p.Active.PostSend(p.Active.Send(1, 0, 8))
	p.Passive.Expect(0, verbs.StatusSuccess, verbs.WCRecv)
	p.Passive.postRecvWR(wrs[n])
}

// testManyBeforePoll separates start and end: 64 posts, then the first poll.
// parity: S02
func testManyBeforePoll(t *testing.T, dev *verbs.Device) {
	const n = 64
	p := NewPair(t, dev, PairConfig{})
	for i := range uint64(n) {
		p.Active.PostSend(p.Active.RDMA(1000+i, verbs.OpWrite, int(i)*8, 8, p.Passive))
	}
	for i := range uint64(n) {
		p.Active.Expect(1000+i, verbs.StatusSuccess, verbs.WCWrite)
	}
}

// testOversize posts a message that is longer than the port takes.
// parity: V34
func testOversize(t *testing.T, dev *verbs.Device) {
	limit := attr(t, dev).Ports[0].MaxMsgSize
	if limit >= 1<<32-1 {
		t.Skipf("the port takes messages of %d bytes, more than one entry can name", limit)
	}
	p := NewPair(t, dev, PairConfig{})
	wr := p.Active.RDMA(1, verbs.OpWrite, 0, 8, p.Passive)
	wr.SGL[0].Length = uint32(limit + 1)
	if n, err := p.Active.QP.PostSend([]verbs.SendWR{wr}); n != 0 || !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("PostSend of %d bytes = %d, %v; want 0, ErrInvalid", limit+1, n, err)
	}
	wr.SGL = []verbs.SGE{p.Active.MR.SGE(0, 8), p.Active.MR.SGE(0, 8)}
	wr.SGL[1].Length = uint32(limit) // together too long
	if n, err := p.Active.QP.PostSend([]verbs.SendWR{wr}); n != 0 || !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("PostSend of %d bytes in two = %d, %v; want 0, ErrInvalid", limit+8, n, err)
	}
	p.Active.PostSend(p.Active.RDMA(2, verbs.OpWrite, 0, 8, p.Passive))
	p.Active.Expect(2, verbs.StatusSuccess, verbs.WCWrite)
}

func testTooManyEntries(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{QP: verbs.QPConfig{MaxSendSGE: 2}})
	_, cfg := p.Active.QP.Query()
	wr := p.Active.RDMA(1, verbs.OpWrite, 0, 0, p.Passive)
	wr.SGL = make([]verbs.SGE, cfg.MaxSendSGE+1)
	if n, err := p.Active.QP.PostSend([]verbs.SendWR{wr}); n != 0 || !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("PostSend with %d entries = %d, %v; want 0, ErrInvalid", len(wr.SGL), n, err)
	}
}

// testListReusable changes the request and its list right after the post.
// parity: V27
func testListReusable(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	want := append([]byte(nil), p.Active.Fill(0, 32, 5)...)
	wrs := []verbs.SendWR{{Op: verbs.OpWrite, SGL: make([]verbs.SGE, 1)}}
	recvs := []verbs.RecvWR{{ID: 1, SGL: []verbs.SGE{p.Passive.MR.SGE(100, 8)}}}
	p.Passive.postRecvWR(recvs...)
	recvs[0].SGL[0] = p.Passive.MR.SGE(0, 1)
	for i := range 4 {
		wrs[0].SGL[0] = p.Active.MR.SGE(i*8, 8)
		wrs[0].Remote = p.Passive.MR.RemoteAt(i * 8)
		p.Active.PostSend(wrs...)
	}
	clear(wrs[0].SGL)
	wrs[0] = verbs.SendWR{}
	p.Active.PostSend(p.Active.Send(2, 0, 8))
	p.Passive.Expect(1, verbs.StatusSuccess, verbs.WCRecv)
	for i, b := range p.Passive.MR.Bytes()[:32] {
		if b != want[i] {
			t.Fatalf("byte %d = %d, want %d", i, b, want[i])
		}
	}
	p.Active.Expect(2, verbs.StatusSuccess, verbs.WCSend)
}

// testInOrder mixes requests that wait for the peer with such as do not: they
// complete in the order in which they were posted.
func testInOrder(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	for round := range uint64(20) {
		p.Passive.PostRecv(round, 0, 8)
		p.Active.PostSend(
			p.Active.RDMA(1, verbs.OpRead, 0, 60000, p.Passive), p.Active.RDMA(2, verbs.OpWrite, 0, 8, p.Passive), p.Active.Send(3, 0, 8))
		p.Active.Expect(1, verbs.StatusSuccess, verbs.WCRead)
		p.Active.Expect(2, verbs.StatusSuccess, verbs.WCWrite)
		p.Active.Expect(3, verbs.StatusSuccess, verbs.WCSend)
		p.Passive.Expect(round, verbs.StatusSuccess, verbs.WCRecv)
	}
}
