//go:build linux

package rdmacore_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"cinnabar/verbs"
)

// TestBadLockLimit registers more memory than the process may lock, at once and
// little by little. The advice is that of "How do I raise the limit": what it is
// now, what is needed, and how each kind of process gets more.
// parity(vm): V08 B20
func TestBadLockLimit(t *testing.T) {
	name := testDevice(t)
	if inChild() == "" {
		newChild(t, name).finish()
		return
	}
	const limit, half = 64 << 10, 40 << 10
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		t.Fatal(err)
	}
	becomeNobody(t)
	pd := newPD(t, badDevice(t, name))
	advice := []string{"65536 bytes", "ulimit -l unlimited", "/etc/security/limits.conf", "LimitMEMLOCK=infinity", "--ulimit memlock=-1"}
	_, err := pd.AllocMR(4*limit, verbs.LocalWrite)
	wantError(t, err, verbs.ErrLockLimit, append(advice, "262144 bytes cannot be locked")...)
	mr, err := pd.AllocMR(half, verbs.LocalWrite)
	if err != nil {
		t.Fatalf("%d bytes under a limit of %d: %v", half, limit, err)
	}
	t.Cleanup(func() { closeWell(t, mr) })
	_, err = pd.AllocMR(half, verbs.LocalWrite)
	wantError(t, err, verbs.ErrLockLimit, append(advice, "40960 bytes cannot be locked", "of which 40960 are in use")...)
}

// newPD allocates a protection domain until the test ends.
func newPD(t *testing.T, dev *verbs.Device) *verbs.PD {
	t.Helper()
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeWell(t, pd) })
	return pd
}

// TestBadMemory registers memory that cannot be what the caller wants.
// parity(vm): V08
func TestBadMemory(t *testing.T) {
	pd := newPD(t, badDevice(t, testDevice(t)))
	for _, tc := range []struct {
		name   string
		memory []byte
		access verbs.Access
		words  []string
	}{
		{"no pages", beyondFile(t), 0, []string{"8192 bytes", "not mapped"}},
		{"no pages to write to", beyondFile(t), verbs.LocalWrite, []string{"8192 bytes", "not mapped or only for reading"}},
		{"read-only", readOnly(t), verbs.LocalWrite | verbs.RemoteWrite, []string{"8192 bytes", "only for reading", "ask for no right to write"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			mr, err := pd.RegMR(tc.memory, tc.access)
			if err == nil {
				closeWell(t, mr)
			}
			wantError(t, err, verbs.ErrInvalid, tc.words...)
		})
	}
	mr, err := pd.RegMR(readOnly(t), 0)
	if err != nil {
		t.Errorf("memory only for reading, without rights to write: %v", err)
		return
	}
	closeWell(t, mr)
}

const mapped = 8192 // bytes

// readOnly maps memory that can only be read.
func readOnly(t *testing.T) []byte {
	t.Helper()
	return mapping(t, -1, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON)
}

// beyondFile maps an empty file, so that there are addresses but no pages.
func beyondFile(t *testing.T) []byte {
	t.Helper()
	fd, err := unix.MemfdCreate("empty", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	b := mapping(t, fd, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err := unix.Close(fd); err != nil {
		t.Error(err)
	}
	return b
}

func mapping(t *testing.T, fd, prot, flags int) []byte {
	t.Helper()
	b, err := unix.Mmap(fd, 0, mapped, prot, flags)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(b); err != nil {
			t.Error(err)
		}
	})
	return b
}
