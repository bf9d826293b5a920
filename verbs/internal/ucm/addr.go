//go:build linux

package ucm

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
)

// sockaddr is a struct sockaddr_in or sockaddr_in6. An empty one is none.
type sockaddr []byte

const (
	sockaddrInSize  = 16 // struct sockaddr_in
	sockaddrIn6Size = 28 // struct sockaddr_in6
)

// toSockaddr translates an address; an invalid one is an empty sockaddr. A zone is the name
// of a network interface or its index; one that is neither is left out, as if it were not given.
func toSockaddr(a netip.AddrPort) sockaddr {
	ip := a.Addr().Unmap()
	switch {
	case !ip.IsValid():
		return nil
	case ip.Is4():
		s := make(sockaddr, sockaddrInSize)
		order.PutUint16(s, unix.AF_INET)
		binary.BigEndian.PutUint16(s[2:], a.Port())
		copy(s[4:], ip.AsSlice())
		return s
	}
	s := make(sockaddr, sockaddrIn6Size)
	order.PutUint16(s, unix.AF_INET6)
	binary.BigEndian.PutUint16(s[2:], a.Port())
	copy(s[8:], ip.AsSlice())
	order.PutUint32(s[24:], scope(ip.Zone()))
	return s
}

// scope is the index of the network interface that a zone names, 0 for none.
func scope(zone string) uint32 {
	if zone == "" {
		return 0
	}
	if ifc, err := net.InterfaceByName(zone); err == nil {
		return uint32(ifc.Index)
	}
	n, err := strconv.ParseUint(zone, 10, 32)
	if err != nil {
		return 0
	}
	return uint32(n)
}

// fromSockaddr translates an address of the kernel. One of another family, or none, is invalid. The
// zone is an index in digits.
func fromSockaddr(s sockaddr) netip.AddrPort {
	if len(s) < 2 {
		return netip.AddrPort{}
	}
	switch family := order.Uint16(s); {
	case family == unix.AF_INET && len(s) >= sockaddrInSize:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(s[4:8])), binary.BigEndian.Uint16(s[2:]))
	case family == unix.AF_INET6 && len(s) >= sockaddrIn6Size:
		ip := netip.AddrFrom16([16]byte(s[8:24])).Unmap()
		if n := order.Uint32(s[24:]); n != 0 && ip.Is6() {
			ip = ip.WithZone(strconv.FormatUint(uint64(n), 10))
		}
		return netip.AddrPortFrom(ip, binary.BigEndian.Uint16(s[2:]))
	}
	return netip.AddrPort{}
}
