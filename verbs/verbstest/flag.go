package verbstest

import (
	"bytes"
	"errors"
	"testing"

	"cinnabar/verbs"
)

// testUnsignaled posts silent requests between signaled ones, more in all than
// the queue is deep.
// parity: V30
func testUnsignaled(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{QP: verbs.QPConfig{MaxSendWR: 16}})
	for round := range uint64(20) {
		for i := range 10 {
			wr := p.Active.RDMA(7777, verbs.OpWrite, i*8, 8, p.Passive)
			wr.Flags = 0
			p.Active.PostSend(wr)
		}
		p.Active.PostSend(p.Active.RDMA(round, verbs.OpRead, 0, 8, p.Passive))
		p.Active.Expect(round, verbs.StatusSuccess, verbs.WCRead)
	}
	p.Active.Quiet()
}

// testUnsignaledFails checks that a failure is never silent.
func testUnsignaledFails(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	wr := p.Active.RDMA(3, verbs.OpRead, 0, 8, p.Passive)
	wr.Flags = 0
	wr.Remote.RKey ^= 1
	p.Active.PostSend(wr)
	p.Active.Expect(3, verbs.StatusRemAccessErr, 0)
}

func testSignalAll(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{QP: verbs.QPConfig{SignalAll: true}})
	for i := range uint64(5) {
		wr := p.Active.RDMA(i, verbs.OpWrite, 0, 8, p.Passive)
		wr.Flags = 0
		p.Active.PostSend(wr)
	}
	for i := range uint64(5) {
		p.Active.Expect(i, verbs.StatusSuccess, verbs.WCWrite)
	}
}

// testInline overwrites the buffer after each post.
// parity: V30
func testInline(t *testing.T, dev *verbs.Device) {
	most := min(attr(t, dev).MaxInline, 64)
	if most == 0 {
		t.Skip("the device takes no inline data; testInlineTooLong tests that it says so")
	}
	p := NewPair(t, dev, PairConfig{QP: verbs.QPConfig{MaxInline: most}})
	const n = 50
	for i := range uint64(n) {
		p.Passive.PostRecv(i, int(i)*64, most)
	}
	for i := range uint64(n) {
		p.Active.Fill(0, most, byte(i))
		wr := p.Active.Send(i, 0, most)
		wr.Flags |= verbs.Inline
		p.Active.PostSend(wr)
		clear(p.Active.MR.Bytes()[:most])
	}
	for i := range uint64(n) {
		p.Active.Expect(i, verbs.StatusSuccess, verbs.WCSend)
		p.Passive.Expect(i, verbs.StatusSuccess, verbs.WCRecv)
		if got := p.Passive.MR.Bytes()[i*64 : i*64+uint64(most)]; !bytes.Equal(got, p.Active.Fill(0, most, byte(i))) {
			t.Fatalf("message %d has bytes that were stored after the post", i)
		}
	}
}

func testInlineTooLong(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	_, cfg := p.Active.QP.Query()
	wr := p.Active.Send(1, 0, cfg.MaxInline+1)
	wr.Flags |= verbs.Inline
	if n, err := p.Active.QP.PostSend([]verbs.SendWR{wr}); n != 0 || !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("PostSend of %d bytes inline = %d, %v; want 0, ErrInvalid", cfg.MaxInline+1, n, err)
	}
}

// testFence sends the bytes that a read fetches: with the fence, the send may not look
// at the buffer before the read is done.
// parity: V30
func testFence(t *testing.T, dev *verbs.Device) {
	const size = 1 << 20
	p := NewPair(t, dev, PairConfig{Memory: 2 * size})
	for round := range uint64(10) {
		want := p.Passive.Fill(0, size, byte(round)+1)
		clear(p.Active.MR.Bytes()[:size])
		p.Passive.PostRecv(round, size, size)
		send := p.Active.Send(2, 0, size)
		send.Flags |= verbs.Fence
		p.Active.PostSend(p.Active.RDMA(1, verbs.OpRead, 0, size, p.Passive), send)
		p.Active.Expect(1, verbs.StatusSuccess, verbs.WCRead)
		p.Active.Expect(2, verbs.StatusSuccess, verbs.WCSend)
		p.Passive.Expect(round, verbs.StatusSuccess, verbs.WCRecv)
		if !bytes.Equal(p.Passive.MR.Bytes()[size:], want) {
			t.Fatalf("round %d: the send overtook the read", round)
		}
	}
}
