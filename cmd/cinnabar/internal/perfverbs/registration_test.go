package perfverbs

import (
	"encoding/json"
	"net/netip"
	"testing"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/verbs"
)

// TestMemCost prints every size in every way, as a table and as JSON.
// parity: S11
func TestMemCost(t *testing.T) {
	clitest.WantRun(t, 0, []string{"perf", "registration", "--most", "10KiB"}, "4.0 KiB ", "10 KiB ", "registered once", "registered 2 times")
	var r costReport
	out := clitest.WantRun(t, 0, []string{"perf", "registration", "--most", "4KiB", "--json"})
	if err := json.Unmarshal(out.Out.Bytes(), &r); err != nil || len(r.Rows) != 1 || r.Rows[0].Bytes != 4096 || r.Rows[0].Pool <= 0 {
		t.Errorf("%+v, %v", r, err)
	}
	clitest.WantRun(t, 0, []string{"perf", "registration", "--most", "4KiB", "--device", cli.SoftwareDevice, "--lock"}, "memory locked: true")
	clitest.WantRun(t, 1, []string{"perf", "registration", "--device", "none0"}, "'none0' wasn't found")
	clitest.WantRun(t, 2, []string{"perf", "registration", "--device", "none0", "--lock"}, "--lock")
	for _, most := range []string{"1KiB", "1GiB", "x"} {
		clitest.WantRun(t, 2, []string{"perf", "registration", "--most", most}, "--most")
	}
}

// TestOwnAddress finds where a device can be reached from its own machine.
// parity: S11
func TestOwnAddress(t *testing.T) {
	for want, addrs := range map[string][]string{
		"127.0.0.1": {}, "10.9.0.1": {"fe80::1", "10.9.0.1", "fd09::1"}, "fd09::1": {"fd09::1", "10.9.0.1"},
	} {
		var port verbs.PortAttr
		for _, s := range addrs {
			port.Addrs = append(port.Addrs, netip.MustParseAddr(s))
		}
		if got := ownAddress(&verbs.DeviceAttr{Ports: []verbs.PortAttr{port}}); got.String() != want {
			t.Errorf("%v: %v, want %v", addrs, got, want)
		}
	}
	port := verbs.PortAttr{Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("127.0.0.1")}}
	if got := ownAddress(&verbs.DeviceAttr{Ports: []verbs.PortAttr{port}}); !got.IsLoopback() {
		t.Error(got)
	}
}

// TestMemCostRegistrations counts registrations: those of the pool and the cache do not grow with the transfers.
// parity: S11
func TestMemCostRegistrations(t *testing.T) { clitest.EachDevice(t, testMemCostRegistrations) }

func testMemCostRegistrations(t *testing.T, open func(*testing.T) *verbs.Device) {
	dev := open(t)
	r, err := measureCost(t.Context(), dev, 16<<10)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Rows) != 2 || r.Rows[1].Bytes != 16<<10 || r.Registrations != 2 {
		t.Errorf("%+v", r)
	}
}
