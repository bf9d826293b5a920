package iwarp_test

import (
	"os"
	"testing"

	"cinnabar/internal/iwarp/mpa"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// descriptors counts the open descriptors of this process.
func descriptors(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestDialClosedMeanwhile: a queue pair that is closed while its peer makes up its
// mind is not connected, and nothing of the connection stays.
func TestDialClosedMeanwhile(t *testing.T) {
	s := newSide(t, iwarp.Config{}, nil)
	attempt := func() {
		qp, err := s.pd.CreateQP(verbs.QPConfig{SendCQ: s.cq, RecvCQ: s.cq})
		if err != nil {
			t.Fatal(err)
		}
		s.qp = qp
		p, dialed := dialPeer(testContext(t), t, s, verbs.ConnParam{})
		reply := accept(p.readFrame())
		reply.Setup.RTRRead = false
		if err := qp.Close(); err != nil {
			t.Fatal(err)
		}
		p.writeFrame(reply)
		if err := <-dialed; err == nil {
			t.Fatal("Dial succeeded on a closed queue pair")
		}
		p.tc.Close()
	}
	attempt() // opens what the process keeps
	before := descriptors(t)
	for range 10 {
		attempt()
	}
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors after 10 attempts, %d before", after, before)
	}
}

// TestAcceptUnfit: a request that is accepted with a queue pair that cannot take it
// is refused: the peer is told, and nothing of the connection stays.
func TestAcceptUnfit(t *testing.T) {
	s := newSide(t, iwarp.Config{}, nil)
	first := acceptRaw(t, s, request(), verbs.ConnParam{})
	attempt := func() {
		p, l := dialRaw(t, s)
		defer l.Close()
		p.writeFrame(request())
		r, err := l.Accept(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Accept(testContext(t), s.qp, verbs.ConnParam{}); err == nil {
			t.Fatal("a queue pair was connected twice")
		}
		if f := p.readFrame(); !f.Reject || f.Revision != mpa.Revision2 {
			t.Errorf("reply %+v, want a rejection", f)
		}
		p.end()
		p.tc.Close()
	}
	attempt()
	before := descriptors(t)
	for range 10 {
		attempt()
	}
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors after 10 attempts, %d before", after, before)
	}
	first.hello(t, s, false)
}
