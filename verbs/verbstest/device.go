package verbstest

import (
	"context"
	"errors"
	"strings"
	"testing"

	"cinnabar/verbs"
)

// testAttributes looks at the attributes that ibv_devinfo prints.
// parity: V01 V02
func testAttributes(t *testing.T, dev *verbs.Device) {
	a := attr(t, dev)
	if a.Name == "" || a.NodeGUID == 0 || a.Transport.String() == "unknown" || a.NodeType.String() == "unknown" {
		t.Errorf("name %q, GUID %v, transport %v, node type %v: all must be known", a.Name, a.NodeGUID, a.Transport, a.NodeType)
	}
	for _, l := range []struct {
		name string
		got  int
	}{
		{"MaxQP", a.MaxQP}, {"MaxQPWR", a.MaxQPWR}, {"MaxSGE", a.MaxSGE}, {"MaxCQ", a.MaxCQ}, {"MaxCQE", a.MaxCQE},
		{"MaxMR", a.MaxMR}, {"MaxPD", a.MaxPD}, {"MaxQPRDAtom", a.MaxQPRDAtom}, {"MaxQPInitRDAtom", a.MaxQPInitRDAtom},
		{"MaxMRSize", int(min(a.MaxMRSize, 1<<30))}, {"MaxPrivateData", a.MaxPrivateData}, {"QPTypes", len(a.QPTypes)},
	} {
		if l.got < 1 {
			t.Errorf("%s = %d, want at least 1", l.name, l.got)
		}
	}
	if a.Caps.Has(verbs.CapAtomics) != (a.AtomicCap != verbs.AtomicNone) {
		t.Errorf("capabilities %v and atomic reach %v contradict each other", a.Caps, a.AtomicCap)
	}
	if a.Caps.Has(verbs.CapSRQ) != (a.MaxSRQ > 0) {
		t.Errorf("capabilities %v and MaxSRQ %d contradict each other", a.Caps, a.MaxSRQ)
	}
	if a.ReadSink&^(verbs.LocalWrite|verbs.RemoteWrite) != 0 {
		t.Errorf("ReadSink = %v, want local-write, and on iWARP devices of package rdmacore remote-write", a.ReadSink)
	}
	if dev.Stats() == nil {
		t.Error("Stats = nil")
	}
}

// parity: V02
func testPorts(t *testing.T, dev *verbs.Device) {
	a := attr(t, dev)
	if len(a.Ports) == 0 {
		t.Fatal("the device has no port")
	}
	for i, p := range a.Ports {
		if int(p.Num) != i+1 || p.MaxMsgSize == 0 || p.LinkLayer == "" || p.ActiveMTU > p.MaxMTU {
			t.Errorf("port %d: %+v", i+1, p)
		}
		if p.State != verbs.PortActive {
			t.Errorf("port %d is %v, want active", p.Num, p.State)
		}
	}
}

// testCloseBusy closes objects with dependents, in the wrong order, then in the right one.
func testCloseBusy(t *testing.T, dev *verbs.Device) {
	pd := newPD(t, dev)
	cq := newCQ(t, dev, 4)
	mr, err := pd.AllocMR(64, 0)
	if err != nil {
		t.Fatal(err)
	}
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq})
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func() error{"device": dev.Close, "domain": pd.Close, "completion queue": cq.Close} {
		if err := f(); !errors.Is(err, verbs.ErrBusy) {
			t.Errorf("close of the %s in use: %v, want ErrBusy", name, err)
		}
	}
	closeAll(t, "objects", qp.Close, mr.Close, cq.Close, pd.Close, dev.Close, dev.Close, qp.Close)
}

func testUseAfterClose(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	wr := p.Active.Send(1, 0, 8)
	recv := verbs.RecvWR{SGL: wr.SGL}
	closeAll(t, "queue pair", p.Active.QP.Close)
	if n, err := p.Active.QP.PostSend([]verbs.SendWR{wr}); n != 0 || !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("PostSend after Close = %d, %v; want 0, ErrClosed", n, err)
	}
	if n, err := p.Active.QP.PostRecv([]verbs.RecvWR{recv}); n != 0 || !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("PostRecv after Close = %d, %v; want 0, ErrClosed", n, err)
	}
	if err := p.Active.QP.Modify(verbs.QPAttr{Mask: verbs.AttrState, State: verbs.StateErr}); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Modify after Close: %v, want ErrClosed", err)
	}
	if b := p.Active.MR.Bytes(); len(b) == 0 {
		t.Error("a region must outlive the queue pair")
	}
	closeAll(t, "memory region", p.Active.MR.Close)
	if p.Active.MR.Bytes() != nil {
		t.Error("Bytes after Close is not nil")
	}
	ctx, cancel := context.WithCancel(p.Ctx)
	cancel()
	if _, err := p.Active.CQ.Wait(ctx, make([]verbs.WC, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait on a queue without queue pairs: %v, want context.Canceled", err)
	}
}

// testQPTypes asks for every type: those that the device lists are made, the
// others refused by name.
// parity(vm): V25
// parity: V25 V29
func testQPTypes(t *testing.T, dev *verbs.Device) {
	a := attr(t, dev)
	pd, cq := newPD(t, dev), newCQ(t, dev, 4)
	for _, typ := range []verbs.QPType{verbs.RC, verbs.UC, verbs.UD, verbs.RawPacket, verbs.XRCSend, verbs.XRCRecv} {
		qp, err := pd.CreateQP(verbs.QPConfig{Type: typ, SendCQ: cq})
		has := false
		for _, h := range a.QPTypes {
			has = has || h == typ
		}
		switch {
		case has && err != nil:
			t.Errorf("type %v: %v", typ, err)
		case has:
			closeAll(t, "queue pair", qp.Close)
		case err == nil:
			t.Errorf("type %v was made, but QPTypes is %v", typ, a.QPTypes)
			closeAll(t, "queue pair", qp.Close)
		case !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), typ.String()):
			t.Errorf("type %v: %v; want ErrUnsupported with the type's name", typ, err)
		}
	}
}
