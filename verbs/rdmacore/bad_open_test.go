//go:build rdma && linux && cgo

package rdmacore_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/rdmacore"
)

// TestBadName asks for a device that is not there, on a machine that has one.
// parity(vm): V01
func TestBadName(t *testing.T) {
	name := testDevice(t)
	_, err := rdmacore.Open("mlx9_9")
	wantError(t, err, verbs.ErrInvalid, "mlx9_9", "this machine has", name)
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

// nobody is the user without rights.
const nobody = 65534

// becomeNobody has the test begin anew in the same process without rights. The process has to execute itself again: every
// thread got rights of its own, and the kernel takes what is written to an RDMA file only with the very rights by which it
// was opened (ib_safe_file_access).
func becomeNobody(t *testing.T) {
	t.Helper()
	if os.Getuid() == nobody {
		return
	}
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(nobody), syscall.Setuid(nobody)); err != nil {
		t.Fatal(err)
	}
	t.Fatal(syscall.Exec("/proc/self/exe", os.Args, os.Environ())) // returns only if it fails
}

// TestBadPermission opens a device as a user who may not, for each of the two
// files that it takes.
// parity(vm): V01
func TestBadPermission(t *testing.T) {
	for _, tc := range []struct{ name, file, say string }{
		{"device", "/dev/infiniband/uverbs*", "no permission on /dev/infiniband/uverbs"},
		{"connection manager", "/dev/infiniband/rdma_cm", "no permission on /dev/infiniband/rdma_cm"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			name := testDevice(t)
			if inChild() != "" {
				becomeNobody(t)
				_, err := rdmacore.Open(name)
				wantError(t, err, fs.ErrPermission, tc.say, "group", "--device=/dev/infiniband", name)
				return
			}
			needThrowaway(t)
			sh(t, "chmod 600 %s", tc.file)
			t.Cleanup(func() { sh(t, "chmod 666 %s", tc.file) })
			newChild(t, name).finish()
		})
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

// TestBadModules takes the modules out of the kernel that stand between devices
// and programs, and the device before.
// parity(vm): V01
func TestBadModules(t *testing.T) {
	needThrowaway(t)
	if os.Getenv(modulesEnv) == "" {
		t.Skipf("it removes all RDMA devices of the machine; set %s=1 and run nothing else in the process", modulesEnv)
	}
	name := testDevice(t)
	if inChild() != "" {
		_, err := rdmacore.Devices()
		wantError(t, err, errors.ErrUnsupported, strings.Split(os.Getenv(childSees), "|")...)
		_, err = rdmacore.Open(name)
		wantError(t, err, nil, strings.Split(os.Getenv(childSees), "|")...)
		return
	}
	sh(t, "rdma link delete %s", name)
	newChild(t, name, childSees+"=no RDMA device|rdma link add").finish()
	sh(t, "modprobe -r rdma_rxe siw rdma_ucm ib_umad; modprobe -r ib_uverbs")
	newChild(t, name, childSees+"=modules|modprobe -a ib_uverbs rdma_ucm").finish()
}

// modulesEnv lets TestBadModules run.
const modulesEnv = "CINNABAR_RDMA_MODULES"
