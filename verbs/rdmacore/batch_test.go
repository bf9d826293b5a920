//go:build linux

package rdmacore_test

import (
	"runtime"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/verbstest"
)

// TestSendsAndPollsCrossOnce posts a batch of 16 sends, and polls their completions at both sides: one crossing to C for the
// batch, and one for each poll, however many completions it returns.
// parity(vm): V44 D42
func TestSendsAndPollsCrossOnce(t *testing.T) {
	const batch = 16
	dev := openForSuite(t, testDevice(t), verbstest.Options{})
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	p := verbstest.NewPair(t, dev, verbstest.PairConfig{QP: verbs.QPConfig{MaxSendWR: 2 * batch, MaxRecvWR: 2 * batch}})
	recvs, sends := make([]verbs.RecvWR, batch), make([]verbs.SendWR, batch)
	for i := range batch {
		recvs[i] = verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{p.Passive.MR.SGE(8*i, 8)}}
		sends[i] = verbs.SendWR{ID: uint64(i), Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{p.Active.MR.SGE(8*i, 8)}}
	}
	crossings := func(name string, do func() (int, error)) (int, uint64) {
		before := dev.Stats()[name]
		n, err := do()
		if err != nil {
			t.Fatal(err)
		}
		return n, dev.Stats()[name] - before
	}
	for _, post := range []func() (int, error){
		func() (int, error) { return p.Passive.QP.PostRecv(recvs) },
		func() (int, error) { return p.Active.QP.PostSend(sends) },
	} {
		if n, got := crossings("crossings", post); n != batch || got != 1 {
			t.Errorf("%d requests in %d crossings, want %d in 1", n, got, batch)
		}
	}
	for _, side := range []*verbstest.Side{p.Active, p.Passive} {
		wc := make([]verbs.WC, batch)
		for left := batch; left > 0; {
			n, got := crossings("poll_crossings", func() (int, error) { return side.CQ.Poll(wc) })
			if got != 1 {
				t.Fatalf("a poll for %d completions took %d crossings", n, got)
			}
			for _, c := range wc[:n] {
				if c.Status != verbs.StatusSuccess {
					t.Fatalf("%+v", c)
				}
			}
			left -= n
			if p.Ctx.Err() != nil {
				t.Fatalf("%d completions are missing", left)
			}
			if n == 0 {
				runtime.Gosched()
			}
		}
	}
}
