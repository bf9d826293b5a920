package inspect

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/verbs"
	"cinnabar/verbs/rdmacore"
	"cinnabar/verbs/verbstest/memdev"
)

// sample is a device with every field set.
func sample() *verbs.DeviceAttr {
	return &verbs.DeviceAttr{
		Name: "siw0", Transport: verbs.TransportIWARP, NodeType: verbs.NodeRNIC,
		NodeGUID: 0x525400fffe123456, SysImageGUID: 0x525400fffe123456, FWVersion: "1.2.3",
		VendorID: 0x626d74, VendorPartID: 1, HWVersion: 0x2a,
		Caps: verbs.CapWriteImm | verbs.CapAtomics, QPTypes: []verbs.QPType{verbs.RC},
		MaxMRSize: 1 << 32, PageSizeCap: 0xfffff000, MaxQP: 102400, MaxQPWR: 32768, MaxSGE: 6, MaxSGERead: 1, MaxInline: 80,
		MaxCQ: 102400, MaxCQE: 3276800, MaxMR: 1024000, MaxPD: 102400, MaxQPRDAtom: 128, MaxQPInitRDAtom: 127,
		MaxSRQ: 102400, MaxSRQWR: 327680, MaxSRQSGE: 6, AtomicCap: verbs.AtomicHCA, MaxPrivateData: 508,
		ReadSink: verbs.LocalWrite | verbs.RemoteWrite,
		Ports: []verbs.PortAttr{
			{
				Num: 1, State: verbs.PortActive, MaxMTU: 3, ActiveMTU: 3, LinkLayer: "Ethernet", MaxMsgSize: 0xffffffff,
				PKeys: []uint16{0xffff}, GIDs: [][16]byte{{0xfe, 0x80, 8: 1, 15: 2}, {}},
				Addrs: []netip.Addr{netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("fe80::1")},
			},
			{Num: 2, State: verbs.PortDown, LinkLayer: "Ethernet"},
		},
	}
}

func TestDevinfoLayout(t *testing.T) {
	for _, tt := range []struct {
		name    string
		port    int
		verbose bool
	}{
		{"devinfo.golden", 0, false},
		{"devinfo-v.golden", 0, true},
		{"devinfo-i2.golden", 2, false},
	} {
		var b bytes.Buffer
		if err := writeDevinfo(&b, sample(), tt.port, tt.verbose); err != nil {
			t.Fatal(err)
		}
		clitest.Golden(t, tt.name, b.String())
	}
}

// siw is the Linux kernel's soft-iWARP device as ibv_devinfo saw it.
func siw() *verbs.DeviceAttr {
	return &verbs.DeviceAttr{
		Name: "siw0", Transport: verbs.TransportIWARP, NodeType: verbs.NodeRNIC,
		NodeGUID: 0xbc82d0fffef8d844, SysImageGUID: 0xbc82d0fffef8d844, FWVersion: "0.0.0",
		VendorID: 0x626d74, VendorPartID: 1, QPTypes: []verbs.QPType{verbs.RC},
		MaxMRSize: 1<<64 - 1, PageSizeCap: 0x1000, MaxQP: 102400, MaxQPWR: 32768, MaxSGE: 6, MaxSGERead: 1,
		MaxCQ: 102400, MaxCQE: 3276800, MaxMR: 1024000, MaxPD: 102400, MaxQPRDAtom: 128, MaxQPInitRDAtom: 128,
		MaxSRQ: 102400, MaxSRQWR: 327680, MaxSRQSGE: 6,
		Ports: []verbs.PortAttr{{
			Num: 1, State: verbs.PortActive, MaxMTU: 3, ActiveMTU: 3, LinkLayer: "Ethernet", MaxMsgSize: 0xffffffff, GIDs: make([][16]byte, 1),
		}},
	}
}

// For the same device the output is that of rdma-core's programs.
// parity(recorded): V02 V70
func TestDevicesEqualC(t *testing.T) {
	var info, table, list bytes.Buffer
	if err := errors.Join(writeDevinfo(&info, siw(), 1, false), writeDeviceTable(&table, []*verbs.DeviceAttr{siw()}), writeDeviceList(&list, []string{"siw0"})); err != nil {
		t.Fatal(err)
	}
	clitest.Golden(t, "siw-devinfo.txt", info.String())
	clitest.Golden(t, "siw-devices.txt", table.String())
	clitest.Golden(t, "siw-devinfo-l.txt", list.String())
}

// With -v every line is one of C's, in C's order, except those about what C
// does not know.
// parity(recorded): V70
func TestVerboseLinesAreThoseOfC(t *testing.T) {
	ours := regexp.MustCompile(`^\t(max_inline_data|max_private_data|read_sink|qp_types|capabilities):`)
	c, err := os.ReadFile("testdata/siw-devinfo-v.txt")
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := writeDevinfo(&b, siw(), 0, true); err != nil {
		t.Fatal(err)
	}
	rest := strings.SplitAfter(string(c), "\n")
	for line := range strings.Lines(b.String()) {
		if ours.MatchString(line) {
			continue
		}
		n := slices.Index(rest, line)
		if n < 0 {
			t.Fatalf("the line %q is not among those that ibv_devinfo prints next", line)
		}
		rest = rest[n+1:]
	}
}

func TestDeviceListCounts(t *testing.T) {
	var b bytes.Buffer
	if err := errors.Join(writeDeviceList(&b, []string{"a", "b"}), writeDeviceList(&b, nil)); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(b.String(), "2 HCAs found:\n\ta\n\tb\n\n0 HCAs found:\n\n"); d != "" {
		t.Errorf("list (-got +want):\n%s", d)
	}
}

func TestNoDeviceSaysWhy(t *testing.T) {
	var b bytes.Buffer
	err := runDevices(&devicesOptions{}, nil, &b)
	clitest.WantError(t, err, "no RDMA devices found", "hardware")
	if got := cli.ExitCode(t.Context(), err); got != cli.ExitFailure {
		t.Errorf("exit code %d, want %d", got, cli.ExitFailure)
	}
}

func TestDeviceThatDoesNotOpen(t *testing.T) {
	broken := errors.New("the cable is gone")
	list := []cli.Device{
		{Name: "bad0", Open: func() (*verbs.Device, error) { return nil, broken }},
		{Name: "mem0", Open: func() (*verbs.Device, error) { return verbs.NewDevice(memdev.Open(memdev.Config{})), nil }},
	}
	var b bytes.Buffer
	err := runDevices(&devicesOptions{}, list, &b)
	clitest.WantError(t, err, "bad0", "the cable is gone")
	if got := cli.ExitCode(t.Context(), err); got != 1 {
		t.Errorf("exit code %d, want 1", got)
	}
	if !bytes.Contains(b.Bytes(), []byte("hca_id:\tmem0\n")) {
		t.Errorf("the device that works is not described:\n%s", &b)
	}
}

func TestWriterThatFails(t *testing.T) {
	full := errors.New("disk full")
	err := writeDevinfo(clitest.WriterFunc(func([]byte) (int, error) { return 0, full }), sample(), 0, true)
	if !errors.Is(err, full) {
		t.Errorf("error %v, want %v", err, full)
	}
}

// Who asks for a device that is not there hears what is in the way of the machine's own.
func TestMissingDeviceSaysWhy(t *testing.T) {
	_, why := rdmacore.Devices()
	if why == nil {
		t.Skip("this machine has RDMA devices: nothing is in the way")
	}
	clitest.WantRun(t, cli.ExitFailure, []string{"devices", "-d", "none0"}, "device 'none0' wasn't found; there is "+cli.SoftwareDevice, cli.OneLine(why))
}

// TestDevicesOfThisMachine lists the devices of the machine that runs the test: the software device is always there, and
// where the machine has no others, the error about an unknown name gives the reason.
// parity: V01
func TestDevicesOfThisMachine(t *testing.T) {
	clitest.WantRun(t, 0, []string{"devices", "-l"}, " found:\n\t"+cli.SoftwareDevice+"\n")
	clitest.WantRun(t, 0, []string{"devices", "-d", cli.SoftwareDevice, "-v"}, "hca_id:\t"+cli.SoftwareDevice+"\n", "node_guid:", "PORT_ACTIVE")
	text := []string{"device 'none0' wasn't found; there is " + cli.SoftwareDevice}
	if _, err := rdmacore.Devices(); err != nil {
		text = append(text, cli.OneLine(err))
	}
	clitest.WantRun(t, cli.ExitFailure, []string{"devices", "-d", "none0"}, text...)
}
