package verbstest

import (
	"bytes"
	"errors"
	"testing"

	"cinnabar/verbs"
)

// testEmptyList takes a write with immediate data, and a send of nothing, with a
// receive that has no list.
// parity: V32
func testEmptyList(t *testing.T, dev *verbs.Device) {
	needs(t, dev, verbs.CapWriteImm)
	p := NewPair(t, dev, PairConfig{})
	p.Passive.postRecvWR(verbs.RecvWR{ID: 1}, verbs.RecvWR{ID: 2})
	wr := p.Active.RDMA(1, verbs.OpWriteImm, 0, 1000, p.Passive)
	wr.Imm = immediate
	p.Active.PostSend(wr, p.Active.Send(2, 0, 0))
	if wc := p.Passive.Expect(1, verbs.StatusSuccess, verbs.WCRecvRDMAImm); !wc.HasImm || wc.Imm != immediate || wc.Len != 1000 {
		t.Errorf("completion = %+v, want 1000 bytes with immediate %#x", wc, immediate)
	}
	if wc := p.Passive.Expect(2, verbs.StatusSuccess, verbs.WCRecv); wc.Len != 0 {
		t.Errorf("length = %d, want 0", wc.Len)
	}
	p.Active.Take(2)
}

// testEmptyListTakesNoBytes sends bytes to a receive without a list.
// parity: V32
func testEmptyListTakesNoBytes(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	p.Passive.postRecvWR(verbs.RecvWR{ID: 1})
	p.Active.PostSend(p.Active.Send(2, 0, 1))
	p.Passive.Expect(1, verbs.StatusLocLenErr, 0)
	p.Active.Expect(2, verbs.StatusRemInvReqErr, 0)
}

// testTooLong sends one byte more than the receive takes: an error about the
// length at both sides, and nothing beyond the buffer is touched.
// parity: V34
func testTooLong(t *testing.T, dev *verbs.Device) {
	for _, n := range []int{8, 5000} {
		p := NewPair(t, dev, PairConfig{})
		p.Active.Fill(0, n+1, 1)
		p.Passive.PostRecv(1, 0, n)
		p.Passive.PostRecv(2, 0, n)
		p.Active.PostSend(p.Active.Send(3, 0, n+1))
		p.Passive.Expect(1, verbs.StatusLocLenErr, 0)
		p.Passive.Expect(2, verbs.StatusWRFlushErr, 0)
		p.Active.Expect(3, verbs.StatusRemInvReqErr, 0)
		if p.Passive.MR.Bytes()[n] != 0 {
			t.Error("the byte behind the buffer was written to")
		}
	}
}

// testBadBuffer receives into memory that the receiver may not write.
func testBadBuffer(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	ro := p.Passive.Alloc(64, verbs.RemoteRead)
	p.Passive.postRecvWR(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{ro.SGE(0, 64)}})
	p.Active.PostSend(p.Active.Send(2, 0, 8))
	p.Passive.Expect(1, verbs.StatusLocProtErr, 0)
	if wc := p.Active.Take(1)[0]; wc.Status == verbs.StatusSuccess || wc.Status == verbs.StatusWRFlushErr {
		t.Errorf("the sender's status = %v, want one that reports the peer's failure", wc.Status)
	}
	if !bytes.Equal(ro.Bytes(), make([]byte, 64)) {
		t.Error("memory without local-write was written to")
	}
}

// testLateReceive sends before a receive is posted. By default the message waits
// for ever.
// parity: V33
func testLateReceive(t *testing.T, dev *verbs.Device) {
	needs(t, dev, verbs.CapRNRWait)
	for _, n := range []int{0, 100, 60000} {
		p := NewPair(t, dev, PairConfig{})
		want := p.Active.Fill(0, n, 3)
		p.Active.PostSend(p.Active.Send(1, 0, n))
		p.Active.Quiet()
		p.Passive.Quiet()
		p.Passive.PostRecv(2, 0, n)
		p.Active.Expect(1, verbs.StatusSuccess, verbs.WCSend)
		p.Passive.Expect(2, verbs.StatusSuccess, verbs.WCRecv)
		if !bytes.Equal(p.Passive.MR.Bytes()[:n], want) {
			t.Errorf("%d bytes that waited differ", n)
		}
	}
}

// testManyLate sends more than any device holds back at the receiver before the
// first receive is posted; nothing is lost and the order stays.
func testManyLate(t *testing.T, dev *verbs.Device) {
	needs(t, dev, verbs.CapRNRWait)
	const n, size = 100, 100_000
	p := NewPair(t, dev, PairConfig{Memory: n * size})
	want := p.Active.Fill(0, n*size, 9)
	for i := range n {
		p.Active.PostSend(p.Active.Send(uint64(i), i*size, size))
	}
	p.Active.MR.Bytes() // not to be changed before the completions
	p.Passive.Quiet()
	for i := range n {
		p.Passive.PostRecv(uint64(i), i*size, size)
	}
	for i := range uint64(n) {
		p.Passive.Expect(i, verbs.StatusSuccess, verbs.WCRecv)
		p.Active.Expect(i, verbs.StatusSuccess, verbs.WCSend)
	}
	if !bytes.Equal(p.Passive.MR.Bytes(), want) {
		t.Error("messages that waited differ, or came in another order")
	}
}

// testNoReceiveByParam asks for no retries when connecting.
// parity: V33
func testNoReceiveByParam(t *testing.T, dev *verbs.Device) {
	none := verbs.ConnParam{RNRRetry: -1}
	p := NewPair(t, dev, PairConfig{Active: none, Passive: none})
	p.Active.PostSend(p.Active.Send(1, 0, 8))
	p.Active.Expect(1, verbs.StatusRNRRetryExcErr, 0)
	p.Passive.AwaitEnd()
}

// testNoReceiveByModify sets a finite patience afterwards. The count is an
// attribute of the sender on InfiniBand and of the receiver on iWARP, which has no
// answer that asks for a retry; the delay is the receiver's on both.
// parity: V33
func testNoReceiveByModify(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	for _, s := range []*Side{p.Active, p.Passive} {
		err := s.QP.Modify(verbs.QPAttr{Mask: verbs.AttrRNRRetry | verbs.AttrMinRNRTimer, RNRRetry: 2, MinRNRTimer: 6})
		if errors.Is(err, verbs.ErrInvalid) && attr(t, dev).Caps.Has(verbs.CapRawState) {
			t.Skip("the device sets the count on the way to RTS only, as InfiniBand's table of transitions has it, and says so")
		}
		if err != nil {
			t.Fatal(err)
		}
		if a, _ := s.QP.Query(); a.RNRRetry != 2 || a.MinRNRTimer != 6 {
			t.Errorf("query after Modify = retry %d, timer %d; want 2, 6", a.RNRRetry, a.MinRNRTimer)
		}
	}
	p.Active.PostSend(p.Active.Send(1, 0, 8))
	p.Active.Expect(1, verbs.StatusRNRRetryExcErr, 0)
}

// testReadBehindLate reads from the side that sent the waiting message: the answer comes
// behind the message on the wire and must not wait with it.
// parity: V33
func testReadBehindLate(t *testing.T, dev *verbs.Device) {
	needs(t, dev, verbs.CapRNRWait)
	p := NewPair(t, dev, PairConfig{})
	want := p.Active.Fill(0, 4096, 8)
	p.Active.PostSend(p.Active.Send(1, 0, 100))
	p.Passive.PostSend(p.Passive.RDMA(2, verbs.OpRead, 0, 4096, p.Active))
	p.Passive.Expect(2, verbs.StatusSuccess, verbs.WCRead)
	if !bytes.Equal(p.Passive.MR.Bytes()[:4096], want) {
		t.Error("the bytes read differ")
	}
	p.Passive.PostRecv(3, 8192, 100)
	p.Passive.Expect(3, verbs.StatusSuccess, verbs.WCRecv)
	p.Active.Expect(1, verbs.StatusSuccess, verbs.WCSend)
	if !bytes.Equal(p.Passive.MR.Bytes()[8192:8292], want[:100]) {
		t.Error("the message that waited differs")
	}
}

// testRecvOrder matches messages with receives of growing size in order.
func testRecvOrder(t *testing.T, dev *verbs.Device) {
	const n = 100
	p := NewPair(t, dev, PairConfig{})
	for i := range n {
		p.Passive.PostRecv(uint64(i), i*100, i)
	}
	for i := range n {
		p.Active.PostSend(p.Active.Send(uint64(i), 0, i))
	}
	for i := range uint64(n) {
		if wc := p.Passive.Expect(i, verbs.StatusSuccess, verbs.WCRecv); wc.Len != uint32(i) {
			t.Fatalf("receive %d has %d bytes", i, wc.Len)
		}
	}
	p.Active.Take(n)
}
