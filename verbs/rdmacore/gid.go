package rdmacore

import (
	"fmt"
	"net/netip"
)

// GID is an entry of a port's table of addresses.
type GID struct {
	Index  int
	Addr   [16]byte
	Type   string // as the kernel says it: "IB/RoCE v1", "RoCE v2"
	Netdev string // network interface that the entry belongs to, "" for none
}

// typeRoCE2 is the kernel's name for entries with routable packets.
const typeRoCE2 = "RoCE v2"

// IP returns the address in the usual form; an IPv4-mapped one as IPv4.
func (g GID) IP() netip.Addr { return netip.AddrFrom16(g.Addr).Unmap() }

// String gives index, type, address and interface.
func (g GID) String() string { return fmt.Sprintf("%d: %s %v (%s)", g.Index, g.Type, g.IP(), g.Netdev) }

// The kinds of entries, best first.
const (
	gidRoutable4 = iota
	gidRoutable6
	gidLinkLocal2
	gidInfiniBand
	gidRoCE1
	gidLoopback
)

var gidReasons = [...]string{
	gidRoutable4:  "RoCE v2 with an IPv4 address: routable",
	gidRoutable6:  "RoCE v2 with an IPv6 address: routable",
	gidLinkLocal2: "RoCE v2, but link-local: the network interface has no routable address; give it one to leave the link",
	gidInfiniBand: "InfiniBand's own",
	gidRoCE1:      "RoCE v1: it does not leave the Ethernet segment",
	gidLoopback:   "a loopback address: it does not leave the machine",
}

// kind classifies an entry; roce is true for the tables of Ethernet ports, false for InfiniBand's.
func (g GID) kind(roce bool) int {
	ip := g.IP()
	switch {
	case !roce:
		return gidInfiniBand
	case ip.IsLoopback():
		return gidLoopback
	case g.Type != typeRoCE2:
		return gidRoCE1
	case ip.Is4() && !ip.IsLinkLocalUnicast():
		return gidRoutable4
	case ip.Is6() && ip.IsGlobalUnicast():
		return gidRoutable6
	}
	return gidLinkLocal2
}

// ChooseGID returns the index in table of the entry to send from, with the
// reason in words: a routable RoCE v2 entry if there is one, IPv4 before IPv6, the
// first of several. It returns -1 if the table is empty. The table of an
// InfiniBand port has one kind only, so its first entry is chosen.
func ChooseGID(table []GID) (index int, why string) {
	roce := false
	for _, g := range table {
		roce = roce || g.Netdev != "" || g.Type == typeRoCE2
	}
	best, kind := -1, len(gidReasons)
	for i, g := range table {
		if k := g.kind(roce); k < kind {
			best, kind = i, k
		}
	}
	if best < 0 {
		return -1, "the port has no address: is its network interface up?"
	}
	return best, gidReasons[kind]
}
