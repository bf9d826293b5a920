//go:build rdma && linux && cgo

package rdmacore_test

import (
	"testing"

	"cinnabar/verbs"
)

// rxeLibraryFacts is known of rxe as rdma-core shows it.
var rxeLibraryFacts = []fact{
	{
		test:     "MW/SendInvalidate",
		standard: "the completion of a Send with Invalidate has the flag IBV_WC_WITH_INV, 1 << 3",
		observed: "it has not, although the key is revoked",
		where:    "do_complete stores the kernel's IB_WC_WITH_INVALIDATE, 1 << 2, in the completion of the program",
		check:    checkRxeSendInvalidate,
	},
}

func checkRxeSendInvalidate(t *testing.T, dev *verbs.Device) {
	p, mr, key := rxeWindow(t, dev)
	p.Passive.PostRecv(9, 0, 16)
	inv := p.Active.Send(3, 0, 16)
	inv.Op, inv.InvKey = verbs.OpSendInvalidate, key
	p.Active.PostSend(inv)
	p.Active.Expect(3, verbs.StatusSuccess, verbs.WCSend)
	if wc := p.Passive.Expect(9, verbs.StatusSuccess, verbs.WCRecv); wc.HasInv {
		t.Errorf("the completion names key %#x, it named none", wc.InvKey)
	}
	writeBy(p, mr, 0, key)
	wantStatus(t, p.Active, "requester", verbs.StatusRemAccessErr)
}
