package verbstest

import (
	"errors"
	"net"
	"slices"
	"strings"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/oob"
)

// needsType skips a test of a type of queue pair that the device lacks.
func needsType(t *testing.T, dev *verbs.Device, typ verbs.QPType) {
	t.Helper()
	if a := attr(t, dev); !slices.Contains(a.QPTypes, typ) {
		t.Skipf("device %s has no queue pairs of type %v, only %v; Device/QPTypes tests that it says so", a.Name, typ, a.QPTypes)
	}
}

// newPairByHand drives two queue pairs of a type to RTS with each other's
// numbers, and returns the data that each received about the other. The sides have no Conn.
func newPairByHand(t *testing.T, dev *verbs.Device, cfg PairConfig, active, passive oob.Config) (p *Pair, ofPassive, ofActive oob.QPInfo) {
	t.Helper()
	ctx := testContext(t)
	p = &Pair{Dev: dev, Ctx: ctx, Active: newSide(t, ctx, dev, cfg, false), Passive: newSide(t, ctx, dev, cfg, cfg.SRQ)}
	if cfg.Before != nil {
		cfg.Before(p)
	}
	a, b := net.Pipe()
	defer closeAll(t, "socket", a.Close, b.Close)
	done := make(chan error, 1)
	go func() {
		var err error
		_, ofActive, err = passive.Connect(ctx, b, p.Passive.QP)
		done <- err
	}()
	active.Active = true
	_, ofPassive, err := active.Connect(ctx, a, p.Active.QP)
	if perr := <-done; err != nil || perr != nil {
		t.Fatalf("Connect: %v, %v", err, perr)
	}
	for _, s := range []*Side{p.Active, p.Passive} {
		if got := s.QP.State(); got != verbs.StateRTS {
			t.Errorf("state %v, want RTS", got)
		}
	}
	return p, ofPassive, ofActive
}

// refuseSend posts a request that must be refused, with the words in the error.
func (s *Side) refuseSend(wr verbs.SendWR, target error, words ...string) {
	s.t.Helper()
	n, err := s.QP.PostSend([]verbs.SendWR{wr})
	if n != 0 || !errors.Is(err, target) {
		s.t.Errorf("PostSend of %v = %d, %v; want 0, %v", wr.Op, n, err, target)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			s.t.Errorf("%q does not have %q", err, w)
		}
	}
}

// refuseOpcodes posts each of ops, which queue pairs of type typ do not have.
func (p *Pair) refuseOpcodes(typ verbs.QPType, ah verbs.AddressHandle, ops ...verbs.Opcode) {
	p.Active.t.Helper()
	for _, op := range ops {
		wr := p.Active.RDMA(1, op, 0, 8, p.Passive)
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = ah, p.Passive.QP.Num(), verbs.DefaultQKey
		p.Active.refuseSend(wr, errors.ErrUnsupported, op.String(), typ.String())
	}
}

// testNotManaged dials and accepts with a queue pair that the connection manager does not do.
func testNotManaged(t *testing.T, dev *verbs.Device, typ verbs.QPType) {
	ctx := testContext(t)
	l := listen(t, dev, loopback)
	own, other := newSide(t, ctx, dev, PairConfig{QP: verbs.QPConfig{Type: typ}}, false), newSide(t, ctx, dev, PairConfig{}, false)
	if _, err := verbs.Dial(ctx, own.QP, l.Addr(), verbs.ConnParam{}); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), typ.String()) {
		t.Errorf("Dial: %v, want ErrUnsupported with the type's name", err)
	}
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			_, err = r.Accept(ctx, own.QP, verbs.ConnParam{})
			_ = r.Reject(nil)
		}
		accepted <- err
	}()
	if _, err := verbs.Dial(ctx, other.QP, l.Addr(), verbs.ConnParam{}); err == nil {
		t.Errorf("a queue pair of type %v was connected to one of type RC", typ)
	}
	if err := <-accepted; !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), typ.String()) {
		t.Errorf("Accept: %v, want ErrUnsupported with the type's name", err)
	}
}

// toTheBreak posts receives and sends in ERR; as many come back flushed.
func toTheBreak(t *testing.T, s *Side, send func(id uint64) verbs.SendWR) {
	t.Helper()
	for i := range uint64(5) {
		s.PostRecv(i, 0, 100)
	}
	s.Break()
	s.PostSend(send(10), send(11))
	s.PostRecv(5, 0, 100)
	seen := map[uint64]bool{}
	for _, wc := range s.Take(8) {
		if wc.Status != verbs.StatusWRFlushErr || seen[wc.ID] {
			t.Errorf("completion %+v; want each once, flushed", wc)
		}
		seen[wc.ID] = true
	}
	s.Quiet()
	if got := s.QP.State(); got != verbs.StateErr {
		t.Errorf("state %v, want ERR", got)
	}
}
