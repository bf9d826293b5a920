package verbs

import (
	"context"
	"net/netip"
	"testing"
)

// loopback with a port to be picked.
var loopback = netip.MustParseAddrPort("127.0.0.1:0")

// side is one end of a connection with what it needs.
type side struct {
	pd *PD
	cq *CQ
	qp *QP
}

func newSide(t *testing.T, dev *Device) side {
	t.Helper()
	s := side{pd: must(dev.AllocPD())(t), cq: must(dev.CreateCQ(64))(t)}
	s.qp = must(s.pd.CreateQP(QPConfig{SendCQ: s.cq}))(t)
	closeAll(t, s.qp, s.cq, s.pd)
	return s
}

// connect makes a connection between two queue pairs of the device.
func connect(t *testing.T, dev *Device, active, passive *QP, ap, pp ConnParam) (ac, pc *Conn) {
	t.Helper()
	ctx := testContext(t)
	l := must(Listen(dev, loopback))(t)
	defer l.Close()
	dialled := make(chan error, 1)
	go func() {
		c, err := Dial(ctx, active, l.Addr(), ap)
		ac = c
		dialled <- err
	}()
	r := must(l.Accept(ctx))(t)
	pc = must(r.Accept(ctx, passive, pp))(t)
	if err := <-dialled; err != nil {
		t.Fatal(err)
	}
	return ac, pc
}

// waitOne takes one successful completion.
func waitOne(ctx context.Context, t *testing.T, cq *CQ) WC {
	t.Helper()
	wc := make([]WC, 1)
	if _, err := cq.Wait(ctx, wc); err != nil {
		t.Fatal(err)
	}
	if err := wc[0].Err(); err != nil {
		t.Fatal(err)
	}
	return wc[0]
}
