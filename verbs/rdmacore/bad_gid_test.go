//go:build linux

package rdmacore_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/rdmacore"
)

// listed returns a device as Devices lists it.
func listed(t *testing.T, name string) rdmacore.Info {
	t.Helper()
	list, err := rdmacore.Devices()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(list, func(in rdmacore.Info) bool { return in.Name == name })
	if i < 0 {
		t.Fatalf("%s is not among %+v", name, list)
	}
	return list[i]
}

// TestBadGID takes the addresses of a RoCE device away, one after the other. Each
// time the listing says which GID is chosen and why, and what would help.
// parity(vm): V02 D16
func TestBadGID(t *testing.T) {
	l := newLink(t)
	if strings.HasPrefix(l.device, "siw") {
		t.Skip("iWARP has no GIDs to choose from")
	}
	for _, step := range []struct {
		do, addr, why string
	}{
		{"ip addr add 2001:db8::66/64 dev %s nodad", l.ip, "IPv4 address: routable"},
		{"ip -4 addr flush dev %s", "2001:db8::66", "IPv6 address: routable"},
		{"ip addr del 2001:db8::66/64 dev %s", "fe80::", "the network interface has no routable address; give it one"},
	} {
		sh(t, step.do, l.netdev)
		p := listed(t, l.device).Ports[0]
		for ctx := soon(t); !strings.Contains(p.Why, step.why) && ctx.Err() == nil; { // the kernel follows in its own time
			p = listed(t, l.device).Ports[0]
		}
		if p.GID < 0 || !strings.Contains(p.Why, step.why) {
			t.Fatalf("after %s: entry %d, the reason is %q, want %q; table %v", step.do, p.GID, p.Why, step.why, p.GIDs)
		}
		if g := p.GIDs[p.GID]; g.Type != "RoCE v2" || !strings.HasPrefix(g.IP().String(), step.addr) {
			t.Errorf("after %s: %v, want %s of RoCE v2", step.do, g, step.addr)
		}
	}
}

// TestBadPath connects by hand, from a GID that is not there and to one that
// nobody has.
// parity(vm): V02
func TestBadPath(t *testing.T) {
	dev := badDevice(t, testDevice(t))
	a, err := dev.Query()
	if err != nil {
		t.Fatal(err)
	}
	if !a.Caps.Has(verbs.CapRawState) {
		t.Skipf("queue pairs of %s are connected by the connection manager alone", a.Name)
	}
	own := a.Ports[0].GIDs[0]
	for _, tc := range []struct {
		name  string
		ah    verbs.AHAttr
		words []string
	}{
		{"GID index", verbs.AHAttr{GID: own, PortNum: 1, SGIDIndex: 250, HasSGIDIndex: true}, []string{"GID index 250"}},
		{"no route", verbs.AHAttr{GID: netip.MustParseAddr("203.0.113.9").As16(), PortNum: 1}, []string{"203.0.113.9"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			qp := spareQP(t, dev)
			err := qp.Modify(verbs.QPAttr{
				Mask:  verbs.AttrState | verbs.AttrAV | verbs.AttrPathMTU | verbs.AttrDestQPN | verbs.AttrRQPSN | verbs.AttrMaxDestRDAtomic | verbs.AttrMinRNRTimer,
				State: verbs.StateRTR, PathMTU: 3, DestQPN: 17, MaxDestRDAtomic: 1, MinRNRTimer: 12, AH: tc.ah,
			})
			wantError(t, err, nil, tc.words...)
		})
	}
}
