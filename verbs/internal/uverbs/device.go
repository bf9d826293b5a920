//go:build linux

package uverbs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// The folders in which the kernel shows its devices: RDMA devices by name, and their character
// devices, named uverbsN. The file ibdev of a character device has the name of the RDMA device.
const (
	deviceClass = "/sys/class/infiniband"
	verbsClass  = "/sys/class/infiniband_verbs"
	nodeDir     = "/dev/infiniband"
)

// Device is a device of the kernel.
type Device struct {
	Name      string
	GUID      uint64 // host byte order
	NodeType  int    // IBV_NODE_*
	Transport int    // IBV_TRANSPORT_*: 0 is InfiniBand and RoCE, 1 is iWARP
}

// Devices returns all devices of the kernel, cards too, by name. It fails with ENOSYS if
// the kernel has no RDMA subsystem loaded.
func Devices() ([]Device, error) {
	nodes, err := verbsNodes()
	if err != nil {
		return nil, err
	}
	var devices []Device
	for name := range nodes {
		devices = append(devices, describe(name))
	}
	slices.SortFunc(devices, func(a, b Device) int { return strings.Compare(a.Name, b.Name) })
	return devices, nil
}

// verbsNodes returns the names of character devices by the names of RDMA devices.
func verbsNodes() (map[string]string, error) {
	entries, err := os.ReadDir(verbsClass)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, syscall.ENOSYS
	}
	if err != nil {
		return nil, err
	}
	nodes := map[string]string{}
	for _, e := range entries {
		if name := readLine(verbsClass, e.Name(), "ibdev"); name != "" {
			nodes[name] = e.Name()
		}
	}
	return nodes, nil
}

// readLine returns the contents of a file of the kernel, "" if it cannot be read.
func readLine(path ...string) string {
	b, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		return "" // the device is gone meanwhile, or the file is of another class
	}
	return strings.TrimSpace(string(b))
}

func describe(name string) Device {
	d := Device{Name: name, Transport: transportUnknown}
	digits := strings.ReplaceAll(readLine(deviceClass, name, "node_guid"), ":", "")
	d.GUID, _ = strconv.ParseUint(digits, 16, 64) // 0 for none
	number, _, _ := strings.Cut(readLine(deviceClass, name, "node_type"), ":")
	if n, err := strconv.Atoi(number); err == nil {
		d.NodeType, d.Transport = n, transportOf(n)
	} else {
		d.NodeType = -1
	}
	return d
}

const transportUnknown = -1 // IBV_TRANSPORT_UNKNOWN

// transportOf follows rdma_node_get_transport of the kernel and its numbers in the file
// node_type (enum rdma_node_type), with the results of enum ibv_transport_type.
func transportOf(nodeType int) int {
	switch nodeType {
	case 1, 2, 3: // channel adapter, switch, router
		return 0
	case 4: // RNIC
		return 1
	case 5: // usNIC
		return 2
	case 6: // usNIC over UDP
		return 3
	case 7: // unspecified
		return 4
	}
	return transportUnknown
}

// driverName returns the name of a card's driver, "" for devices without a parent.
func driverName(name string) string {
	target, err := os.Readlink(filepath.Join(deviceClass, name, "device", "driver"))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}
