//go:build rdma && linux && cgo

package rdmacore_test

import (
	"strings"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/verbstest"
)

// TestRxeStatuses holds what the kernel's rxe reports where the book, and the
// suite, have another status, so that a driver that learns it is noticed.
func TestRxeStatuses(t *testing.T) {
	name := testDevice(t)
	if !strings.HasPrefix(name, "rxe") {
		t.Skipf("device %s is no rxe", name)
	}
	for _, tc := range []struct {
		name            string
		prepare         func(p *verbstest.Pair)
		wr              func(p *verbstest.Pair) verbs.SendWR
		active, passive verbs.WCStatus // passive: of its receive; success for none
	}{
		{
			"a gather entry with a wrong key", nil,
			func(p *verbstest.Pair) verbs.SendWR {
				wr := p.Active.RDMA(1, verbs.OpWrite, 0, 8, p.Passive)
				wr.SGL[0].LKey ^= 1 << 20
				return wr
			},
			verbs.StatusLocQPOpErr, verbs.StatusSuccess,
		},
		{
			"a send that is longer than the receive",
			func(p *verbstest.Pair) { p.Passive.PostRecv(2, 0, 8) },
			func(p *verbstest.Pair) verbs.SendWR { return p.Active.Send(1, 0, 9) },
			verbs.StatusRemOpErr, verbs.StatusLocQPOpErr,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dev := openForSuite(t, name, verbstest.Options{})
			t.Cleanup(func() {
				if err := dev.Close(); err != nil {
					t.Error(err)
				}
			})
			p := verbstest.NewPair(t, dev, verbstest.PairConfig{})
			if tc.prepare != nil {
				tc.prepare(p)
			}
			p.Active.PostSend(tc.wr(p))
			if got := p.Active.Take(1)[0].Status; got != tc.active {
				t.Errorf("the sender's status is %v, was %v", got, tc.active)
			}
			if tc.passive == verbs.StatusSuccess {
				return
			}
			if got := p.Passive.Take(1)[0].Status; got != tc.passive {
				t.Errorf("the receiver's status is %v, was %v", got, tc.passive)
			}
		})
	}
}
