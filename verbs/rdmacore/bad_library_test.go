//go:build rdma && linux && cgo

package rdmacore_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/rdmacore"
)

// TestBadLibraries runs with libraries in the place of rdma-core's that cannot
// be opened, or lack functions. It needs no device.
// parity(vm): V01 D50
func TestBadLibraries(t *testing.T) {
	const missing, old = "libibverbs1, librdmacm1 and ibverbs-providers", "too old; install version 22"
	for _, tc := range []struct{ name, library, source, say string }{
		{"no libibverbs", "libibverbs.so.1", "", missing},
		{"no librdmacm", "librdmacm.so.1", "", missing},
		{"old libibverbs", "libibverbs.so.1", "int ibv_open_device(void) { return 0; }", old},
		{"old librdmacm", "librdmacm.so.1", "int rdma_connect(void) { return 0; }", old},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if inChild() != "" {
				list, err := rdmacore.Devices()
				if len(list) != 0 {
					t.Errorf("devices %v without libraries", list)
				}
				_, openErr := rdmacore.Open(inChild())
				for _, err := range []error{err, openErr} {
					wantError(t, err, errors.ErrUnsupported, os.Getenv(childSees), tc.library)
				}
				return
			}
			dir := t.TempDir()
			fakeLibrary(t, filepath.Join(dir, tc.library), tc.source)
			newChild(t, "rxe0", "LD_LIBRARY_PATH="+dir, childSees+"="+tc.say).finish()
		})
	}
}

// fakeLibrary makes a library from C source; from none, a file that is no library.
func fakeLibrary(t *testing.T, path, source string) {
	t.Helper()
	if source == "" {
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skipf("a library that lacks functions takes a C compiler: %v", err)
	}
	src := path + ".c"
	if err := os.WriteFile(src, []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-o", path, src).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestBadDriver lacks rdma-core's part of a device's driver.
// parity(vm): V01
func TestBadDriver(t *testing.T) {
	needThrowaway(t)
	name := testDevice(t)
	if inChild() != "" {
		_, err := rdmacore.Devices()
		wantError(t, err, errors.ErrUnsupported, name, "ibverbs-providers")
		_, err = rdmacore.Open(name)
		wantError(t, err, verbs.ErrInvalid, name, "ibverbs-providers")
		return
	}
	hide(t, "/etc/libibverbs.d")
	newChild(t, name).finish()
}

// TestBadLibraryAbsent lacks the library altogether.
// parity(vm): V01
func TestBadLibraryAbsent(t *testing.T) {
	needThrowaway(t)
	name := testDevice(t)
	if inChild() != "" {
		_, err := rdmacore.Open(name)
		wantError(t, err, errors.ErrUnsupported, "librdmacm.so.1", "install the packages")
		return
	}
	hide(t, libraryPath(t, "librdmacm.so.1"))
	newChild(t, name).finish()
}

// libraryPath is where the loader found a library.
func libraryPath(t *testing.T, name string) string {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(maps)) {
		if f := strings.Fields(line); len(f) == 6 && strings.HasPrefix(filepath.Base(f[5]), strings.TrimSuffix(name, ".1")) {
			return filepath.Join(filepath.Dir(f[5]), name)
		}
	}
	t.Fatalf("%s is not loaded", name)
	return ""
}

// hide renames a file of the machine until the test ends.
func hide(t *testing.T, path string) {
	t.Helper()
	needThrowaway(t)
	if err := os.Rename(path, path+".hidden"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Rename(path+".hidden", path); err != nil {
			t.Error(err)
		}
	})
}
