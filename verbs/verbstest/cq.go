package verbstest

import (
	"context"
	"errors"
	"testing"
	"time"

	"cinnabar/internal/invariants"
	"cinnabar/verbs"
)

// testPollBatch polls empty, then in batches of 16 over two queue pairs on one
// completion queue; the completions of each must come in order.
// parity: V20
func testPollBatch(t *testing.T, dev *verbs.Device) {
	const each = 40
	p := NewPair(t, dev, PairConfig{})
	p.Active.Quiet()
	first := p.Active.QP
	p.Active.QP, p.Passive.QP = p.Active.NewQP(verbs.QPConfig{}), p.Passive.NewQP(verbs.QPConfig{})
	l := listen(t, dev, loopback)
	if err := p.connect(l, PairConfig{}); err != nil {
		t.Fatal(err)
	}
	second := p.Active.QP
	for i := range uint64(each) {
		for _, qp := range []*verbs.QP{first, second} {
			wr := p.Active.Send(i, 0, 8)
			wr.Op, wr.Remote = verbs.OpWrite, p.Passive.MR.Remote()
			if _, err := qp.PostSend([]verbs.SendWR{wr}); err != nil {
				t.Fatal(err)
			}
		}
	}
	next := map[uint32]uint64{}
	batch := make([]verbs.WC, 16)
	for got := 0; got < 2*each; {
		n, err := p.Active.CQ.Wait(p.Ctx, batch)
		if err != nil {
			t.Fatal(err)
		}
		for _, wc := range batch[:n] {
			if wc.ID != next[wc.QPNum] || wc.Status != verbs.StatusSuccess {
				t.Fatalf("queue pair %#x: id %d, %v; want id %d, success", wc.QPNum, wc.ID, wc.Status, next[wc.QPNum])
			}
			next[wc.QPNum]++
		}
		got += n
	}
	if next[first.Num()] != each || next[second.Num()] != each {
		t.Errorf("completions by queue pair = %v, want %d each", next, each)
	}
	if n, err := p.Active.CQ.Poll(nil); n != 0 || err != nil {
		t.Errorf("Poll without room = %d, %v; want 0, nil", n, err)
	}
}

// testResize makes a queue deeper and shallower while completions wait in it.
// parity: V20
func testResize(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{CQ: 8})
	if d := p.Active.CQ.Depth(); d < 8 {
		t.Errorf("depth = %d, want at least 8", d)
	}
	if err := p.Active.CQ.Resize(64); errors.Is(err, errors.ErrUnsupported) {
		t.Skip("the device cannot resize completion queues and says so")
	} else if err != nil {
		t.Fatal(err)
	}
	if d := p.Active.CQ.Depth(); d < 64 {
		t.Errorf("depth = %d, want at least 64", d)
	}
	for i := range uint64(40) {
		p.Active.PostSend(p.Active.RDMA(i, verbs.OpRead, 0, 8, p.Passive))
	}
	for i := range uint64(20) {
		p.Active.Expect(i, verbs.StatusSuccess, verbs.WCRead)
	}
	if err := p.Active.CQ.Resize(0); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("Resize(0): %v, want ErrInvalid", err)
	}
	for i := range uint64(20) {
		p.Active.Expect(20+i, verbs.StatusSuccess, verbs.WCRead)
	}
}

// testStatus looks at a failed completion and at the error made of it.
// parity: V21 S07
func testStatus(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	wr := p.Active.RDMA(77, verbs.OpRead, 0, 8, p.Passive)
	wr.Remote.RKey ^= 1
	p.Active.PostSend(wr)
	wc := p.Active.Expect(77, verbs.StatusRemAccessErr, 0)
	err := wc.Err()
	var se *verbs.StatusError
	if !errors.As(err, &se) || se.ID != 77 || se.Status != wc.Status || se.QPNum != p.Active.QP.Num() {
		t.Errorf("error = %+v, want id 77, status %v, queue pair %#x", err, wc.Status, p.Active.QP.Num())
	}
	if !errors.Is(err, verbs.StatusRemAccessErr) || errors.Is(err, verbs.StatusRemOpErr) {
		t.Errorf("error %v does not match its status, or matches another", err)
	}
	ok := verbs.WC{}
	if ok.Err() != nil {
		t.Error("a success has an error")
	}
}

// testArm arms: nothing, then one event for one completion, then none for the next.
// parity: V22 D45
func testArm(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	if err := p.Active.CQ.Arm(false); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Active.CQ.Event():
		t.Fatal("event before any completion")
	default:
	}
	p.Active.PostSend(p.Active.RDMA(1, verbs.OpRead, 0, 8, p.Passive))
	p.Active.awaitEvent()
	p.Active.Expect(1, verbs.StatusSuccess, verbs.WCRead)
	p.Active.PostSend(p.Active.RDMA(2, verbs.OpRead, 0, 8, p.Passive))
	p.Active.Expect(2, verbs.StatusSuccess, verbs.WCRead)
	select {
	case <-p.Active.CQ.Event():
		t.Error("event without arming")
	default:
	}
}

// testModerate checks that one completion raises its event only after the period, and that an event comes after three completions, by their number or by
// the period.
// parity: N12
func testModerate(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	cq := p.Active.CQ
	for _, bad := range []struct {
		count  int
		period time.Duration
	}{{0, 0}, {-1, time.Millisecond}, {2, 0}, {2, -1}, {verbs.MaxModerateCount + 1, time.Millisecond}, {2, verbs.MaxModeratePeriod + 1}} {
		if err := cq.Moderate(bad.count, bad.period); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("Moderate(%d, %v): %v, want ErrInvalid", bad.count, bad.period, err)
		}
	}
	if err := cq.Moderate(3, verbs.MaxModeratePeriod); refusesByName(t, dev, err) {
		t.Skip("the device does not moderate events, and says so")
	} else if err != nil {
		t.Fatal(err)
	}
	arm := func(posts int) (begun time.Time) {
		t.Helper()
		if err := cq.Arm(false); err != nil {
			t.Fatal(err)
		}
		begun = time.Now()
		for id := range uint64(posts) {
			p.Active.PostSend(p.Active.RDMA(id, verbs.OpRead, 0, 8, p.Passive))
		}
		p.Active.awaitEvent()
		return begun
	}
	for range 3 {
		if took := time.Since(arm(1)); took < verbs.MaxModeratePeriod {
			t.Errorf("the event of one completion came after %v, want at least %v", took, verbs.MaxModeratePeriod)
		}
		p.Active.Take(1)
	}
	for range 3 {
		arm(3)
		p.Active.Take(3)
	}
	if err := cq.Moderate(1, 0); err != nil {
		t.Fatalf("the end of the moderation: %v", err)
	}
	arm(1)
	p.Active.Take(1)
}

// testTimestamps looks at the times of completions.
// parity: V24 N12
func testTimestamps(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	if err := p.Active.CQ.SetTimestamps(true); refusesByName(t, dev, err) {
		t.Skip("the completions of the device have no time stamps, and it says so")
	} else if err != nil {
		t.Fatal(err)
	}
	last := time.Now().UnixNano()
	for id := range uint64(10) {
		p.Active.PostSend(p.Active.RDMA(id, verbs.OpRead, 0, 8, p.Passive))
		wc := p.Active.Expect(id, verbs.StatusSuccess, verbs.WCRead)
		if now := time.Now().UnixNano(); wc.WallclockNS < last || wc.WallclockNS > now {
			t.Errorf("completion %d has the time %d, want one from %d to %d", id, wc.WallclockNS, last, now)
		}
		last = wc.WallclockNS
	}
	if err := p.Active.CQ.SetTimestamps(false); err != nil {
		t.Fatal(err)
	}
	p.Active.PostSend(p.Active.RDMA(1, verbs.OpRead, 0, 8, p.Passive))
	if wc := p.Active.Expect(1, verbs.StatusSuccess, verbs.WCRead); wc.WallclockNS != 0 {
		t.Errorf("the time is %d without time stamps", wc.WallclockNS)
	}
}

// awaitEvent reads the completion channel.
func (s *Side) awaitEvent() {
	s.t.Helper()
	select {
	case <-s.CQ.Event():
	case <-s.ctx.Done():
		s.t.Fatal("no event came")
	}
}

// testArmLosesNothing receives as the manual says (arm, poll, park) while the
// peer sends at any moment. A completion that fell between arm and park without
// an event would stop the test. The peer sends no more than there are receives:
// not every device waits for one.
// parity: V22 D45
func testArmLosesNothing(t *testing.T, dev *verbs.Device) {
	n := uint64(sized(2000, 300))
	p := NewPair(t, dev, PairConfig{})
	const window = 16
	for i := range uint64(window) {
		p.Passive.PostRecv(i, 0, 8)
	}
	sent, credits := make(chan error, 1), make(chan struct{}, n)
	for range window {
		credits <- struct{}{}
	}
	go func() {
		sent <- p.Active.sendCounted(n, credits)
	}()
	var wc [4]verbs.WC
	for got := uint64(0); got < n; {
		if err := p.Passive.CQ.Arm(false); err != nil {
			t.Fatal(err)
		}
		m, err := p.Passive.CQ.Poll(wc[:])
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range wc[:m] {
			if w.Status != verbs.StatusSuccess {
				t.Fatalf("message %d: %v", got, w.Status)
			}
			got++
			p.Passive.PostRecv(w.ID, 0, 8)
			credits <- struct{}{}
		}
		if m == 0 && got < n {
			p.Passive.awaitEvent()
		}
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
}

// sendCounted sends n messages one after the other, each for a credit. It may
// run beside the test's goroutine.
func (s *Side) sendCounted(n uint64, credits <-chan struct{}) error {
	var wc [1]verbs.WC
	for i := range n {
		select {
		case <-credits:
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
		if _, err := s.QP.PostSend([]verbs.SendWR{s.Send(i, 0, 8)}); err != nil {
			return err
		}
		if _, err := s.CQ.Wait(s.ctx, wc[:]); err != nil {
			return err
		}
		if err := wc[0].Err(); err != nil {
			return err
		}
	}
	return nil
}

// testEventWithoutCompletion leaves an event behind after its completion was polled
// already; the next wait must not take the event for one.
// parity: V22
func testEventWithoutCompletion(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	p.Active.CQ.SetSpin(0)
	for i := range uint64(20) {
		if err := p.Active.CQ.Arm(false); err != nil {
			t.Fatal(err)
		}
		p.Active.PostSend(p.Active.RDMA(2*i, verbs.OpRead, 0, 8, p.Passive))
		var wc [1]verbs.WC
		for n := 0; n == 0; {
			var err error
			if n, err = p.Active.CQ.Poll(wc[:]); err != nil {
				t.Fatal(err)
			}
		}
		p.Active.PostSend(p.Active.RDMA(2*i+1, verbs.OpRead, 0, 8, p.Passive))
		p.Active.Expect(2*i+1, verbs.StatusSuccess, verbs.WCRead)
	}
}

// testSolicitedOnly arms for solicited completions: an ordinary message raises no
// event, a solicited one and a failure do.
// parity: V22 V30
func testSolicitedOnly(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	for i := range uint64(3) {
		p.Passive.PostRecv(i, 0, 8)
	}
	arm := func() {
		t.Helper()
		if err := p.Passive.CQ.Arm(true); err != nil {
			t.Fatal(err)
		}
	}
	arm()
	p.Active.PostSend(p.Active.Send(1, 0, 8))
	p.Active.Expect(1, verbs.StatusSuccess, verbs.WCSend)
	p.Passive.Expect(0, verbs.StatusSuccess, verbs.WCRecv)
	select {
	case <-p.Passive.CQ.Event():
		t.Error("event for a message that was not solicited")
	default:
	}
	arm()
	wr := p.Active.Send(2, 0, 8)
	wr.Flags |= verbs.Solicited
	p.Active.PostSend(wr)
	p.Passive.awaitEvent()
	p.Passive.Expect(1, verbs.StatusSuccess, verbs.WCRecv)
	arm()
	p.Passive.Break()
	p.Passive.awaitEvent()
	p.Passive.Expect(2, verbs.StatusWRFlushErr, 0)
}

// testOverrun makes more completions than the queue holds. The intact ones can be
// polled, then the loss is reported, there and by an event.
// parity: V23
func testOverrun(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{CQ: 4, QP: verbs.QPConfig{SignalAll: true}})
	depth := p.Active.CQ.Depth()
	_, cfg := p.Active.QP.Query()
	if cfg.MaxSendWR <= depth {
		t.Skipf("a send queue of %d cannot overrun a completion queue of %d", cfg.MaxSendWR, depth)
	}
	for i := range uint64(depth + 1) {
		p.Active.PostSend(p.Active.RDMA(i, verbs.OpWrite, 0, 8, p.Passive))
	}
	ev, err := dev.NextEvent(p.Ctx)
	if err != nil || ev.Type != verbs.EventCQErr || ev.CQ != p.Active.CQ {
		t.Fatalf("event = %+v, %v; want a CQ error of the queue", ev, err)
	}
	wcs := make([]verbs.WC, depth+1)
	n, err := p.Active.CQ.Poll(wcs)
	if n != depth || err != nil {
		t.Errorf("Poll = %d, %v; want the %d intact completions", n, err, depth)
	}
	for i, wc := range wcs[:n] {
		if wc.ID != uint64(i) {
			t.Errorf("completion %d has id %d", i, wc.ID)
		}
	}
	if n, err := p.Active.CQ.Poll(wcs); n != 0 || !errors.Is(err, verbs.ErrCQOverrun) {
		t.Errorf("Poll = %d, %v; want 0, ErrCQOverrun", n, err)
	}
	if n, err := p.Active.CQ.Wait(p.Ctx, wcs); n != 0 || !errors.Is(err, verbs.ErrCQOverrun) {
		t.Errorf("Wait = %d, %v; want 0, ErrCQOverrun", n, err)
	}
}

// testAll reads completions from the iterator.
func testAll(t *testing.T, dev *verbs.Device) {
	const n = 10
	p := NewPair(t, dev, PairConfig{})
	for i := range uint64(n) {
		p.Active.PostSend(p.Active.RDMA(i, verbs.OpRead, 0, 8, p.Passive))
	}
	want := uint64(0)
	for wc, err := range p.Active.CQ.All(p.Ctx) {
		if err != nil || wc.ID != want {
			t.Fatalf("completion %d: id %d, %v", want, wc.ID, err)
		}
		if want++; want == n {
			break
		}
	}
}

// testPollAllocs counts allocations of a post and of the polls that find its
// completion.
func testPollAllocs(t *testing.T, dev *verbs.Device) {
	if invariants.Race {
		t.Skip("the race detector allocates")
	}
	p := NewPair(t, dev, PairConfig{})
	wrs := []verbs.SendWR{p.Active.Send(1, 0, 8)}
	recvs := []verbs.RecvWR{{ID: 2, SGL: []verbs.SGE{p.Passive.MR.SGE(0, 8)}}}
	wc := make([]verbs.WC, 4)
	step := func() {
		if _, err := p.Passive.QP.PostRecv(recvs); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Active.QP.PostSend(wrs); err != nil {
			t.Fatal(err)
		}
		for _, cq := range []*verbs.CQ{p.Active.CQ, p.Passive.CQ} {
			for n := 0; n == 0; {
				var err error
				if n, err = cq.Poll(wc); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if got := testing.AllocsPerRun(200, step); got != 0 {
		t.Errorf("%v allocations per message, want 0", got)
	}
}
