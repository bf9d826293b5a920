package ofitcp

import (
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"cinnabar/internal/na"
	"cinnabar/internal/na/ofiaddr"
)

func appendAddrIP(s string) netip.Addr { return netip.MustParseAddr(s) }

// host is a set of interfaces.
func host(names ...string) []iface {
	all := map[string]iface{
		"lo":      {name: "lo", up: true, loopback: true, addrs: ips("127.0.0.1", "::1")},
		"docker0": {name: "docker0", up: true, addrs: ips("172.17.0.1")},
		"virbr0":  {name: "virbr0", up: true, addrs: ips("192.168.122.1")},
		"eth0":    {name: "eth0", up: true, addrs: ips("fe80::1", "10.1.0.5", "2001:db8::5")},
		"eth1":    {name: "eth1", up: true, addrs: ips("10.2.0.5")},
		"br-1f":   {name: "br-1f", up: true, addrs: ips("172.18.0.1")},
		"veth7":   {name: "veth7", up: true, addrs: ips("fe80::3", "172.19.0.1")},
		"ib0":     {name: "ib0", addrs: ips("10.3.0.5")}, // down
		"six0":    {name: "six0", up: true, addrs: ips("fe80::2", "2001:db8::6")},
	}
	var list []iface
	for _, n := range names {
		list = append(list, all[n])
	}
	return list
}

func ips(s ...string) []netip.Addr {
	var list []netip.Addr
	for _, a := range s {
		list = append(list, netip.MustParseAddr(a))
	}
	return list
}

// parity: H01 H17 D09 D10
func TestChoose(t *testing.T) {
	all := []string{"lo", "docker0", "virbr0", "ib0", "eth0", "eth1", "six0"}
	for _, tc := range []struct {
		address string
		ifs     []string
		subnet  string
		want    string // bind, then what peers are told if it differs
		reason  string
	}{
		{"ofi+tcp", all, "", "10.1.0.5:0", "eth0"},
		{"tcp", all, "", "10.1.0.5:0", "eth0"},
		{"ofi+tcp://", all, "", "10.1.0.5:0", "eth0"},
		{"ofi+tcp://:1234", all, "", "10.1.0.5:1234", "eth0"},
		{"ofi+tcp://10.2.0.5", all, "", "10.2.0.5:0", "asked for"},
		{"tcp://10.2.0.5:77", all, "", "10.2.0.5:77", "asked for"},
		{"ofi+tcp://127.0.0.1:0", all, "", "127.0.0.1:0", "asked for"},
		{"ofi+tcp://127.0.0.9:0", all, "", "127.0.0.9:0", "asked for"},
		{"ofi+tcp://eth1", all, "", "10.2.0.5:0", "interface eth1"},
		{"ofi+tcp://eth1:99", all, "", "10.2.0.5:99", "interface eth1"},
		{"ofi+tcp://eth1/:99", all, "", "10.2.0.5:99", "interface eth1"},
		{"ofi+tcp://eth0/10.1.0.5:99", all, "", "10.1.0.5:99", "asked for"},
		{"ofi+tcp://docker0", all, "", "172.17.0.1:0", "interface docker0"},
		{"ofi+tcp://0.0.0.0:5", all, "", "0.0.0.0:5 10.1.0.5", "all addresses"},
		{"ofi+tcp://[::]:5", all, "", "[::]:5 2001:db8::5", "all addresses"},
		{"ofi+tcp://[2001:db8::6]:5", all, "", "[2001:db8::6]:5", "asked for"},
		{"ofi+tcp://[::1]", all, "", "[::1]:0", "asked for"},
		{"ofi+tcp://::1", all, "", "[::1]:0", "asked for"},
		{"ofi+tcp", all, "10.2.0.0/16", "10.2.0.5:0", "in 10.2.0.0/16, on eth1"},
		{"ofi+tcp", all, "172.16.0.0/12", "172.17.0.1:0", "docker0"},
		{"ofi+tcp", all, "::/0", "[2001:db8::5]:0", "the first address of IPv6, on eth0"},
		{"ofi+tcp", all, "0.0.0.0/0", "10.1.0.5:0", "the first address of IPv4, on eth0"},
		{"ofi+tcp", []string{"docker0", "virbr0", "br-1f", "veth7", "eth1"}, "", "10.2.0.5:0", "eth1"},
		{"ofi+tcp", []string{"lo", "six0", "docker0"}, "", "[2001:db8::6]:0", "six0"},
		{"ofi+tcp", []string{"lo", "docker0"}, "", "172.17.0.1:0", "only bridges"},
		{"ofi+tcp", []string{"docker0", "lo", "six0"}, "", "[2001:db8::6]:0", "six0"},
		{"ofi+tcp", []string{"lo"}, "", "127.0.0.1:0", "no interface leads"},
		{"uid://1#na+sm://7#ofi+tcp://:8", all, "", "10.1.0.5:8", "eth0"},
	} {
		c, err := chooseFrom(t, tc.address, tc.subnet, host(tc.ifs...))
		if err != nil {
			t.Errorf("%s, %s: %v", tc.address, tc.subnet, err)
			continue
		}
		got := c.bind.String()
		if c.self != c.bind.Addr() {
			got += " " + c.self.String()
		}
		if got != tc.want || !strings.Contains(c.reason, tc.reason) {
			t.Errorf("%s, subnet %q: %s because of %q, want %s and %q", tc.address, tc.subnet, got, c.reason, tc.want, tc.reason)
		}
	}
}

// TestChooseDoubtful warns of an address that others may not reach, if nobody asked for it.
// parity: D10
func TestChooseDoubtful(t *testing.T) {
	for _, tc := range []struct {
		address, subnet string
		ifs             []string
		want            slog.Level
	}{
		{"ofi+tcp", "", []string{"docker0", "eth0"}, slog.LevelDebug},
		{"ofi+tcp", "", []string{"lo", "docker0"}, slog.LevelWarn},
		{"ofi+tcp://0.0.0.0", "", []string{"lo", "virbr0"}, slog.LevelWarn},
		{"ofi+tcp://docker0", "", []string{"lo", "docker0"}, slog.LevelDebug},
		{"ofi+tcp://172.17.0.1", "", []string{"lo", "docker0"}, slog.LevelDebug},
		{"ofi+tcp", "172.16.0.0/12", []string{"lo", "docker0"}, slog.LevelDebug},
		{"ofi+tcp", "", []string{"lo"}, slog.LevelDebug}, // a host without a network
	} {
		c, err := chooseFrom(t, tc.address, tc.subnet, host(tc.ifs...))
		if err != nil || c.level != tc.want {
			t.Errorf("%+v: level %v, %v", tc, c.level, err)
		}
	}
}

// TestListenOnLoopback: an endpoint that listens is reached by its own host only, unless the address or a subnet says more.
func TestListenOnLoopback(t *testing.T) {
	for _, tc := range []struct {
		address string
		ifs     []string
		want    string
	}{
		{"ofi+tcp", []string{"eth0", "docker0", "lo"}, "127.0.0.1:0"},
		{"tcp://:1234", []string{"eth0", "lo"}, "127.0.0.1:1234"},
		{"ofi+tcp://", []string{"eth0"}, "10.1.0.5:0"}, // a host without a loopback
	} {
		sp, err := parseSpec(tc.address)
		if err != nil {
			t.Fatal(err)
		}
		sp.local = true
		c, err := choose(host(tc.ifs...), sp, netip.Prefix{})
		if err != nil || c.bind.String() != tc.want {
			t.Errorf("%s: %v, %v, want %s", tc.address, c.bind, err, tc.want)
		}
	}
	for _, tc := range []struct {
		address string
		subnet  netip.Prefix
		listen  bool
		want    bool
	}{
		{"ofi+tcp", netip.Prefix{}, true, true},
		{"ofi+tcp://:0", netip.Prefix{}, true, true},
		{"ofi+tcp", netip.Prefix{}, false, false},
		{"ofi+tcp://0.0.0.0", netip.Prefix{}, true, false},
		{"ofi+tcp", netip.MustParsePrefix("0.0.0.0/0"), true, false},
	} {
		c, err := chooseOn(t.Context(), tc.address, tc.subnet, tc.listen)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(c.reason, "no host, interface or subnet is named"); got != tc.want {
			t.Errorf("%s, subnet %v, listening %t: %v because of %q", tc.address, tc.subnet, tc.listen, c.self, c.reason)
		}
	}
}

// chooseFrom is chooseOn with other interfaces.
func chooseFrom(t *testing.T, address, subnet string, ifs []iface) (choice, error) {
	var p netip.Prefix
	if subnet != "" {
		p = netip.MustParsePrefix(subnet)
	}
	sp, err := parseSpec(address)
	if err != nil {
		return choice{}, err
	}
	if err := sp.resolve(t.Context(), ifs); err != nil {
		return choice{}, err
	}
	return choose(ifs, sp, p)
}

// parity: H17 D09 D10
func TestChooseRefused(t *testing.T) {
	ifs := host("lo", "eth0", "eth1", "ib0")
	for _, tc := range []struct{ address, subnet, want string }{
		{"ofi+tcp://10.9.9.9", "", "no interface of this host has the address 10.9.9.9; there are 127.0.0.1 (lo)"},
		{"ofi+tcp", "10.7.0.0/16", "10.1.0.5 on eth0: not in 10.7.0.0/16"},
		{"ofi+tcp://10.1.0.5", "10.2.0.0/16", "not in 10.2.0.0/16"},
		{"ofi+tcp://eth1/10.1.0.5:4", "", "an address of eth0, not of eth1"},
		{"ofi+tcp://ib0", "", "interface is down"},
		{"ofi+tcp://nosuch/:7", "", `there is no interface "nosuch"; there are lo, eth0, eth1, ib0`},
		{"ofi+tcp", "2001:db8:1::/48", "2001:db8::5 on eth0: not in 2001:db8:1::/48"},
		{"ofi+tcp://10.1.0.5", "::/0", "10.1.0.5 is not of IPv6"},
		{"ofi+tcp://[10.1.0.5", "", "bracket"},
		{"ofi+tcp://[::1]7", "", "colon"},
		{"ofi+tcp://10.1.0.5:99999", "", "no number from 0 to 65535"},
		{"ofi+tcp://no-such-host.invalid:1", "", "no address, no interface"},
		{"ofi+tcp;ofi_rxm://10.1.0.5:1", "", "tcp;ofi_rxm provider"},
		{"ofi+verbs://10.1.0.5:1", "", "not an address of this network"},
		{"na+sm", "", "not an address of this network"},
	} {
		c, err := chooseFrom(t, tc.address, tc.subnet, ifs)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %+v, %v, want an error with %q", tc.address, c, err, tc.want)
		}
	}
}

// parity: H17
func TestOnInterface(t *testing.T) {
	for _, tc := range []struct{ address, name, want string }{
		{"tcp", "", "tcp"},
		{"tcp", "eth1", "ofi+tcp://eth1/:0"},
		{"", "eth1", "ofi+tcp://eth1/:0"},
		{"ofi+tcp://:77", "eth1", "ofi+tcp://eth1/:77"},
		{"ofi+tcp://eth0", "eth1", "ofi+tcp://eth0"},
		{"ofi+tcp://eth0/:7", "eth1", "ofi+tcp://eth0/:7"},
		{"ofi+tcp://10.1.0.5:7", "eth1", "ofi+tcp://10.1.0.5:7"},
		{"ofi+tcp://0.0.0.0", "eth1", "ofi+tcp://0.0.0.0"},
		{"ofi+tcp://[::1", "eth1", "ofi+tcp://[::1"},
	} {
		if got := OnInterface(tc.address, tc.name); got != tc.want {
			t.Errorf("%q with %q: %q, want %q", tc.address, tc.name, got, tc.want)
		}
	}
	c, err := chooseFrom(t, OnInterface("tcp", "eth1"), "", host("eth0", "eth1"))
	if err != nil || c.bind.String() != "10.2.0.5:0" {
		t.Errorf("%+v, %v", c, err)
	}
}

// TestChooseHere runs on the interfaces of this host.
// parity: H17
func TestChooseHere(t *testing.T) {
	for _, a := range []string{"", "tcp", "ofi+tcp://127.0.0.1:7", "ofi+tcp://lo", "tcp://localhost:9"} {
		got, reason, err := Choose(t.Context(), a, netip.Prefix{}, false)
		if err != nil || !got.Addr().IsValid() || reason == "" {
			t.Errorf("%q: %v, %q, %v", a, got, reason, err)
		}
	}
	_, _, err := Choose(t.Context(), "ofi+tcp;ofi_rxm", netip.Prefix{}, true)
	wantKind(t, err, na.Unsupported)
}

// parity: H01 H35 H36 D11
func TestOpenErrors(t *testing.T) {
	e := openEndpoint(t, Config{})
	for _, tc := range []struct {
		cfg  Config
		kind na.Kind
	}{
		{Config{Address: e.Addr().String()}, na.InUse},
		{Config{Address: "ofi+tcp://192.0.2.77:1"}, na.NotAvailable},
		{Config{Address: "ofi+tcp;ofi_rxm://127.0.0.1"}, na.Unsupported},
		{Config{Address: "bogus"}, na.Invalid},
		{Config{Listen: true}, na.Invalid},
		{Config{MaxRequest: 10}, na.Invalid},
		{Config{MaxResponse: 1 << 30}, na.Invalid},
		{Config{DialTimeout: -1}, na.Invalid},
	} {
		got, err := Open(t.Context(), tc.cfg)
		if err == nil {
			closeEndpoint(t, got)
		}
		if na.KindOf(err) != tc.kind {
			t.Errorf("%+v: %v, want kind %v", tc.cfg, err, tc.kind)
		}
	}
}

func TestOpenInSubnet(t *testing.T) {
	e := openEndpoint(t, Config{Address: "ofi+tcp://:0", Subnet: netip.MustParsePrefix("127.0.0.0/8")})
	if got := e.self.Addr(); got != netip.MustParseAddr("127.0.0.1") {
		t.Errorf("address %v", got)
	}
	_, err := Open(t.Context(), Config{Subnet: netip.MustParsePrefix("198.51.100.0/24")})
	wantKind(t, err, na.NotAvailable)
}

// parity: H30 H33 H34 H35 H124 G50 T04 T33 D12
func TestLookup(t *testing.T) {
	e := openEndpoint(t, Config{})
	want, err := e.Lookup("ofi+tcp://127.0.0.1:1234")
	if err != nil || want.String() != "ofi+tcp://127.0.0.1:1234" {
		t.Fatalf("%v, %v", want, err)
	}
	for _, s := range []string{"tcp://127.0.0.1:1234", "ofi+tcp://lo/127.0.0.1:1234", "ofi+tcp://localhost:1234",
		"uid://99#na+sm://1-0#ofi+tcp://127.0.0.1:1234", "ofi+tcp://[::ffff:127.0.0.1]:1234"} {
		if a, err := e.Lookup(s); err != nil || !a.Equal(want) {
			t.Errorf("%s: %v, %v", s, a, err)
		}
	}
	for s, text := range map[string]string{
		"ofi+tcp;ofi_rxm://127.0.0.1:1234":             "tcp;ofi_rxm provider",
		"ofi+tcp://127.0.0.1":                          "neither an address and port",
		"ofi+tcp://127.0.0.1:0":                        "port 0",
		"ofi+tcp://0.0.0.0:1":                          "which no host has",
		"ofi+tcp://example.com":                        "neither an address and port",
		"ofi+tcp://example.com:0":                      "neither an address and port",
		"ofi+tcp://example.com:65536":                  "neither an address and port",
		"ofi+tcp://a..b:1":                             "neither an address and port",
		"ofi+tcp://127.0.0.256:1":                      "neither an address and port",
		"ofi+tcp://a b:1":                              "neither an address and port",
		"ofi+tcp://:1":                                 "neither an address and port",
		"ofi+tcp://" + strings.Repeat("a", 254) + ":1": "neither an address and port",
		"ofi+tcp://[2001:db8::1]:1":                    "family",
		"na+sm://1":                                    "not an address of this network",
		"":                                             "not an address of this network",
	} {
		if a, err := e.Lookup(s); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%q: %v, %v, want an error with %q", s, a, err, text)
		}
	}
	b := e.AppendAddr(nil, want)
	if a, err := e.ParseAddr(b); err != nil || !a.Equal(want) {
		t.Errorf("%v, %v", a, err)
	}
	six := ofiaddr.AppendSerialized(nil, netip.MustParseAddrPort("[2001:db8::1]:5"))
	for _, bad := range [][]byte{nil, b[:7], b[8:], b[:23], append(b[:24:24], 0), six, append([]byte{17}, b[1:]...)} {
		if a, err := e.ParseAddr(bad); err == nil {
			t.Errorf("% x: accepted as %v", bad, a)
		}
	}
	if want.Done() != nil {
		t.Error("Done before there was a connection")
	}
}

// TestAllAddresses: an endpoint on all addresses is reached by any of them, and says one that can be reached.
func TestAllAddresses(t *testing.T) {
	e := openEcho(t, Config{Address: "ofi+tcp://0.0.0.0:0"})
	if e.self.Addr().IsUnspecified() || e.self.Port() == 0 {
		t.Fatalf("address %v", e.self)
	}
	for _, ip := range []netip.Addr{netip.MustParseAddr("127.0.0.1"), e.self.Addr()} {
		cl := openEndpoint(t, Config{}) // each its own: two endpoints have one connection, by whatever addresses
		a, err := cl.Lookup(formatAddr(netip.AddrPortFrom(ip, e.self.Port())))
		if err != nil {
			t.Fatal(err)
		}
		newClient(cl, a, 0).must(t, []byte("hello"))
	}
}

// TestIPv6 has two endpoints on IPv6, whose requests begin with 18 bytes of address.
// parity: H18 D13
func TestIPv6(t *testing.T) {
	cfg := Config{Address: "ofi+tcp://[::1]:0"}
	probe, err := Open(t.Context(), cfg)
	if err != nil {
		t.Skipf("this host has no IPv6 loopback: %v", err)
	}
	closeEndpoint(t, probe)
	server, cl := openEcho(t, cfg), openEndpoint(t, cfg)
	if !strings.HasPrefix(server.Addr().String(), "ofi+tcp://[::1]:") || server.prefix != ofiaddr.Len6 {
		t.Errorf("address %v, prefix of %d bytes", server.Addr(), server.prefix)
	}
	newClient(cl, addrOf(t, cl, server), 0).must(t, []byte("hello"))
	a, err := cl.ParseAddr(server.AppendAddr(nil, server.Addr()))
	if err != nil || a.String() != server.Addr().String() {
		t.Errorf("%v, %v", a, err)
	}
}
