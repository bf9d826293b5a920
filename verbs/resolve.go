package verbs

import (
	"context"
	"net"
	"net/netip"
)

// Resolve returns the addresses that hostport, "host:port", stands for, in the
// order of preference, as rdma_getaddrinfo and rdma_resolve_addr do. The host
// is an IPv4 or IPv6 literal or a name, the port a number or a service name; an
// empty host is every address of this machine.
func Resolve(ctx context.Context, hostport string) ([]netip.AddrPort, error) {
	return Hints{}.Resolve(ctx, hostport)
}

// Hints narrow the addresses that [Hints.Resolve] looks for (struct rdma_addrinfo).
type Hints struct {
	Network     string // "ip4" or "ip6" for one family only; "" or "ip": both
	NumericHost bool   // names are refused instead of looked up (RAI_NUMERICHOST)
}

// Resolve is [Resolve] within the hints.
func (h Hints) Resolve(ctx context.Context, hostport string) ([]netip.AddrPort, error) {
	const op = "resolve address"
	network := h.Network
	switch network {
	case "":
		network = "ip"
	case "ip", "ip4", "ip6":
	default:
		return nil, Errorf(op, ErrInvalid, "network %q is none of ip, ip4, ip6", h.Network)
	}
	host, service, err := net.SplitHostPort(hostport)
	if err != nil {
		return nil, &Error{Op: op, Kind: ErrInvalid, Err: err}
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return nil, &Error{Op: op, Err: err}
	}
	ips, err := h.hostAddrs(ctx, op, network, host)
	if err != nil {
		return nil, err
	}
	var addrs []netip.AddrPort
	for _, ip := range ips {
		if ip = ip.Unmap(); network == "ip" || (network == "ip4") == ip.Is4() {
			addrs = append(addrs, netip.AddrPortFrom(ip, uint16(port)))
		}
	}
	if len(addrs) == 0 {
		return nil, Errorf(op, ErrInvalid, "%s has no address of network %s", host, network)
	}
	return addrs, nil
}

// hostAddrs resolves a host, with or without a look-up.
func (h Hints) hostAddrs(ctx context.Context, op, network, host string) ([]netip.Addr, error) {
	if host == "" {
		return []netip.Addr{netip.IPv6Unspecified(), netip.IPv4Unspecified()}, nil
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip}, nil
	}
	if h.NumericHost {
		return nil, Errorf(op, ErrInvalid, "%q is no numeric address", host)
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, network, host)
	if err != nil {
		return nil, &Error{Op: op, Err: err}
	}
	return ips, nil
}
