package verbstest

import (
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"cinnabar/verbs"
)

// lockLimitEnv marks the process that testLockLimit starts.
const lockLimitEnv = "VERBSTEST_LOCK_LIMIT"

// lockLimit is the limit of locked memory that the process sets, in bytes.
const lockLimit = 64 << 10

// testLockLimit registers more memory than the process may lock. Limit and user
// are those of a process, so the test runs itself again in one of its own, which
// gives up its privileges there.
// parity: V08 B20 D21
func testLockLimit(t *testing.T, open Open) {
	if os.Getenv(lockLimitEnv) != "" {
		testLockLimitHere(t, open)
		return
	}
	dev := open(t, Options{LockMemory: true}) // skips where there is no such option
	closeAll(t, "device", dev.Close)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(testContext(t), exe, "-test.run="+exactly(t.Name()), "-test.v")
	cmd.Env = append(os.Environ(), lockLimitEnv+"=1")
	out, err := cmd.CombinedOutput()
	switch {
	case err != nil:
		t.Errorf("%v\n%s", err, out)
	case strings.Contains(string(out), "--- SKIP"):
		t.Skipf("%s", out)
	case !strings.Contains(string(out), "--- PASS: "+t.Name()):
		t.Errorf("the test did not run in the process of its own\n%s", out)
	}
}

// exactly is the pattern that -test.run takes for one test.
func exactly(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

// testLockLimitHere runs in the other process.
func testLockLimitHere(t *testing.T, open Open) {
	dropPrivileges(t, lockLimit)
	dev := open(t, Options{LockMemory: true})
	t.Cleanup(func() { closeAll(t, "device", dev.Close) })
	pd := newPD(t, dev)
	small, err := pd.AllocMR(4096, 0)
	if err != nil {
		t.Fatalf("a page within the limit: %v", err)
	}
	t.Cleanup(func() { closeAll(t, "memory region", small.Close) })
	const size = 4 * lockLimit
	big, err := pd.AllocMR(size, 0)
	if err == nil {
		closeAll(t, "memory region", big.Close)
		t.Fatalf("%d bytes were registered under a limit of %d", size, lockLimit)
	}
	if !errors.Is(err, verbs.ErrLockLimit) {
		t.Errorf("error = %v, want ErrLockLimit", err)
	}
	for _, want := range []string{"65536", "262144", "ulimit -l"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q: the limit, the need and the remedy", err, want)
		}
	}
	again, err := pd.AllocMR(4096, 0)
	if err != nil {
		t.Fatalf("a page after the refusal: %v", err)
	}
	closeAll(t, "memory region", again.Close)
}
