package iwarp_test

import (
	"fmt"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// TestNoLocalCRC reads over the loopback interface. The responder copies the bytes only if the CRC is in use, so the count of copied bytes
// shows that one side which asks for the CRC is enough.
func TestNoLocalCRC(t *testing.T) {
	const size = 4096
	for _, active := range []bool{true, false} {
		for _, passive := range []bool{true, false} {
			t.Run(fmt.Sprintf("active=%t/passive=%t", active, passive), func(t *testing.T) {
				a, b := newPair(t, iwarp.Config{NoLocalCRC: active}, iwarp.Config{NoLocalCRC: passive})
				dst, src := a.region(t, size), b.region(t, size)
				a.send(t, verbs.SendWR{ID: 1, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{dst.SGE(0, size)}, Remote: src.Remote()})
				a.want(t, 1, verbs.WCRead, verbs.StatusSuccess)
				want := uint64(size)
				if active && passive {
					want = 0
				}
				if got := b.dev.Stats()["tx_staged_bytes"]; got != want {
					t.Errorf("the responder copied %d bytes, want %d", got, want)
				}
			})
		}
	}
}
