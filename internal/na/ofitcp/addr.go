package ofitcp

import (
	"fmt"
	"net/netip"
	"strings"

	"cinnabar/internal/na"
	"cinnabar/internal/na/ofiaddr"
)

// scheme is how addresses of this network begin.
const scheme = "ofi+tcp://"

// formatAddr is the canonical string of an address.
func formatAddr(a netip.AddrPort) string { return scheme + a.String() }

// parseTarget reads an address string of a peer: "ofi+tcp://host:port", and the other spellings of it (see [ofiaddr.ParseTarget]).
func parseTarget(s string, self netip.Addr) (host string, addr netip.AddrPort, err error) {
	return ofiaddr.ParseTarget(s, scheme, cutScheme, self)
}

// cutScheme cuts "ofi+tcp" or "tcp" and the separator behind it.
func cutScheme(s string) (string, error) {
	name, rest, _ := strings.Cut(s, "://")
	switch strings.TrimPrefix(name, "ofi+") {
	case "tcp":
		return rest, nil
	case "tcp;ofi_rxm", "tcp_rxm":
		return "", &na.Error{Kind: na.Unsupported, Op: "address", Err: fmt.Errorf(
			"%q names the tcp;ofi_rxm provider, another protocol than that of the native tcp provider; use ofi+tcp at both ends", s)}
	}
	return "", fmt.Errorf("%q is not an address of this network; one begins with %q or %q", s, scheme, "tcp://")
}
