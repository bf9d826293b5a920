package rmem

import (
	"os"
	"testing"

	"cinnabar"
	"cinnabar/internal/testproc"
)

// TestOverSharedMemory runs the other tests of this package once more, with na+sm as the network of engines. They include
// three processes, a client that is killed, quotas, leases, and revocation with Config.Strict and without.
// parity: S22 D43
func TestOverSharedMemory(t *testing.T) {
	if os.Getenv(networkEnv) != "" {
		t.Skipf("%s names the network of all tests", networkEnv)
	}
	t.Parallel()
	e, err := cinnabar.Listen(t.Context(), "na+sm", nil)
	if err != nil {
		t.Skipf("no shared memory: %v", err)
	}
	must(t, e.Close())
	p := testproc.Run(t, testproc.Command{
		Args: []string{"-test.timeout=50s", "-test.run=^Test", "-test.skip=^TestOverSharedMemory$"},
		Env:  []string{networkEnv + "=na+sm"},
	})
	must(t, p.Wait())
}
