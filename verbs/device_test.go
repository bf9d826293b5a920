package verbs

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cinnabar/verbs/driver"
)

// parity: V03
func TestBusyNamesTheChildren(t *testing.T) {
	dev, _ := newFake(t)
	pd := must(dev.AllocPD())(t)
	cq := must(dev.CreateCQ(4))(t)
	cq2 := must(dev.CreateCQ(4))(t)
	srq := must(pd.CreateSRQ(SRQConfig{}))(t)
	qp := must(pd.CreateQP(QPConfig{SendCQ: cq, RecvCQ: cq2, SRQ: srq}))(t)
	mr1 := must(pd.RegMR(make([]byte, 1), 0))(t)
	mr2 := must(pd.RegMR(make([]byte, 1), 0))(t)

	wantErr(t, dev.Close(), ErrBusy, "close device", "1 protection domain, 2 completion queues")
	wantErr(t, pd.Close(), ErrBusy, "close protection domain", "2 memory regions, 1 queue pair, 1 shared receive queue")
	wantErr(t, cq.Close(), ErrBusy, "1 queue pair")
	wantErr(t, cq2.Close(), ErrBusy, "1 queue pair")
	wantErr(t, srq.Close(), ErrBusy, "1 queue pair")

	for range 2 { // in order it works, and twice does no harm
		for _, c := range []interface{ Close() error }{qp, srq, cq, cq2, mr1, mr2, pd, dev} {
			if err := c.Close(); err != nil {
				t.Errorf("%T: %v", c, err)
			}
		}
	}
}

func TestUseAfterClose(t *testing.T) {
	dev, _ := newFake(t)
	pd := must(dev.AllocPD())(t)
	cq := must(dev.CreateCQ(4))(t)
	closed := must(dev.CreateCQ(4))(t)
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := pd.CreateQP(QPConfig{SendCQ: cq, RecvCQ: closed})
	wantErr(t, err, ErrClosed, "completion queue")
	for _, c := range []interface{ Close() error }{cq, pd, dev} { // the failed QP counts nowhere
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	_, err = dev.AllocPD()
	wantErr(t, err, ErrClosed)
	_, err = dev.CreateCQ(1)
	wantErr(t, err, ErrClosed)
	_, err = pd.RegMR(make([]byte, 1), 0)
	wantErr(t, err, ErrClosed)
	_, err = pd.CreateSRQ(SRQConfig{})
	wantErr(t, err, ErrClosed)
}

// After a driver's failure nothing is counted, so everything can be closed.
func TestDriverFailures(t *testing.T) {
	dev, f := newFake(t)
	boom := errors.New("boom")
	f.fail(boom)
	_, err := dev.AllocPD()
	wantErr(t, err, boom)
	pd := must(dev.AllocPD())(t)
	cq := must(dev.CreateCQ(1))(t)
	for name, call := range map[string]func() error{
		"cq":  func() error { _, err := dev.CreateCQ(1); return err },
		"qp":  func() error { _, err := pd.CreateQP(QPConfig{SendCQ: cq}); return err },
		"srq": func() error { _, err := pd.CreateSRQ(SRQConfig{}); return err },
		"mr":  func() error { _, err := pd.RegMR(make([]byte, 1), 0); return err },
	} {
		f.fail(boom)
		if err := call(); !errors.Is(err, boom) {
			t.Errorf("%s: got %v, want boom", name, err)
		}
	}
	for _, c := range []interface{ Close() error }{cq, pd, dev} {
		f.fail(boom)
		wantErr(t, c.Close(), boom)
		if err := c.Close(); err != nil {
			t.Errorf("%T: %v", c, err)
		}
	}
}

func TestStats(t *testing.T) {
	dev, _ := newFake(t)
	if diff := cmp.Diff(dev.Stats(), Stats{"posts": 1, "mr_forgotten": 0}); diff != "" {
		t.Error(diff)
	}
}

func TestEventsNameHandles(t *testing.T) {
	dev, f := newFake(t)
	pd := must(dev.AllocPD())(t)
	cq := must(dev.CreateCQ(4))(t)
	srq := must(pd.CreateSRQ(SRQConfig{}))(t)
	qp := must(pd.CreateQP(QPConfig{SendCQ: cq, SRQ: srq}))(t)
	closeAll(t, qp, srq, cq, pd, dev)
	cause := errors.New("cause")
	for _, e := range []driver.AsyncEvent{
		{Type: EventQPFatal, Context: qp.drv.(*fakeQP).init.Context, Err: cause, Vendor: 7},
		{Type: EventCQErr, Context: f.cqs[0].context},
		{Type: EventSRQLimitReached, Context: srq.drv.(*fakeSRQ).init.Context},
		{Type: EventPortErr, Port: 1},
	} {
		f.events <- e
	}
	close(f.events)
	var got []AsyncEvent
	for e, err := range dev.Events(t.Context()) { // ends because the device is closed
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e)
	}
	want := []AsyncEvent{
		{Type: EventQPFatal, QP: qp, Err: cause, Vendor: 7}, {Type: EventCQErr, CQ: cq},
		{Type: EventSRQLimitReached, SRQ: srq}, {Type: EventPortErr, Port: 1},
	}
	if len(got) != len(want) {
		t.Fatalf("got %d events, want %d", len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("event %d: got %+v, want %+v", i, got[i], want[i])
		}
	}
}

func TestEventsEnd(t *testing.T) {
	dev, f := newFake(t)
	closeAll(t, dev)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for e, err := range dev.Events(ctx) {
		t.Errorf("got %v, %v after the context ended", e, err)
	}
	boom := errors.New("boom")
	f.fail(boom)
	f.events <- driver.AsyncEvent{}
	n := 0
	for _, err := range dev.Events(t.Context()) {
		wantErr(t, err, boom)
		n++
	}
	if n != 1 {
		t.Errorf("a failure was yielded %d times, want once", n)
	}
}

// TestAsyncEventString checks the text of an event about each kind of object.
func TestAsyncEventString(t *testing.T) {
	qp := &QP{drv: &fakeQP{}}
	for want, e := range map[string]AsyncEvent{
		EventQPFatal.String() + " of queue pair 1193046 (vendor code 0x7): no cable": {Type: EventQPFatal, QP: qp, Vendor: 7, Err: errors.New("no cable")},
		EventCQErr.String() + " of a completion queue":                               {Type: EventCQErr, CQ: &CQ{}},
		EventSRQErr.String() + " of a shared receive queue":                          {Type: EventSRQErr, SRQ: &SRQ{}},
		EventPortErr.String() + " of port 2":                                         {Type: EventPortErr, Port: 2},
		EventDeviceFatal.String():                                                    {Type: EventDeviceFatal},
	} {
		if got := e.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
