package cli

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"time"

	"cinnabar"
	"cinnabar/verbs"
)

// ResolveHost turns a name or an address into one address. Of several it
// prefers IPv4, which a kernel's iWARP serves on any interface.
func ResolveHost(ctx context.Context, host string) (netip.Addr, error) {
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

// Servers listen here by default: peers are not authenticated, so those of other machines are let in by
// an address that the user names.
const (
	ListenHost  = "127.0.0.1"
	ListenForms = "without HOST " + ListenHost + ", 0.0.0.0 is every IPv4 address, [::] every address, port 0 is a free one"
)

// LocalFor returns the address to open for talking to address: the protocol, with the address of this host from which the
// system would go there, so that the server can reach for this process's memory on the way that the calls take. It returns
// the protocol alone if the system finds no route; Lookup or the first call then returns the reason.
func LocalFor(ctx context.Context, address string) string {
	protocol, peer, _ := strings.Cut(address, "://")
	var d net.Dialer
	c, err := d.DialContext(ctx, "udp", peer) // resolves the name and finds a route; a UDP dial sends nothing to the peer
	if err != nil {
		return protocol
	}
	defer Shut(c)
	from, err := netip.ParseAddrPort(c.LocalAddr().String())
	if err != nil {
		return protocol
	}
	return protocol + "://" + netip.AddrPortFrom(from.Addr().Unmap(), 0).String()
}

// maxDescription bounds the description of another process, in bytes: a thousand pools and some ten thousand RPCs.
const maxDescription = 4 << 20

// AskAt calls f with the process at an address, on an engine that is opened for it. The context of f ends after timeout, which
// must be above 0.
func AskAt(ctx context.Context, address string, timeout time.Duration, f func(context.Context, *cinnabar.Endpoint) error) error {
	if timeout <= 0 {
		return Usagef("--timeout is %v; want a time above 0, such as 10s", timeout)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	e, err := cinnabar.Open(ctx, LocalFor(ctx, address), Logged(ctx, &cinnabar.Config{MaxOverflow: maxDescription, DialTimeout: timeout}))
	if err != nil {
		return err
	}
	defer Shut(e)
	ep, err := e.Lookup(address)
	if err != nil {
		return err
	}
	return f(ctx, ep)
}
