package iwarp_test

import (
	"fmt"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// TestNoAllocations: posting and polling allocate nothing, on either side, whatever
// the operation.
func TestNoAllocations(t *testing.T) {
	const size, runs = 4096, 200
	for _, crc := range []bool{true, false} {
		cfg := iwarp.Config{NoCRC: !crc}
		a, b := newPair(t, cfg, cfg)
		src, dst := a.region(t, size), b.region(t, size)
		wc, passive := make([]verbs.WC, 1), []*side{b}
		recvs := []verbs.RecvWR{{ID: 1, SGL: []verbs.SGE{dst.SGE(0, size)}}}
		for _, wr := range []verbs.SendWR{
			{Op: verbs.OpSend, SGL: []verbs.SGE{src.SGE(0, 64)}},
			{Op: verbs.OpSend, SGL: []verbs.SGE{src.SGE(0, size/2), src.SGE(0, size/2)}},
			{Op: verbs.OpSend, Flags: verbs.Inline, SGL: []verbs.SGE{src.SGE(0, 64)}},
			{Op: verbs.OpSendImm, SGL: []verbs.SGE{src.SGE(0, 64)}},
			{Op: verbs.OpWrite, SGL: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote()},
			{Op: verbs.OpWriteImm, SGL: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote()},
			{Op: verbs.OpRead, SGL: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote()},
			{Op: verbs.OpFetchAdd, SGL: []verbs.SGE{src.SGE(0, 8)}, Remote: dst.Remote()},
			{Op: verbs.OpCompareSwap, SGL: []verbs.SGE{src.SGE(0, 8)}, Remote: dst.Remote()},
		} {
			t.Run(fmt.Sprintf("crc=%t/%v/%d", crc, wr.Op, len(wr.SGL)), func(t *testing.T) {
				wr.Flags |= verbs.Signaled
				sends := []verbs.SendWR{wr}
				received := wr.Op == verbs.OpSend || wr.Op == verbs.OpSendImm || wr.Op == verbs.OpWriteImm
				round := func() {
					if received {
						if _, err := b.qp.PostRecv(recvs); err != nil {
							t.Fatal(err)
						}
					}
					if _, err := a.qp.PostSend(sends); err != nil {
						t.Fatal(err)
					}
					if received {
						spinQuietly(t, wc, b)
					}
					spinQuietly(t, wc, a, passive...)
				}
				for range 20 {
					round()
				}
				if n := testing.AllocsPerRun(runs, round); n != 0 {
					t.Errorf("%v allocations for each request", n)
				}
			})
		}
	}
}
