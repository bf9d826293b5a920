package margo

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"cinnabar"
	"cinnabar/codes"
)

func TestProtocolsListsInterfaces(t *testing.T) {
	list, err := Protocols(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	if want := len(interfaces) + 1 + len(absent); len(list) != want {
		t.Fatalf("%d lines, want one for each of %d interfaces, one for shared memory and %d protocols that are not there", len(list), len(interfaces), len(absent))
	}
	for i, p := range list {
		if (p.Err == nil) != (p.Addr != "") {
			t.Errorf("%v on %q has address %q and error %v", p, p.Device, p.Addr, p.Err)
		}
		if i == len(interfaces) {
			if p.String() != "na+sm" || p.Device != "shm" {
				t.Errorf("line %d is %v on %q, want na+sm on shm", i, p, p.Device)
			}
			continue
		}
		if i > len(interfaces) {
			if p.Err == nil || p.Device != "" {
				t.Errorf("%v is there, on %q", p, p.Device)
			}
			continue
		}
		if p.String() != "ofi+tcp" || p.Device != interfaces[i].Name {
			t.Errorf("line %d is %v on %q, want ofi+tcp on %q", i, p, p.Device, interfaces[i].Name)
		}
	}
}

// What Protocols and ChooseAddr promise is what Listen does.
func TestProtocolAddressesCanBeOpened(t *testing.T) {
	list, err := Protocols(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		if p.Err != nil {
			continue
		}
		e, err := cinnabar.Listen(t.Context(), p.Addr, nil)
		if err != nil {
			t.Errorf("%s on %s: %v", p, p.Device, err)
			continue
		}
		if !strings.HasPrefix(e.Addr(), p.Addr+":") && !(p.Name == "sm" && strings.HasPrefix(e.Addr(), p.Addr)) {
			t.Errorf("%s on %s: listens at %s, not at %s", p, p.Device, e.Addr(), p.Addr)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestChooseAddr(t *testing.T) {
	for _, tt := range []struct{ addr, want string }{
		{"ofi+tcp://127.0.0.1", "ofi+tcp://127.0.0.1"},
		{"tcp://127.0.0.1:1234", "ofi+tcp://127.0.0.1:1234"},
		{"na+sm", "na+sm://"},
		{"sm://store", "na+sm://store"},
	} {
		got, reason, err := ChooseAddr(t.Context(), tt.addr, nil)
		if err != nil || got != tt.want || reason == "" {
			t.Errorf("%s: %s (%s), %v, want %s", tt.addr, got, reason, err, tt.want)
		}
	}
	got, _, err := ChooseAddr(t.Context(), "ofi+tcp", &cinnabar.Config{Subnet: netip.MustParsePrefix("127.0.0.0/8")})
	if err != nil || got != "ofi+tcp://127.0.0.1" {
		t.Errorf("in the subnet of the loopback: %s, %v", got, err)
	}
	got, _, err = ChooseAddr(t.Context(), "tcp", &cinnabar.Config{Interface: "lo"})
	if err != nil || got != "ofi+tcp://127.0.0.1" {
		t.Errorf("on the interface lo: %s, %v", got, err)
	}
	got, reason, err := ChooseAddr(t.Context(), "ofi+tcp://127.0.0.2:99", &cinnabar.Config{Advertise: "192.0.2.7"})
	if err != nil || got != "ofi+tcp://192.0.2.7:99" || !strings.Contains(reason, "127.0.0.2") {
		t.Errorf("%s, %s, %v", got, reason, err)
	}
}

func TestChooseAddrRefuses(t *testing.T) {
	for _, tt := range []struct {
		addr string
		cfg  *cinnabar.Config
		code codes.Code
		text string
	}{
		{"nosuch", nil, codes.ProtoNoSupport, `"nosuch"`},
		{"ucx+all://", nil, codes.ProtoNoSupport, "ofi+tcp"},
		{"ofi+tcp://198.51.100.1", nil, codes.AddrNotAvail, "198.51.100.1"},
		{"ofi+tcp", &cinnabar.Config{Subnet: netip.MustParsePrefix("198.51.100.0/24")}, codes.AddrNotAvail, "not in 198.51.100.0/24"},
		{"ofi+tcp", &cinnabar.Config{Advertise: "store.test"}, codes.InvalidArg, `Advertise is "store.test"`},
	} {
		_, _, err := ChooseAddr(t.Context(), tt.addr, tt.cfg)
		if !errors.Is(err, tt.code) || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v, want %v with %q", tt.addr, err, tt.code, tt.text)
		}
	}
}

func TestAddressWithoutPort(t *testing.T) {
	if got := withoutPort("ofi+tcp", netip.MustParseAddr("fd00::1")); got != "ofi+tcp://[fd00::1]" {
		t.Errorf("got %s", got)
	}
}

// TestClass are C's figures for the same networks.
// parity: H10
func TestClass(t *testing.T) {
	for _, tc := range []struct {
		cfg  *cinnabar.Config
		want Class
	}{
		{nil, Class{"ofi", "tcp", true, 4064, 4080}},
		{&cinnabar.Config{Checksums: cinnabar.NoChecksums}, Class{"ofi", "tcp", true, 4064, 4080}},
		{&cinnabar.Config{Checksums: cinnabar.WithChecksums}, Class{"ofi", "tcp", true, 4060, 4076}},
		{&cinnabar.Config{MaxRequest: 8192, MaxResponse: 16384}, Class{"ofi", "tcp", true, 8160, 16368}},
	} {
		if got := ClassOf(listening(t, tc.cfg)); got != tc.want {
			t.Errorf("%+v: %+v, want %+v", tc.cfg, got, tc.want)
		}
	}
	if got := ClassOf(calling(t, nil)); got.Listening || got.Name != "ofi" {
		t.Errorf("client: %+v", got)
	}
}
