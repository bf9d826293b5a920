package hostmem

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cinnabar/internal/testproc"
)

// lockedBytes returns how much memory the kernel says this process has locked.
func lockedBytes(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		var kb int
		if _, err := fmt.Sscanf(line, "VmLck: %d kB", &kb); err == nil {
			return kb << 10
		}
	}
	t.Fatal("no VmLck line in /proc/self/status")
	return 0
}

// TestLocksNest: the kernel's count of locked bytes follows the union of the
// locked slices, pages shared by two of them included.
func TestLocksNest(t *testing.T) {
	page := os.Getpagesize()
	b := mustMap(t, 4*page)
	left, right := b[:2*page+1], b[2*page+1:4*page] // pages 0-2 and 2-3
	base := lockedBytes(t)
	steps := []struct {
		name  string
		do    func([]byte) error
		arg   []byte
		pages int
	}{
		{"lock left", Lock, left, 3},
		{"lock right", Lock, right, 4},
		{"lock left again", Lock, left, 4},
		{"unlock left", Unlock, left, 4},
		{"unlock left again", Unlock, left, 2},
		{"unlock right", Unlock, right, 0},
	}
	for _, s := range steps {
		if err := s.do(s.arg); err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		if got := (lockedBytes(t) - base) / page; got != s.pages {
			t.Errorf("%s: %d pages locked, want %d", s.name, got, s.pages)
		}
	}
	if err := Unlock(left); !errors.Is(err, errNotLocked) {
		t.Errorf("one Unlock too many: error %v, want %v", err, errNotLocked)
	}
}

// overflowUser is the user and group of the unprivileged child process.
const overflowUser = 65534

// childLimit is the locked-memory limit that the child sets itself, in bytes.
const childLimit = 64 << 10

// TestLockLimit runs a process without CAP_IPC_LOCK, to which the limit applies.
// parity: V08 D21
func TestLockLimit(t *testing.T) {
	// By this path the child need not be able to enter the directory that holds the test binary.
	c := testproc.Command{Role: "locklimit", Path: "/proc/self/exe", Dir: "/"}
	if os.Geteuid() == 0 {
		c.Attr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: overflowUser, Gid: overflowUser}}
	}
	if p := testproc.Run(t, c); p.ExitCode() != 0 {
		t.Errorf("the unprivileged child: %s", p.Stderr.String())
	}
}

func init() { roles["locklimit"] = func([]string) error { return checkLimits() } }

// checkLimits is the child's side of TestLockLimit.
func checkLimits() error {
	if err := setLockLimit(childLimit); err != nil {
		return err
	}
	b, err := Map(4 * childLimit)
	if err != nil {
		return err
	}
	if err := Lock(b[:childLimit/2]); err != nil {
		return fmt.Errorf("within the limit: %w", err)
	}
	err = Lock(b)
	if !errors.Is(err, syscall.ENOMEM) {
		return fmt.Errorf("beyond the limit: error %w, want ENOMEM", err)
	}
	for _, want := range []string{"65536", "262144", "ulimit -l", "CAP_IPC_LOCK"} {
		if !strings.Contains(err.Error(), want) {
			return fmt.Errorf("beyond the limit: %w does not say %q", err, want)
		}
	}
	if err := Unlock(b[:childLimit/2]); err != nil {
		return err
	}
	if err := setLockLimit(0); err != nil {
		return err
	}
	if err := Lock(b[:1]); !errors.Is(err, syscall.EPERM) {
		return fmt.Errorf("with limit 0: error %w, want EPERM", err)
	}
	return Unmap(b)
}

// setLockLimit lowers the limit and checks that LockLimit sees it.
func setLockLimit(n uint64) error {
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: n, Max: n}); err != nil {
		return fmt.Errorf("set the limit to %d bytes: %w", n, err)
	}
	if cur, limit, ok := LockLimit(); cur != n || limit != n || !ok {
		return fmt.Errorf("LockLimit() = %d, %d, %v, want %d, %[4]d, true", cur, limit, ok, n)
	}
	return nil
}
