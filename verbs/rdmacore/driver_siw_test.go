//go:build linux

package rdmacore_test

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/verbstest"
)

// siwFacts is known of the kernel's siw (soft-iWARP), 6.1, with rdma-core's library for it.
var siwFacts = []fact{
	{
		test:     "Memory/LocalDomain",
		standard: "a gather entry of another domain is a local protection error",
		observed: "it is a local QP operation error",
		where:    "siw_qp_sq_process: the error of siw_check_sgl_tx becomes SIW_WC_LOC_QP_OP_ERR",
		check: func(t *testing.T, dev *verbs.Device) {
			localFailure(t, dev, foreignDomain, verbs.StatusLocQPOpErr)
		},
	},
	{
		test:     "Memory/LocalViolations",
		standard: "a gather entry with a wrong key or range is a local protection error",
		observed: "it is a local QP operation error",
		where:    "siw_qp_sq_process",
		check: func(t *testing.T, dev *verbs.Device) {
			for _, spoil := range []func(*verbstest.Pair, *verbs.SGE){wrongKey, beyondEnd} {
				localFailure(t, dev, spoil, verbs.StatusLocQPOpErr)
			}
		},
	},
	{
		test:     "Memory/Unregistered",
		standard: "memory outside of any region is a local protection error",
		observed: "it is a local QP operation error",
		where:    "siw_qp_sq_process",
		check: func(t *testing.T, dev *verbs.Device) {
			localFailure(t, dev, func(_ *verbstest.Pair, e *verbs.SGE) { e.Addr = 0x1000 }, verbs.StatusLocQPOpErr)
		},
	},
	{
		test:     "Memory/GuessedKeys",
		standard: "a read with a wrong key is a remote access error",
		observed: "it is flushed, and nothing tells why the connection has ended",
		where:    "siw_proc_terminate only logs the Terminate; siw_sq_flush",
		check:    checkSiwReadKey,
	},
	{
		test:     "Event/Violation",
		standard: "a write with a wrong key fails, or an event tells of it",
		observed: "it completes with success before the peer has seen it, then the peer ends the connection; no event",
		where:    "siw_qp_sq_process completes what is in the socket; siw_proc_terminate raises nothing; siw_cm_upcall's close has status 0",
		check:    checkSiwWriteKey,
	},
	{
		test:     "/Memory/ReadWithoutRight",
		standard: "a read of a region without remote-read is refused",
		observed: "it succeeds",
		where:    "siw_check_mem asks for IB_ACCESS_REMOTE_READ nowhere on the way of a read request",
		check:    checkSiwReadRight,
	},
	{
		test:     "/QP/QueryState",
		standard: "ibv_query_qp tells the state",
		observed: "it tells RESET always, so that the package keeps the state itself",
		where:    "siw_query_qp leaves qp_state out",
		check:    checkSiwQuery,
	},
	{
		test:     "CM/BacklogFull",
		standard: "requests beyond the backlog are refused, and the listener closes",
		observed: "closing the listener behind them can corrupt a list of the kernel, whose thread ends; the device is stuck then",
		where:    "siw_destroy_listen: list_del corruption, seen with Debian's 6.1.0-50",
	},
	{
		test:     "QP/ResetAndReconnect",
		standard: "a queue pair in ERR goes to RESET and INIT and can be connected again",
		observed: "the steps are accepted and do nothing; the next connection is refused (EINVAL), a new queue pair is needed",
		where:    "siw_qp_modify has no way out of SIW_QP_STATE_ERROR; siw_accept, siw_proc_mpareply",
		check:    checkSiwReset,
	},
	{
		test:     "Post/InOrder",
		standard: "requests complete in the order in which they were posted",
		observed: "sends and writes complete when they are in the socket, and may overtake reads that were posted earlier",
		where:    "siw_qp_sq_process; a read waits in the ORQ for its answer",
		check:    checkSiwOrder,
	},
	{
		test:     "/Recv/None",
		standard: "RFC 5041 lets the receiver end the connection if no receive is posted; the sender is told by its completion",
		observed: "the send completes with success, then the connection ends",
		where:    "siw_proc_send: no receive, siw_init_terminate",
		check:    checkSiwNoReceive,
	},
	{
		test:     "/Recv/TooLong",
		standard: "a message that is longer than the receive fails at both sides",
		observed: "a local length error at the receiver; the sender's completion is a success",
		where:    "siw_proc_send; siw_qp_sq_process",
		check:    checkSiwTooLong,
	},
	{
		test:     "CQ/SolicitedOnly",
		standard: "a queue that is armed for solicited messages rings for them and for failures",
		observed: "it never rings, so that the package arms for all; one that is not solicited rings too",
		where:    "siw_rqe_complete calls siw_cq_notify_now without SIW_WQE_SOLICITED",
		check:    checkSiwSolicited,
	},
	{
		test:     "SRQ/LastWQE",
		standard: "the last-WQE event tells that a queue pair in ERR will take no more from its shared queue",
		observed: "there is none",
		where:    "siw_rq_flush knows no shared queue",
		check:    noLastWQE,
	},
}

func checkSiwReadKey(t *testing.T, dev *verbs.Device) {
	p := verbstest.NewPair(t, dev, verbstest.PairConfig{})
	wr := p.Active.RDMA(1, verbs.OpRead, 0, 8, p.Passive)
	wr.Remote.RKey ^= 1 << 20
	p.Active.PostSend(wr)
	wantStatus(t, p.Active, "requester", verbs.StatusWRFlushErr)
	p.Active.AwaitEnd()
	p.Passive.AwaitEnd()
}

func checkSiwWriteKey(t *testing.T, dev *verbs.Device) {
	p := verbstest.NewPair(t, dev, verbstest.PairConfig{})
	wr := p.Active.RDMA(1, verbs.OpWrite, 0, 8, p.Passive)
	wr.Remote.RKey ^= 1 << 20
	p.Active.PostSend(wr)
	wantStatus(t, p.Active, "requester", verbs.StatusSuccess)
	p.Active.AwaitEnd()
	p.Passive.AwaitEnd()
	if err := p.Active.Conn.Err(); !errors.Is(err, verbs.ErrDisconnected) {
		t.Errorf("the cause of the end is %v, was that the peer disconnected", err)
	}
	for _, ev := range pendingEvents(dev) {
		if ev.Type == verbs.EventQPFatal || ev.Type == verbs.EventQPAccessErr {
			t.Errorf("event %v, there was none", ev.Type)
		}
	}
}

func checkSiwReadRight(t *testing.T, dev *verbs.Device) {
	p := verbstest.NewPair(t, dev, verbstest.PairConfig{})
	target := p.Passive.Alloc(64, verbs.LocalWrite)
	for i := range target.Bytes() {
		target.Bytes()[i] = byte(i) + 1
	}
	wr := p.Active.RDMA(1, verbs.OpRead, 0, 64, p.Passive)
	wr.Remote = target.Remote()
	p.Active.PostSend(wr)
	wantStatus(t, p.Active, "requester", verbs.StatusSuccess)
	if !bytes.Equal(p.Active.MR.Bytes()[:64], target.Bytes()) {
		t.Error("the read brought something else, it was the memory")
	}
}

// checkSiwQuery compares the package's account with the attributes that it would
// have from the kernel.
func checkSiwQuery(t *testing.T, dev *verbs.Device) {
	p := verbstest.NewPair(t, dev, verbstest.PairConfig{})
	a, _ := p.Active.QP.Query()
	if a.State != verbs.StateRTS || a.Mask&^(verbs.AttrState|verbs.AttrCap) != 0 {
		t.Errorf("query = %v with attributes %v, was RTS, and no more than state and sizes", a.State, a.Mask)
	}
}

func checkSiwReset(t *testing.T, dev *verbs.Device) {
	p := verbstest.NewPair(t, dev, verbstest.PairConfig{})
	p.Active.Break()
	p.Active.AwaitEnd()
	for _, to := range []verbs.QPState{verbs.StateReset, verbs.StateInit} {
		if err := p.Active.QP.Modify(verbs.QPAttr{Mask: verbs.AttrState, State: to}); err != nil {
			t.Fatalf("to %v: %v", to, err)
		}
	}
	l, err := verbs.Listen(dev, netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	peer := p.Passive.NewQP(verbs.QPConfig{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		if req, err := l.Accept(p.Ctx); err == nil {
			_, _ = req.Accept(p.Ctx, peer, verbs.ConnParam{}) // either side may see the other go first
		}
	}()
	if _, err := verbs.Dial(p.Ctx, p.Active.QP, l.Addr(), verbs.ConnParam{}); err == nil || p.Ctx.Err() != nil {
		t.Errorf("the second connection: %v, it was refused", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	<-done
}

// checkSiwOrder takes the completions in any order: which it is, is up to the
// kernel's scheduler.
func checkSiwOrder(t *testing.T, dev *verbs.Device) {
	const rounds, each = 20, 8
	p := verbstest.NewPair(t, dev, verbstest.PairConfig{})
	for range rounds {
		for id := range uint64(each) {
			op := [...]verbs.Opcode{verbs.OpRead, verbs.OpWrite}[id%2]
			p.Active.PostSend(p.Active.RDMA(id, op, 0, 60000, p.Passive))
		}
		last := map[verbs.WCOp]uint64{verbs.WCRead: 0, verbs.WCWrite: 1}
		for _, wc := range p.Active.Take(each) {
			if wc.Status != verbs.StatusSuccess || wc.ID != last[wc.Op] {
				t.Fatalf("completion = id %d, %v (%v), want id %d, success", wc.ID, wc.Status, wc.Op, last[wc.Op])
			}
			last[wc.Op] += 2
		}
	}
}

func checkSiwNoReceive(t *testing.T, dev *verbs.Device) {
	p := verbstest.NewPair(t, dev, verbstest.PairConfig{})
	p.Active.PostSend(p.Active.Send(1, 0, 8))
	wantStatus(t, p.Active, "sender", verbs.StatusSuccess)
	p.Active.AwaitEnd()
	p.Passive.AwaitEnd()
}

func checkSiwTooLong(t *testing.T, dev *verbs.Device) {
	p := verbstest.NewPair(t, dev, verbstest.PairConfig{})
	p.Passive.PostRecv(2, 0, 8)
	p.Active.PostSend(p.Active.Send(1, 0, 9))
	wantStatus(t, p.Active, "sender", verbs.StatusSuccess)
	wantStatus(t, p.Passive, "receiver", verbs.StatusLocLenErr)
	p.Active.AwaitEnd()
}

func checkSiwSolicited(t *testing.T, dev *verbs.Device) {
	p := verbstest.NewPair(t, dev, verbstest.PairConfig{})
	for i, flags := range []verbs.SendFlags{verbs.Signaled, verbs.Signaled | verbs.Solicited} {
		p.Passive.PostRecv(uint64(i), 0, 8)
		if err := p.Passive.CQ.Arm(true); err != nil {
			t.Fatal(err)
		}
		wr := p.Active.Send(1, 0, 8)
		wr.Flags = flags
		p.Active.PostSend(wr)
		select {
		case <-p.Passive.CQ.Event():
		case <-p.Ctx.Done():
			t.Fatalf("no event for a message with flags %#x", uint32(flags))
		}
		p.Passive.Expect(uint64(i), verbs.StatusSuccess, verbs.WCRecv)
		p.Active.Expect(1, verbs.StatusSuccess, verbs.WCSend)
	}
}
