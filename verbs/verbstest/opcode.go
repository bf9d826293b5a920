package verbstest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"cinnabar/verbs"
)

// wcOpOf returns the operation that the completion of a send work request reports.
func wcOpOf(op verbs.Opcode) verbs.WCOp {
	switch op {
	case verbs.OpWrite, verbs.OpWriteImm:
		return verbs.WCWrite
	case verbs.OpRead:
		return verbs.WCRead
	case verbs.OpCompareSwap:
		return verbs.WCCompareSwap
	case verbs.OpFetchAdd:
		return verbs.WCFetchAdd
	default:
		return verbs.WCSend
	}
}

// neededCaps has the capabilities for each operation; a device must have at least one of them. 0: every device has the operation.
var neededCaps = map[verbs.Opcode]verbs.Caps{
	verbs.OpSend: 0, verbs.OpWrite: 0, verbs.OpRead: 0,
	verbs.OpWriteImm: verbs.CapWriteImm, verbs.OpSendImm: verbs.CapSendImm, verbs.OpSendInvalidate: verbs.CapSendInvalidate | verbs.CapMW2,
	verbs.OpLocalInv: verbs.CapMW2, verbs.OpBindMW: verbs.CapMW1 | verbs.CapMW2,
	verbs.OpCompareSwap: verbs.CapAtomics, verbs.OpFetchAdd: verbs.CapAtomics,
}

// immediate has another value in each byte order.
const immediate = 0x01020304

// parity: V28
func testSend(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	want := p.Active.Fill(0, 100, 1)
	p.Passive.PostRecv(5, 1000, 128)
	p.Active.PostSend(p.Active.Send(6, 0, 100))
	p.Active.Expect(6, verbs.StatusSuccess, verbs.WCSend)
	wc := p.Passive.Expect(5, verbs.StatusSuccess, verbs.WCRecv)
	if wc.Len != 100 || wc.HasImm || wc.HasInv {
		t.Errorf("completion = %+v, want 100 bytes without immediate", wc)
	}
	if got := p.Passive.MR.Bytes()[1000:1100]; !bytes.Equal(got, want) {
		t.Error("the payload differs")
	}
	if got := p.Passive.MR.Bytes()[1100:1128]; !bytes.Equal(got, make([]byte, 28)) {
		t.Error("bytes behind the message were written to")
	}
}

// parity: V28 V31
func testSendImm(t *testing.T, dev *verbs.Device) {
	needs(t, dev, verbs.CapSendImm)
	p := NewPair(t, dev, PairConfig{})
	want := p.Active.Fill(0, 100, 2)
	p.Passive.PostRecv(5, 1000, 100)
	p.Passive.PostRecv(6, 2000, 100)
	wr := p.Active.Send(7, 0, 100)
	wr.Op, wr.Imm = verbs.OpSendImm, immediate
	p.Active.PostSend(wr, p.Active.Send(8, 0, 1))
	p.Active.Expect(7, verbs.StatusSuccess, verbs.WCSend)
	wc := p.Passive.Expect(5, verbs.StatusSuccess, verbs.WCRecv)
	if !wc.HasImm || wc.Imm != immediate || wc.Len != 100 {
		t.Errorf("completion = %+v, want 100 bytes with immediate %#x", wc, immediate)
	}
	if !bytes.Equal(p.Passive.MR.Bytes()[1000:1100], want) {
		t.Error("the payload differs")
	}
	if wc := p.Passive.Expect(6, verbs.StatusSuccess, verbs.WCRecv); wc.HasImm {
		t.Errorf("the next message has an immediate too: %+v", wc)
	}
}

// parity: V28
func testWrite(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	want := p.Active.Fill(64, 5000, 3)
	p.Active.PostSend(p.Active.RDMA(1, verbs.OpWrite, 64, 5000, p.Passive))
	p.Active.Expect(1, verbs.StatusSuccess, verbs.WCWrite)
	p.sync()
	if !bytes.Equal(p.Passive.MR.Bytes()[64:5064], want) {
		t.Error("the payload differs")
	}
	if p.Passive.MR.Bytes()[63] != 0 || p.Passive.MR.Bytes()[5064] != 0 {
		t.Error("bytes beside the target were written to")
	}
}

// sync returns when everything that the active side sent before has arrived.
func (p *Pair) sync() {
	p.Passive.t.Helper()
	p.Passive.PostRecv(1<<63, 0, 0)
	p.Active.PostSend(p.Active.Send(1<<63, 0, 0))
	p.Active.Expect(1<<63, verbs.StatusSuccess, verbs.WCSend)
	p.Passive.Expect(1<<63, verbs.StatusSuccess, verbs.WCRecv)
}

// parity: V28 V31
func testWriteImm(t *testing.T, dev *verbs.Device) {
	needs(t, dev, verbs.CapWriteImm)
	p := NewPair(t, dev, PairConfig{})
	want := p.Active.Fill(0, 3000, 4)
	p.Passive.PostRecv(5, 60000, 100)
	wr := p.Active.RDMA(1, verbs.OpWriteImm, 0, 3000, p.Passive)
	wr.Imm = immediate
	p.Active.PostSend(wr)
	p.Active.Expect(1, verbs.StatusSuccess, verbs.WCWrite)
	wc := p.Passive.Expect(5, verbs.StatusSuccess, verbs.WCRecvRDMAImm)
	if !wc.HasImm || wc.Imm != immediate || wc.Len != 3000 {
		t.Errorf("completion = %+v, want 3000 bytes with immediate %#x", wc, immediate)
	}
	if !bytes.Equal(p.Passive.MR.Bytes()[:3000], want) {
		t.Error("the payload differs")
	}
	if !bytes.Equal(p.Passive.MR.Bytes()[60000:60100], make([]byte, 100)) {
		t.Error("the receive's buffer was written to")
	}
}

// parity: V28
func testRead(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	want := p.Passive.Fill(64, 5000, 5)
	p.Active.PostSend(p.Active.RDMA(1, verbs.OpRead, 64, 5000, p.Passive))
	p.Active.Expect(1, verbs.StatusSuccess, verbs.WCRead)
	if !bytes.Equal(p.Active.MR.Bytes()[64:5064], want) {
		t.Error("the payload differs")
	}
	if p.Active.MR.Bytes()[63] != 0 || p.Active.MR.Bytes()[5064] != 0 {
		t.Error("bytes beside the buffer were written to")
	}
	p.Passive.Quiet()
}

// atomic runs one atomic operation on the first word of the passive side and
// returns its value before.
func (p *Pair) atomic(op verbs.Opcode, compareAdd, swap uint64) uint64 {
	p.Active.t.Helper()
	wr := p.Active.RDMA(1, op, 8, 8, p.Passive)
	wr.Remote = p.Passive.MR.Remote()
	wr.CompareAdd, wr.Swap = compareAdd, swap
	p.Active.PostSend(wr)
	p.Active.Expect(1, verbs.StatusSuccess, wcOpOf(op))
	return binary.NativeEndian.Uint64(p.Active.MR.Bytes()[8:])
}

// word reads the first word of the passive side by a read, because plain access
// to a word that peers change is no business of a program.
func (p *Pair) word() uint64 {
	p.Active.t.Helper()
	p.Active.PostSend(p.Active.RDMA(2, verbs.OpRead, 0, 8, p.Passive))
	p.Active.Expect(2, verbs.StatusSuccess, verbs.WCRead)
	return binary.NativeEndian.Uint64(p.Active.MR.Bytes())
}

// parity: V28
func testCompareSwap(t *testing.T, dev *verbs.Device) {
	needs(t, dev, verbs.CapAtomics)
	p := NewPair(t, dev, PairConfig{})
	const a, b, c = 0x1122334455667788, 0x99aabbccddeeff00, 3
	binary.NativeEndian.PutUint64(p.Passive.MR.Bytes(), a)
	if old := p.atomic(verbs.OpCompareSwap, a, b); old != a {
		t.Errorf("old = %#x, want %#x", old, uint64(a))
	}
	if got := p.word(); got != b {
		t.Errorf("word = %#x, want the swapped %#x", got, uint64(b))
	}
	if old := p.atomic(verbs.OpCompareSwap, a, c); old != b {
		t.Errorf("old = %#x, want %#x", old, uint64(b))
	}
	if got := p.word(); got != b {
		t.Errorf("word = %#x after a comparison that failed, want %#x", got, uint64(b))
	}
}

// parity: V28
func testFetchAdd(t *testing.T, dev *verbs.Device) {
	needs(t, dev, verbs.CapAtomics)
	p := NewPair(t, dev, PairConfig{})
	binary.NativeEndian.PutUint64(p.Passive.MR.Bytes(), 40)
	if old := p.atomic(verbs.OpFetchAdd, 2, 0); old != 40 {
		t.Errorf("old = %d, want 40", old)
	}
	if old := p.atomic(verbs.OpFetchAdd, ^uint64(0), 0); old != 42 {
		t.Errorf("old = %d, want 42", old)
	}
	if got := p.word(); got != 41 {
		t.Errorf("word = %d after adding 2 and -1, want 41", got)
	}
}

// testAtomicAlignment aims beside an 8-byte boundary and gives buffers of other
// sizes: refused at the post, or by the status, never carried out.
// parity: V28
func testAtomicAlignment(t *testing.T, dev *verbs.Device) {
	needs(t, dev, verbs.CapAtomics)
	for _, tc := range []struct {
		name   string
		off, n int
	}{{"misaligned", 4, 8}, {"short buffer", 0, 4}, {"long buffer", 0, 16}} {
		t.Run(tc.name, func(t *testing.T) {
			p := NewPair(t, dev, PairConfig{})
			wr := p.Active.RDMA(1, verbs.OpFetchAdd, 0, tc.n, p.Passive)
			wr.Remote, wr.CompareAdd = p.Passive.MR.RemoteAt(tc.off), ^uint64(0)
			if n, err := p.Active.QP.PostSend([]verbs.SendWR{wr}); err == nil {
				if wc := p.Active.Take(1)[0]; wc.Status == verbs.StatusSuccess {
					t.Error("it succeeded")
				}
			} else if n != 0 || !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("PostSend = %d, %v; want 0, ErrInvalid", n, err)
			}
			closeAll(t, "queue pair", p.Active.QP.Close)
			p.Passive.AwaitEnd()
			if !bytes.Equal(p.Passive.MR.Bytes()[:16], make([]byte, 16)) {
				t.Error("memory was changed")
			}
		})
	}
}

func testAtomicAccess(t *testing.T, dev *verbs.Device) {
	needs(t, dev, verbs.CapAtomics)
	p := NewPair(t, dev, PairConfig{Access: fullAccess &^ verbs.RemoteAtomic})
	p.Active.PostSend(p.Active.RDMA(1, verbs.OpFetchAdd, 0, 8, p.Passive))
	p.Active.Expect(1, verbs.StatusRemAccessErr, 0)
}

// testAtomicsConcurrent adds from two connections at once: no addition gets lost.
func testAtomicsConcurrent(t *testing.T, dev *verbs.Device) {
	needs(t, dev, verbs.CapAtomics)
	n := uint64(sized(1000, 100))
	p := NewPair(t, dev, PairConfig{})
	l := listen(t, dev, loopback)
	sides := []*Side{p.Active, newSide(t, p.Ctx, dev, PairConfig{}, false)}
	if _, _, err := connect(p.Ctx, l, sides[1].QP, p.Passive.NewQP(verbs.QPConfig{}), verbs.ConnParam{}, verbs.ConnParam{}); err != nil {
		t.Fatal(err)
	}
	errs := make([]error, len(sides))
	var wg sync.WaitGroup
	for i, s := range sides {
		wg.Go(func() { errs[i] = s.addMany(n, p.Passive.MR.Remote()) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if got := p.word(); got != 2*n {
		t.Errorf("sum = %d, want %d", got, 2*n)
	}
}

// addMany adds 1 so many times. It may run beside the test's goroutine.
func (s *Side) addMany(n uint64, to verbs.RemoteAddr) error {
	wr := []verbs.SendWR{{Op: verbs.OpFetchAdd, Flags: verbs.Signaled, SGL: []verbs.SGE{s.MR.SGE(0, 8)}, Remote: to, CompareAdd: 1}}
	var wc [1]verbs.WC
	for range n {
		if _, err := s.QP.PostSend(wr); err != nil {
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

// testSendInvalidate revokes a key at the peer and then uses it.
// parity: V28
func testSendInvalidate(t *testing.T, dev *verbs.Device) {
	needs(t, dev, verbs.CapSendInvalidate)
	p := NewPair(t, dev, PairConfig{})
	target := p.Passive.Alloc(64, fullAccess|verbs.RemoteInvalidate)
	p.Passive.PostRecv(5, 0, 16)
	read := p.Active.RDMA(1, verbs.OpRead, 0, 8, p.Passive)
	read.Remote = target.Remote()
	inv := p.Active.Send(2, 0, 16)
	inv.Op, inv.InvKey = verbs.OpSendInvalidate, target.RKey()
	p.Active.PostSend(read, inv)
	p.Active.Expect(1, verbs.StatusSuccess, verbs.WCRead)
	p.Active.Expect(2, verbs.StatusSuccess, verbs.WCSend)
	wc := p.Passive.Expect(5, verbs.StatusSuccess, verbs.WCRecv)
	if !wc.HasInv || wc.InvKey != target.RKey() || wc.Len != 16 {
		t.Errorf("completion = %+v, want 16 bytes and the invalidated key %#x", wc, target.RKey())
	}
	read.ID = 3
	p.Active.PostSend(read)
	p.Active.Expect(3, verbs.StatusRemAccessErr, 0)
}

// testInvalidateRefused names a key of a region that does not grant invalidation: the connection ends, and the key
// serves other connections as before.
func testInvalidateRefused(t *testing.T, dev *verbs.Device) {
	needs(t, dev, verbs.CapSendInvalidate)
	p := NewPair(t, dev, PairConfig{})
	other := NewPair(t, dev, PairConfig{})
	p.Passive.PostRecv(5, 0, 16)
	inv := p.Active.Send(2, 0, 16)
	inv.Op, inv.InvKey = verbs.OpSendInvalidate, p.Passive.MR.RKey()
	p.Active.PostSend(inv)
	if wc := p.Active.Take(1)[0]; wc.Status == verbs.StatusSuccess {
		t.Error("the sender's completion reports success")
	}
	if wc := p.Passive.Take(1)[0]; wc.Status == verbs.StatusSuccess || wc.HasInv {
		t.Errorf("the receiver's completion is %+v, want a failure", wc)
	}
	p.Active.AwaitEnd()
	p.Passive.AwaitEnd()

	// The region's next user is a queue pair of the same domain.
	read := other.Active.Send(3, 0, 8)
	read.Op, read.Remote = verbs.OpRead, p.Passive.MR.Remote()
	second := p.Passive.NewQP(verbs.QPConfig{})
	first := other.Active.NewQP(verbs.QPConfig{})
	l := listen(t, dev, loopback)
	if _, _, err := connect(p.Ctx, l, first, second, verbs.ConnParam{}, verbs.ConnParam{}); err != nil {
		t.Fatalf("connect: %v", err)
	}
	if n, err := first.PostSend([]verbs.SendWR{read}); n != 1 || err != nil {
		t.Fatalf("PostSend = %d, %v", n, err)
	}
	if wc := other.Active.Take(1)[0]; wc.ID != 3 || wc.Status != verbs.StatusSuccess {
		t.Errorf("read of the region afterwards: %+v, want success", wc)
	}
}

// testRefusals posts each operation that the device lacks: it must say which
// operation, and the queue pair must be unharmed.
// parity: V29
func testRefusals(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	caps := attr(t, dev).Caps
	for op := verbs.OpWrite; op <= verbs.OpSendInvalidate; op++ {
		if need := neededCaps[op]; need == 0 || caps&need != 0 {
			continue
		}
		wr := p.Active.RDMA(1, op, 0, 8, p.Passive)
		n, err := p.Active.QP.PostSend([]verbs.SendWR{wr})
		if n != 0 || !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), op.String()) {
			t.Errorf("%v = %d, %v; want 0, ErrUnsupported with the operation's name", op, n, err)
		}
	}
	p.Active.PostSend(p.Active.RDMA(2, verbs.OpRead, 0, 8, p.Passive))
	p.Active.Expect(2, verbs.StatusSuccess, verbs.WCRead)
	if srq, err := p.Passive.PD.CreateSRQ(verbs.SRQConfig{}); caps.Has(verbs.CapSRQ) != (err == nil) {
		t.Errorf("capabilities %v, but CreateSRQ: %v", caps, err)
	} else if err == nil {
		closeAll(t, "shared receive queue", srq.Close)
	} else if !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("CreateSRQ: %v, want ErrUnsupported", err)
	}
	if ah, err := p.Active.PD.CreateAH(verbs.AHAttr{PortNum: 1}); err == nil {
		closeAll(t, "address handle", ah.Close)
	} else if !slices.Contains(attr(t, dev).QPTypes, verbs.UD) && !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("CreateAH: %v, want ErrUnsupported", err)
	}
}

// testValues compares the numbers that cross to C and appear in traces with
// those of verbs.h.
// parity: S05
func testValues(t *testing.T, _ *verbs.Device) {
	for _, v := range []struct {
		name      string
		got, want uint32
	}{
		{"IBV_WR_RDMA_WRITE", uint32(verbs.OpWrite), 0}, {"IBV_WR_RDMA_WRITE_WITH_IMM", uint32(verbs.OpWriteImm), 1},
		{"IBV_WR_SEND", uint32(verbs.OpSend), 2}, {"IBV_WR_SEND_WITH_IMM", uint32(verbs.OpSendImm), 3},
		{"IBV_WR_RDMA_READ", uint32(verbs.OpRead), 4}, {"IBV_WR_ATOMIC_CMP_AND_SWP", uint32(verbs.OpCompareSwap), 5},
		{"IBV_WR_ATOMIC_FETCH_AND_ADD", uint32(verbs.OpFetchAdd), 6}, {"IBV_WR_LOCAL_INV", uint32(verbs.OpLocalInv), 7},
		{"IBV_WR_BIND_MW", uint32(verbs.OpBindMW), 8}, {"IBV_WR_SEND_WITH_INV", uint32(verbs.OpSendInvalidate), 9},
		{"IBV_SEND_FENCE", uint32(verbs.Fence), 1}, {"IBV_SEND_SIGNALED", uint32(verbs.Signaled), 2},
		{"IBV_SEND_SOLICITED", uint32(verbs.Solicited), 4}, {"IBV_SEND_INLINE", uint32(verbs.Inline), 8},
		{"IBV_WC_SEND", uint32(verbs.WCSend), 0}, {"IBV_WC_RDMA_WRITE", uint32(verbs.WCWrite), 1},
		{"IBV_WC_RDMA_READ", uint32(verbs.WCRead), 2}, {"IBV_WC_COMP_SWAP", uint32(verbs.WCCompareSwap), 3},
		{"IBV_WC_FETCH_ADD", uint32(verbs.WCFetchAdd), 4}, {"IBV_WC_RECV", uint32(verbs.WCRecv), 128},
		{"IBV_WC_RECV_RDMA_WITH_IMM", uint32(verbs.WCRecvRDMAImm), 129},
		{"IBV_ACCESS_LOCAL_WRITE", uint32(verbs.LocalWrite), 1}, {"IBV_ACCESS_REMOTE_WRITE", uint32(verbs.RemoteWrite), 2},
		{"IBV_ACCESS_REMOTE_READ", uint32(verbs.RemoteRead), 4}, {"IBV_ACCESS_REMOTE_ATOMIC", uint32(verbs.RemoteAtomic), 8},
		{"IBV_QPT_RC", uint32(verbs.RC), 2}, {"IBV_QPS_ERR", uint32(verbs.StateErr), 6},
		{"IBV_WC_RNR_RETRY_EXC_ERR", uint32(verbs.StatusRNRRetryExcErr), 13}, {"IBV_WC_TM_RNDV_INCOMPLETE", uint32(verbs.StatusTMRndvIncomplete), 23},
	} {
		if v.got != v.want {
			t.Errorf("%s is %d, want %d", v.name, v.got, v.want)
		}
	}
}

// testZeroLength moves nothing: with an empty list, with an entry of no bytes,
// and with keys that name nothing.
func testZeroLength(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	p.Passive.PostRecv(1, 0, 8)
	p.Passive.PostRecv(2, 0, 8)
	empty := p.Active.Send(2, 0, 0)
	empty.SGL = nil
	p.Active.PostSend(p.Active.Send(1, 0, 0), empty,
		p.Active.RDMA(3, verbs.OpWrite, 0, 0, p.Passive),
		verbs.SendWR{ID: 4, Op: verbs.OpWrite, Flags: verbs.Signaled},
		p.Active.RDMA(5, verbs.OpRead, 0, 0, p.Passive))
	for i, op := range []verbs.WCOp{verbs.WCSend, verbs.WCSend, verbs.WCWrite, verbs.WCWrite, verbs.WCRead} {
		p.Active.Expect(uint64(i+1), verbs.StatusSuccess, op)
	}
	for id := range uint64(2) {
		if wc := p.Passive.Expect(id+1, verbs.StatusSuccess, verbs.WCRecv); wc.Len != 0 {
			t.Errorf("length = %d, want 0", wc.Len)
		}
	}
}

// testGatherScatter cuts a message into different pieces at the two sides.
func testGatherScatter(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{QP: verbs.QPConfig{MaxSendSGE: 4, MaxRecvSGE: 4}})
	a, b := p.Active.MR, p.Passive.MR
	p.Active.Fill(0, 8192, 6)
	want := bytes.Join([][]byte{a.Bytes()[0:10], a.Bytes()[4000:7000], a.Bytes()[20:21]}, nil)
	gather := []verbs.SGE{a.SGE(0, 10), a.SGE(4000, 3000), a.SGE(0, 0), a.SGE(20, 1)}
	scatter := []verbs.SGE{b.SGE(100, 1), b.SGE(0, 0), b.SGE(2000, 2000), b.SGE(9000, 2000)}
	landed := func() []byte {
		return bytes.Join([][]byte{b.Bytes()[100:101], b.Bytes()[2000:4000], b.Bytes()[9000:10010]}, nil)
	}
	p.Passive.postRecvWR(verbs.RecvWR{ID: 1, SGL: scatter})
	p.Active.PostSend(verbs.SendWR{ID: 2, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: gather})
	p.Active.Expect(2, verbs.StatusSuccess, verbs.WCSend)
	if wc := p.Passive.Expect(1, verbs.StatusSuccess, verbs.WCRecv); int(wc.Len) != len(want) || !bytes.Equal(landed(), want) {
		t.Errorf("send: %d bytes arrived, want the %d that were gathered", wc.Len, len(want))
	}
	p.Active.PostSend(verbs.SendWR{ID: 3, Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: gather, Remote: b.RemoteAt(20000)})
	p.Active.Expect(3, verbs.StatusSuccess, verbs.WCWrite)
	p.sync()
	if !bytes.Equal(b.Bytes()[20000:20000+len(want)], want) {
		t.Error("write: the gathered bytes did not arrive")
	}
	p.readScattered(b, 20000, want)
}

// readScattered reads want, which lies at off of the passive side, into three pieces.
func (p *Pair) readScattered(b *verbs.MR, off int, want []byte) {
	t := p.Active.t
	t.Helper()
	a := p.Active.MR
	pieces := []verbs.SGE{a.SGE(30000, 5), a.SGE(31000, 1000), a.SGE(33000, len(want)-1005)}
	n, err := p.Active.QP.PostSend([]verbs.SendWR{{ID: 4, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: pieces, Remote: b.RemoteAt(off)}})
	if !attr(t, p.Dev).Caps.Has(verbs.CapMultiSGERead) {
		if n != 0 || err == nil {
			t.Errorf("read into several entries = %d, %v; want a refusal, since the device lacks the capability", n, err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	p.Active.Expect(4, verbs.StatusSuccess, verbs.WCRead)
	got := bytes.Join([][]byte{a.Bytes()[30000:30005], a.Bytes()[31000:32000], a.Bytes()[33000 : 33000+len(want)-1005]}, nil)
	if !bytes.Equal(got, want) {
		t.Error("read: the scattered bytes differ")
	}
}

// testSizes moves messages around the sizes at which frames and segments end.
func testSizes(t *testing.T, dev *verbs.Device) {
	const most = 1 << 20
	p := NewPair(t, dev, PairConfig{Memory: most})
	for _, n := range []int{1, 3, 4, 7, 64, 1407, 1408, 1428, 1429, 1448, 4095, 4096, 4097, 32767, 65535, 65536, 65537, 1<<19 + 1, most} {
		want := p.Active.Fill(0, n, byte(n))
		clear(p.Passive.MR.Bytes())
		p.Passive.PostRecv(1, 0, n)
		p.Active.PostSend(p.Active.Send(2, 0, n))
		p.Active.Expect(2, verbs.StatusSuccess, verbs.WCSend)
		if wc := p.Passive.Expect(1, verbs.StatusSuccess, verbs.WCRecv); int(wc.Len) != n || !bytes.Equal(p.Passive.MR.Bytes()[:n], want) {
			t.Fatalf("send of %d bytes: %d arrived, or they differ", n, wc.Len)
		}
		clear(p.Active.MR.Bytes())
		p.Active.PostSend(p.Active.RDMA(3, verbs.OpRead, 0, n, p.Passive))
		p.Active.Expect(3, verbs.StatusSuccess, verbs.WCRead)
		if !bytes.Equal(p.Active.MR.Bytes()[:n], p.Passive.MR.Bytes()[:n]) {
			t.Fatalf("read of %d bytes: they differ", n)
		}
	}
}

// testBothDirections has large transfers under way in both directions, of which
// neither may wait for the other.
func testBothDirections(t *testing.T, dev *verbs.Device) {
	const half, each = 4 << 20, 4
	p := NewPair(t, dev, PairConfig{Memory: 2 * half})
	p.Active.Fill(0, half, 1)
	p.Passive.Fill(half, half, 2)
	for i := range uint64(each) {
		p.Active.PostSend(p.Active.RDMA(i, verbs.OpWrite, 0, half, p.Passive))
	}
	p.Active.Take(each)
	p.sync()
	for i := range uint64(each) {
		p.Active.PostSend(p.Active.RDMA(i, verbs.OpWrite, 0, half, p.Passive))
		p.Passive.PostSend(p.Passive.RDMA(i, verbs.OpWrite, half, half, p.Active))
		p.Passive.PostSend(p.Passive.RDMA(100+i, verbs.OpRead, 0, half, p.Active))
	}
	p.Active.Take(each)
	p.Passive.Take(2 * each)
	if !bytes.Equal(p.Active.MR.Bytes()[:half], p.Passive.MR.Bytes()[:half]) {
		t.Error("the bytes written and read by the two sides differ")
	}
}
