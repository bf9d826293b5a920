package iwarp

import (
	"net/netip"
	"testing"
	"time"

	"cinnabar/internal/hostquota"
)

// TestBrakeRecovers has a host make thousands of refused accesses at once, on connections that it had before: its
// connections are spaced out, and no longer than a host's that made just enough of them.
func TestBrakeRecovers(t *testing.T) {
	h := hostquota.HostOf(netip.MustParseAddr("192.0.2.1"))
	b := brake{limit: defaultDenied}
	now := time.Now()
	for range 10000 {
		b.deny(h, now)
	}
	if _, ok := b.turn(h, now); !ok {
		t.Error("the first connection is refused")
	}
	if _, ok := b.turn(h, now); ok {
		t.Error("the second connection has its turn at once")
	}
	now = now.Add(halfTime)
	for range 100 {
		if wait, ok := b.turn(h, now); wait != 0 || !ok {
			t.Fatalf("after %v a connection waits for %v, refused: %v", halfTime, wait, !ok)
		}
	}
}
