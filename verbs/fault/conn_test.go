package fault_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"syscall"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/fault"
	"cinnabar/verbs/iwarp"
)

func dialRule(do fault.Action) fault.Rule {
	return fault.Rule{Match: fault.Match{At: fault.AtDial, Queue: 1}, Do: do}
}

func requestRule(do fault.Action) fault.Rule {
	return fault.Rule{Match: fault.Match{At: fault.AtRequest, Limit: 1}, Do: do}
}

// TestConnectionFaults lets the first attempt go wrong in each way; the second
// one, with other queue pairs, must work.
func TestConnectionFaults(t *testing.T) {
	errOdd := errors.New("odd event")
	rejected := func(err error) bool {
		var r *verbs.RejectedError
		return errors.As(err, &r) && string(r.PrivateData) == "no"
	}
	for name, tc := range map[string]struct {
		rule fault.Rule
		want func(error) bool
	}{
		"dial refused":     {dialRule(fault.Refuse()), func(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }},
		"dial rejected":    {dialRule(fault.Reject([]byte("no"))), rejected},
		"dial fails":       {dialRule(fault.Fail(errOdd)), func(err error) bool { return errors.Is(err, errOdd) }},
		"request rejected": {requestRule(fault.Reject([]byte("no"))), rejected},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 0, 0, tc.rule)
			if err := r.connect(r.newQP(0, nil), r.newQP(1, nil)); !tc.want(err) {
				t.Errorf("first attempt: %v", err)
			}
			if err := r.connect(r.newQP(0, nil), r.newQP(1, nil)); err != nil {
				t.Errorf("second attempt: %v", err)
			}
			if got := r.in.Trace(); len(got) != 1 {
				t.Errorf("trace = %v, want one fault", got)
			}
		})
	}
}

// TestRequestFails makes Accept of the listener fail once; it is no reason for a
// server to end.
func TestRequestFails(t *testing.T) {
	errOdd := errors.New("odd event")
	r := newRig(t, 0, 0, requestRule(fault.Fail(errOdd)))
	dialled := make(chan error, 1)
	a := r.newQP(0, nil)
	go func() {
		_, err := verbs.Dial(r.ctx, a, r.lis.Addr(), verbs.ConnParam{})
		dialled <- err
	}()
	if _, err := r.lis.Accept(r.ctx); !errors.Is(err, errOdd) {
		t.Errorf("Accept: %v, want %v", err, errOdd)
	}
	var re *verbs.RejectedError
	if err := <-dialled; !errors.As(err, &re) {
		t.Errorf("Dial: %v, want a rejection", err)
	}
	if err := r.connect(r.newQP(0, nil), r.newQP(1, nil)); err != nil {
		t.Errorf("second attempt: %v", err)
	}
}

// TestIgnored leaves a dial and a request without an answer.
func TestIgnored(t *testing.T) {
	for _, rule := range []fault.Rule{dialRule(fault.Ignore()), requestRule(fault.Ignore())} {
		r := newRig(t, 0, 0, rule)
		ctx, cancel := context.WithCancel(r.ctx)
		ended := make(chan error, 2)
		a := r.newQP(0, nil)
		go func() {
			_, err := verbs.Dial(ctx, a, r.lis.Addr(), verbs.ConnParam{})
			ended <- err
		}()
		go func() {
			_, err := r.lis.Accept(ctx)
			ended <- err
		}()
		for len(r.in.Trace()) == 0 && r.ctx.Err() == nil {
			runtime.Gosched()
		}
		cancel()
		for range 2 {
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("Dial or Accept: %v, want context.Canceled", err)
			}
		}
		if err := r.connect(r.newQP(0, nil), r.newQP(1, nil)); err != nil {
			t.Errorf("second attempt: %v", err)
		}
	}
}

// TestDelayedConnection holds a dial and a request up until time has passed.
func TestDelayedConnection(t *testing.T) {
	r := newRig(t, 0, 0, dialRule(fault.Delay(3)), requestRule(fault.Delay(2)))
	connected := make(chan error, 1)
	a, b := r.newQP(0, nil), r.newQP(1, nil)
	go func() { connected <- r.connect(a, b) }()
	for done := false; !done; {
		select {
		case err := <-connected:
			if err != nil {
				t.Fatal(err)
			}
			done = true
		default:
			r.in.Advance(1)
		}
	}
	if got := len(r.in.Trace()); got != 2 {
		t.Errorf("%d faults, want 2", got)
	}
	r = newRig(t, 0, 0, dialRule(fault.Delay(3)))
	ctx, cancel := context.WithCancel(r.ctx)
	cancel()
	if _, err := verbs.Dial(ctx, r.newQP(0, nil), r.lis.Addr(), verbs.ConnParam{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Dial with an ended context: %v, want context.Canceled", err)
	}
}

// TestCreationFails makes registrations and creations fail by number.
func TestCreationFails(t *testing.T) {
	nth := func(at fault.Point, n int, err error) fault.Rule {
		return fault.Rule{Match: fault.Match{At: at, Nth: n}, Do: fault.Fail(err)}
	}
	errOdd := errors.New("odd")
	r := newRig(t, 0, 0, nth(fault.AtRegister, 2, verbs.ErrLockLimit), nth(fault.AtCreateQP, 1, errOdd), nth(fault.AtCreateCQ, 3, errOdd))
	if _, err := r.pd.AllocMR(64, 0); !errors.Is(err, verbs.ErrLockLimit) {
		t.Errorf("second registration: %v, want ErrLockLimit", err)
	}
	if _, err := r.dev.CreateCQ(1); !errors.Is(err, errOdd) {
		t.Errorf("third completion queue: %v, want %v", err, errOdd)
	}
	if _, err := r.pd.CreateQP(verbs.QPConfig{SendCQ: r.cq[0]}); !errors.Is(err, errOdd) {
		t.Errorf("first queue pair: %v, want %v", err, errOdd)
	}
	if err := r.connect(r.newQP(0, nil), r.newQP(1, nil)); err != nil {
		t.Error(err)
	}
}

// TestReregFails has the layer refuse a change of a region, which is a registration in its plan: the region is unchanged, and the next change is made.
// parity: V07
func TestReregFails(t *testing.T) {
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		t.Fatal(err)
	}
	dev = fault.Wrap(dev, fault.Plan{Rules: []fault.Rule{{Match: fault.Match{At: fault.AtRegister, Nth: 2}, Do: fault.Fail(verbs.ErrLockLimit)}}})
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	mr, err := pd.RegMR(make([]byte, 64), verbs.LocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	before, memory := mr.Region(), make([]byte, 128)
	if err := mr.Rereg(verbs.MRChange{Memory: memory}); !errors.Is(err, verbs.ErrLockLimit) || mr.Region() != before {
		t.Errorf("the refused change: %v, and the region is %v, want %v", err, mr.Region(), before)
	}
	if err := mr.Rereg(verbs.MRChange{Memory: memory}); err != nil || mr.Len() != 128 || mr.Region() == before {
		t.Errorf("the next change: %v, and the region is %v", err, mr.Region())
	}
	for _, end := range []func() error{mr.Close, pd.Close, dev.Close} {
		if err := end(); err != nil {
			t.Error(err)
		}
	}
}

// TestRaiseByRequest raises every asynchronous event about each kind of object
// and finds the program's own handles in it.
// parity: V41
func TestRaiseByRequest(t *testing.T) {
	r := newRig(t, 1, 0)
	srq, err := r.pd.CreateSRQ(verbs.SRQConfig{})
	if err != nil {
		t.Fatal(err)
	}
	r.keep(srq.Close)
	for typ := range verbs.EventType(verbs.NumEventTypes) {
		if err := r.in.Raise(typ, 1); err != nil {
			t.Errorf("%v: %v", typ, err)
			continue
		}
		ev, err := r.dev.NextEvent(r.ctx)
		if err != nil || ev.Type != typ {
			t.Errorf("event = %v, %v; want %v", ev.Type, err, typ)
		}
		subjects := 0
		for _, about := range []bool{ev.QP == r.qps[0], ev.CQ == r.cq[0], ev.SRQ == srq, ev.Port == 1} {
			if about {
				subjects++
			}
		}
		device := slices.Contains([]verbs.EventType{verbs.EventDeviceFatal, verbs.EventWQFatal}, typ)
		if device != (subjects == 0) || subjects > 1 {
			t.Errorf("%v is about %+v", typ, ev)
		}
	}
	if err := r.in.Raise(verbs.EventQPFatal, 3); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("event about a queue pair that does not exist: %v, want ErrInvalid", err)
	}
	if err := r.in.Disconnect(3); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("Disconnect of a queue pair that does not exist: %v, want ErrInvalid", err)
	}
}

// TestRaiseWakesWaiter raises an event while a call waits, and one by a rule.
func TestRaiseWakesWaiter(t *testing.T) {
	r := newRig(t, 1, 0, sendRule(2, fault.Raise(verbs.EventPortErr)), sendRule(2, fault.Raise(verbs.EventQPFatal)))
	got := make(chan verbs.AsyncEvent)
	go func() {
		defer close(got)
		for ev, err := range r.dev.Events(r.ctx) {
			if err != nil {
				t.Error(err)
				return
			}
			got <- ev
			if ev.Type == verbs.EventQPFatal {
				return
			}
		}
	}()
	if err := r.in.Raise(verbs.EventPortActive, 1); err != nil {
		t.Fatal(err)
	}
	if ev := <-got; ev.Type != verbs.EventPortActive || ev.Port != 1 {
		t.Errorf("event = %+v, want port 1 active", ev)
	}
	r.post(r.qps[0], r.send(verbs.OpWrite, 1, 8), r.send(verbs.OpWrite, 2, 8))
	if ev := <-got; ev.Type != verbs.EventPortErr || ev.Port != 1 {
		t.Errorf("event = %+v, want error of port 1", ev)
	}
	if ev := <-got; ev.Type != verbs.EventQPFatal || ev.QP != r.qps[0] {
		t.Errorf("event = %+v, want the queue pair's error", ev)
	}
	<-got
	r.take(0, 2) // the requests are not harmed
}

// TestSharedReceives injects faults into receives of a shared queue, whose
// completions come in the name of the queue pair that used them.
func TestSharedReceives(t *testing.T) {
	shared := func(nth int, do fault.Action) fault.Rule {
		return fault.Rule{Match: fault.Match{At: fault.AtSharedRecv, Queue: 1, Nth: nth}, Do: do}
	}
	errOdd := errors.New("odd")
	r := newRig(t, 0, 0, shared(1, fault.Drop()), shared(2, fault.Delay(5)), shared(3, fault.Status(verbs.StatusLocLenErr)),
		shared(4, fault.Fail(errOdd)), shared(1, fault.Raise(verbs.EventSRQErr)))
	srq, err := r.pd.CreateSRQ(verbs.SRQConfig{})
	if err != nil {
		t.Fatal(err)
	}
	r.keep(srq.Close)
	a, b := r.newQP(0, nil), r.newQP(1, srq)
	if err := r.connect(a, b); err != nil {
		t.Fatal(err)
	}
	recvs := make([]verbs.RecvWR, 4)
	for i := range recvs {
		recvs[i] = verbs.RecvWR{ID: uint64(i + 1), SGL: []verbs.SGE{r.mr.SGE(0, 64)}}
	}
	if n, err := srq.PostRecv(recvs); n != 3 || !errors.Is(err, errOdd) {
		t.Errorf("PostRecv = %d, %v; want 3, %v", n, err, errOdd)
	}
	ev, err := r.dev.NextEvent(r.ctx)
	if err != nil || ev.Type != verbs.EventSRQErr || ev.SRQ != srq {
		t.Errorf("event = %+v, %v; want an error of the shared queue", ev, err)
	}
	r.post(a, r.send(verbs.OpSend, 1, 8), r.send(verbs.OpSend, 2, 8))
	r.none(1, 5)
	got := r.take(1, 2)
	if got[0].ID != 2 || got[0].Status != verbs.StatusSuccess || got[1].ID != 3 || got[1].Status != verbs.StatusLocLenErr {
		t.Errorf("completions = %+v; want receive 2 late and receive 3 with a length error", got)
	}
	if got[0].QPNum != b.Num() || b.State() != verbs.StateErr {
		t.Errorf("queue pair %#x in %v; want %#x in ERR", got[0].QPNum, b.State(), b.Num())
	}
}
