//go:build linux

package uverbs

import (
	"errors"
	"syscall"
	"testing"
)

func TestRxeAttributes(t *testing.T) {
	r := newRig(t, "rxe")
	a := get[DeviceAttr](t)(r.ctx.QueryDevice())
	t.Logf("%+v", a)
	if a.Ports != 1 || a.MaxQPWR == 0 || a.MaxSGE == 0 || a.MaxCQE == 0 || a.MaxSRQ == 0 || a.MaxAH == 0 || a.AtomicCap != 1 || a.MaxMRSize == 0 {
		t.Errorf("attributes: %+v", a)
	}
	devices := get[[]Device](t)(Devices())
	for _, d := range devices {
		t.Logf("%+v", d)
		if d.Name == r.ctx.name && (d.GUID != a.NodeGUID || d.NodeType != 1 || d.Transport != 0) {
			t.Errorf("device: %+v", d)
		}
	}
	p := get[PortAttr](t)(r.ctx.QueryPort(1))
	t.Logf("%+v", p)
	if p.State != 4 || p.MaxMsg == 0 || p.GIDs == 0 || p.LinkLayer != 2 || p.ActiveMTU == 0 {
		t.Errorf("port: %+v", p)
	}
	if _, err := r.ctx.QueryPort(2); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("port 2: %v", err)
	}
	if _, err := Open("none0"); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("Open of no device: %v", err)
	}
	if _, _, err := r.ctx.NextAsync(); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("NextAsync: %v", err)
	}
}

func TestRxeMemory(t *testing.T) {
	r := newRig(t, "rxe")
	optional := uint32(1 << 20) // IBV_ACCESS_RELAXED_ORDERING
	mr := get[*MR](t)(r.pd.RegMR(r.addr(4096), 0x4000, 4096, accessLocalWrite|optional))
	if mr.LKey == r.mr.LKey {
		t.Error("two regions have one key")
	}
	if lost, err := mr.Rereg(1, r.pd, r.addr(0), 4096, 0); lost || !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("Rereg: %v, %v", lost, err)
	}
	if err := r.pd.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("closing a domain with regions: %v", err)
	}
	must(t, mr.Close())
	if _, err := r.pd.RegMR(1<<46, 1<<46, 4096, accessLocalWrite); err == nil {
		t.Error("memory that is not there was registered")
	}
	if _, err := r.pd.RegMR(r.addr(0), r.addr(0), 4096, accessRemoteWrite); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("remote without local write: %v", err)
	}
}

func TestRxeRefused(t *testing.T) {
	r := newRig(t, "rxe")
	if _, err := r.ctx.CreateCQ(1<<30, 0, nil); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("CreateCQ: %v", err)
	}
	cq := r.cq(8, nil)
	if _, err := r.pd.CreateQP(QPInit{SendCQ: cq, RecvCQ: cq, Type: qptRC, MaxSendWR: 1 << 28}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("CreateQP: %v", err)
	}
	if _, err := r.pd.CreateSRQ(0, 1<<30, 1); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("CreateSRQ: %v", err)
	}
	if err := cq.Moderate(1, 1); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("Moderate: %v", err)
	}
	q := r.qp(qptRC, cq, nil)
	if n, err := q.PostRecv([]RecvWR{{}}, nil); n != 0 || !errors.Is(err, syscall.EINVAL) {
		t.Errorf("receive in RESET: %d, %v", n, err)
	}
	if n, err := q.PostSend([]SendWR{{Op: opSend}}, nil); n != 0 || !errors.Is(err, syscall.EINVAL) {
		t.Errorf("send in RESET: %d, %v", n, err)
	}
	if err := cq.destroy(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("closing a used queue: %v", err)
	}
	if err := q.Modify(toRTS(qptRC)); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("RESET to RTS: %v", err)
	}
}

func TestRxeQuery(t *testing.T) {
	r := newRig(t, "rxe")
	a, b, _ := r.pair(qptRC, nil)
	got := get[QPAttr](t)(a.Query())
	want := QPAttr{
		Path: r.path(), Mask: queryMask(qptRC), State: qpsRTS, CurState: got.CurState,
		Access: accessRemoteWrite | accessRemoteRead | accessRemoteAtomic, RQPSN: 100, SQPSN: 100, DestQPN: b.Num, PathMTU: mtu1024,
		Port: 1, Timeout: 14, Retry: 7, RNRRetry: 7, MinRNR: 1, RdAtomic: 4, DestRdAtomic: 4,
	}
	want.Path.FlowLabel = got.Path.FlowLabel
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if a.Cap.MaxSendWR < 16 || a.Cap.MaxInline < 200 || a.Cap.MaxSendSGE < 4 {
		t.Errorf("granted: %+v", a.Cap)
	}
}
