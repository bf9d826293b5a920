//go:build linux

package rdmacore_test

import (
	"context"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/verbstest"
)

// rxeFacts is known of the kernel's rxe (soft-RoCE), 6.1.
var rxeFacts = append(rxeLibraryFacts, []fact{
	{
		test:     "QP/Drain",
		standard: "what was posted in SQD is sent once the queue pair is back in RTS",
		observed: "it is sent with the next post after that",
		where:    "rxe_qp_from_attr does not schedule the requester on the way from SQD to RTS",
		check:    checkRxeDrain,
	},
	{
		test:     "Memory/LocalDomain",
		standard: "a gather entry of another domain is a local protection error",
		observed: "it is a local QP operation error",
		where:    "rxe_requester: finish_packet fails, IB_WC_LOC_QP_OP_ERR",
		check: func(t *testing.T, dev *verbs.Device) {
			localFailure(t, dev, foreignDomain, verbs.StatusLocQPOpErr)
		},
	},
	{
		test:     "Memory/LocalViolations",
		standard: "a gather entry with a wrong key or range is a local protection error",
		observed: "it is a local QP operation error",
		where:    "rxe_requester: finish_packet fails, IB_WC_LOC_QP_OP_ERR",
		check: func(t *testing.T, dev *verbs.Device) {
			localFailure(t, dev, wrongKey, verbs.StatusLocQPOpErr)
		},
	},
	{
		test:     "Memory/Keys",
		standard: "keys cannot be guessed",
		observed: "they are counted up, with a random byte at the end",
		where:    "rxe_mr_init: the index, shifted, and rxe_get_next_key",
		check:    checkRxeKeys,
	},
	{
		test:     "MW/Beyond",
		standard: "a request for a byte outside of the window is refused",
		observed: "it is carried out if the region has the byte",
		where:    "check_rkey calls mr_check_range with the region of the window, and looks at no bound of the window",
		check:    checkRxeBeyondWindow,
	},
	{
		test:     "MW/InvalidateUnknown",
		standard: "an invalidation of a key of no window is a memory management operation error",
		observed: "it is a local QP operation error",
		where:    "rxe_do_local_ops: IB_WC_LOC_QP_OP_ERR",
		check: func(t *testing.T, dev *verbs.Device) {
			p, _, key := rxeWindow(t, dev)
			p.Passive.PostSend(verbs.SendWR{ID: 7, Op: verbs.OpLocalInv, Flags: verbs.Signaled, InvKey: key ^ 1<<20})
			wantStatus(t, p.Passive, "owner", verbs.StatusLocQPOpErr)
		},
	},
	{
		test:     "MW/InvalidateTwice",
		standard: "a second invalidation of a window's key is a memory management operation error",
		observed: "the kernel releases a queue pair that is nil, also if the peer asks for it",
		where:    "rxe_check_invalidate_mw lets a window in the state FREE pass, and rxe_do_invalidate_mw takes its queue pair",
	},
	{
		test:     "Recv/TooLong",
		standard: "a message that is longer than the receive is a local length error there and a remote invalid request here",
		observed: "a local QP operation error and a remote operation error",
		where:    "send_data_in fails: RESPST_ERR_MALFORMED_WQE, IB_WC_LOC_QP_OP_ERR",
		check: func(t *testing.T, dev *verbs.Device) {
			checkRxeReceive(t, dev, func(p *verbstest.Pair) verbs.RecvWR {
				return verbs.RecvWR{ID: 2, SGL: []verbs.SGE{p.Passive.MR.SGE(0, 8)}}
			})
		},
	},
	{
		test:     "Recv/EmptyListTakesNoBytes",
		standard: "as Recv/TooLong",
		observed: "as Recv/TooLong",
		where:    "send_data_in",
		check: func(t *testing.T, dev *verbs.Device) {
			checkRxeReceive(t, dev, func(*verbstest.Pair) verbs.RecvWR { return verbs.RecvWR{ID: 2} })
		},
	},
	{
		test:     "Recv/BadBuffer",
		standard: "a receive into memory without local-write is a local protection error",
		observed: "a local QP operation error",
		where:    "send_data_in fails: RESPST_ERR_MALFORMED_WQE",
		check: func(t *testing.T, dev *verbs.Device) {
			checkRxeReceive(t, dev, func(p *verbstest.Pair) verbs.RecvWR {
				return verbs.RecvWR{ID: 2, SGL: []verbs.SGE{p.Passive.Alloc(64, verbs.RemoteRead).SGE(0, 64)}}
			})
		},
	},
	{
		test:     "SRQ/LastWQE",
		standard: "the last-WQE event tells that a queue pair in ERR will take no more from its shared queue",
		observed: "a queue pair that is moved to ERR by hand raises none",
		where:    "rxe_qp_error; only the responder raises it, in RESPST_ERROR's do_class_d1e_error",
		check:    noLastWQE,
	},
}...)

// rxeWindow binds a window of the passive side to 64 of the 128 bytes of a region, and returns the region and the key.
func rxeWindow(t *testing.T, dev *verbs.Device) (p *verbstest.Pair, mr *verbs.MR, key uint32) {
	p = verbstest.NewPair(t, dev, verbstest.PairConfig{})
	mr = p.Passive.Alloc(128, verbs.LocalWrite|verbs.MWBind)
	w, err := p.Passive.PD.AllocMW(verbs.MWType2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	p.Passive.PostSend(verbs.SendWR{ID: 1, Op: verbs.OpBindMW, Flags: verbs.Signaled, MW: w, MWAccess: verbs.RemoteWrite, SGL: []verbs.SGE{mr.SGE(0, 64)}})
	p.Passive.Expect(1, verbs.StatusSuccess, verbs.WCBindMW)
	return p, mr, w.RKey()
}

// writeBy writes 8 bytes at off of the region by a key.
func writeBy(p *verbstest.Pair, mr *verbs.MR, off int, key uint32) {
	wr := p.Active.Send(2, 0, 8)
	wr.Op, wr.Remote = verbs.OpWrite, mr.RemoteAt(off).WithKey(key)
	p.Active.PostSend(wr)
}

func checkRxeBeyondWindow(t *testing.T, dev *verbs.Device) {
	p, mr, key := rxeWindow(t, dev)
	writeBy(p, mr, 64, key)
	wantStatus(t, p.Active, "requester", verbs.StatusSuccess)
}

// pendingEvents takes the events that are there.
func pendingEvents(dev *verbs.Device) (list []verbs.AsyncEvent) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for {
		ev, err := dev.NextEvent(ctx)
		if err != nil {
			return list
		}
		list = append(list, ev)
	}
}

func checkRxeDrain(t *testing.T, dev *verbs.Device) {
	p := verbstest.NewPair(t, dev, verbstest.PairConfig{})
	step := func(to verbs.QPState) {
		if err := p.Active.QP.Modify(verbs.QPAttr{Mask: verbs.AttrState, State: to}); err != nil {
			t.Fatalf("to %v: %v", to, err)
		}
	}
	step(verbs.StateSQD)
	if ev, err := dev.NextEvent(p.Ctx); err != nil || ev.Type != verbs.EventSQDrained {
		t.Fatalf("event %v, %v; want send queue drained", ev.Type, err)
	}
	p.Active.PostSend(p.Active.RDMA(1, verbs.OpRead, 0, 8, p.Passive))
	step(verbs.StateRTS)
	p.Active.Quiet()
	p.Active.PostSend(p.Active.RDMA(2, verbs.OpRead, 0, 8, p.Passive))
	p.Active.Expect(1, verbs.StatusSuccess, verbs.WCRead)
	p.Active.Expect(2, verbs.StatusSuccess, verbs.WCRead)
}

func checkRxeKeys(t *testing.T, dev *verbs.Device) {
	p := verbstest.NewPair(t, dev, verbstest.PairConfig{})
	last := p.Active.Alloc(64, verbs.RemoteRead).RKey() >> 8
	for range 10 {
		key := p.Active.Alloc(64, verbs.RemoteRead).RKey() >> 8
		if key != last+1 {
			t.Errorf("the key after %#x.. is %#x.., they were counted up", last, key)
		}
		last = key
	}
}

// checkRxeReceive sends 9 bytes to a receive that cannot take them.
func checkRxeReceive(t *testing.T, dev *verbs.Device, recv func(p *verbstest.Pair) verbs.RecvWR) {
	p := verbstest.NewPair(t, dev, verbstest.PairConfig{})
	if _, err := p.Passive.QP.PostRecv([]verbs.RecvWR{recv(p)}); err != nil {
		t.Fatal(err)
	}
	p.Active.PostSend(p.Active.Send(1, 0, 9))
	wantStatus(t, p.Active, "sender", verbs.StatusRemOpErr)
	wantStatus(t, p.Passive, "receiver", verbs.StatusLocQPOpErr)
}
