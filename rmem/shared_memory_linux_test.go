package rmem

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"cinnabar"
)

// TestOverSharedMemory runs the other tests of this package once more, with na+sm as the network of engines. They include
// three processes, a client that is killed, quotas, leases, and revocation with Config.Strict and without.
// parity: S22 D43
func TestOverSharedMemory(t *testing.T) {
	if os.Getenv(networkEnv) != "" {
		t.Skipf("%s names the network of all tests", networkEnv)
	}
	t.Parallel()
	e, err := cinnabar.Listen("na+sm", nil)
	if err != nil {
		t.Skipf("no shared memory: %v", err)
	}
	must(t, e.Close())
	exe, err := os.Executable()
	must(t, err)
	cmd := exec.CommandContext(testContext(t), exe, "-test.timeout=50s", "-test.run=^Test", "-test.skip=^(TestOverSharedMemory|TestVerbs.*)$")
	cmd.Env = append(os.Environ(), networkEnv+"=na+sm", quickExit())
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		t.Fatalf("%v\n%s", exit, out)
	}
	must(t, err)
}
