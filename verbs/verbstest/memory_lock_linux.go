package verbstest

import (
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// unprivileged is the user that a privileged process becomes; it has no rights of its own.
const unprivileged = 65534

// dropPrivileges limits the locked memory of this process and gives up the right
// to exceed the limit. There is no way back.
func dropPrivileges(t *testing.T, limit uint64) {
	t.Helper()
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		t.Fatalf("setrlimit: %v", err)
	}
	if os.Geteuid() != 0 {
		return
	}
	// Package syscall's calls change all threads of the process.
	if err := syscall.Setgid(unprivileged); err != nil {
		t.Fatalf("setgid: %v", err)
	}
	if err := syscall.Setuid(unprivileged); err != nil {
		t.Fatalf("setuid: %v", err)
	}
}
