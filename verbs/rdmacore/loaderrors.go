//go:build linux

package rdmacore

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"cinnabar/verbs"
)

// The errors below are those that users meet on their first day with a device,
// each with its cause and a remedy.

// noModules is the error text for a kernel that does not answer.
const noModules = "the kernel's RDMA modules do not answer; load them with `modprobe -a ib_uverbs rdma_ucm`"

// listError is about the kernel.
func listError(op string, err error) error {
	return &verbs.Error{Op: op, Kind: errors.ErrUnsupported, Err: err, Detail: noModules}
}

// whyNone explains a listing that is empty. Without rdma-core the listing is the kernel's own. With it, a device that the kernel has all the
// same lacks its driver in user space.
func whyNone() string {
	if _, err := os.Stat(verbsDir); err != nil {
		return noModules
	}
	if names := kernelDevices(); len(names) > 0 {
		return fmt.Sprintf("the kernel has %s, but rdma-core has no driver for it; install the package ibverbs-providers", strings.Join(names, ", "))
	}
	return "this machine has no RDMA device; load the card's driver, or make one in software with `rdma link add rxe0 type rxe netdev NAME`"
}

// kernelDevices are the names of the devices that the kernel offers to programs.
func kernelDevices() []string {
	entries, err := os.ReadDir(verbsDir)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if name := readWord(verbsDir, e.Name(), "ibdev"); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// openError is about one device.
func openError(op, name string, err error) error {
	file := fileError(deviceFile(name))
	switch {
	case errors.Is(err, syscall.ENOSYS):
		return listError(op, err)
	case file != nil && !errors.Is(err, syscall.ENODEV):
		return &verbs.Error{Op: op, Detail: name, Err: file}
	case errors.Is(err, syscall.ENODEV):
		return &verbs.Error{Op: op, Kind: verbs.ErrInvalid, Err: err, Detail: "no device is named " + name + "; " + namesThere()}
	}
	return &verbs.Error{Op: op, Detail: name, Err: err}
}

// namesThere says which devices there are.
func namesThere() string {
	raw, err := listDevices()
	if err != nil || len(raw) == 0 {
		return whyNone()
	}
	names := make([]string, len(raw))
	for i, r := range raw {
		names[i] = r.name
	}
	return "this machine has " + strings.Join(names, ", ")
}

// deviceFile returns the path that a program opens to use a device.
func deviceFile(name string) string {
	entries, _ := os.ReadDir(verbsDir) // without any the name is a guess
	for _, e := range entries {
		if readWord(verbsDir, e.Name(), "ibdev") == name {
			return filepath.Join(fileDir, e.Name())
		}
	}
	return filepath.Join(fileDir, "uverbs0")
}

// Directories of the kernel's devices for programs: their descriptions and their files.
const (
	verbsDir = "/sys/class/infiniband_verbs"
	fileDir  = "/dev/infiniband"
)

// fileError says why a file of the kernel cannot be opened, nil if it can. The
// libraries say "no such file" for each reason.
func fileError(path string) error {
	err := unix.Faccessat(unix.AT_FDCWD, path, unix.R_OK|unix.W_OK, unix.AT_EACCESS)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("no permission on %s; add the user to the group that owns it, or give a container --device=%s: %w", path, fileDir, err)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("there is no %s; load the module with `modprobe -a ib_uverbs rdma_ucm`, or give a container --device=%s: %w", path, fileDir, err)
	}
	return nil
}

// credentialsError is about a command that the kernel refuses with EACCES. It takes commands only from threads with the very credentials by
// which the device was opened (ib_safe_file_access).
func credentialsError(op string, err error) error {
	return &verbs.Error{Op: op, Err: err, Detail: "the kernel refuses the command, because the process has changed its user, its groups or its capabilities " +
		"since it opened the device; open the device after such a change"}
}

// cmError is about the connection manager.
func cmError(err error) error {
	if file := fileError(filepath.Join(fileDir, "rdma_cm")); file != nil {
		return file
	}
	if errors.Is(err, syscall.EMFILE) {
		return fmt.Errorf("the connection manager: %w; raise the limit with `ulimit -n`", err)
	}
	return fmt.Errorf("the connection manager does not answer; load it with `modprobe rdma_ucm`: %w", err)
}

// wayError adds the fault of the path to the peer to the failure of a step,
// if the step sets one.
func (d *device) wayError(a *verbs.QPAttr, sgid int, err error) error {
	if a.Mask&verbs.AttrAV == 0 {
		return err
	}
	table := d.port(int(max(a.AH.PortNum, 1))).GIDs
	i := slices.IndexFunc(table, func(g GID) bool { return g.Index == sgid })
	if i < 0 {
		return fmt.Errorf("GID index %d of %s is not set; there are %v: %w", sgid, d.name, table, err)
	}
	to := netip.AddrFrom16(a.AH.GID).Unmap()
	if errors.Is(err, syscall.ETIMEDOUT) || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH) {
		return fmt.Errorf("GID %v does not answer ARP or ND from GID %v; is there a route, and is the peer's interface up?: %w", to, table[i], err)
	}
	return fmt.Errorf("to GID %v from GID %v: %w", to, table[i], err)
}

// portTrouble names the first port that cannot send, with a remedy, "" if all can. It is
// for errors: a peer that does not answer is often a port of our own that is down.
func (d *device) portTrouble() string {
	for i := range d.ports {
		p, err := queryPort(d.ctx, i+1)
		if err != nil || p.State == verbs.PortActive {
			continue
		}
		return d.portDown(i+1, p.State)
	}
	return ""
}

// portDown is the error text, with a remedy, for a port in a state other than active.
func (d *device) portDown(num int, state verbs.PortState) string {
	netdev := netdevOf(d.name, num)
	if netdev == "" {
		return fmt.Sprintf("port %d of %s is %s; check its cable and its subnet manager", num, d.name, state)
	}
	return fmt.Sprintf("port %d of %s is %s; check its cable and bring its interface up with `ip link set %s up`", num, d.name, state, netdev)
}

// netdevOf returns the network interface of a port, "" if there is none, as on InfiniBand.
func netdevOf(device string, num int) string {
	dir := filepath.Join(classDir, device)
	for _, g := range readGIDs(filepath.Join(dir, "ports", strconv.Itoa(num))) {
		if ifc := netdevsOf(g); len(ifc) > 0 {
			return ifc[0].Name
		}
	}
	if name := readWord(dir, "parent"); name != "" { // the kernel's software devices, which lose their GIDs with the link
		return name
	}
	if list, err := os.ReadDir(filepath.Join(dir, "device", "net")); err == nil && len(list) == 1 {
		return list[0].Name()
	}
	return ""
}

// withTrouble adds the fault of our own ports to an error of a connection.
func (d *device) withTrouble(err error) error {
	if s := d.portTrouble(); err != nil && s != "" {
		return fmt.Errorf("%w (%s)", err, s)
	}
	return err
}
