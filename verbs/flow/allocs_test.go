package flow

import (
	"fmt"
	"testing"

	"cinnabar/internal/invariants"
	"cinnabar/verbs"
)

// TestRecordsAllocateNothing sends, receives and releases records of every kind, without allocations on the Go heap once
// there has been one of the kind.
// parity: S17
func TestRecordsAllocateNothing(t *testing.T) {
	if invariants.Race {
		t.Skip("the race detector allocates")
	}
	for _, n := range []int{64, 20_000} {
		a, p := pair(t, Config{}, Config{})
		mr, err := a.PD().AllocMR(n, 0)
		must(t, err)
		defer func() { must(t, mr.Close()) }()
		ctx := testContext(t)
		for name, send := range map[string]func() error{
			"Send":     func() error { return a.Send(ctx, mr.Bytes()) },
			"SendFrom": func() error { return a.SendFrom(ctx, []verbs.SGE{mr.SGE(0, n)}) },
		} {
			t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) {
				one := func() {
					must(t, send())
					r, err := p.Recv(ctx)
					must(t, err)
					must(t, r.Release())
				}
				for range 200 { // all slots of queues and pools were used
					one()
				}
				if got := testing.AllocsPerRun(500, one); got != 0 {
					t.Errorf("%v allocations", got)
				}
			})
		}
	}
}
