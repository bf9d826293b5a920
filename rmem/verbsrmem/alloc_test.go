package verbsrmem

import (
	"testing"

	"cinnabar/internal/devicetest"
	"cinnabar/internal/invariants"
)

// TestSmallTransfersAllocateNothing reads and writes a page of a region over the software device.
// parity: S23
func TestSmallTransfersAllocateNothing(t *testing.T) {
	if invariants.Race {
		t.Skip("the race detector makes sync.Pool lose elements, which are then allocated anew")
	}
	c := verbsClient(t, devicetest.MustOpen(t))
	const size = 4 << 10
	r := alloc(t, c, size)
	p := make([]byte, size)
	for _, dir := range []struct {
		name string
		do   func([]byte, int64) (int, error)
	}{{"read", r.ReadAt}, {"write", r.WriteAt}} {
		one := func() {
			if n, err := dir.do(p, 0); n != size || err != nil {
				t.Fatal(n, err)
			}
		}
		for range 100 {
			one()
		}
		if got := testing.AllocsPerRun(2000, one); got != 0 {
			t.Errorf("a %s of %d bytes allocates %v times", dir.name, size, got)
		}
	}
}
