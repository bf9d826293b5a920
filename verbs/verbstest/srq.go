package verbstest

import (
	"errors"
	"testing"

	"cinnabar/verbs"
)

// sharedPairs connects two queue pairs to one shared receive queue.
func sharedPairs(t *testing.T, dev *verbs.Device) (p *Pair, second *Side) {
	t.Helper()
	needs(t, dev, verbs.CapSRQ)
	p = NewPair(t, dev, PairConfig{SRQ: true})
	second = newSide(t, p.Ctx, dev, PairConfig{}, false)
	l := listen(t, dev, loopback)
	passive := p.Passive.NewQP(verbs.QPConfig{SRQ: p.Passive.SRQ})
	var err error
	if second.Conn, _, err = connect(p.Ctx, l, second.QP, passive, verbs.ConnParam{}, verbs.ConnParam{}); err != nil {
		t.Fatal(err)
	}
	return p, second
}

// testSRQShared takes receives for messages of two connections.
// parity: V38
func testSRQShared(t *testing.T, dev *verbs.Device) {
	const each = 20
	p, second := sharedPairs(t, dev)
	for i := range 2 * each {
		p.Passive.PostRecv(uint64(i), i*8, 8)
	}
	for i := range uint64(each) {
		p.Active.Fill(0, 8, 1)
		second.Fill(0, 8, 2)
		p.Active.PostSend(p.Active.Send(i, 0, 8))
		second.PostSend(second.Send(i, 0, 8))
	}
	p.Active.Take(each)
	second.Take(each)
	from := map[uint32]int{}
	used := map[uint64]bool{}
	for _, wc := range p.Passive.Take(2 * each) {
		if wc.Status != verbs.StatusSuccess || wc.Op != verbs.WCRecv || used[wc.ID] {
			t.Fatalf("completion = %+v, want a success of a receive that was not used before", wc)
		}
		used[wc.ID] = true
		from[wc.QPNum]++
		want := byte(1)
		if wc.QPNum != p.Passive.QP.Num() {
			want = 2
		}
		if got := p.Passive.MR.Bytes()[wc.ID*8]; got != want {
			t.Errorf("receive %d has a message of side %d, its queue pair is of side %d", wc.ID, got, want)
		}
	}
	if len(from) != 2 || from[p.Passive.QP.Num()] != each {
		t.Errorf("messages by queue pair = %v, want %d each", from, each)
	}
}

// testSRQLimit raises the limit event once per arming: none while enough receives
// are left, one when fewer are, none for those that follow.
// parity: V38
func testSRQLimit(t *testing.T, dev *verbs.Device) {
	const posted, limit = 6, 3
	p, _ := sharedPairs(t, dev)
	for range 2 {
		for i := range uint64(posted) {
			p.Passive.PostRecv(i, 0, 8)
		}
		if err := p.Passive.SRQ.SetLimit(limit); err != nil {
			t.Fatal(err)
		}
		if got := p.Passive.SRQ.Query().Limit; got != limit {
			t.Errorf("limit = %d, want %d", got, limit)
		}
		use := func(n uint64) {
			t.Helper()
			for i := range n {
				p.Active.PostSend(p.Active.Send(i, 0, 8))
			}
			p.Active.Take(int(n))
			p.Passive.Take(int(n))
		}
		use(posted - limit)
		noEvent(t, dev)
		use(1)
		ev, err := dev.NextEvent(p.Ctx)
		if err != nil || ev.Type != verbs.EventSRQLimitReached || ev.SRQ != p.Passive.SRQ {
			t.Fatalf("event = %+v, %v; want limit reached of the queue", ev, err)
		}
		use(limit - 1)
		noEvent(t, dev)
	}
}

func testSRQFull(t *testing.T, dev *verbs.Device) {
	needs(t, dev, verbs.CapSRQ)
	s := newSide(t, testContext(t), dev, PairConfig{}, false)
	srq := s.newSRQ(verbs.SRQConfig{MaxWR: 4, MaxSGE: 1})
	depth := srq.Query().MaxWR
	wrs := make([]verbs.RecvWR, depth+1)
	if n, err := srq.PostRecv(wrs); n != depth || !errors.Is(err, verbs.ErrQueueFull) {
		t.Errorf("PostRecv of %d = %d, %v; want %d, ErrQueueFull", len(wrs), n, err, depth)
	}
	if err := srq.SetLimit(depth + 1); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("SetLimit above the depth: %v, want ErrInvalid", err)
	}
}

// testSRQLate posts receives after the messages of both connections have come.
func testSRQLate(t *testing.T, dev *verbs.Device) {
	needs(t, dev, verbs.CapRNRWait)
	p, second := sharedPairs(t, dev)
	for i := range uint64(4) {
		p.Active.PostSend(p.Active.Send(i, 0, 8))
		second.PostSend(second.Send(i, 0, 8))
	}
	p.Passive.Quiet()
	for i := range uint64(8) {
		p.Passive.PostRecv(i, 0, 8)
	}
	for _, wc := range p.Passive.Take(8) {
		if wc.Status != verbs.StatusSuccess {
			t.Errorf("completion = %+v, want success", wc)
		}
	}
	p.Active.Take(4)
	second.Take(4)
}

// testSRQLastWQE breaks one of the queue pairs: the shared receives stay for the
// other, and the event reports that the broken one will take no more.
// parity: V41
func testSRQLastWQE(t *testing.T, dev *verbs.Device) {
	p, second := sharedPairs(t, dev)
	for i := range uint64(3) {
		p.Passive.PostRecv(i, 0, 8)
	}
	p.Passive.Break()
	ev, err := dev.NextEvent(p.Ctx)
	if err != nil || ev.Type != verbs.EventQPLastWQEReached || ev.QP != p.Passive.QP {
		t.Fatalf("event = %+v, %v; want last WQE reached of the broken queue pair", ev, err)
	}
	p.Passive.Quiet()
	for i := range uint64(3) {
		second.PostSend(second.Send(i, 0, 8))
	}
	for _, wc := range p.Passive.Take(3) {
		if wc.Status != verbs.StatusSuccess {
			t.Errorf("completion = %+v, want success", wc)
		}
	}
	second.Take(3)
}

// testSRQMisuse posts to the queue pair instead, and closes in the wrong order.
func testSRQMisuse(t *testing.T, dev *verbs.Device) {
	p, _ := sharedPairs(t, dev)
	if n, err := p.Passive.QP.PostRecv([]verbs.RecvWR{{}}); n != 0 || !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("PostRecv to the queue pair = %d, %v; want 0, ErrInvalid", n, err)
	}
	if err := p.Passive.SRQ.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("Close in use: %v, want ErrBusy", err)
	}
}
