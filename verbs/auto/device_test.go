package auto

import (
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"go.uber.org/goleak"

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
