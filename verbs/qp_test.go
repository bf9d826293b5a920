package verbs_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cinnabar/verbs"
	"cinnabar/verbs/internal/rig"
)

func TestQPDefaults(t *testing.T) {
	for _, c := range []struct {
		name  string
		limit int // of depth and entries, 0: unlimited
		cfg   verbs.QPConfig
		want  verbs.QPCap
	}{
		{"unlimited device", 0, verbs.QPConfig{}, verbs.QPCap{MaxSendWR: 128, MaxRecvWR: 128, MaxSendSGE: 4, MaxRecvSGE: 4}},
		{"small device", 2, verbs.QPConfig{}, verbs.QPCap{MaxSendWR: 2, MaxRecvWR: 2, MaxSendSGE: 2, MaxRecvSGE: 2}},
		{"none", 2, verbs.QPConfig{MaxSendWR: -1, MaxRecvWR: -1, MaxSendSGE: -1, MaxRecvSGE: -1}, verbs.QPCap{}},
		{"given", 0, verbs.QPConfig{MaxSendWR: 1, MaxRecvWR: 2, MaxSendSGE: 3, MaxRecvSGE: 4, MaxInline: 5}, verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 2, MaxSendSGE: 3, MaxRecvSGE: 4, MaxInline: 5}},
		{"shared receives", 0, verbs.QPConfig{SRQ: &verbs.SRQ{}, MaxRecvWR: 9}, verbs.QPCap{MaxSendWR: 128, MaxSendSGE: 4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dev, f := rig.NewFake(t)
			f.Attr.MaxQPWR, f.Attr.MaxSGE = c.limit, c.limit
			pd := rig.Must(dev.AllocPD())(t)
			cq := rig.Must(dev.CreateCQ(4))(t)
			srq := rig.Must(pd.CreateSRQ(verbs.SRQConfig{}))(t)
			c.cfg.SendCQ = cq
			if c.cfg.SRQ != nil {
				c.cfg.SRQ = srq
			}
			qp := rig.Must(pd.CreateQP(c.cfg))(t)
			rig.CloseAll(t, qp, srq, cq, pd, dev)
			init := f.QPs[0].Init
			if diff := cmp.Diff(init.Cap, c.want); diff != "" {
				t.Error(diff)
			}
			if init.Type != verbs.RC || init.SendCQ != f.CQs[0] || init.RecvCQ != f.CQs[0] || (init.SRQ != nil) != (c.cfg.SRQ != nil) {
				t.Errorf("got %+v", init)
			}
			_, cfg := qp.Query()
			if cfg.MaxSendWR != c.want.MaxSendWR || cfg.RecvCQ != cq {
				t.Errorf("Query: got %+v", cfg)
			}
		})
	}
}

func TestQPLimits(t *testing.T) {
	dev, f := rig.NewFake(t)
	other, _ := rig.NewFake(t)
	pd := rig.Must(dev.AllocPD())(t)
	cq := rig.Must(dev.CreateCQ(4))(t)
	foreign := rig.Must(other.CreateCQ(4))(t)
	rig.CloseAll(t, cq, pd, dev, foreign, other)
	f.Attr.QPTypes = []verbs.QPType{verbs.RC}
	for _, c := range []struct {
		name string
		cfg  verbs.QPConfig
		kind error
		want []string
	}{
		{"no queue", verbs.QPConfig{}, verbs.ErrInvalid, []string{"SendCQ is nil"}},
		{"other device", verbs.QPConfig{SendCQ: foreign}, verbs.ErrInvalid, []string{"another device"}},
		{"type", verbs.QPConfig{SendCQ: cq, Type: verbs.UD}, errors.ErrUnsupported, []string{"fake0", "type UD", "[RC]"}},
		{"send depth", verbs.QPConfig{SendCQ: cq, MaxSendWR: 65}, verbs.ErrInvalid, []string{"MaxSendWR is 65", "limit of 64", "MaxQPWR"}},
		{"recv depth", verbs.QPConfig{SendCQ: cq, MaxRecvWR: 65}, verbs.ErrInvalid, []string{"MaxRecvWR is 65"}},
		{"gather", verbs.QPConfig{SendCQ: cq, MaxSendSGE: 3}, verbs.ErrInvalid, []string{"MaxSendSGE is 3", "limit of 2", "MaxSGE"}},
		{"scatter", verbs.QPConfig{SendCQ: cq, MaxRecvSGE: 3}, verbs.ErrInvalid, []string{"MaxRecvSGE is 3"}},
		{"inline", verbs.QPConfig{SendCQ: cq, MaxInline: 17}, verbs.ErrInvalid, []string{"MaxInline is 17", "limit of 16"}},
		{"negative inline", verbs.QPConfig{SendCQ: cq, MaxInline: -1}, verbs.ErrInvalid, []string{"MaxInline is -1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := pd.CreateQP(c.cfg)
			rig.WantErr(t, err, c.kind, c.want...)
		})
	}
}

func TestSRQ(t *testing.T) {
	dev, f := rig.NewFake(t)
	pd := rig.Must(dev.AllocPD())(t)
	rig.CloseAll(t, pd, dev)
	for _, c := range []struct {
		cfg  verbs.SRQConfig
		want string
	}{
		{verbs.SRQConfig{MaxWR: 33}, "MaxWR is 33, over the device's limit of 32 (DeviceAttr.MaxSRQWR)"},
		{verbs.SRQConfig{MaxWR: -1}, "MaxWR is 0, the least is 1"},
		{verbs.SRQConfig{MaxSGE: 2}, "MaxSGE is 2"},
		{verbs.SRQConfig{MaxWR: 4, Limit: 5}, "Limit is 5"},
		{verbs.SRQConfig{Limit: -1}, "Limit is -1"},
	} {
		_, err := pd.CreateSRQ(c.cfg)
		rig.WantErr(t, err, verbs.ErrInvalid, c.want)
	}
	srq := rig.Must(pd.CreateSRQ(verbs.SRQConfig{}))(t)
	defer srq.Close()
	init := f.SRQs[0].Init
	if init.MaxWR != 32 || init.MaxSGE != 1 {
		t.Errorf("defaults: got %+v", init)
	}
	if err := errors.Join(srq.SetLimit(3), srq.Resize(16)); err != nil {
		t.Error(err)
	}
	if got, want := srq.Query(), (verbs.SRQAttr{MaxWR: 16, Limit: 3}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if n, err := srq.PostRecv(make([]verbs.RecvWR, 2)); n != 2 || err != nil {
		t.Errorf("PostRecv: got %d, %v", n, err)
	}
}

// A list of three with a bad second: the first is posted, the count names the second.
// parity: S06
func TestPostSendReportsFirstRefused(t *testing.T) {
	dev, _ := rig.NewFake(t)
	pd := rig.Must(dev.AllocPD())(t)
	cq := rig.Must(dev.CreateCQ(4))(t)
	qp := rig.Must(pd.CreateQP(verbs.QPConfig{SendCQ: cq}))(t)
	rig.CloseAll(t, qp, cq, pd, dev)
	n, err := qp.PostSend([]verbs.SendWR{{ID: 1}, {ID: rig.BadID}, {ID: 3}})
	if n != 1 || !errors.Is(err, rig.ErrBadID) {
		t.Errorf("got %d, %v, want 1, %v", n, err, rig.ErrBadID)
	}
}

func TestModifyAndState(t *testing.T) {
	dev, _ := rig.NewFake(t)
	pd := rig.Must(dev.AllocPD())(t)
	cq := rig.Must(dev.CreateCQ(4))(t)
	qp := rig.Must(pd.CreateQP(verbs.QPConfig{SendCQ: cq}))(t)
	rig.CloseAll(t, qp, cq, pd, dev)
	rig.WantErr(t, qp.Modify(verbs.QPAttr{Mask: verbs.AttrState, State: verbs.StateRTS}), verbs.ErrInvalid, "does not go from RESET to RTS")
	if got := qp.State(); got != verbs.StateReset {
		t.Errorf("state after a refused step: %v", got)
	}
	if err := qp.Modify(verbs.QPAttr{Mask: verbs.AttrState, State: verbs.StateErr}); err != nil {
		t.Error(err)
	}
	if got := qp.State(); got != verbs.StateErr || qp.Num() != 0x123456 {
		t.Errorf("got %v, number %#x", got, qp.Num())
	}
}

func TestDataPathDoesNotAllocate(t *testing.T) {
	dev, f := rig.NewFake(t)
	pd := rig.Must(dev.AllocPD())(t)
	cq := rig.Must(dev.CreateCQ(4))(t)
	qp := rig.Must(pd.CreateQP(verbs.QPConfig{SendCQ: cq}))(t)
	mr := rig.Must(pd.AllocMR(64, 0))(t)
	rig.CloseAll(t, mr, qp, cq, pd, dev)
	ctx := rig.Context(t)
	sge := []verbs.SGE{{}}
	send := []verbs.SendWR{{Op: verbs.OpSend, SGL: sge}}
	recv := []verbs.RecvWR{{SGL: sge}}
	wc := make([]verbs.WC, 4)
	for name, call := range map[string]func(){
		"SGE":      func() { sge[0] = mr.SGE(0, 8) },
		"PostSend": func() { _, _ = qp.PostSend(send) },
		"PostRecv": func() { _, _ = qp.PostRecv(recv) },
		"Poll":     func() { _, _ = cq.Poll(wc) },
		"Arm":      func() { _ = cq.Arm(false) },
		"Wait":     func() { f.CQs[0].Add(verbs.WC{}); _, _ = cq.Wait(ctx, wc) },
		"WC.Err":   func() { _ = wc[0].Err() },
	} {
		if n := testing.AllocsPerRun(100, call); n != 0 {
			t.Errorf("%s: %v allocations, want 0", name, n)
		}
	}
}
