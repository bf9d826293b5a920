package ofiverbs

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"cinnabar/internal/na"
	"cinnabar/internal/na/ofiaddr"
	"cinnabar/verbs"
)

// place is where an endpoint listens.
type place struct {
	bind netip.AddrPort // may be unspecified, and the port 0
	self netip.Addr     // the address that peers get
}

// choose returns the place for the address string address on a device, see [Config].Address. If subnet is valid the address lies in it.
func choose(address string, attr *verbs.DeviceAttr, subnet netip.Prefix, listen bool) (place, error) {
	fail := func(kind na.Kind, format string, args ...any) (place, error) {
		return place{}, &na.Error{Kind: kind, Op: "choose address", Addr: address, Err: fmt.Errorf(format, args...)}
	}
	rest, err := cutScheme(ofiaddr.LastComponent(address))
	if strings.TrimPrefix(address, "ofi+") == "verbs" || strings.TrimPrefix(address, "ofi+") == "verbs;ofi_rxm" {
		rest, err = "", nil
	}
	if err != nil {
		return fail(na.Invalid, "%w", err)
	}
	if device, host, ok := strings.Cut(rest, "/"); ok {
		if device != attr.Name {
			return fail(na.NotAvailable, "the device is %s, not %q", attr.Name, device)
		}
		rest = host
	}
	host, port, err := splitHost(rest)
	if err != nil {
		return fail(na.Invalid, "%w", err)
	}
	addrs := deviceAddrs(attr, listen && host == "" && !subnet.IsValid())
	list := addrs
	at := place{bind: netip.AddrPortFrom(netip.Addr{}, port)}
	ip, notIP := netip.ParseAddr(host)
	switch {
	case host == "" || host == attr.Name:
	case notIP == nil && ip.IsUnspecified():
		at.bind = netip.AddrPortFrom(ip, port)
		list = slices.DeleteFunc(slices.Clone(list), func(a netip.Addr) bool { return a.Is4() != ip.Is4() })
	case notIP == nil:
		list = []netip.Addr{ip.Unmap()}
	case host == "localhost":
		list = slices.DeleteFunc(slices.Clone(list), func(a netip.Addr) bool { return !a.IsLoopback() })
	default:
		if list, err = ofInterface(host, list); err != nil {
			return fail(na.NotAvailable, "%q is neither an address nor an interface of this host with an address of device %s, which has %v: %w", host, attr.Name, addrs, err)
		}
	}
	if subnet.IsValid() {
		list = slices.DeleteFunc(slices.Clone(list), func(a netip.Addr) bool { return !subnet.Contains(a) })
	}
	if len(list) == 0 && subnet.IsValid() {
		return fail(na.NotAvailable, "device %s has no address that fits and lies in the subnet %v; it has %v", attr.Name, subnet, addrs)
	}
	if len(list) == 0 {
		return fail(na.NotAvailable, "device %s has no address that fits; it has %v", attr.Name, addrs)
	}
	at.self = list[0]
	if !at.bind.Addr().IsValid() {
		at.bind = netip.AddrPortFrom(at.self, port)
	}
	return at, nil
}

// splitHost splits "host:port", in which each part may be missing. An IPv6 address with a port stands in brackets.
func splitHost(s string) (host string, port uint16, err error) {
	host = s
	if i := strings.LastIndexByte(s, ':'); i >= 0 && (strings.HasPrefix(s, "[") && strings.HasSuffix(s[:i], "]") || strings.Count(s, ":") == 1) {
		n, err := strconv.ParseUint(s[i+1:], 10, 16)
		if err != nil {
			return "", 0, fmt.Errorf("port %q is no number from 0 to 65535", s[i+1:])
		}
		host, port = s[:i], uint16(n)
	}
	if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		host = host[1 : len(host)-1]
	}
	return host, port, nil
}

// deviceAddrs lists the addresses of a device: those of IPv4 first, and the loopback before all others or behind them. Link-local
// addresses of IPv6 are left out, because they are no address without the name of an interface.
func deviceAddrs(attr *verbs.DeviceAttr, loopbackFirst bool) []netip.Addr {
	var list []netip.Addr
	for i := range attr.Ports {
		for _, a := range attr.Ports[i].Addrs {
			if a = a.Unmap(); !a.IsLinkLocalUnicast() || a.Is4() {
				list = append(list, a)
			}
		}
	}
	rank := func(a netip.Addr) int {
		r := 0
		if a.IsLoopback() != loopbackFirst {
			r = 2
		}
		if a.Is6() {
			r++
		}
		return r
	}
	slices.SortStableFunc(list, func(a, b netip.Addr) int { return rank(a) - rank(b) })
	return list
}

// ofInterface returns the addresses of list that the interface has.
func ofInterface(name string, list []netip.Addr) ([]netip.Addr, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return nil, err
	}
	addrs, err := i.Addrs()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(list), func(a netip.Addr) bool {
		return !slices.ContainsFunc(addrs, func(n net.Addr) bool {
			p, err := netip.ParsePrefix(n.String())
			return err == nil && p.Addr().Unmap() == a
		})
	}), nil
}
