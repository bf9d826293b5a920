//go:build unix

package perfrpc

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// lockSharedMemory keeps other tests from having programs in C talk over na+sm until t is over: when Mercury's
// hg_perf_server starts, over whatever network, it removes every region and socket of na+sm on the machine (HG_Cleanup).
func lockSharedMemory(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(os.TempDir(), "cinnabar-test-na_sm.lock"), os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() }) // which unlocks it
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
}
