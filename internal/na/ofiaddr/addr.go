package ofiaddr

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Sizes in bytes of an endpoint's own address as it travels in requests and bound descriptors.
const (
	Len4   = 16 // struct sockaddr_in
	Len6   = 18 // 16 bytes of address, 2 of port
	afInet = 2
)

// Append appends the binary form of a (NA OFI's na_ofi_sin_addr and na_ofi_sin6_addr):
//
//	IPv4   family 2, little endian, 2 | port 2 | address 4 | zero 8
//	IPv6   address 16 | port 2
func Append(b []byte, a netip.AddrPort) []byte {
	if a.Addr().Is4() {
		ip := a.Addr().As4()
		b = binary.LittleEndian.AppendUint16(b, afInet)
		b = binary.BigEndian.AppendUint16(b, a.Port())
		b = append(b, ip[:]...)
		return append(b, 0, 0, 0, 0, 0, 0, 0, 0)
	}
	ip := a.Addr().As16()
	b = append(b, ip[:]...)
	return binary.BigEndian.AppendUint16(b, a.Port())
}

// Parse reads an address that Append wrote from all of b, which is hostile. The length determines the form.
func Parse(b []byte) (netip.AddrPort, error) {
	var a netip.AddrPort
	switch len(b) {
	case Len4:
		if binary.LittleEndian.Uint16(b) != afInet || binary.LittleEndian.Uint64(b[8:]) != 0 {
			return a, errors.New("not an IPv4 socket address")
		}
		a = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:]))
	case Len6:
		a = netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[:16])), binary.BigEndian.Uint16(b[16:]))
	default:
		return a, fmt.Errorf("an address of %d bytes; it has %d for IPv4 and %d for IPv6", len(b), Len4, Len6)
	}
	if a.Port() == 0 || a.Addr().IsUnspecified() || a.Addr().IsMulticast() || a.Addr().Is4In6() {
		return netip.AddrPort{}, fmt.Errorf("no peer can be reached at address %v", a)
	}
	return a, nil
}

// AppendSerialized appends a as NA_Addr_serialize does (na_ofi_addr_serialize): its length in 8 bytes, little endian, and
// its binary form.
func AppendSerialized(b []byte, a netip.AddrPort) []byte {
	n := uint64(Len4)
	if !a.Addr().Is4() {
		n = Len6
	}
	return Append(binary.LittleEndian.AppendUint64(b, n), a)
}

// ParseSerialized reads an address that AppendSerialized wrote from all of b, which is hostile.
func ParseSerialized(b []byte) (netip.AddrPort, error) {
	const word = 8
	if len(b) < word || binary.LittleEndian.Uint64(b) != uint64(len(b)-word) {
		return netip.AddrPort{}, fmt.Errorf("a serialized address of %d bytes does not begin with its length in %d bytes", len(b), word)
	}
	return Parse(b[word:])
}

// Compare orders addresses as libfabric's ofi_addr_cmp does: by the bytes of the IP address, then by those of the port.
func Compare(a, b netip.AddrPort) int {
	if c := bytes.Compare(a.Addr().AsSlice(), b.Addr().AsSlice()); c != 0 {
		return c
	}
	return int(a.Port()) - int(b.Port())
}

// ParseTarget reads an address string of a peer, "ofi+tcp://host:port", with or without a domain before the host, and also as the last
// component of a combined address. cut returns the part behind the scheme, or an error if the address is not of the caller's network.
// scheme is the scheme that error texts use as an example.
//
// host is a numeric address, a name, or localhost, which stands for 127.0.0.1 or ::1 by the family of self. For a name ParseTarget
// returns it with an AddrPort that has only the port, because Lookup must not wait for a resolver.
func ParseTarget(s, scheme string, cut func(string) (string, error), self netip.Addr) (host string, addr netip.AddrPort, err error) {
	rest, err := cut(LastComponent(s))
	if err != nil {
		return "", addr, err
	}
	if i := strings.LastIndexByte(rest, '/'); i >= 0 {
		rest = rest[i+1:] // a domain
	}
	if port, ok := strings.CutPrefix(rest, "localhost:"); ok {
		rest = "127.0.0.1:" + port
		if self.Is6() {
			rest = "[::1]:" + port
		}
	}
	a, err := netip.ParseAddrPort(rest)
	if err != nil {
		if host, port, ok := parseHost(rest); ok {
			return host, netip.AddrPortFrom(netip.Addr{}, port), nil
		}
		return "", addr, fmt.Errorf("%q is neither an address and port, like %s127.0.0.1:1234, nor the name of a host and a port: %w", rest, scheme, err)
	}
	a = netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
	switch {
	case a.Port() == 0:
		return "", addr, fmt.Errorf("%q has port 0, which accepts no connection: give the port that the peer listens on", s)
	case a.Addr().IsUnspecified() || a.Addr().IsMulticast():
		return "", addr, fmt.Errorf("%q has an unspecified or multicast address, which no host has: give the address of the peer's host", s)
	case a.Addr().Is4() != self.Is4():
		return "", addr, fmt.Errorf("%q is not of the family of this endpoint's address, %v: open another endpoint on an address of that family", s, self)
	}
	return "", a, nil
}

// maxHost is the limit of a host name in bytes (RFC 1035, section 2.3.4).
const maxHost = 253

// parseHost parses "name:port". It refuses a name with a number as its last label (RFC 3696, section 2), because that is a faulty IPv4
// address, and characters that no host name has. International names must have their ASCII form.
func parseHost(s string) (host string, port uint16, ok bool) {
	host, number, _ := strings.Cut(s, ":")
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil || n == 0 || len(host) > maxHost {
		return "", 0, false
	}
	labels := strings.Split(strings.TrimSuffix(host, "."), ".")
	for _, l := range labels {
		if l == "" || strings.ContainsFunc(l, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
		}) {
			return "", 0, false
		}
	}
	if strings.Trim(labels[len(labels)-1], "0123456789") == "" {
		return "", 0, false
	}
	return strings.ToLower(host), uint16(n), true
}

// LastComponent returns the address of this network in a combined one, "uid://..#na+sm://..#ofi+tcp://..".
func LastComponent(s string) string {
	if i := strings.LastIndexByte(s, '#'); i >= 0 {
		return s[i+1:]
	}
	return s
}
