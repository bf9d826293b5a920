package ofitcp

import (
	"net/netip"
	"testing"
)

func TestCollide(t *testing.T) {
	low, self, high := netip.MustParseAddrPort("10.0.0.1:9000"), netip.MustParseAddrPort("10.0.0.1:9001"), netip.MustParseAddrPort("10.0.0.2:80")
	for _, tc := range []struct {
		state   linkState
		peer    netip.AddrPort
		samePid bool
		want    verdict
	}{
		{linkIdle, low, false, verdictAccept},
		{linkIdle, low, true, verdictAccept},
		{linkIdle, self, false, verdictAccept},
		{linkDialing, low, false, verdictNack},
		{linkDialing, low, true, verdictNack},
		{linkDialing, high, false, verdictAccept},
		{linkDialing, high, true, verdictAccept},
		{linkDialing, self, true, verdictReflect},
		{linkNacked, low, false, verdictAccept},
		{linkNacked, high, false, verdictAccept},
		{linkAccepting, low, true, verdictNack},
		{linkAccepting, low, false, verdictTaken},
		{linkUp, low, true, verdictNack},
		{linkUp, high, true, verdictNack},
		{linkUp, low, false, verdictTaken},
		{linkUp, self, true, verdictReflect},
	} {
		if got := collide(tc.state, self, tc.peer, tc.samePid); got != tc.want {
			t.Errorf("%v, peer %v, same process %t: %v, want %v", tc.state, tc.peer, tc.samePid, got, tc.want)
		}
	}
}

func TestRing(t *testing.T) {
	var r ring[int]
	var want []int
	next := 0
	for step := range 5000 {
		switch {
		case step%7 < 4:
			r.push(next)
			want = append(want, next)
			next++
		case len(want) == 0:
		case step%7 == 6:
			i := step % len(want)
			r.remove(i)
			want = append(want[:i:i], want[i+1:]...)
		default:
			if got := r.pop(); got != want[0] {
				t.Fatalf("step %d: popped %d, want %d", step, got, want[0])
			}
			want = want[1:]
		}
		if r.len() != len(want) {
			t.Fatalf("step %d: %d elements, want %d", step, r.len(), len(want))
		}
		for i, v := range want {
			if *r.at(i) != v {
				t.Fatalf("step %d: element %d is %d, want %d", step, i, *r.at(i), v)
			}
		}
	}
}
