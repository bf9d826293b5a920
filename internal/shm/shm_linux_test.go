package shm

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// file is the path of a file that does not exist, in shared memory.
func file(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "cinnabar-shm-") //nolint:usetesting // it has to be there
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(dir, "region")
}

func closed(t *testing.T, r *Region) {
	t.Helper()
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestRegion(t *testing.T) {
	path := file(t)
	a, err := Create(path, 8192)
	if err != nil {
		t.Fatal(err)
	}
	closed(t, a)
	if _, err := Create(path, 8192); !errors.Is(err, os.ErrExist) {
		t.Errorf("created twice: %v", err)
	}
	b, err := Open(path, 8192, 8192)
	if err != nil {
		t.Fatal(err)
	}
	closed(t, b)
	Uint64(a.Bytes(), 4096).Store(77)
	Uint32(a.Bytes(), 8188).Store(78)
	if Uint64(b.Bytes(), 4096).Load() != 77 || Uint32(b.Bytes(), 8188).Load() != 78 || b.Name() != path {
		t.Error("two mappings differ")
	}
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	small, err := Open(path, 4096, 4096)
	if err != nil || len(small.Bytes()) != 4096 {
		t.Fatalf("%v", err)
	}
	closed(t, small)
}

func TestOpenRefuses(t *testing.T) {
	path := file(t)
	if _, err := Open(path, 1, 1); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("nothing there: %v", err)
	}
	if err := os.WriteFile(path, make([]byte, 100), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, 101, 101); err == nil {
		t.Error("a file that is too short is accepted")
	}
	if err := os.Symlink(path, path+"link"); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path+"link", 1, 1); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a symbolic link: %v", err)
	}
	if err := unix.Mkfifo(path+"fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path+"fifo", 0, 1); err == nil {
		t.Error("a pipe is accepted")
	}
	if _, err := Create(filepath.Join(path, "below"), 1); err == nil {
		t.Error("created below a file")
	}
}

func TestUnused(t *testing.T) {
	path := file(t)
	if _, err := Unused(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("nothing there: %v", err)
	}
	r, err := Create(path, 4096)
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := Unused(path); ok || err != nil {
		t.Errorf("mapped: %v, %v", ok, err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if ok, err := Unused(path); !ok || err != nil {
		t.Errorf("not mapped: %v, %v", ok, err)
	}
}

func TestWords(t *testing.T) {
	r, err := Private(4096)
	if err != nil {
		t.Fatal(err)
	}
	closed(t, r)
	b := r.Bytes()
	for name, f := range map[string]func(){
		"negative":     func() { Uint32(b, -4) },
		"behind":       func() { Uint32(b, 4096) },
		"across":       func() { Uint64(b, 4092) },
		"unaligned":    func() { Uint64(b, 4) },
		"unaligned 32": func() { Uint32(b, 2) },
		"empty":        func() { Uint32(nil, 0) },
		"part":         func() { Uint64(b[:8], 8) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 1000 {
				Uint64(b, 4088).Add(1)
			}
		})
	}
	wg.Wait()
	if n := Uint64(b, 4088).Load(); n != 4000 {
		t.Errorf("%d, want 4000", n)
	}
}

// touch writes to a region under guard.
func touch(r *Region, f func()) (err error) {
	defer r.Recover(r.Guard(), &err)
	f()
	return nil
}

func TestGuard(t *testing.T) {
	path := file(t)
	r, err := Create(path, 8192)
	if err != nil {
		t.Fatal(err)
	}
	closed(t, r)
	b := r.Bytes()
	if err := touch(r, func() { b[5000] = 1 }); err != nil {
		t.Error(err)
	}
	if err := os.Truncate(path, 4096); err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func(){
		"write":  func() { b[5000] = 1 },
		"atomic": func() { Uint64(b, 4096).Add(1) },
		"copy":   func() { copy(bytes.Repeat([]byte{1}, 4096), b[4096:]) },
		"across": func() { copy(b[4000:], bytes.Repeat([]byte{1}, 200)) },
	} {
		if err := touch(r, f); !errors.Is(err, ErrFault) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := touch(r, func() { b[4095] = 1 }); err != nil {
		t.Errorf("before the end: %v", err)
	}
}

// TestGuardPasses has other panics, faults elsewhere among them, go on.
func TestGuardPasses(t *testing.T) {
	r, err := Private(4096)
	if err != nil {
		t.Fatal(err)
	}
	closed(t, r)
	var nothing *[8]int
	for name, f := range map[string]func(){
		"panic": func() { panic("own") },
		"nil":   func() { nothing[1] = 1 },
		"index": func() { _ = r.Bytes()[len(os.Args)+4096] },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			_ = touch(r, f)
		}()
	}
}

func TestPause(t *testing.T) {
	for _, n := range []uint32{0, 1, 1000} {
		Pause(n)
	}
	if runtime.GOARCH == "amd64" && testing.AllocsPerRun(10, func() { Pause(1) }) != 0 {
		t.Error("allocates")
	}
}
