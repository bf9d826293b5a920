package clitest

import (
	"net/netip"
	"testing"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/verbs"
	"cinnabar/verbs/verbstest/memdev"
)

// MemoryDevice opens a device in memory, which the test closes.
func MemoryDevice(t *testing.T, without verbs.Caps) *verbs.Device {
	t.Helper()
	dev := verbs.NewDevice(memdev.Open(memdev.Config{Without: without}))
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Errorf("close the device: %v", err)
		}
	})
	return dev
}

// EachDevice runs a test on the device in memory and on the software device.
func EachDevice(t *testing.T, test func(t *testing.T, open func(t *testing.T) *verbs.Device)) {
	t.Run("memory", func(t *testing.T) {
		test(t, func(t *testing.T) *verbs.Device { return MemoryDevice(t, 0) })
	})
	t.Run("iwarp", func(t *testing.T) {
		test(t, func(t *testing.T) *verbs.Device {
			dev, err := cli.OpenDevice(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			closeAtEnd(t, dev)
			return dev
		})
	})
}

// Listen starts a listener on a free port of loopback, which the end of the test closes.
func Listen(t *testing.T, dev *verbs.Device) *verbs.Listener {
	t.Helper()
	l, err := verbs.Listen(dev, netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cli.Shut(l) })
	return l
}
