package xfer

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
)

// TestIsSolo checks which sides have one processor.
func TestIsSolo(t *testing.T) {
	for _, c := range []struct {
		processors    int
		local, remote string
		solo          bool
	}{
		{1, "192.0.2.1:1", "192.0.2.2:2", true},
		{2, "192.0.2.1:1", "192.0.2.2:2", false},
		{2, "192.0.2.1:1", "192.0.2.1:2", true},
		{2, "127.0.0.1:1", "127.0.0.2:2", true},
		{2, "[::ffff:127.0.0.1]:1", "127.0.0.2:2", true},
		{2, "[::1]:1", "[::1]:2", true},
		{3, "127.0.0.1:1", "127.0.0.1:2", true},
		{4, "127.0.0.1:1", "127.0.0.1:2", false},
	} {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(c.processors))
		if solo := isSolo(netip.MustParseAddrPort(c.local), netip.MustParseAddrPort(c.remote)); solo != c.solo {
			t.Errorf("%d processors, %s to %s: %v, want %v", c.processors, c.local, c.remote, solo, c.solo)
		}
	}
}

// TestOneAndManyProcessors repeats tests with one goroutine for each side, and with one for each task of a side, whatever the number of
// processors of the machine is.
func TestOneAndManyProcessors(t *testing.T) {
	for _, n := range []int{1, 4} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(n))
			t.Run("sizes", TestSizes)
			t.Run("cancel", TestCancel)
			t.Run("faults", TestFaults)
			t.Run("standstill", TestStandstill)
			t.Run("commit", TestCommitIsNotCutShort)
			t.Run("broken", TestBrokenBeforeCommit)
		})
	}
}
