//go:build linux

package uverbs

import (
	"errors"
	"slices"
	"syscall"
	"testing"
)

// shut closes an object at the end of the test.
func shut(t *testing.T, c func() error) {
	t.Helper()
	t.Cleanup(func() { must(t, c()) })
}

func TestSiwDeviceAttrs(t *testing.T) {
	c := openDriver(t, "siw")
	shut(t, c.Close)
	for _, d := range get[[]Device](t)(Devices()) {
		if d.Name == c.name && (d.NodeType != 4 || d.Transport != 1) {
			t.Errorf("%+v, want iWARP", d)
		}
	}
	a := get[DeviceAttr](t)(c.QueryDevice())
	t.Logf("%+v", a)
	if a.Vendor != 0x626d74 || a.MaxSGE != siwMaxSGE || a.MaxSGERd != 1 || a.Ports != 1 || a.AtomicCap != 0 || a.Firmware != "0.0.0" {
		t.Errorf("%+v", a)
	}
	p := get[PortAttr](t)(c.QueryPort(1))
	t.Logf("%+v", p)
	if p.State != 4 || p.GIDs != 1 || p.MaxMsg != 1<<32-1 { // IBV_PORT_ACTIVE
		t.Errorf("%+v", p)
	}
	if _, err := c.QueryPort(2); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("port 2: %v", err)
	}
}

func TestSiwDeviceMemory(t *testing.T) {
	const rights = accessLocalWrite | accessRemoteWrite | accessRemoteRead
	r := newRig(t, "siw")
	c, pd, addr := r.ctx, r.pd, r.addr(0)
	keys := map[uint32]bool{}
	for range 3 {
		m, err := pd.RegMR(addr+5, addr+5, uint64(len(r.mem)-5), rights)
		must(t, err)
		t.Logf("keys %#x, %#x", m.LKey, m.RKey)
		if m.LKey != m.RKey || m.LKey>>8 == 0 || m.LKey&0xff != c.prov.(*siw).key.Load()&0xff {
			t.Errorf("keys %#x, %#x", m.LKey, m.RKey)
		}
		keys[m.LKey&0xff] = true
		if lost, err := m.Rereg(2, nil, addr, 4096, 0); lost || !errors.Is(err, syscall.EOPNOTSUPP) {
			t.Error(lost, err)
		}
		if err := pd.Close(); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("a domain with a region closes: %v", err)
		}
		must(t, m.Close())
	}
	if len(keys) != 3 {
		t.Errorf("the part of the key that is ours is the same: %v", keys)
	}
	if _, err := pd.RegMR(addr, addr, 0, rights); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a region of nothing: %v", err)
	}
	if _, err := pd.RegMR(1<<40, 1<<40, 4096, rights); !errors.Is(err, syscall.EFAULT) {
		t.Errorf("a region of no memory: %v", err)
	}
	if _, err := pd.AllocMW(2); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("memory window: %v", err)
	}
	if _, err := pd.CreateAH(&Path{Port: 1}); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("address handle: %v", err)
	}
}

func TestSiwDeviceSRQ(t *testing.T) {
	r := newRig(t, "siw")
	c, pd := r.ctx, r.pd
	s, err := pd.CreateSRQ(1, 5, 2)
	must(t, err)
	shut(t, s.Close)
	if n, err := s.PostRecv(make([]RecvWR, 20), nil); n != 8 || !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("%d of 8 taken, %v", n, err)
	}
	must(t, s.SetLimit(3))
	if n, err := s.Limit(); n != 3 || err != nil {
		t.Errorf("limit %d, %v", n, err)
	}
	if err := s.SetLimit(9); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("limit beyond the size: %v", err)
	}
	if _, err := pd.CreateSRQ(1, 1<<30, 2); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a queue that is too long: %v", err)
	}
	cq, err := c.CreateCQ(4, 1, nil)
	must(t, err)
	shut(t, cq.Close)
	q, err := pd.CreateQP(QPInit{SendCQ: cq, RecvCQ: cq, SRQ: s, Type: qptRC, MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1})
	must(t, err)
	shut(t, q.Close)
	if n, err := q.PostRecv(make([]RecvWR, 1), nil); n != 0 || !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a receive beside the shared queue: %d taken, %v", n, err)
	}
	if err := s.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("a shared queue in use closes: %v", err)
	}
}

// TestSiwDeviceFlush moves a queue pair to ERR, whose receives come back.
func TestSiwDeviceFlush(t *testing.T) {
	r := newRig(t, "siw")
	c, pd := r.ctx, r.pd
	ch, err := c.CreateChannel()
	must(t, err)
	shut(t, ch.Close)
	cq, err := c.CreateCQ(100, 7, ch)
	must(t, err)
	shut(t, cq.Close)
	if cq.Depth() != 128 {
		t.Errorf("depth %d", cq.Depth())
	}
	if err := cq.Resize(200); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Error(err)
	}
	if _, err := pd.CreateQP(QPInit{SendCQ: cq, RecvCQ: cq, Type: qptUD, MaxSendWR: 1, MaxRecvWR: 1}); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("datagrams: %v", err)
	}
	if _, err := pd.CreateQP(QPInit{SendCQ: cq, RecvCQ: cq, Type: qptRC, MaxSendWR: 1, MaxInline: siwMaxInline + 1}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("too much inline data: %v", err)
	}
	q, err := pd.CreateQP(QPInit{SendCQ: cq, RecvCQ: cq, Type: qptRC, ID: 9, MaxSendWR: 5, MaxRecvWR: 50, MaxSendSGE: 2, MaxRecvSGE: 3, MaxInline: siwMaxInline})
	must(t, err)
	shut(t, q.Close)
	t.Logf("queue pair %d, %+v", q.Num, q.Cap)
	if q.Num == 0 || q.Cap.MaxInline != siwMaxInline || q.Cap.MaxRecvSGE != 3 {
		t.Errorf("queue pair %d, %+v", q.Num, q.Cap)
	}
	if n, err := q.PostSend([]SendWR{{ID: 1, Op: opSend}}, nil); n != 0 || !errors.Is(err, syscall.ENOTCONN) {
		t.Errorf("a send that is not connected: %d taken, %v", n, err)
	}
	recvs := make([]RecvWR, 70)
	for i := range recvs {
		recvs[i].ID = 1000 + uint64(i)
	}
	if n, err := q.PostRecv(recvs, nil); n != 64 || !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("%d of 64 taken, %v", n, err)
	}
	if err := ch.Next(); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("an event of a queue that is not armed: %v", err)
	}
	must(t, cq.Arm(false))
	must(t, q.Modify(&QPAttr{Mask: attrState | attrAccess, State: qpsInit, Access: 7}))
	must(t, q.Modify(&QPAttr{Mask: attrState, State: qpsErr}))
	must(t, ch.Next())
	if err := ch.Next(); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("a second event: %v", err)
	}
	var out []WC
	for batch := make([]WC, 10); ; {
		n, err := cq.Poll(batch)
		must(t, err)
		if out = append(out, batch[:n]...); n == 0 {
			break
		}
	}
	want := make([]WC, 64)
	for i := range want {
		want[i] = WC{ID: 1000 + uint64(i), Status: wcStatusWRFlushErr, Op: wcOpcodeRecv, QPN: q.Num}
	}
	if !slices.Equal(out, want) {
		t.Errorf("%+v", out)
	}
	a, err := q.Query()
	must(t, err)
	t.Logf("%+v", a)
	if err := cq.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("a completion queue in use closes: %v", err)
	}
}
