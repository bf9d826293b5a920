package iwarp_test

import (
	"runtime"
	"sync/atomic"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// TestClosedRegionIsCollected: the device holds no reference to the memory of a closed region, although requests have sent from it and the
// connection stays open. The test posts a second request from other memory, because the transmitter keeps the last one that it has sent.
func TestClosedRegionIsCollected(t *testing.T) {
	a, b := newPair(t, iwarp.Config{}, iwarp.Config{})
	to, other := b.region(t, 64), a.region(t, 64)
	var collected atomic.Bool
	func() {
		buf := make([]byte, 1<<20)
		runtime.AddCleanup(&buf[0], func(*atomic.Bool) { collected.Store(true) }, &collected)
		mr, err := a.pd.RegMR(buf, verbs.LocalWrite)
		if err != nil {
			t.Fatal(err)
		}
		for id, from := range []*verbs.MR{mr, other} {
			b.recv(t, verbs.RecvWR{ID: uint64(id), SGL: []verbs.SGE{to.SGE(0, 64)}})
			a.send(t, verbs.SendWR{ID: uint64(id), Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{from.SGE(0, 64)}})
			b.want(t, uint64(id), verbs.WCRecv, verbs.StatusSuccess)
			a.want(t, uint64(id), verbs.WCSend, verbs.StatusSuccess)
		}
		if err := mr.Close(); err != nil {
			t.Fatal(err)
		}
	}()
	eventually(t, "collection of the memory", func() bool {
		runtime.GC()
		return collected.Load()
	})
}
