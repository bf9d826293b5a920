package ofiverbs

import (
	"fmt"
	"net/netip"
	"strings"

	"cinnabar/internal/na/ofiaddr"
)

// scheme is how the canonical addresses of this network begin: Mercury prints its own address so, and understands all spellings.
const scheme = "ofi+verbs;ofi_rxm://"

// formatAddr is the canonical string of an address.
func formatAddr(a netip.AddrPort) string { return scheme + a.String() }

// cutScheme cuts "verbs" or "verbs;ofi_rxm", with or without "ofi+", and the separator behind it.
func cutScheme(s string) (string, error) {
	name, rest, _ := strings.Cut(s, "://")
	switch strings.TrimPrefix(name, "ofi+") {
	case "verbs", "verbs;ofi_rxm":
		return rest, nil
	}
	return "", fmt.Errorf("%q is not an address of this network; one begins with %q or %q", s, "ofi+verbs://", "verbs://")
}

// parseTarget reads an address string of a peer (see [ofiaddr.ParseTarget]).
func parseTarget(s string, self netip.Addr) (host string, addr netip.AddrPort, err error) {
	return ofiaddr.ParseTarget(s, "ofi+verbs://", cutScheme, self)
}
