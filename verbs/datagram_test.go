package verbs_test

import (
	"encoding/hex"
	"net/netip"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/internal/rig"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func gid(addr string) [16]byte { return netip.MustParseAddr(addr).As16() }

// grhs are the bytes in front of datagrams, with what they say.
var grhs = map[string]struct {
	hex  string
	want verbs.GRH
}{
	"RoCE v2 over IPv4": {
		"00000000000000000000000000000000000000004503003000004000401126a60a0900010a090002",
		verbs.GRH{Type: verbs.GIDRoCE2, SGID: gid("::ffff:10.9.0.1"), DGID: gid("::ffff:10.9.0.2"), TrafficClass: 3, HopLimit: 64},
	},
	"RoCE v2 over IPv6": {
		"60212345001c1140fd090000000000000000000000000001fd090000000000000000000000000002",
		verbs.GRH{Type: verbs.GIDRoCE2, SGID: gid("fd09::1"), DGID: gid("fd09::2"), FlowLabel: 0x12345, TrafficClass: 2, HopLimit: 64},
	},
	"InfiniBand": {
		"60000000001c1b01fe80000000000000021500fffe000001fe80000000000000021500fffe000002",
		verbs.GRH{SGID: gid("fe80::215:ff:fe00:1"), DGID: gid("fe80::215:ff:fe00:2"), HopLimit: 1},
	},
	// As the kernel's rxe delivers it from its own port (Linux 6.1): the checksum is left out.
	"rxe": {
		"00000000000000000000000000000000000000004500003cacd94000401100000a0900010a090001",
		verbs.GRH{Type: verbs.GIDRoCE2, SGID: gid("::ffff:10.9.0.1"), DGID: gid("::ffff:10.9.0.1"), HopLimit: 64},
	},
	// What stands in front of an IPv4 header is not defined.
	"RoCE v2 over IPv4, alike": {
		"60000000000000000000000000000000000000004503003000004000401126a60a0900010a090002",
		verbs.GRH{Type: verbs.GIDRoCE2, SGID: gid("::ffff:10.9.0.1"), DGID: gid("::ffff:10.9.0.2"), TrafficClass: 3, HopLimit: 64},
	},
	// A GID may look like the beginning of an IPv4 header; the checksum tells.
	"InfiniBand, alike": {
		"60000000001c1b01fe800000000000000215000045000030000040004011000000000000fe000002",
		verbs.GRH{SGID: gid("fe80::215:0:4500:30"), DGID: gid("0:4000:4011:0:0:0:fe00:2"), HopLimit: 1},
	},
}

// parity: V40
func TestParseGRH(t *testing.T) {
	for name, c := range grhs {
		t.Run(name, func(t *testing.T) {
			b := unhex(t, c.hex)
			got, err := verbs.ParseGRH(append(b, "data"...))
			if err != nil || got != c.want {
				t.Errorf("got %+v, %v, want %+v", got, err, c.want)
			}
			for n := range b {
				_, err := verbs.ParseGRH(b[:n])
				rig.WantErr(t, err, verbs.ErrInvalid, "it has 40")
			}
		})
	}
	for _, b := range [][]byte{make([]byte, verbs.GRHLen), append([]byte{0x50}, make([]byte, verbs.GRHLen)...)} {
		_, err := verbs.ParseGRH(b)
		rig.WantErr(t, err, verbs.ErrInvalid, "neither version 6")
	}
}

// parity: V40
func FuzzParseGRH(f *testing.F) {
	for _, c := range grhs {
		f.Add(unhex(f, c.hex))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		g, err := verbs.ParseGRH(b)
		if err != nil && g != (verbs.GRH{}) || err == nil && (g.FlowLabel > 0xfffff || len(b) < verbs.GRHLen) {
			t.Errorf("%x: %+v, %v", b, g, err)
		}
	})
}

// The way back has what came with the datagram, and leaves from where it arrived.
// parity: V40
func TestAHFromWC(t *testing.T) {
	dev, f := rig.NewFake(t)
	v4, v6 := gid("::ffff:10.9.0.2"), gid("fe80::215:ff:fe00:2")
	f.Attr.Ports = []verbs.PortAttr{{Num: 1, GIDTable: []verbs.GIDEntry{
		{Index: 0, GID: v6, Type: verbs.GIDRoCE1}, {Index: 1, GID: v6, Type: verbs.GIDRoCE2},
		{Index: 2, GID: v4, Type: verbs.GIDRoCE1}, {Index: 3, GID: v4, Type: verbs.GIDRoCE2},
	}}}
	pd := rig.Must(dev.AllocPD())(t)
	rig.CloseAll(t, pd, dev)
	for name, c := range map[string]struct {
		wc   verbs.WC
		grh  string
		port uint8
		want verbs.AHAttr
	}{
		"no header": {
			verbs.WC{SLID: 5, SL: 2, PathBits: 1}, "", 1, verbs.AHAttr{DLID: 5, SL: 2, PathBits: 1, PortNum: 1},
		},
		"IPv4": {
			verbs.WC{HasGRH: true}, grhs["RoCE v2 over IPv4"].hex, 1,
			verbs.AHAttr{PortNum: 1, GID: gid("::ffff:10.9.0.1"), TrafficClass: 3, HopLimit: 64, SGIDIndex: 3, HasSGIDIndex: true},
		},
		"RoCE v1": {
			verbs.WC{HasGRH: true}, grhs["InfiniBand"].hex, 1,
			verbs.AHAttr{PortNum: 1, GID: gid("fe80::215:ff:fe00:1"), HopLimit: 0xff, SGIDIndex: 0, HasSGIDIndex: true},
		},
		"not to a GID of ours": {
			verbs.WC{HasGRH: true}, grhs["RoCE v2 over IPv6"].hex, 1,
			verbs.AHAttr{PortNum: 1, GID: gid("fd09::1"), FlowLabel: 0x12345, TrafficClass: 2, HopLimit: 64},
		},
		"a port that is none": {
			verbs.WC{HasGRH: true}, grhs["RoCE v2 over IPv4"].hex, 2,
			verbs.AHAttr{PortNum: 2, GID: gid("::ffff:10.9.0.1"), TrafficClass: 3, HopLimit: 64},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f.AHs = nil
			if _, err := pd.CreateAHFromWC(c.port, &c.wc, unhex(t, c.grh)); err != nil || len(f.AHs) != 1 || f.AHs[0] != c.want {
				t.Errorf("got %+v, %v, want %+v", f.AHs, err, c.want)
			}
		})
	}
	_, err := pd.CreateAHFromWC(1, &verbs.WC{HasGRH: true}, nil)
	rig.WantErr(t, err, verbs.ErrInvalid, "it has 40")
	f.Fail(verbs.ErrClosed)
	_, err = pd.CreateAHFromWC(1, &verbs.WC{HasGRH: true}, unhex(t, grhs["InfiniBand"].hex))
	rig.WantErr(t, err, verbs.ErrClosed)
}
