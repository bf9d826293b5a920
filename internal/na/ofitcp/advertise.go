package ofitcp

import (
	"errors"
	"net/netip"
	"strings"
)

// ParseAdvertise parses an address with or without a port, and returns the zero value for the empty string.
func ParseAdvertise(s string) (netip.AddrPort, error) {
	if s == "" {
		return netip.AddrPort{}, nil
	}
	ip, err := netip.ParseAddr(s)
	if inner, ok := strings.CutPrefix(s, "["); ok && strings.HasSuffix(inner, "]") {
		ip, err = netip.ParseAddr(strings.TrimSuffix(inner, "]"))
	}
	a := netip.AddrPortFrom(ip, 0)
	if err != nil {
		a, err = netip.ParseAddrPort(s)
	}
	if err == nil && a.Addr().Zone() != "" {
		err = errors.New("an IPv6 zone is valid on one host only; give an address without a zone")
	}
	if err != nil {
		return netip.AddrPort{}, err
	}
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), nil
}
