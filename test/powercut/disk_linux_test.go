package powercut

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// deviceEnv names a block device for the test.
const deviceEnv = "CINNABAR_POWERCUT_DEVICE"

// diskSize is the size of the file behind a loop device, in bytes.
const diskSize = 256 << 20

// disk is an ext4 file system of which the power can be cut.
type disk struct {
	t      *testing.T
	device string
	at     string // where it is mounted
	on     bool
}

// newDisk makes a file system, which is not mounted.
func newDisk(t *testing.T) *disk {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a file system")
	}
	mkfs, err := exec.LookPath("mkfs.ext4")
	if err != nil {
		t.Skip("there is no mkfs.ext4")
	}
	d := &disk{t: t, device: os.Getenv(deviceEnv), at: filepath.Join(t.TempDir(), "disk")}
	check(t, os.Mkdir(d.at, 0o700))
	if d.device == "" {
		d.device = loopDevice(t)
	}
	if out, err := exec.CommandContext(t.Context(), mkfs, "-q", "-F", d.device).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v: %s", err, out)
	}
	t.Cleanup(d.unmount)
	return d
}

// loopDevice makes a block device of a file.
func loopDevice(t *testing.T) string {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	check(t, os.WriteFile(image, nil, 0o600))
	check(t, os.Truncate(image, diskSize))
	out, err := exec.CommandContext(t.Context(), "losetup", "--find", "--show", image).Output()
	if err != nil {
		t.Skipf("this system has no loop device: %v", err)
	}
	device := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "--detach", device).CombinedOutput(); err != nil { //nolint:noctx // the context of the test is over
			t.Errorf("losetup: %v: %s", err, out)
		}
	})
	return device
}

// mount mounts the file system without auto_da_alloc, because with that option ext4 syncs some files for programs that forget it.
func (d *disk) mount() {
	d.t.Helper()
	switch err := unix.Mount(d.device, d.at, "ext4", 0, "noauto_da_alloc"); {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.ENODEV):
		d.t.Skipf("this system does not let the test mount ext4: %v", err)
	case err != nil:
		d.t.Fatal(err)
	}
	d.on = true
}

func (d *disk) unmount() {
	if d.on {
		d.on = false
		check(d.t, unix.Unmount(d.at, 0))
	}
}

// The request that ends a file system, and its argument.
const (
	ioctlShutdown = 0x8004587d // FS_IOC_SHUTDOWN
	withoutLog    = 2          // EXT4_GOING_FLAGS_NOLOGFLUSH: neither data nor the journal are written
)

// cut cuts the power.
func (d *disk) cut() {
	d.t.Helper()
	f, err := os.Open(d.at)
	check(d.t, err)
	err = unix.IoctlSetPointerInt(int(f.Fd()), ioctlShutdown, withoutLog) //nolint:gosec // descriptors are small
	check(d.t, f.Close())
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EOPNOTSUPP) {
		d.t.Skipf("ext4 of this kernel has no request that ends it: %v", err)
	}
	check(d.t, err)
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
