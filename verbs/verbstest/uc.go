package verbstest

import (
	"bytes"
	"errors"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/oob"
)

func newUCPair(t *testing.T, dev *verbs.Device, cfg PairConfig) *Pair {
	t.Helper()
	needsType(t, dev, verbs.UC)
	cfg.QP.Type = verbs.UC
	p, _, _ := newPairByHand(t, dev, cfg, oob.Config{}, oob.Config{})
	return p
}

// testUCMessages sends both ways, with and without immediate, of one packet and of many.
func testUCMessages(t *testing.T, dev *verbs.Device) {
	p := newUCPair(t, dev, PairConfig{})
	for _, dir := range [][2]*Side{{p.Active, p.Passive}, {p.Passive, p.Active}} {
		from, to := dir[0], dir[1]
		for i, size := range []int{0, 1, 1024, 1025, 20000} {
			id := uint64(i)
			want := from.Fill(0, size, byte(i)+1)
			to.PostRecv(id, 30000, 20000)
			wr := from.Send(100+id, 0, size)
			if i%2 == 1 {
				wr.Op, wr.Imm = verbs.OpSendImm, immediate
			}
			from.PostSend(wr)
			from.Expect(100+id, verbs.StatusSuccess, verbs.WCSend)
			wc := to.Expect(id, verbs.StatusSuccess, verbs.WCRecv)
			if int(wc.Len) != size || wc.HasImm != (i%2 == 1) || wc.HasImm && wc.Imm != immediate {
				t.Errorf("%d bytes: completion %+v", size, wc)
			}
			if !bytes.Equal(to.MR.Bytes()[30000:30000+size], want) {
				t.Errorf("%d bytes: the payload differs", size)
			}
		}
	}
}

// testUCWrites writes; the immediate of a later write says that they are there.
func testUCWrites(t *testing.T, dev *verbs.Device) {
	const size = 10000
	p := newUCPair(t, dev, PairConfig{})
	want := p.Active.Fill(0, 2*size, 9)
	p.Passive.postRecvWR(verbs.RecvWR{ID: 5})
	imm := p.Active.RDMA(2, verbs.OpWriteImm, size, size, p.Passive)
	imm.Imm = immediate
	p.Active.PostSend(p.Active.RDMA(1, verbs.OpWrite, 0, size, p.Passive), imm)
	p.Active.Expect(1, verbs.StatusSuccess, verbs.WCWrite)
	p.Active.Expect(2, verbs.StatusSuccess, verbs.WCWrite)
	wc := p.Passive.Expect(5, verbs.StatusSuccess, verbs.WCRecvRDMAImm)
	if wc.Imm != immediate || int(wc.Len) != size {
		t.Errorf("completion %+v", wc)
	}
	if !bytes.Equal(p.Passive.MR.Bytes()[:2*size], want) {
		t.Error("the bytes written differ")
	}
	p.Passive.Quiet()
}

// lost is how many messages the tests of loss send in vain.
const lost = 8

// afterLoss posts receives and then sends the message with the number that they
// await. Earlier ones, which met no receive, may not arrive all: they are lost,
// without a report to the sender.
func afterLoss(t *testing.T, p *Pair, room int, send func(id uint64, imm uint32) verbs.SendWR) {
	t.Helper()
	for i := range uint64(lost) {
		p.Active.PostSend(send(i, 0))
		p.Active.Expect(i, verbs.StatusSuccess, verbs.WCSend)
	}
	for i := range uint64(lost + 1) {
		p.Passive.PostRecv(i, 0, room)
	}
	p.Active.PostSend(send(100, immediate))
	p.Active.Expect(100, verbs.StatusSuccess, verbs.WCSend)
	for i := range uint64(lost + 1) {
		wc := p.Passive.Expect(i, verbs.StatusSuccess, verbs.WCRecv)
		if wc.Imm == immediate {
			p.Passive.Quiet()
			if i == lost {
				t.Error("messages without a receive waited for one")
			}
			return
		}
	}
	t.Error("the message behind the lost ones did not arrive")
}

func testUCLost(t *testing.T, dev *verbs.Device) {
	p := newUCPair(t, dev, PairConfig{})
	afterLoss(t, p, 64, func(id uint64, imm uint32) verbs.SendWR {
		wr := p.Active.Send(id, 0, 64)
		wr.Op, wr.Imm = verbs.OpSendImm, imm
		return wr
	})
}

// testUCWrongKey writes with a key that is none: nothing is written, the writer
// gets a success, and the connection lives.
func testUCWrongKey(t *testing.T, dev *verbs.Device) {
	p := newUCPair(t, dev, PairConfig{})
	p.Active.Fill(0, 64, 7)
	wr := p.Active.RDMA(1, verbs.OpWrite, 0, 64, p.Passive)
	wr.Remote.RKey ^= 1
	p.Active.PostSend(wr)
	p.Active.Expect(1, verbs.StatusSuccess, verbs.WCWrite)
	p.Passive.PostRecv(2, 1000, 64)
	p.Active.PostSend(p.Active.Send(3, 0, 64))
	p.Active.Expect(3, verbs.StatusSuccess, verbs.WCSend)
	p.Passive.Expect(2, verbs.StatusSuccess, verbs.WCRecv)
	if !bytes.Equal(p.Passive.MR.Bytes()[:64], make([]byte, 64)) {
		t.Error("a write with a wrong key was carried out")
	}
}

// testUCRefusals posts operations that the type does not have, which harms nothing.
// parity(vm): V29
func testUCRefusals(t *testing.T, dev *verbs.Device) {
	p := newUCPair(t, dev, PairConfig{})
	p.refuseOpcodes(verbs.UC, nil, verbs.OpRead, verbs.OpCompareSwap, verbs.OpFetchAdd)
	p.sync()
}

// testUCStates asks for steps that the type does not have: an unreliable
// connection has no retries, reads and timers.
// parity(vm): V26
func testUCStates(t *testing.T, dev *verbs.Device) {
	needsType(t, dev, verbs.UC)
	s := newSide(t, testContext(t), dev, PairConfig{QP: verbs.QPConfig{Type: verbs.UC}}, false)
	if a, cfg := s.QP.Query(); cfg.Type != verbs.UC || a.Mask&verbs.AttrState == 0 {
		t.Errorf("query = %+v, %+v", a, cfg)
	}
	in, err := oob.LocalQPInfo(s.QP)
	if err != nil {
		t.Fatal(err)
	}
	rtr := verbs.QPAttr{
		Mask:  verbs.AttrState | verbs.AttrAV | verbs.AttrPathMTU | verbs.AttrDestQPN | verbs.AttrRQPSN,
		State: verbs.StateRTR, PathMTU: 3, DestQPN: s.QP.Num(), AH: oob.Config{}.AHAttr(in),
	}
	for what, change := range map[string]verbs.QPAttrMask{
		"without a path": verbs.AttrAV, "without a number": verbs.AttrDestQPN,
		"with reads": verbs.AttrMaxDestRDAtomic, "with an RNR timer": verbs.AttrMinRNRTimer,
	} {
		bad := rtr
		bad.Mask ^= change
		if err := s.QP.Modify(bad); !errors.Is(err, verbs.ErrInvalid) || s.QP.State() != verbs.StateInit {
			t.Errorf("to RTR %s: %v, state %v; want ErrInvalid, INIT", what, err, s.QP.State())
		}
	}
	if err := s.QP.Modify(rtr); err != nil {
		t.Fatalf("to RTR: %v", err)
	}
	rts := verbs.QPAttr{Mask: verbs.AttrState | verbs.AttrSQPSN | verbs.AttrRetryCount, State: verbs.StateRTS}
	if err := s.QP.Modify(rts); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("to RTS with retries: %v, want ErrInvalid", err)
	}
	rts.Mask &^= verbs.AttrRetryCount
	if err := s.QP.Modify(rts); err != nil {
		t.Errorf("to RTS: %v", err)
	}
	got, _ := s.QP.Query()
	if got.State != verbs.StateRTS || got.DestQPN != s.QP.Num() || got.AH.GID != in.GID {
		t.Errorf("query in RTS = %+v", got)
	}
}

func testUCFlush(t *testing.T, dev *verbs.Device) {
	p := newUCPair(t, dev, PairConfig{})
	toTheBreak(t, p.Active, func(id uint64) verbs.SendWR { return p.Active.Send(id, 0, 8) })
}
