package fault_test

import (
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/fault"
	"cinnabar/verbs/iwarp"
	"cinnabar/verbs/verbstest"
)

// overIWARP connects two queue pairs of a software device under rules. Queue pair
// 1 is the active side.
func overIWARP(t *testing.T, rules ...fault.Rule) *verbstest.Pair {
	t.Helper()
	inner, err := iwarp.Open(iwarp.Config{ConfirmWrites: true})
	if err != nil {
		t.Fatal(err)
	}
	dev := fault.Wrap(inner, fault.Plan{Rules: rules})
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Errorf("close device: %v", err)
		}
	})
	return verbstest.NewPair(t, dev, verbstest.PairConfig{})
}

// TestStatusOverIWARP injects a failure above real sockets, with both sides parked
// on their queues.
func TestStatusOverIWARP(t *testing.T) {
	p := overIWARP(t, sendRule(2, fault.Status(verbs.StatusRetryExcErr)))
	p.Active.CQ.SetSpin(0)
	p.Passive.CQ.SetSpin(0)
	p.Passive.PostRecv(50, 0, 8)
	for id := range uint64(3) {
		p.Active.PostSend(p.Active.RDMA(id, verbs.OpWrite, 0, 8, p.Passive))
	}
	p.Active.Expect(0, verbs.StatusSuccess, verbs.WCWrite)
	p.Active.Expect(1, verbs.StatusRetryExcErr, 0)
	p.Active.Expect(2, verbs.StatusWRFlushErr, 0)
	p.Passive.Expect(50, verbs.StatusWRFlushErr, 0)
	p.Active.AwaitEnd()
	p.Passive.AwaitEnd()
}

// TestDropOverIWARP loses a request whose flush comes with the end of the
// connection, while the program is parked.
func TestDropOverIWARP(t *testing.T) {
	p := overIWARP(t, sendRule(1, fault.Drop()))
	p.Active.CQ.SetSpin(0)
	p.Active.PostSend(p.Active.RDMA(1, verbs.OpWrite, 0, 8, p.Passive))
	p.Passive.Break()
	p.Active.Expect(1, verbs.StatusWRFlushErr, 0)
}
