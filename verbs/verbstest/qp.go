package verbstest

import (
	"errors"
	"testing"

	"cinnabar/verbs"
)

// testQPLimits asks for more than the device has, and checks the granted limits.
// parity: S03
func testQPLimits(t *testing.T, dev *verbs.Device) {
	a := attr(t, dev)
	pd, cq := newPD(t, dev), newCQ(t, dev, 4)
	for name, cfg := range map[string]verbs.QPConfig{
		"MaxSendWR": {MaxSendWR: a.MaxQPWR + 1}, "MaxRecvWR": {MaxRecvWR: a.MaxQPWR + 1},
		"MaxSendSGE": {MaxSendSGE: a.MaxSGE + 1}, "MaxRecvSGE": {MaxRecvSGE: a.MaxSGE + 1}, "MaxInline": {MaxInline: a.MaxInline + 1},
	} {
		cfg.SendCQ = cq
		if qp, err := pd.CreateQP(cfg); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s over the limit: %v, want ErrInvalid", name, err)
			if err == nil {
				closeAll(t, "queue pair", qp.Close)
			}
		}
	}
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, MaxSendWR: 3, MaxRecvWR: 5, MaxSendSGE: 2, MaxRecvSGE: 1, MaxInline: min(16, a.MaxInline)})
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(t, "queue pair", qp.Close)
	got, cfg := qp.Query()
	if cfg.MaxSendWR < 3 || cfg.MaxRecvWR < 5 || cfg.MaxSendSGE < 2 || cfg.MaxRecvSGE < 1 || cfg.MaxInline < min(16, a.MaxInline) {
		t.Errorf("granted %+v, want at least the requested limits", cfg)
	}
	if cfg.Type != verbs.RC || got.Mask&verbs.AttrState == 0 || got.State != qp.State() {
		t.Errorf("query = %+v, %+v", got, cfg)
	}
}

func toState(s verbs.QPState) verbs.QPAttr {
	return verbs.QPAttr{Mask: verbs.AttrState, State: s}
}

// step is a state change by hand on a queue pair without a connection.
type step struct {
	path  []verbs.QPState // legal steps to get there
	to    verbs.QPState
	legal bool
}

var unconnectedSteps = []step{
	{nil, verbs.StateErr, true},
	{[]verbs.QPState{verbs.StateErr}, verbs.StateErr, true},
	{[]verbs.QPState{verbs.StateErr}, verbs.StateReset, true},
	{[]verbs.QPState{verbs.StateErr, verbs.StateReset}, verbs.StateInit, true},
	{[]verbs.QPState{verbs.StateErr, verbs.StateReset, verbs.StateInit}, verbs.StateInit, true},
	{[]verbs.QPState{verbs.StateErr, verbs.StateReset}, verbs.StateErr, true},
	{[]verbs.QPState{verbs.StateErr}, verbs.StateInit, false},
	{[]verbs.QPState{verbs.StateErr}, verbs.StateRTR, false},
	{[]verbs.QPState{verbs.StateErr}, verbs.StateRTS, false},
	{[]verbs.QPState{verbs.StateErr}, verbs.StateSQD, false},
	{[]verbs.QPState{verbs.StateErr, verbs.StateReset}, verbs.StateRTR, false},
	{[]verbs.QPState{verbs.StateErr, verbs.StateReset}, verbs.StateRTS, false},
	{[]verbs.QPState{verbs.StateErr, verbs.StateReset}, verbs.StateSQD, false},
	{[]verbs.QPState{verbs.StateErr, verbs.StateReset}, verbs.StateSQE, false},
	{[]verbs.QPState{verbs.StateErr, verbs.StateReset, verbs.StateInit}, verbs.StateRTS, false},
	{[]verbs.QPState{verbs.StateErr, verbs.StateReset, verbs.StateInit}, verbs.StateSQD, false},
	{[]verbs.QPState{verbs.StateErr, verbs.StateReset, verbs.StateInit}, verbs.QPState(99), false},
}

// testStatesByHand goes through the steps that need no peer. An illegal one is
// refused and changes nothing; the connection manager's own steps are refused
// where the device does not offer them, by name.
// parity: V26 D49
func testStatesByHand(t *testing.T, dev *verbs.Device) {
	pd, cq := newPD(t, dev), newCQ(t, dev, 4)
	for _, s := range unconnectedSteps {
		qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq})
		if err != nil {
			t.Fatal(err)
		}
		for _, via := range s.path {
			if err := qp.Modify(toState(via)); err != nil {
				t.Fatalf("%v on the way to %v: %v", via, s.to, err)
			}
		}
		before := qp.State()
		checkStep(t, qp, before, s)
		closeAll(t, "queue pair", qp.Close)
	}
	if attr(t, dev).Caps.Has(verbs.CapRawState) {
		return
	}
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq})
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(t, "queue pair", qp.Close)
	for _, s := range []verbs.QPState{verbs.StateRTR, verbs.StateRTS} {
		if err := qp.Modify(toState(s)); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%v by hand: %v, want ErrUnsupported: the connection manager connects", s, err)
		}
	}
}

func checkStep(t *testing.T, qp *verbs.QP, from verbs.QPState, s step) {
	t.Helper()
	err, got := qp.Modify(toState(s.to)), qp.State()
	switch {
	case s.legal && (err != nil || got != s.to):
		t.Errorf("%v to %v: %v, state is %v", from, s.to, err, got)
	case !s.legal && !errors.Is(err, verbs.ErrInvalid) && !errors.Is(err, errors.ErrUnsupported):
		t.Errorf("%v to %v: %v, want a refusal", from, s.to, err)
	case !s.legal && got != from:
		t.Errorf("the refused step from %v to %v left %v", from, s.to, got)
	}
}

// testStatesConnected goes through the steps from RTS.
// parity: V26
func testStatesConnected(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	for _, s := range []*Side{p.Active, p.Passive} {
		if got := s.QP.State(); got != verbs.StateRTS {
			t.Errorf("state after the connection = %v, want RTS", got)
		}
	}
	for _, to := range []verbs.QPState{verbs.StateInit, verbs.StateRTR, verbs.StateSQE} {
		checkStep(t, p.Active.QP, verbs.StateRTS, step{to: to})
	}
	p.Active.PostSend(p.Active.RDMA(1, verbs.OpRead, 0, 8, p.Passive))
	p.Active.Expect(1, verbs.StatusSuccess, verbs.WCRead)
	checkStep(t, p.Active.QP, verbs.StateRTS, step{to: verbs.StateErr, legal: true})
	p.Active.AwaitEnd()
	if err := p.Active.Conn.Err(); err == nil {
		t.Error("the connection ended without a cause")
	}
	p.Passive.AwaitEnd()
	if got := p.Passive.QP.State(); got != verbs.StateErr {
		t.Errorf("the peer's state = %v, want ERR", got)
	}
}

// testResetAndReconnect uses one pair of queue pairs for several connections.
// parity: V26
func testResetAndReconnect(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	l := listen(t, dev, loopback)
	for i := range uint64(3) {
		p.Passive.PostRecv(100+i, 0, 8)
		p.Active.PostSend(p.Active.Send(i, 0, 8))
		p.Passive.Expect(100+i, verbs.StatusSuccess, verbs.WCRecv)
		p.Active.Expect(i, verbs.StatusSuccess, verbs.WCSend)
		for _, s := range []*Side{p.Active, p.Passive} {
			s.Break()
			s.AwaitEnd()
			for _, to := range []verbs.QPState{verbs.StateReset, verbs.StateInit} {
				if err := s.QP.Modify(toState(to)); err != nil {
					t.Fatalf("round %d: %v: %v", i, to, err)
				}
			}
		}
		if err := p.connect(l, PairConfig{}); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
	}
}

// testDrain stops the send queue in order: requests posted before are done, the event
// comes, later requests wait until the queue pair is back in RTS.
// parity: V26
func testDrain(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	p.Active.PostSend(p.Active.RDMA(1, verbs.OpRead, 0, 8, p.Passive))
	p.Active.Expect(1, verbs.StatusSuccess, verbs.WCRead)
	if err := p.Active.QP.Modify(toState(verbs.StateSQD)); errors.Is(err, errors.ErrUnsupported) {
		t.Skip("the device has no SQD and says so")
	} else if err != nil {
		t.Fatal(err)
	}
	ev, err := dev.NextEvent(p.Ctx)
	if err != nil || ev.Type != verbs.EventSQDrained || ev.QP != p.Active.QP {
		t.Fatalf("event = %+v, %v; want send queue drained", ev, err)
	}
	p.Active.PostSend(p.Active.RDMA(2, verbs.OpRead, 0, 8, p.Passive))
	p.Active.Quiet()
	if err := p.Active.QP.Modify(toState(verbs.StateRTS)); err != nil {
		t.Fatal(err)
	}
	p.Active.Expect(2, verbs.StatusSuccess, verbs.WCRead)
}

// testPostInState posts where the state machine forbids it.
func testPostInState(t *testing.T, dev *verbs.Device) {
	s := newSide(t, testContext(t), dev, PairConfig{}, false)
	refused := func(what string, n int, err error) {
		t.Helper()
		if n != 0 || !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s = %d, %v; want 0, ErrInvalid", what, n, err)
		}
	}
	n, err := s.QP.PostSend([]verbs.SendWR{s.Send(1, 0, 8)})
	refused("PostSend before the connection", n, err)
	s.PostRecv(2, 0, 8) // receives are posted before the connection
	s.Break()
	s.Expect(2, verbs.StatusWRFlushErr, 0)
	s.PostRecv(3, 0, 8) // in ERR both are taken and flushed
	s.Expect(3, verbs.StatusWRFlushErr, 0)
	s.PostSend(s.Send(4, 0, 8))
	s.Expect(4, verbs.StatusWRFlushErr, 0)
	if err := s.QP.Modify(toState(verbs.StateReset)); err != nil {
		t.Fatal(err)
	}
	n, err = s.QP.PostRecv([]verbs.RecvWR{{ID: 5}})
	refused("PostRecv in RESET", n, err)
	n, err = s.QP.PostSend([]verbs.SendWR{s.Send(6, 0, 8)})
	refused("PostSend in RESET", n, err)
	s.Quiet()
}
