//go:build unix

package hostmem

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// gone returns memory of a file that was truncated.
func gone(t *testing.T) []byte {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size := 4 * os.Getpagesize()
	if err := f.Truncate(int64(size)); err != nil {
		t.Fatal(err)
	}
	b, err := syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Munmap(b) })
	if err := f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestCopyOfTruncatedFile: memory that is gone is an error, and the process goes on.
func TestCopyOfTruncatedFile(t *testing.T) {
	b := gone(t)
	own := make([]byte, 100)
	for name, f := range map[string]func() (int, error){
		"from": func() (int, error) { return Copy(own, b) },
		"to":   func() (int, error) { return Copy(b, own) },
	} {
		_, err := f()
		fault, ok := errors.AsType[*FaultError](err)
		if !ok || !errors.Is(err, ErrFault) || uint64(fault.Addr) != Addr(b) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n, err := Copy(own, []byte("hello")); n != 5 || err != nil || string(own[:5]) != "hello" {
		t.Errorf("%d bytes %q, %v", n, own[:5], err)
	}
}

// TestGuardPassesPanics: a panic that is no fault goes on.
func TestGuardPassesPanics(t *testing.T) {
	defer func() {
		if v := recover(); v != "other" {
			t.Errorf("recovered %v", v)
		}
	}()
	_ = Guard(func() { panic("other") })
}

func TestCopyDoesNotAllocate(t *testing.T) {
	a, b := make([]byte, 64), make([]byte, 64)
	if n := testing.AllocsPerRun(100, func() { _, _ = Copy(a, b) }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func BenchmarkCopyGuarded(b *testing.B) {
	p, q := make([]byte, 64), make([]byte, 64)
	for b.Loop() {
		_, _ = Copy(p, q)
	}
}
