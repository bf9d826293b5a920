package main

import (
	"context"
	"net"
	"net/netip"

	"cinnabar/verbs"
)

// resolveHost turns a name or an address into one address. Of several it
// prefers IPv4, which a kernel's iWARP serves on any interface.
func resolveHost(ctx context.Context, host string) (netip.Addr, error) {
	addrs, err := verbs.Resolve(ctx, net.JoinHostPort(host, "0"))
	if err != nil {
		return netip.Addr{}, err
	}
	for _, a := range addrs {
		if ip := a.Addr().Unmap(); ip.Is4() {
			return ip, nil
		}
	}
	return addrs[0].Addr(), nil // Resolve fails rather than returning none
}
