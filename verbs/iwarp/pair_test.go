package iwarp_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// side is one end of a connected pair.
type side struct {
	dev  *verbs.Device
	pd   *verbs.PD
	cq   *verbs.CQ
	qp   *verbs.QP
	conn *verbs.Conn
}

// newSide opens a device with one queue pair; everything is closed at the end of the test.
func newSide(t testing.TB, cfg iwarp.Config, edit func(*verbs.QPConfig)) *side {
	t.Helper()
	s := &side{}
	var err error
	if s.dev, err = iwarp.Open(cfg); err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, s.dev.Close)
	if s.pd, err = s.dev.AllocPD(); err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, s.pd.Close)
	if s.cq, err = s.dev.CreateCQ(1024); err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, s.cq.Close)
	qc := verbs.QPConfig{SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: 256, MaxRecvWR: 256, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInline: 256}
	if edit != nil {
		edit(&qc)
	}
	if s.qp, err = s.pd.CreateQP(qc); err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, s.qp.Close)
	return s
}

func closeAtEnd(t testing.TB, f func() error) {
	t.Cleanup(func() {
		if err := f(); err != nil {
			t.Error(err)
		}
	})
}

// newPair returns two connected ends: the one that dialled and the one that accepted.
func newPair(t testing.TB, a, b iwarp.Config) (active, passive *side) {
	t.Helper()
	active, passive = newSide(t, a, nil), newSide(t, b, nil)
	connect(t, active, passive, verbs.ConnParam{}, verbs.ConnParam{})
	return active, passive
}

func connect(t testing.TB, active, passive *side, ap, pp verbs.ConnParam) {
	t.Helper()
	connectAt(t, "127.0.0.1:0", active, passive, ap, pp)
}

// connectAt is connect over a listener at an address.
func connectAt(t testing.TB, addr string, active, passive *side, ap, pp verbs.ConnParam) {
	t.Helper()
	ctx := testContext(t)
	l, err := verbs.Listen(passive.dev, netip.MustParseAddrPort(addr))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			passive.conn, err = r.Accept(ctx, passive.qp, pp)
		}
		done <- err
	}()
	active.conn, err = verbs.Dial(ctx, active.qp, l.Addr(), ap)
	if err != nil {
		t.Fatal("dial:", err)
	}
	if err := <-done; err != nil {
		t.Fatal("accept:", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// region registers fresh memory with all rights to read and write.
func (s *side) region(t testing.TB, size int) *verbs.MR {
	t.Helper()
	return s.regionWith(t, size, verbs.LocalWrite|verbs.RemoteRead|verbs.RemoteWrite|verbs.RemoteAtomic)
}

// revocable registers fresh memory that peers may also invalidate.
func (s *side) revocable(t testing.TB, size int) *verbs.MR {
	t.Helper()
	return s.regionWith(t, size, verbs.LocalWrite|verbs.RemoteRead|verbs.RemoteWrite|verbs.RemoteAtomic|verbs.RemoteInvalidate)
}

func (s *side) regionWith(t testing.TB, size int, access verbs.Access) *verbs.MR {
	t.Helper()
	mr, err := s.pd.AllocMR(size, access)
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, mr.Close)
	return mr
}

// wait returns the next completion.
func (s *side) wait(t testing.TB) verbs.WC {
	t.Helper()
	var wc [1]verbs.WC
	if _, err := s.cq.Wait(testContext(t), wc[:]); err != nil {
		t.Fatal("wait:", err)
	}
	return wc[0]
}

// want waits for a completion and compares what matters of it.
func (s *side) want(t testing.TB, id uint64, op verbs.WCOp, status verbs.WCStatus) verbs.WC {
	t.Helper()
	wc := s.wait(t)
	if wc.ID != id || wc.Status != status || status == verbs.StatusSuccess && wc.Op != op {
		t.Fatalf("completion id %d op %v status %v (vendor %#x), want id %d op %v status %v", wc.ID, wc.Op, wc.Status, wc.Vendor, id, op, status)
	}
	return wc
}

func (s *side) send(t testing.TB, wrs ...verbs.SendWR) {
	t.Helper()
	if n, err := s.qp.PostSend(wrs); err != nil {
		t.Fatalf("post send: %d accepted, %v", n, err)
	}
}

func (s *side) recv(t testing.TB, wrs ...verbs.RecvWR) {
	t.Helper()
	if n, err := s.qp.PostRecv(wrs); err != nil {
		t.Fatalf("post receive: %d accepted, %v", n, err)
	}
}
