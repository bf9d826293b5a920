package iwarp

import (
	"net"
	"slices"
	"strings"
	"testing"
)

// TestMachineID takes an id of /etc/machine-id, and not what images have in its place, which many machines share.
func TestMachineID(t *testing.T) {
	for text, want := range map[string]bool{
		"0123456789abcdef0123456789abcdef\n": true,
		"0123456789abcdef0123456789abcdef":   true,
		"":                                   false,
		"\n":                                 false,
		"uninitialized\n":                    false,
		strings.Repeat("0", 32) + "\n":       false,
		strings.Repeat("g", 32) + "\n":       false,
		"0123456789abcdef\n":                 false,
	} {
		if got := isMachineID([]byte(text)); got != want {
			t.Errorf("%q is an id: %t, want %t", text, got, want)
		}
	}
}

// TestHostIdentityIsStable adds and removes the interfaces of virtual machines and containers, whose addresses are random, and the
// order of the list changes: the identity of the host does not. Another host of the same name has another.
func TestHostIdentityIsStable(t *testing.T) {
	lo := net.Interface{Index: 1, Name: "lo"}
	zero := net.Interface{Index: 2, Name: "dummy", HardwareAddr: make(net.HardwareAddr, 6)}
	bridge := net.Interface{Index: 3, Name: "a-bridge", HardwareAddr: net.HardwareAddr{2, 0x42, 1, 2, 3, 4}}
	eth := net.Interface{Index: 4, Name: "eth0", HardwareAddr: net.HardwareAddr{0, 0x16, 0x3e, 2, 3, 4}}
	veth := net.Interface{Index: 9, Name: "a-veth", HardwareAddr: net.HardwareAddr{0x82, 9, 8, 7, 6, 5}}
	usb := net.Interface{Index: 10, Name: "a-usb", HardwareAddr: net.HardwareAddr{0, 1, 1, 1, 1, 1}}
	want := hostIdentity("host", []net.Interface{lo, eth})
	for _, list := range [][]net.Interface{{eth}, {lo, zero, bridge, eth}, {veth, usb, eth, bridge, lo}} {
		if got := hostIdentity("host", list); !slices.Equal(got, want) {
			t.Errorf("%q with %v, want %q", got, list, want)
		}
	}
	for _, list := range [][]net.Interface{nil, {lo, zero}, {usb}, {veth}, {bridge, veth}} {
		if got := hostIdentity("host", list); slices.Equal(got, want) {
			t.Errorf("a host with %v has the identity of another", list)
		}
	}
	if a, b := hostIdentity("host", []net.Interface{bridge}), hostIdentity("host", []net.Interface{bridge, veth}); !slices.Equal(a, b) {
		t.Errorf("%q and %q of a container, with one more interface", a, b)
	}
}
