package auto

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"cinnabar/internal/na"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParts(t *testing.T) {
	for addr, want := range map[string]struct{ name, ip string }{
		"verbs": {"", ""}, "ofi+verbs://": {"", ""}, "ofi+verbs://10.0.0.1": {"", "10.0.0.1"}, "ofi+verbs;ofi_rxm://10.0.0.1:5": {"", "10.0.0.1"},
		"verbs://mlx5_0": {"mlx5_0", ""}, "verbs://mlx5_0:7": {"mlx5_0", ""}, "verbs://mlx5_0/10.0.0.1:7": {"mlx5_0", "10.0.0.1"}, "verbs://:7": {"", ""},
		"verbs://[2001:db8::1]:7": {"", "2001:db8::1"}, "verbs://2001:db8::1": {"", "2001:db8::1"},
	} {
		name, ip := parts(addr)
		got := ""
		if ip.IsValid() {
			got = ip.String()
		}
		if name != want.name || got != want.ip {
			t.Errorf("%s: %q, %q, want %+v", addr, name, got, want)
		}
	}
}

func TestFits(t *testing.T) {
	attr := verbs.DeviceAttr{Name: "mlx5_0", Ports: []verbs.PortAttr{
		{State: verbs.PortDown, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}},
		{State: verbs.PortActive, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.2")}},
	}}
	for _, tc := range []struct{ addr, reason, unfit string }{
		{"verbs", "the first", ""}, {"verbs://10.0.0.2:7", "address 10.0.0.2", ""}, {"verbs://mlx5_0", "named", ""}, {"verbs://0.0.0.0", "the first", ""},
		{"verbs://10.0.0.3", "", "10.0.0.3"}, {"verbs://mlx5_1", "", "mlx5_1"}, {"verbs://mlx5_1/10.0.0.2", "", "mlx5_1"},
	} {
		name, ip := parts(tc.addr)
		reason, unfit := fits(&attr, name, ip)
		if !strings.Contains(reason, tc.reason) || !strings.Contains(unfit, tc.unfit) || (reason == "") == (unfit == "") {
			t.Errorf("%s: %q, %q, want %q, %q", tc.addr, reason, unfit, tc.reason, tc.unfit)
		}
	}
	attr.Ports = attr.Ports[:1]
	if _, unfit := fits(&attr, "", netip.Addr{}); unfit == "" {
		t.Error("a device without an active port fits")
	}
}

// TestChoose opens candidates until one fits, and closes the others.
func TestChoose(t *testing.T) {
	var opened []*verbs.Device
	software := func(name string) candidate {
		return candidate{name, func() (*verbs.Device, error) {
			dev, err := iwarp.Open(iwarp.Config{Name: name})
			opened = append(opened, dev)
			return dev, err
		}}
	}
	broken := candidate{"broken0", func() (*verbs.Device, error) { return nil, errors.New("no permission") }}
	list := []candidate{broken, software("soft0"), software("soft1")}
	d, err := choose(list, "soft1", netip.MustParseAddr("127.0.0.1"))
	if err != nil || d.Verbs() != opened[1] || !strings.Contains(d.Reason(), "127.0.0.1") {
		t.Fatalf("%+v, %v, want soft1", d, err)
	}
	if _, err := opened[0].AllocPD(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("a device that was not taken is open: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	_, err = choose(list, "", netip.MustParseAddr("192.0.2.1"))
	if !errors.Is(err, errors.ErrUnsupported) {
		t.Fatalf("%v, want no device", err)
	}
	for _, part := range []string{"broken0: no permission", "soft0: it has the addresses", "not 192.0.2.1"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not say %q: %v", part, err)
		}
	}
}

// TestInterface checks that the name of a network interface selects the device that has one of its addresses. It uses the loopback interface,
// because every machine has one, though its name differs.
func TestInterface(t *testing.T) {
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(interfaces, func(i net.Interface) bool {
		return i.Flags&(net.FlagLoopback|net.FlagUp) == net.FlagLoopback|net.FlagUp
	})
	if i < 0 {
		t.Skip("this machine has no loopback interface")
	}
	name := interfaces[i].Name
	attr := verbs.DeviceAttr{Name: "mlx5_0", Ports: []verbs.PortAttr{{State: verbs.PortActive, Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}}}
	if reason, unfit := fits(&attr, name, netip.Addr{}); unfit != "" || !strings.Contains(reason, name) {
		t.Errorf("%q, %q, want the device with an address of %s", reason, unfit, name)
	}
	attr.Ports[0].Addrs[0] = netip.MustParseAddr("192.0.2.1")
	if _, unfit := fits(&attr, name, netip.Addr{}); unfit == "" {
		t.Errorf("a device without an address of %s fits", name)
	}
}

// TestNilDevice calls the methods of a nil *Device, because Config.Device holds one in a program that ignores the error of Open.
func TestNilDevice(t *testing.T) {
	var d *Device
	if d.Verbs() != nil || d.Reason() != "" || d.Close() != nil || Use(nil).Close() != nil {
		t.Error("a method of a nil Device does not return its zero value")
	}
	for _, d := range []*Device{nil, Use(nil)} {
		if _, err := d.OpenEndpoint(t.Context(), na.DeviceConfig{}); na.KindOf(err) != na.Invalid {
			t.Errorf("an endpoint on %v: %v", d, err)
		}
	}
}

// TestExamine checks that examine and Candidates return the reason for or against a device, and close the device.
func TestExamine(t *testing.T) {
	var opened *verbs.Device
	soft := candidate{"soft0", func() (dev *verbs.Device, err error) {
		opened, err = iwarp.Open(iwarp.Config{Name: "soft0"})
		return opened, err
	}}
	c := soft.examine("", netip.MustParseAddr("127.0.0.1"))
	if c.Name != "soft0" || c.Err != nil || !strings.Contains(c.Reason, "127.0.0.1") || len(c.Addrs) == 0 {
		t.Errorf("%+v", c)
	}
	if _, err := opened.AllocPD(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("the device is still open: %v", err)
	}
	if c := soft.examine("other0", netip.Addr{}); c.Err == nil || c.Reason != "" {
		t.Errorf("%+v, want the reason why the device does not fit", c)
	}
	if list, err := Candidates("ofi+verbs"); err == nil && len(list) == 0 || err != nil && !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("%v, %v, want devices or the reason why there are none", list, err)
	}
}

// TestProgramsWithoutDevices checks that a program for ofi+tcp and na+sm alone links no package of verbs.
func TestProgramsWithoutDevices(t *testing.T) {
	programs := []string{"cinnabar", "cinnabar/margo", "cinnabar/rmem", "cinnabar/examples/hello/client", "cinnabar/examples/hello/server"}
	out, err := exec.CommandContext(t.Context(), "go", append([]string{"list", "-deps"}, programs...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	for pkg := range strings.Lines(string(out)) {
		if pkg = strings.TrimSpace(pkg); pkg == "cinnabar/internal/na/ofiverbs" || strings.HasPrefix(pkg, "cinnabar/verbs") {
			t.Errorf("%v link %s", programs, pkg)
		}
	}
	if !strings.Contains(string(out), "cinnabar/internal/na/ofitcp\n") {
		t.Errorf("go list printed %q, which has no transport", out)
	}
}

// TestSoftware checks that the device in software warns once.
func TestSoftware(t *testing.T) {
	var log strings.Builder
	d, err := Software(slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 {
		t.Errorf("%d warnings: %s", n, &log)
	}
	if err := Use(d.Verbs()).Close(); err != nil {
		t.Error(err)
	}
	if err := d.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
}
