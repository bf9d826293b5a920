//go:build rdma && linux && cgo

package rdmacore_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"cinnabar/verbs/rdmacore"
)

// childSees tells the child which error it is to see.
const childSees = "CINNABAR_RDMA_SEES"

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

// TestBadNoDevice is for machines as most are.
// parity(vm): V01
func TestBadNoDevice(t *testing.T) {
	if list, err := rdmacore.Devices(); err == nil {
		t.Skipf("this machine has %s", list[0].Name)
	}
	_, err := rdmacore.Devices()
	wantError(t, err, errors.ErrUnsupported, "list RDMA devices")
	_, err = rdmacore.Open("rxe0")
	wantError(t, err, nil, "open RDMA device", "`") // the remedy is a command
}
