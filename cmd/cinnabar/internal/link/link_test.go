package link

import (
	"testing"

	"cinnabar/verbs"
)

// A peer uses up a receive in another way than it was posted for: the length of its completion is that of something else.
func TestArrivalOfAnotherKindIsRefused(t *testing.T) {
	for _, c := range []struct {
		wc   verbs.WC
		want verbs.WCOp
		ok   bool
	}{
		{verbs.WC{Op: verbs.WCRecv, Len: 16}, verbs.WCRecv, true},
		{verbs.WC{Op: verbs.WCRecvRDMAImm, HasImm: true, Len: 1 << 20}, verbs.WCRecv, false},
		{verbs.WC{Op: verbs.WCRecv, HasImm: true, Len: 16}, verbs.WCRecv, false},
		{verbs.WC{Op: verbs.WCRecv, HasInv: true, InvKey: 7, Len: 16}, verbs.WCRecv, false},
		{verbs.WC{Op: verbs.WCRecvRDMAImm, HasImm: true}, verbs.WCRecvRDMAImm, true},
		{verbs.WC{Op: verbs.WCRecv}, verbs.WCRecvRDMAImm, false},
	} {
		if err := CheckArrival(&c.wc, c.want); (err == nil) != c.ok {
			t.Errorf("%+v for %v: %v", c.wc, c.want, err)
		}
	}
}
