package ofitcp

import (
	"fmt"
	"net/netip"
	"strings"

	"cinnabar/internal/na"
	"cinnabar/internal/na/ofiaddr"
)

// Schemes of addresses: of the plain protocol, and of the same inside TLS.
const (
	scheme       = "ofi+tcp://"
	secureScheme = "ofi+tcps://"
)

// schemeOf returns the scheme of an endpoint with the address string s.
func schemeOf(s string) string {
	name, _, _ := strings.Cut(ofiaddr.LastComponent(s), ":")
	if strings.TrimPrefix(name, "ofi+") == "tcps" {
		return secureScheme
	}
	return scheme
}

// formatAddr is the canonical string of an address of ofi+tcp.
func formatAddr(a netip.AddrPort) string { return scheme + a.String() }

// parseTarget reads an address string of a peer: "ofi+tcp://host:port", and the other spellings of it (see [ofiaddr.ParseTarget]).
func (e *Endpoint) parseTarget(s string) (host string, addr netip.AddrPort, err error) {
	return parseTarget(s, e.scheme, e.self.Addr())
}

func parseTarget(s, scheme string, self netip.Addr) (host string, addr netip.AddrPort, err error) {
	return ofiaddr.ParseTarget(s, scheme, func(s string) (string, error) { return cutScheme(s, scheme) }, self)
}

// localName returns "localhost" if that is the host in address s, because parseTarget replaces it by an address.
func (e *Endpoint) localName(s string) string {
	if rest, err := cutScheme(ofiaddr.LastComponent(s), e.scheme); err == nil && strings.HasPrefix(rest[strings.LastIndexByte(rest, '/')+1:], "localhost:") {
		return "localhost"
	}
	return ""
}

// cutScheme cuts the scheme, with or without "ofi+", and the separator behind it.
func cutScheme(s, scheme string) (string, error) {
	name, rest, _ := strings.Cut(s, "://")
	short := strings.TrimPrefix(strings.TrimSuffix(scheme, "://"), "ofi+")
	switch given := strings.TrimPrefix(name, "ofi+"); given {
	case short:
		return rest, nil
	case "tcp", "tcps":
		return "", fmt.Errorf("%q is an address of ofi+%s, and this endpoint is on ofi+%s: both ends must use the same", s, given, short)
	case "tcp;ofi_rxm", "tcp_rxm":
		return "", &na.Error{Kind: na.Unsupported, Op: "address", Err: fmt.Errorf(
			"%q names the tcp;ofi_rxm provider, another protocol than that of the native tcp provider; use ofi+tcp at both ends", s)}
	}
	return "", fmt.Errorf("%q is not an address of this network; one begins with %q or %q", s, scheme, short+"://")
}
