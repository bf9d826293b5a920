//go:build linux

package rdmacore_test

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
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
	name := testDevice(t)
	for _, tc := range []struct{ name, file, say string }{
		{"device", "/dev/infiniband/uverbs*", "no permission on /dev/infiniband/uverbs"},
		{"connection manager", "/dev/infiniband/rdma_cm", "no permission on /dev/infiniband/rdma_cm"},
	} {
		t.Run(tc.name, func(t *testing.T) {
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

// TestBadCredentials changes the process's group after it has opened the device. The kernel then refuses commands of the connection manager.
// parity(vm): V01
func TestBadCredentials(t *testing.T) {
	name := testDevice(t)
	if inChild() == "" {
		newChild(t, name).finish()
		return
	}
	dev, err := rdmacore.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setgid(nobody); err != nil {
		t.Skipf("only root may change the group: %v", err)
	}
	_, err = verbs.Listen(dev, netip.MustParseAddrPort("127.0.0.1:0"))
	wantError(t, err, syscall.EACCES, "changed its user, its groups", "open the device after")
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

// childSees tells the child which error it is to see.
const childSees = "CINNABAR_RDMA_SEES"

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
