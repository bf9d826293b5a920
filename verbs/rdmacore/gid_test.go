package rdmacore_test

import (
	"net/netip"
	"strings"
	"testing"

	"cinnabar/verbs/rdmacore"
)

// gid makes an entry of a port's table.
func gid(index int, addr, typ, netdev string) rdmacore.GID {
	return rdmacore.GID{Index: index, Addr: netip.MustParseAddr(addr).As16(), Type: typ, Netdev: netdev}
}

func TestChooseGID(t *testing.T) {
	const v1, v2 = "IB/RoCE v1", "RoCE v2"
	for _, tc := range []struct {
		name  string
		table []rdmacore.GID
		want  int // Index of the entry, -1: none
		why   string
	}{
		{"IPv4 before the rest", []rdmacore.GID{
			gid(0, "fe80::1", v1, "eth0"), gid(1, "fe80::1", v2, "eth0"), gid(2, "2001:db8::1", v2, "eth0"),
			gid(3, "10.9.0.1", v1, "eth0"), gid(5, "10.9.0.1", v2, "eth0"),
		}, 5, "IPv4 address: routable"},
		{"IPv6", []rdmacore.GID{gid(0, "fe80::1", v2, "eth0"), gid(3, "2001:db8::1", v2, "eth0"), gid(4, "2001:db8::1", v1, "eth0")}, 3, "IPv6 address: routable"},
		{"unique local", []rdmacore.GID{gid(0, "fe80::1", v2, "eth0"), gid(1, "fd09::1", v2, "eth0")}, 1, "routable"},
		{"link-local only", []rdmacore.GID{gid(0, "fe80::1", v1, "eth0"), gid(1, "fe80::1", v2, "eth0")}, 1, "no routable address"},
		{"IPv4 link-local", []rdmacore.GID{gid(0, "169.254.1.1", v2, "eth0"), gid(1, "2001:db8::1", v2, "eth0")}, 1, "IPv6"},
		{"version 1 only", []rdmacore.GID{gid(0, "10.9.0.1", v1, "eth0")}, 0, "RoCE v1"},
		{"the first of several", []rdmacore.GID{gid(4, "10.9.0.1", v2, "eth0"), gid(7, "10.9.1.1", v2, "eth0.5")}, 4, "routable"},
		{"loopback last", []rdmacore.GID{gid(0, "127.0.0.1", v2, "lo"), gid(1, "10.9.0.1", v1, "eth0")}, 1, "RoCE v1"},
		{"loopback alone", []rdmacore.GID{gid(0, "127.0.0.1", v2, "lo")}, 0, "loopback"},
		{"InfiniBand", []rdmacore.GID{gid(0, "fe80::2:c903:0:1", v1, ""), gid(1, "fe80::2:c903:0:2", v1, "")}, 0, "InfiniBand"},
		{"empty", nil, -1, "no address"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			i, why := rdmacore.ChooseGID(tc.table)
			got := -1
			if i >= 0 {
				got = tc.table[i].Index
			}
			if got != tc.want || !strings.Contains(why, tc.why) {
				t.Errorf("got %d, %q; want %d because of %q", got, why, tc.want, tc.why)
			}
		})
	}
}

func TestGIDString(t *testing.T) {
	if got, want := gid(3, "10.9.0.1", "RoCE v2", "eth0").String(), "3: RoCE v2 10.9.0.1 (eth0)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
