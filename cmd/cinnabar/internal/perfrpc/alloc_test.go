//go:build !race

package perfrpc

import "testing"

// A small call takes at most three allocations in client and server together. The race detector makes pools forget, so
// that there are more.
func TestRateAllocations(t *testing.T) {
	p := newPair(t, serveOptions{}, options{sizes: []int64{64}})
	c := p.prepare(t, prepareRate)
	w := newStopwatch(newCallTimes())
	n := testing.AllocsPerRun(2000, func() {
		if err := p.run.iterate(t.Context(), c, 64, w); err != nil {
			t.Fatal(err)
		}
	})
	if n > 3 {
		t.Errorf("%.1f allocations for each call, want at most 3", n)
	}
}
