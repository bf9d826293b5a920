package iwarp_test

import (
	"bytes"
	"testing"

	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// TestForeignInvalidateIsRefused has a peer that may read a region revoke the region's key, which would end the reads of
// all other connections in the protection domain. The device refuses it, and the key goes on serving others.
func TestForeignInvalidateIsRefused(t *testing.T) {
	b := newSide(t, iwarp.Config{}, nil)
	mr := b.regionWith(t, 64, verbs.RemoteRead)
	fill(mr.Bytes(), 7)
	other := b.another(t)
	b.recv(t, verbs.RecvWR{ID: 1, SGL: []verbs.SGE{b.region(t, 64).SGE(0, 64)}})

	a, c := newSide(t, iwarp.Config{}, nil), newSide(t, iwarp.Config{}, nil)
	connect(t, a, b, verbs.ConnParam{}, verbs.ConnParam{})
	connect(t, c, other, verbs.ConnParam{}, verbs.ConnParam{})

	a.send(t, verbs.SendWR{ID: 2, Op: verbs.OpSendInvalidate, Flags: verbs.Signaled, InvKey: mr.RKey()})
	if wc := b.wait(t); wc.Status != verbs.StatusLocQPOpErr || wc.HasInv {
		t.Errorf("the receiver's completion is %+v, want a failure that names no key", wc)
	}
	<-b.conn.Done()
	<-a.conn.Done()

	dst := c.region(t, 64)
	c.send(t, verbs.SendWR{ID: 3, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{dst.SGE(0, 64)}, Remote: mr.Remote()})
	c.want(t, 3, verbs.WCRead, verbs.StatusSuccess)
	if !bytes.Equal(dst.Bytes(), mr.Bytes()) {
		t.Error("the other connection reads wrong bytes")
	}
	if s := b.dev.Stats(); s["audit_denied"] != 1 || s["audit_invalidated"] != 0 {
		t.Errorf("%d refused accesses and %d invalidations are counted, want 1 and 0", s["audit_denied"], s["audit_invalidated"])
	}
}

// TestGrantedInvalidateIsCounted has a peer revoke a key that its region lets peers revoke.
func TestGrantedInvalidateIsCounted(t *testing.T) {
	s, p := opened(t, iwarp.Config{})
	mr := s.revocable(t, 64)
	s.recv(t, verbs.RecvWR{ID: 1, SGL: []verbs.SGE{mr.SGE(0, 8)}})
	h := p.untagged(rdmap.OpSendInvalidate)
	h.Rsvd = mr.RKey()
	p.send(h, nil)
	if wc := s.want(t, 1, verbs.WCRecv, verbs.StatusSuccess); !wc.HasInv {
		t.Errorf("%+v names no key", wc)
	}
	if n := s.dev.Stats()["audit_invalidated"]; n != 1 {
		t.Errorf("%d invalidations are counted, want 1", n)
	}
}

// another returns a side of the same device and protection domain with a queue pair of its own.
func (s *side) another(t testing.TB) *side {
	t.Helper()
	o := &side{dev: s.dev, pd: s.pd}
	var err error
	if o.cq, err = s.dev.CreateCQ(64); err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, o.cq.Close)
	if o.qp, err = s.pd.CreateQP(verbs.QPConfig{SendCQ: o.cq, RecvCQ: o.cq, MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 4, MaxRecvSGE: 4}); err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, o.qp.Close)
	return o
}
