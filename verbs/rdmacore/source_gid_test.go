package rdmacore

import (
	"net/netip"
	"testing"
)

func TestChooseSource(t *testing.T) {
	entry := func(addr, typ string) GID {
		return GID{Addr: netip.MustParseAddr(addr).As16(), Type: typ, Netdev: "eth0"}
	}
	table := []GID{
		entry("fe80::1", "IB/RoCE v1"), entry("fe80::1", typeRoCE2),
		entry("::ffff:10.9.0.1", "IB/RoCE v1"), entry("::ffff:10.9.0.1", typeRoCE2),
		entry("fd09::1", "IB/RoCE v1"), entry("fd09::1", typeRoCE2),
	}
	for dest, want := range map[string]int{"::ffff:10.9.0.2": 3, "fd09::2": 5, "fe80::2": 1} {
		if got := chooseSource(table, netip.MustParseAddr(dest).As16()); got != want {
			t.Errorf("to %s from entry %d, want %d", dest, got, want)
		}
	}
	to4 := netip.MustParseAddr("::ffff:10.9.0.2").As16()
	if got := chooseSource(table[4:], to4); got != 1 {
		t.Errorf("without an entry of the scope: %d, want ChooseGID's 1", got)
	}
	if got := chooseSource(nil, to4); got != -1 {
		t.Errorf("empty table: %d, want -1", got)
	}
}
