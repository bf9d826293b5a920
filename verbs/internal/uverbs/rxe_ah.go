//go:build linux

package uverbs

import (
	"net"
	"net/netip"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// openAH takes the number of the address handle from struct rxe_create_ah_resp. Kernels
// before 5.15 have none, and want the path in every request, as struct rxe_av.
func (rxe) openAH(a *AH, resp []byte) error {
	if a.num = native.Uint32(resp); a.num != 0 {
		return nil
	}
	av, err := rxeAV(a.ctx.name, &a.path)
	a.av = av
	return err
}

// rxeAV builds struct rxe_av. rxe compares the hardware address in it with its own, to
// deliver datagrams to itself, and otherwise lets the IP stack find the peer, so it is
// only set for own addresses.
func rxeAV(device string, p *Path) ([]byte, error) {
	dir := filepath.Join(deviceClass, device, "ports", strconv.Itoa(int(p.Port)))
	index := strconv.Itoa(int(p.SGIDIndex))
	source, err := netip.ParseAddr(readLine(dir, "gids", index))
	if err != nil {
		return nil, unix.EINVAL // there is no such entry
	}
	mac := hardwareAddr(readLine(dir, "gid_attrs/ndevs", index), netip.AddrFrom16(p.DGID).Unmap())
	return putRxeAV(p, source, mac), nil
}

func putRxeAV(p *Path, source netip.Addr, mac []byte) []byte {
	target := netip.AddrFrom16(p.DGID)
	av := make([]byte, 88)
	av[0], av[1] = p.Port, rxeNetwork(target)
	copy(av[2:8], mac)
	copy(av[8:], p.DGID[:])
	native.PutUint32(av[24:], p.FlowLabel)
	av[28], av[29], av[30] = p.SGIDIndex, p.HopLimit, p.TrafficClass
	putRxeSockaddr(av[32:], source)
	putRxeSockaddr(av[60:], target)
	return av
}

// rxeNetwork is RXE_NETWORK_TYPE_IPV4 or _IPV6.
func rxeNetwork(gid netip.Addr) byte {
	if gid.Is4In6() {
		return 1
	}
	return 2
}

// putRxeSockaddr writes struct sockaddr_in, without its family as the C library does, or struct sockaddr_in6.
func putRxeSockaddr(b []byte, gid netip.Addr) {
	if gid.Is4In6() {
		v4 := gid.Unmap().As4()
		copy(b[4:], v4[:])
		return
	}
	native.PutUint16(b, unix.AF_INET6)
	v6 := gid.As16()
	copy(b[8:], v6[:])
}

// hardwareAddr returns the address of an interface if it has the IP address, nil if not.
func hardwareAddr(name string, ip netip.Addr) []byte {
	ifc, err := net.InterfaceByName(name)
	if err != nil {
		return nil
	}
	own, err := ifc.Addrs()
	if err != nil {
		return nil // the interface is gone meanwhile
	}
	for _, a := range own {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Unmap() == ip {
			return ifc.HardwareAddr
		}
	}
	return nil
}
