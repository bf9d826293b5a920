package verbs

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestQPDefaults(t *testing.T) {
	dev, f := newFake(t)
	pd := must(dev.AllocPD())(t)
	cq := must(dev.CreateCQ(4))(t)
	srq := must(pd.CreateSRQ(SRQConfig{}))(t)
	closeAll(t, srq, cq, pd, dev)
	for _, c := range []struct {
		name  string
		limit int // of depth and entries, 0: unlimited
		cfg   QPConfig
		want  QPCap
	}{
		{"unlimited device", 0, QPConfig{}, QPCap{MaxSendWR: 128, MaxRecvWR: 128, MaxSendSGE: 4, MaxRecvSGE: 4}},
		{"small device", 2, QPConfig{}, QPCap{MaxSendWR: 2, MaxRecvWR: 2, MaxSendSGE: 2, MaxRecvSGE: 2}},
		{"none", 2, QPConfig{MaxSendWR: -1, MaxRecvWR: -1, MaxSendSGE: -1, MaxRecvSGE: -1}, QPCap{}},
		{"given", 0, QPConfig{MaxSendWR: 1, MaxRecvWR: 2, MaxSendSGE: 3, MaxRecvSGE: 4, MaxInline: 5}, QPCap{MaxSendWR: 1, MaxRecvWR: 2, MaxSendSGE: 3, MaxRecvSGE: 4, MaxInline: 5}},
		{"shared receives", 0, QPConfig{SRQ: srq, MaxRecvWR: 9}, QPCap{MaxSendWR: 128, MaxSendSGE: 4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f.attr.MaxQPWR, f.attr.MaxSGE = c.limit, c.limit
			dev.forgetLimits()
			c.cfg.SendCQ = cq
			qp := must(pd.CreateQP(c.cfg))(t)
			defer qp.Close()
			init := qp.drv.(*fakeQP).init
			if diff := cmp.Diff(init.Cap, c.want); diff != "" {
				t.Error(diff)
			}
			if init.Type != RC || init.SendCQ != cq.drv || init.RecvCQ != cq.drv || (init.SRQ != nil) != (c.cfg.SRQ != nil) {
				t.Errorf("got %+v", init)
			}
			_, cfg := qp.Query()
			if cfg.MaxSendWR != c.want.MaxSendWR || cfg.RecvCQ != cq {
				t.Errorf("Query: got %+v", cfg)
			}
		})
	}
}

// forgetLimits lets the device change, which real ones do not.
func (d *Device) forgetLimits() {
	d.attrMu.Lock()
	defer d.attrMu.Unlock()
	d.attr = nil
}

func TestQPLimits(t *testing.T) {
	dev, f := newFake(t)
	other, _ := newFake(t)
	pd := must(dev.AllocPD())(t)
	cq := must(dev.CreateCQ(4))(t)
	foreign := must(other.CreateCQ(4))(t)
	closeAll(t, cq, pd, dev, foreign, other)
	f.attr.QPTypes = []QPType{RC}
	for _, c := range []struct {
		name string
		cfg  QPConfig
		kind error
		want []string
	}{
		{"no queue", QPConfig{}, ErrInvalid, []string{"SendCQ is nil"}},
		{"other device", QPConfig{SendCQ: foreign}, ErrInvalid, []string{"another device"}},
		{"type", QPConfig{SendCQ: cq, Type: UD}, errors.ErrUnsupported, []string{"fake0", "type UD", "[RC]"}},
		{"send depth", QPConfig{SendCQ: cq, MaxSendWR: 65}, ErrInvalid, []string{"MaxSendWR is 65", "limit of 64", "MaxQPWR"}},
		{"recv depth", QPConfig{SendCQ: cq, MaxRecvWR: 65}, ErrInvalid, []string{"MaxRecvWR is 65"}},
		{"gather", QPConfig{SendCQ: cq, MaxSendSGE: 3}, ErrInvalid, []string{"MaxSendSGE is 3", "limit of 2", "MaxSGE"}},
		{"scatter", QPConfig{SendCQ: cq, MaxRecvSGE: 3}, ErrInvalid, []string{"MaxRecvSGE is 3"}},
		{"inline", QPConfig{SendCQ: cq, MaxInline: 17}, ErrInvalid, []string{"MaxInline is 17", "limit of 16"}},
		{"negative inline", QPConfig{SendCQ: cq, MaxInline: -1}, ErrInvalid, []string{"MaxInline is -1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := pd.CreateQP(c.cfg)
			wantErr(t, err, c.kind, c.want...)
		})
	}
}

func TestSRQ(t *testing.T) {
	dev, _ := newFake(t)
	pd := must(dev.AllocPD())(t)
	closeAll(t, pd, dev)
	for _, c := range []struct {
		cfg  SRQConfig
		want string
	}{
		{SRQConfig{MaxWR: 33}, "MaxWR is 33, over the device's limit of 32 (DeviceAttr.MaxSRQWR)"},
		{SRQConfig{MaxWR: -1}, "MaxWR is 0, the least is 1"},
		{SRQConfig{MaxSGE: 2}, "MaxSGE is 2"},
		{SRQConfig{MaxWR: 4, Limit: 5}, "Limit is 5"},
		{SRQConfig{Limit: -1}, "Limit is -1"},
	} {
		_, err := pd.CreateSRQ(c.cfg)
		wantErr(t, err, ErrInvalid, c.want)
	}
	srq := must(pd.CreateSRQ(SRQConfig{}))(t)
	defer srq.Close()
	init := srq.drv.(*fakeSRQ).init
	if init.MaxWR != 32 || init.MaxSGE != 1 {
		t.Errorf("defaults: got %+v", init)
	}
	if err := errors.Join(srq.SetLimit(3), srq.Resize(16)); err != nil {
		t.Error(err)
	}
	if got, want := srq.Query(), (SRQAttr{MaxWR: 16, Limit: 3}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if n, err := srq.PostRecv(make([]RecvWR, 2)); n != 2 || err != nil {
		t.Errorf("PostRecv: got %d, %v", n, err)
	}
}

// A list of three with a bad second: the first is posted, the count names the second.
// parity: S06
func TestPostSendReportsFirstRefused(t *testing.T) {
	dev, _ := newFake(t)
	pd := must(dev.AllocPD())(t)
	cq := must(dev.CreateCQ(4))(t)
	qp := must(pd.CreateQP(QPConfig{SendCQ: cq}))(t)
	closeAll(t, qp, cq, pd, dev)
	n, err := qp.PostSend([]SendWR{{ID: 1}, {ID: badID}, {ID: 3}})
	if n != 1 || !errors.Is(err, errBadID) {
		t.Errorf("got %d, %v, want 1, %v", n, err, errBadID)
	}
}

func TestModifyAndState(t *testing.T) {
	dev, _ := newFake(t)
	pd := must(dev.AllocPD())(t)
	cq := must(dev.CreateCQ(4))(t)
	qp := must(pd.CreateQP(QPConfig{SendCQ: cq}))(t)
	closeAll(t, qp, cq, pd, dev)
	wantErr(t, qp.Modify(QPAttr{Mask: AttrState, State: StateRTS}), ErrInvalid, "does not go from RESET to RTS")
	if got := qp.State(); got != StateReset {
		t.Errorf("state after a refused step: %v", got)
	}
	if err := qp.Modify(QPAttr{Mask: AttrState, State: StateErr}); err != nil {
		t.Error(err)
	}
	if got := qp.State(); got != StateErr || qp.Num() != 0x123456 {
		t.Errorf("got %v, number %#x", got, qp.Num())
	}
}

func TestDataPathDoesNotAllocate(t *testing.T) {
	dev, f := newFake(t)
	pd := must(dev.AllocPD())(t)
	cq := must(dev.CreateCQ(4))(t)
	qp := must(pd.CreateQP(QPConfig{SendCQ: cq}))(t)
	mr := must(pd.AllocMR(64, 0))(t)
	closeAll(t, mr, qp, cq, pd, dev)
	ctx := testContext(t)
	sge := []SGE{{}}
	send := []SendWR{{Op: OpSend, SGL: sge}}
	recv := []RecvWR{{SGL: sge}}
	wc := make([]WC, 4)
	for name, call := range map[string]func(){
		"SGE":      func() { sge[0] = mr.SGE(0, 8) },
		"PostSend": func() { _, _ = qp.PostSend(send) },
		"PostRecv": func() { _, _ = qp.PostRecv(recv) },
		"Poll":     func() { _, _ = cq.Poll(wc) },
		"Arm":      func() { _ = cq.Arm(false) },
		"Wait":     func() { f.cqs[0].add(WC{}); _, _ = cq.Wait(ctx, wc) },
		"WC.Err":   func() { _ = wc[0].Err() },
	} {
		if n := testing.AllocsPerRun(100, call); n != 0 {
			t.Errorf("%s: %v allocations, want 0", name, n)
		}
	}
}
