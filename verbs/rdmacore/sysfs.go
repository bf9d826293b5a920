//go:build linux

package rdmacore

import (
	"bytes"
	"cmp"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"cinnabar/verbs"
)

// classDir is where the kernel shows RDMA devices.
const classDir = "/sys/class/infiniband"

// readWord returns the first line of a file, "" if there is none.
func readWord(path ...string) string {
	b, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		return "" // entries of the GID table that are not set cannot be read
	}
	return strings.TrimSpace(string(b))
}

// readPorts describes the ports of a device.
func readPorts(device string) []Port {
	var ports []Port
	entries, err := os.ReadDir(filepath.Join(classDir, device, "ports"))
	if err != nil {
		return nil // the device is gone meanwhile
	}
	for _, e := range entries {
		if n, err := strconv.ParseUint(e.Name(), 10, 8); err == nil {
			ports = append(ports, readPort(device, int(n)))
		}
	}
	return ports
}

func readPort(device string, num int) Port {
	dir := filepath.Join(classDir, device, "ports", strconv.Itoa(num))
	p := Port{Num: uint8(num), GIDs: readGIDs(dir), State: readWord(dir, "state")}
	p.GID, p.Why = ChooseGID(p.GIDs)
	return p
}

// port describes a port of an opened device. The library's call spares reading
// a file for each of the thousand places of a table.
func (d *device) port(num int) Port {
	raw, err := queryGIDs(d.ctx)
	if err != nil {
		return readPort(d.name, num)
	}
	p := Port{Num: uint8(num), State: readWord(classDir, d.name, "ports", strconv.Itoa(num), "state")}
	for _, g := range raw {
		if g.port != num || g.IP().IsUnspecified() {
			continue
		}
		if ifc, err := net.InterfaceByIndex(g.netdev); err == nil {
			g.Netdev = ifc.Name
		}
		p.GIDs = append(p.GIDs, g.GID)
	}
	p.GID, p.Why = ChooseGID(p.GIDs)
	return p
}

// readGIDs reads the entries that are set.
func readGIDs(dir string) []GID {
	entries, err := os.ReadDir(filepath.Join(dir, "gids"))
	if err != nil {
		return nil
	}
	var table []GID
	for _, e := range entries {
		i, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		ip, err := netip.ParseAddr(readWord(dir, "gids", e.Name()))
		if err != nil || ip.IsUnspecified() {
			continue
		}
		table = append(table, GID{Index: i, Addr: ip.As16(), Type: readWord(dir, "gid_attrs/types", e.Name()),
			Netdev: readWord(dir, "gid_attrs/ndevs", e.Name())})
	}
	slices.SortFunc(table, func(a, b GID) int { return cmp.Compare(a.Index, b.Index) })
	return table
}

// portAddrs lists the addresses that reach the port through rdma_cm.
func portAddrs(p Port, transport verbs.TransportType) []netip.Addr {
	var addrs []netip.Addr
	for _, g := range p.GIDs {
		switch {
		case transport == verbs.TransportIWARP:
			addrs = append(addrs, netdevAddrs(g)...)
		case g.Netdev != "" && g.Type == typeRoCE2 && g.IP().Is6() && g.IP().IsLinkLocalUnicast():
			addrs = append(addrs, g.IP().WithZone(g.Netdev))
		case g.Netdev != "" && g.Type == typeRoCE2:
			addrs = append(addrs, g.IP())
		}
	}
	return addrs
}

// netdevAddrs lists the addresses of the interface of an iWARP port.
func netdevAddrs(g GID) []netip.Addr {
	var addrs []netip.Addr
	for _, ifc := range netdevsOf(g) {
		own, err := ifc.Addrs()
		if err != nil {
			continue // the interface is gone meanwhile
		}
		for _, a := range own {
			if n, ok := a.(*net.IPNet); ok {
				if ip, ok := netip.AddrFromSlice(n.IP); ok {
					addrs = append(addrs, zoned(ip.Unmap(), ifc.Name))
				}
			}
		}
	}
	return addrs
}

// netdevsOf returns the interfaces that an entry belongs to. The only entry of an
// iWARP port does not name them; it is their hardware address, padded.
func netdevsOf(g GID) []net.Interface {
	list, err := net.Interfaces()
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(list, func(ifc net.Interface) bool {
		return ifc.Name != g.Netdev && (len(ifc.HardwareAddr) != 6 || !bytes.HasPrefix(g.Addr[:], ifc.HardwareAddr))
	})
}

// zoned adds the interface to a link-local address.
func zoned(ip netip.Addr, name string) netip.Addr {
	if ip.Is6() && ip.IsLinkLocalUnicast() {
		return ip.WithZone(name)
	}
	return ip
}
