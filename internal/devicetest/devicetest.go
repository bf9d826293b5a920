// Package devicetest opens the RDMA device that tests run on: the software device, or the device of this machine that an
// environment variable names.
package devicetest

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
	"cinnabar/verbs/rdmacore"
)

// Env names the environment variable with the name of an RDMA device of this machine.
const Env = "CINNABAR_RDMA_DEVICE"

// Name returns the name of the machine's device to test on, "" for the software device.
func Name() string { return os.Getenv(Env) }

// Context returns a context for one test. It ends with the test, or after a minute, which no wait of a healthy test takes.
func Context(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// Open opens the device to test on. The caller closes it.
func Open() (*verbs.Device, error) {
	if name := Name(); name != "" {
		return rdmacore.Open(name)
	}
	return iwarp.Open(iwarp.Config{})
}

// MustOpen opens the device to test on. The end of the test closes it.
func MustOpen(t testing.TB) *verbs.Device {
	t.Helper()
	dev, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Errorf("close the device: %v", err)
		}
	})
	return dev
}

// Addr returns the address to listen at on the device, with port 0: loopback on the software device, the first IPv4 address of
// port 1 on others.
func Addr(dev *verbs.Device) (netip.AddrPort, error) {
	if Name() == "" {
		return netip.MustParseAddrPort("127.0.0.1:0"), nil
	}
	attr, err := dev.Query()
	if err != nil {
		return netip.AddrPort{}, err
	}
	for _, a := range attr.Ports[0].Addrs {
		if a.Is4() {
			return netip.AddrPortFrom(a, 0), nil
		}
	}
	return netip.AddrPort{}, errors.New("port 1 of the device has no IPv4 address")
}

// MustAddr is Addr for tests.
func MustAddr(t testing.TB, dev *verbs.Device) netip.AddrPort {
	t.Helper()
	at, err := Addr(dev)
	if err != nil {
		t.Fatal(err)
	}
	return at
}
