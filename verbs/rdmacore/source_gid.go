package rdmacore

import "net/netip"

// scope is the property that two GIDs must share for packets between them: RoCE v2
// has no way from IPv4 to IPv6, nor from a link to beyond it.
type scope uint8

const (
	scopeIPv4 scope = iota
	scopeIPv6
	scopeLink
)

func scopeOf(ip netip.Addr) scope {
	switch {
	case ip.Is4():
		return scopeIPv4
	case ip.IsLinkLocalUnicast():
		return scopeLink
	}
	return scopeIPv6
}

// chooseSource returns the index in table of the entry to send from to dest: by
// ChooseGID, among those of dest's scope if there are any. It returns -1 if the
// table is empty.
func chooseSource(table []GID, dest [16]byte) int {
	want := scopeOf(netip.AddrFrom16(dest).Unmap())
	var places []int
	var same []GID
	for i, g := range table {
		if scopeOf(g.IP()) == want {
			places, same = append(places, i), append(same, g)
		}
	}
	if i, _ := ChooseGID(same); i >= 0 {
		return places[i]
	}
	i, _ := ChooseGID(table)
	return i
}
