//go:build linux

package uverbs

import (
	"errors"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRxeSend(t *testing.T) {
	r := newRig(t, "rxe")
	a, b, cq := r.pair(qptRC, nil)
	r.fill(0, 3000, 1)
	r.recv(b, 1, r.sge(8192, 1000), r.sge(9192, 3000))
	r.send(a, SendWR{ID: 2, Op: opSend}, r.sge(0, 2000), r.sge(2000, 1000))
	got := r.good(cq, 2)
	if w := got[1]; w.Op != wcOpRecv || w.Len != 3000 || w.QPN != b.Num || w.Flags&wcWithImm != 0 {
		t.Errorf("receive: %+v", w)
	}
	if w := got[2]; w.Op != 0 || w.QPN != a.Num {
		t.Errorf("send: %+v", w)
	}
	r.equal(0, 8192, 3000)

	r.recv(b, 3, r.sge(8192, 100))
	r.send(a, SendWR{ID: 4, Op: opSendImm, Imm: 0x01020304, Flags: sendSolicited}, r.sge(0, 10))
	if w := r.good(cq, 2)[3]; w.Imm != 0x01020304 || w.Flags&wcWithImm == 0 || w.Len != 10 {
		t.Errorf("immediate: %+v", w)
	}

	r.recv(b, 5, r.sge(16384, 300)) // inline; the memory changes at once
	r.fill(0, 150, 9)
	r.fill(20000, 150, 9)
	r.send(a, SendWR{ID: 6, Op: opSend, Flags: sendInline}, r.sge(0, 100), r.sge(100, 50))
	r.fill(0, 150, 77)
	r.good(cq, 2)
	r.equal(16384, 20000, 150)

	r.recv(b, 7) // nothing at all
	r.send(a, SendWR{ID: 8, Op: opSend})
	if w := r.good(cq, 2)[7]; w.Len != 0 {
		t.Errorf("empty: %+v", w)
	}
}

func TestRxeRemote(t *testing.T) {
	r := newRig(t, "rxe")
	a, b, cq := r.pair(qptRC, nil)
	r.fill(0, 100_000, 3)
	r.send(a, SendWR{ID: 1, Op: opWrite, Remote: r.addr(200_000), RKey: r.mr.RKey}, r.sge(0, 100_000))
	if w := r.good(cq, 1)[1]; w.Op != 1 {
		t.Errorf("write: %+v", w)
	}
	r.equal(0, 200_000, 100_000)

	r.recv(b, 2)
	r.send(a, SendWR{ID: 3, Op: opWriteImm, Imm: 77, Remote: r.addr(400_000), RKey: r.mr.RKey}, r.sge(0, 64))
	if w := r.good(cq, 2)[2]; w.Op != wcOpRecvImm || w.Imm != 77 || w.Len != 64 {
		t.Errorf("write with immediate: %+v", w)
	}
	r.equal(0, 400_000, 64)

	r.send(a, SendWR{ID: 4, Op: opRead, Remote: r.addr(0), RKey: r.mr.RKey}, r.sge(500_000, 50_000), r.sge(550_000, 50_000))
	if w := r.good(cq, 1)[4]; w.Op != 2 || w.Len != 100_000 {
		t.Errorf("read: %+v", w)
	}
	r.equal(0, 500_000, 100_000)

	r.setU64(8, 40)
	r.send(a, SendWR{ID: 5, Op: opFetchAdd, Remote: r.addr(8), RKey: r.mr.RKey, CompareAdd: 2}, r.sge(16, 8))
	r.send(a, SendWR{ID: 6, Op: opCompareSwap, Remote: r.addr(8), RKey: r.mr.RKey, CompareAdd: 42, Swap: 99}, r.sge(24, 8))
	got := r.good(cq, 2)
	if got[5].Op != 4 || got[6].Op != 3 || r.u64(16) != 40 || r.u64(24) != 42 || r.u64(8) != 99 {
		t.Errorf("atomics: %+v, %d %d %d", got, r.u64(16), r.u64(24), r.u64(8))
	}
}

func TestRxeWindow(t *testing.T) {
	r := newRig(t, "rxe")
	a, b, cq := r.pair(qptRC, nil)
	mw := get[*MW](t)(r.pd.AllocMW(2))
	old := mw.RKey
	bind := Bind{MW: mw, MR: r.mr, Addr: r.addr(4096), Len: 4096, Access: accessRemoteWrite, RKey: nextKey(old)}
	r.send(b, SendWR{ID: 1, Op: opBindMW, Bind: &bind})
	if w := r.good(cq, 1)[1]; w.Op != 5 || mw.RKey == old {
		t.Errorf("bind: %+v, key %#x, was %#x", w, mw.RKey, old)
	}
	r.fill(0, 512, 8)
	r.send(a, SendWR{ID: 2, Op: opWrite, Remote: r.addr(4096), RKey: mw.RKey}, r.sge(0, 512))
	r.good(cq, 1)
	r.equal(0, 4096, 512)
	r.recv(b, 3, r.sge(9000, 64))
	r.send(a, SendWR{ID: 4, Op: opSendInv, Imm: mw.RKey}, r.sge(0, 64))
	if w := r.good(cq, 2)[3]; w.Flags&wcWithInv == 0 || w.Imm != mw.RKey {
		t.Errorf("send with invalidate: %+v, key %#x", w, mw.RKey)
	}
	bind.RKey = nextKey(mw.RKey)
	r.send(b, SendWR{ID: 5, Op: opBindMW, Bind: &bind})
	r.good(cq, 1)
	r.send(b, SendWR{ID: 6, Op: opLocalInv, Imm: mw.RKey})
	if w := r.good(cq, 1)[6]; w.Op != 6 {
		t.Errorf("local invalidate: %+v", w)
	}
	must(t, mw.Close())

	mw = get[*MW](t)(r.pd.AllocMW(mwType1))
	old = mw.RKey
	bind = Bind{MW: mw, MR: r.mr, Addr: r.addr(4096), Len: 4096, Access: accessRemoteWrite}
	key, err := b.BindMW1(&SendWR{ID: 7, Flags: sendSignaled, Bind: &bind})
	if err != nil || key != mw.RKey || key == old {
		t.Errorf("BindMW1: %#x, %v; window %#x, was %#x", key, err, mw.RKey, old)
	}
	t.Logf("bind of type 1: %+v", r.wait(cq, 1)[7])
	must(t, mw.Close())
}

func TestRxeSRQ(t *testing.T) {
	r := newRig(t, "rxe")
	srq := get[*SRQ](t)(r.pd.CreateSRQ(33, 8, 2))
	t.Cleanup(func() { must(t, srq.Close()) })
	a, b, cq := r.pair(qptRC, srq)
	r.recv(srq, 1, r.sge(8192, 64))
	r.recv(srq, 2, r.sge(8256, 32), r.sge(8288, 32))
	must(t, srq.SetLimit(2))
	if n := get[int](t)(srq.Limit()); n != 2 {
		t.Errorf("limit: %d", n)
	}
	r.fill(0, 64, 5)
	r.send(a, SendWR{ID: 3, Op: opSend}, r.sge(0, 64))
	r.send(a, SendWR{ID: 4, Op: opSend}, r.sge(0, 64))
	if got := r.good(cq, 4); got[1].QPN != b.Num || got[2].Len != 64 {
		t.Errorf("completions: %+v", got)
	}
	r.equal(0, 8192, 64)
	r.equal(0, 8256, 64)
	if typ, id, err := r.ctx.NextAsync(); typ != eventSRQLow || id != 33 || err != nil {
		t.Errorf("event: %d about %d, %v", typ, id, err)
	}
	if n, err := srq.PostRecv([]RecvWR{{Num: 3}}, make([]SGE, 3)); n != 0 || !errors.Is(err, syscall.EINVAL) {
		t.Errorf("three entries of two: %d, %v", n, err)
	}
	if n, err := b.PostRecv([]RecvWR{{}}, nil); n != 0 || !errors.Is(err, syscall.EINVAL) {
		t.Errorf("receive of a queue pair with a SRQ: %d, %v", n, err)
	}
	n, err := srq.PostRecv(make([]RecvWR, 100), nil)
	if !errors.Is(err, syscall.ENOMEM) || n < 8 {
		t.Errorf("overflow: %d, %v", n, err)
	}
}

func TestRxeEvents(t *testing.T) {
	r := newRig(t, "rxe")
	ch := get[*Channel](t)(r.ctx.CreateChannel())
	t.Cleanup(func() { must(t, ch.Close()) })
	cq := r.cq(16, ch)
	a, b := r.qp(qptRC, cq, nil), r.qp(qptRC, cq, nil)
	r.connect(a, b.Num)
	r.connect(b, a.Num)
	for _, solicited := range []bool{false, true} {
		if err := ch.Next(); !errors.Is(err, syscall.EAGAIN) {
			t.Fatalf("an event before: %v", err)
		}
		must(t, cq.Arm(solicited))
		r.recv(b, 1, r.sge(8192, 64))
		r.send(a, SendWR{ID: 2, Op: opSend, Flags: sendSolicited}, r.sge(0, 64))
		fds := []unix.PollFd{{Fd: int32(ch.FD()), Events: unix.POLLIN}}
		if n, err := unix.Poll(fds, 10_000); n != 1 || err != nil {
			t.Fatalf("no event: %d, %v", n, err)
		}
		must(t, ch.Next())
		r.good(cq, 2)
	}
}

func TestRxeResize(t *testing.T) {
	r := newRig(t, "rxe")
	a, b, cq := r.pair(qptRC, nil)
	for i := range 3 {
		r.recv(b, uint64(10+i), r.sge(8192, 64))
		r.send(a, SendWR{ID: uint64(i), Op: opSend}, r.sge(0, 64))
	}
	r.waitDepth(cq, 6)
	must(t, cq.Resize(500))
	if cq.Depth() < 500 {
		t.Errorf("depth %d", cq.Depth())
	}
	r.good(cq, 6)
	for i := range 100 {
		r.recv(b, uint64(10+i%3), r.sge(8192, 64))
		r.send(a, SendWR{ID: uint64(i % 3), Op: opSend}, r.sge(0, 64))
		r.good(cq, 2)
	}
	if err := cq.Resize(1 << 30); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("too many: %v", err)
	}
	must(t, cq.Resize(2))
}

// waitDepth waits until n completions are in the queue.
func (r *rig) waitDepth(cq *CQ, n uint32) {
	q := &cq.ring.(*rxeCQ).queue
	r.until(func() bool { return q.producer.Load()-q.consumer.Load() >= n })
}

func TestRxeDatagram(t *testing.T) {
	r := newRig(t, "rxe")
	cq := r.cq(16, nil)
	a, b := r.qp(qptUD, cq, nil), r.qp(qptUD, cq, nil)
	r.connect(a, 0)
	r.connect(b, 0)
	p := r.path()
	ah := get[*AH](t)(r.pd.CreateAH(&p))
	r.fill(0, 500, 4)
	exchange := func(ah *AH) {
		t.Helper()
		r.recv(b, 1, r.sge(8192, 1000))
		r.send(a, SendWR{ID: 2, Op: opSendImm, Imm: 5, AH: ah, QPN: b.Num, QKey: testQKey}, r.sge(0, 500))
		if w := r.good(cq, 2)[1]; w.Len != 540 || w.SrcQP != a.Num || w.Flags != wcGRH|wcWithImm || w.Imm != 5 {
			t.Errorf("datagram: %+v", w)
		}
		r.equal(0, 8192+40, 500)
	}
	exchange(ah)
	old := &AH{ctx: r.ctx, path: p} // as of a kernel that gives no number
	must(t, rxe{}.openAH(old, make([]byte, 8)))
	clear(r.mem[8192:9192])
	exchange(old)
	if n, err := a.PostSend([]SendWR{{Op: opSend}}, nil); n != 0 || !errors.Is(err, syscall.EINVAL) {
		t.Errorf("without an address: %d, %v", n, err)
	}
	if n, err := a.PostSend([]SendWR{{Op: opRead, AH: ah}}, nil); n != 0 || !errors.Is(err, syscall.EINVAL) {
		t.Errorf("read: %d, %v", n, err)
	}
	must(t, ah.Close())
	p.SGIDIndex = 200
	if _, err := r.pd.CreateAH(&p); err == nil {
		t.Error("an address handle from a GID that is not there")
	}
}

func TestRxeUnreliable(t *testing.T) {
	r := newRig(t, "rxe")
	a, b, cq := r.pair(qptUC, nil)
	r.fill(0, 2000, 6)
	r.recv(b, 1, r.sge(8192, 2000))
	r.send(a, SendWR{ID: 2, Op: opSend}, r.sge(0, 2000))
	r.good(cq, 2)
	r.equal(0, 8192, 2000)
}

func TestRxeFlush(t *testing.T) {
	r := newRig(t, "rxe")
	a, b, cq := r.pair(qptRC, nil)
	r.recv(b, 1, r.sge(8192, 64))
	r.recv(b, 2, r.sge(8192, 64))
	must(t, b.Modify(&QPAttr{Mask: attrState, State: qpsErr}))
	got := r.wait(cq, 2)
	if got[1].Status != statusFlush || got[2].Status != statusFlush {
		t.Errorf("receives: %+v", got)
	}
	must(t, a.Modify(&QPAttr{Mask: attrState, State: qpsErr}))
	r.send(a, SendWR{ID: 3, Op: opSend}, r.sge(0, 64))
	if w := r.wait(cq, 1)[3]; w.Status != statusFlush {
		t.Errorf("send: %+v", w)
	}
	for _, q := range []*QP{a, b} {
		must(t, q.Modify(&QPAttr{Mask: attrState, State: qpsReset}))
	}
	r.connect(a, b.Num) // the queues work again, from where they stood
	r.connect(b, a.Num)
	for range 40 {
		r.recv(b, 4, r.sge(8192, 64))
		r.send(a, SendWR{ID: 5, Op: opSend}, r.sge(0, 64))
		r.good(cq, 2)
	}
}

func TestRxeOverflow(t *testing.T) {
	r := newRig(t, "rxe")
	cq := r.cq(64, nil)
	a, b := r.qp(qptRC, cq, nil), r.qp(qptRC, cq, nil)
	must(t, b.Modify(r.toInit(qptRC)))
	n, err := b.PostRecv(make([]RecvWR, 100), nil)
	if n < 16 || n == 100 || !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("receives: %d, %v", n, err)
	}
	r.connect(a, b.Num) // the peer does not answer
	wrs := make([]SendWR, 100)
	for i := range wrs {
		wrs[i] = SendWR{ID: uint64(i), Op: opSend}
	}
	n, err = a.PostSend(wrs, nil)
	if n < 16 || n == 100 || !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("sends: %d, %v", n, err)
	}
	if k, err := a.PostSend(wrs[:1], nil); k != 0 || !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("one more: %d, %v", k, err)
	}
	list := make([]SGE, 50)
	list[0].Length = 300
	for name, bad := range map[string]SendWR{
		"inline":      {Op: opSend, Flags: sendInline, Num: 1},
		"atomic":      {Op: opFetchAdd, Remote: 4, Num: 1},
		"short":       {Op: opFetchAdd, Remote: 8},
		"entries":     {Op: opSend, Num: a.Cap.MaxSendSGE + 1},
		"outside":     {Op: opSend, First: 48, Num: 3},
		"negative":    {Op: opSend, First: -1, Num: 1},
		"opcode":      {Op: opTSO},
		"large":       {Op: 1 << 20},
		"bind":        {Op: opBindMW},
		"inline read": {Op: opRead, Flags: sendInline},
	} {
		if k, err := a.PostSend([]SendWR{bad}, list); k != 0 || !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %d, %v", name, k, err)
		}
	}
	must(t, a.Modify(&QPAttr{Mask: attrState, State: qpsErr}))
	r.wait(cq, n)
}

func TestRxeAllocations(t *testing.T) {
	r := newRig(t, "rxe")
	a, b, cq := r.pair(qptRC, nil)
	sges := []SGE{r.sge(0, 64)}
	send, recv := []SendWR{{ID: 1, Op: opSend, Flags: sendSignaled, Num: 1}}, []RecvWR{{ID: 2, Num: 1}}
	var out [4]WC
	if n := testing.AllocsPerRun(50, func() {
		if _, err := b.PostRecv(recv, sges); err != nil {
			t.Fatal(err)
		}
		if _, err := a.PostSend(send, sges); err != nil {
			t.Fatal(err)
		}
		must(t, cq.Arm(false))
		for got := 0; got < 2; {
			n, err := cq.Poll(out[:])
			must(t, err)
			got += n
		}
	}); n != 0 {
		t.Errorf("%v allocations of a message", n)
	}
}
