package verbs_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cinnabar/verbs"
	"cinnabar/verbs/internal/rig"
)

// parity: V03
func TestBusyNamesTheChildren(t *testing.T) {
	dev, _ := rig.NewFake(t)
	pd := rig.Must(dev.AllocPD())(t)
	cq := rig.Must(dev.CreateCQ(4))(t)
	cq2 := rig.Must(dev.CreateCQ(4))(t)
	srq := rig.Must(pd.CreateSRQ(verbs.SRQConfig{}))(t)
	qp := rig.Must(pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq2, SRQ: srq}))(t)
	mr1 := rig.Must(pd.RegMR(make([]byte, 1), 0))(t)
	mr2 := rig.Must(pd.RegMR(make([]byte, 1), 0))(t)

	rig.WantErr(t, dev.Close(), verbs.ErrBusy, "close device", "1 protection domain, 2 completion queues")
	rig.WantErr(t, pd.Close(), verbs.ErrBusy, "close protection domain", "2 memory regions, 1 queue pair, 1 shared receive queue")
	rig.WantErr(t, cq.Close(), verbs.ErrBusy, "1 queue pair")
	rig.WantErr(t, cq2.Close(), verbs.ErrBusy, "1 queue pair")
	rig.WantErr(t, srq.Close(), verbs.ErrBusy, "1 queue pair")

	for range 2 { // in order it works, and twice does no harm
		for _, c := range []interface{ Close() error }{qp, srq, cq, cq2, mr1, mr2, pd, dev} {
			if err := c.Close(); err != nil {
				t.Errorf("%T: %v", c, err)
			}
		}
	}
}

func TestUseAfterClose(t *testing.T) {
	dev, _ := rig.NewFake(t)
	pd := rig.Must(dev.AllocPD())(t)
	cq := rig.Must(dev.CreateCQ(4))(t)
	closed := rig.Must(dev.CreateCQ(4))(t)
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: closed})
	rig.WantErr(t, err, verbs.ErrClosed, "completion queue")
	for _, c := range []interface{ Close() error }{cq, pd, dev} { // the failed QP counts nowhere
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	_, err = dev.AllocPD()
	rig.WantErr(t, err, verbs.ErrClosed)
	_, err = dev.CreateCQ(1)
	rig.WantErr(t, err, verbs.ErrClosed)
	_, err = pd.RegMR(make([]byte, 1), 0)
	rig.WantErr(t, err, verbs.ErrClosed)
	_, err = pd.CreateSRQ(verbs.SRQConfig{})
	rig.WantErr(t, err, verbs.ErrClosed)
}

// After a driver's failure nothing is counted, so everything can be closed.
func TestDriverFailures(t *testing.T) {
	dev, f := rig.NewFake(t)
	boom := errors.New("boom")
	f.Fail(boom)
	_, err := dev.AllocPD()
	rig.WantErr(t, err, boom)
	pd := rig.Must(dev.AllocPD())(t)
	cq := rig.Must(dev.CreateCQ(1))(t)
	for name, call := range map[string]func() error{
		"cq":  func() error { _, err := dev.CreateCQ(1); return err },
		"qp":  func() error { _, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq}); return err },
		"srq": func() error { _, err := pd.CreateSRQ(verbs.SRQConfig{}); return err },
		"mr":  func() error { _, err := pd.RegMR(make([]byte, 1), 0); return err },
	} {
		f.Fail(boom)
		if err := call(); !errors.Is(err, boom) {
			t.Errorf("%s: got %v, want boom", name, err)
		}
	}
	for _, c := range []interface{ Close() error }{cq, pd, dev} {
		f.Fail(boom)
		rig.WantErr(t, c.Close(), boom)
		if err := c.Close(); err != nil {
			t.Errorf("%T: %v", c, err)
		}
	}
}

func TestStats(t *testing.T) {
	dev, _ := rig.NewFake(t)
	if diff := cmp.Diff(dev.Stats(), verbs.Stats{"posts": 1, "mr_forgotten": 0}); diff != "" {
		t.Error(diff)
	}
}

func TestEventsNameHandles(t *testing.T) {
	dev, f := rig.NewFake(t)
	pd := rig.Must(dev.AllocPD())(t)
	cq := rig.Must(dev.CreateCQ(4))(t)
	srq := rig.Must(pd.CreateSRQ(verbs.SRQConfig{}))(t)
	qp := rig.Must(pd.CreateQP(verbs.QPConfig{SendCQ: cq, SRQ: srq}))(t)
	rig.CloseAll(t, qp, srq, cq, pd, dev)
	cause := errors.New("cause")
	for _, e := range []verbs.DeviceEvent{
		{Type: verbs.EventQPFatal, Context: f.QPs[0].Init.Context, Err: cause, Vendor: 7},
		{Type: verbs.EventCQErr, Context: f.CQs[0].Context},
		{Type: verbs.EventSRQLimitReached, Context: f.SRQs[0].Init.Context},
		{Type: verbs.EventPortErr, Port: 1},
	} {
		f.Events <- e
	}
	close(f.Events)
	var got []verbs.AsyncEvent
	for e, err := range dev.Events(t.Context()) { // ends because the device is closed
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e)
	}
	want := []verbs.AsyncEvent{
		{Type: verbs.EventQPFatal, QP: qp, Err: cause, Vendor: 7}, {Type: verbs.EventCQErr, CQ: cq},
		{Type: verbs.EventSRQLimitReached, SRQ: srq}, {Type: verbs.EventPortErr, Port: 1},
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
	dev, f := rig.NewFake(t)
	rig.CloseAll(t, dev)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for e, err := range dev.Events(ctx) {
		t.Errorf("got %v, %v after the context ended", e, err)
	}
	boom := errors.New("boom")
	f.Fail(boom)
	f.Events <- verbs.DeviceEvent{}
	n := 0
	for _, err := range dev.Events(t.Context()) {
		rig.WantErr(t, err, boom)
		n++
	}
	if n != 1 {
		t.Errorf("a failure was yielded %d times, want once", n)
	}
}

// TestAsyncEventString checks the text of an event about each kind of object.
func TestAsyncEventString(t *testing.T) {
	dev, _ := rig.NewFake(t)
	pd, cq := rig.Must(dev.AllocPD())(t), rig.Must(dev.CreateCQ(4))(t)
	qp := rig.Must(pd.CreateQP(verbs.QPConfig{SendCQ: cq}))(t)
	rig.CloseAll(t, qp, cq, pd, dev)
	for want, e := range map[string]verbs.AsyncEvent{
		verbs.EventQPFatal.String() + " of queue pair 1193046 (vendor code 0x7): no cable": {Type: verbs.EventQPFatal, QP: qp, Vendor: 7, Err: errors.New("no cable")},
		verbs.EventCQErr.String() + " of a completion queue":                               {Type: verbs.EventCQErr, CQ: &verbs.CQ{}},
		verbs.EventSRQErr.String() + " of a shared receive queue":                          {Type: verbs.EventSRQErr, SRQ: &verbs.SRQ{}},
		verbs.EventPortErr.String() + " of port 2":                                         {Type: verbs.EventPortErr, Port: 2},
		verbs.EventDeviceFatal.String():                                                    {Type: verbs.EventDeviceFatal},
	} {
		if got := e.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
