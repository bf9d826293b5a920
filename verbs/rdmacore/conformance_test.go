//go:build linux

package rdmacore_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/rdmacore"
	"cinnabar/verbs/verbstest"
)

// deviceEnv names the device to test; without it the first one is.
const deviceEnv = "CINNABAR_RDMA_DEVICE"

// TestConformance runs the suite that every device must pass on a device of this
// machine: on real hardware, or on the kernel's rxe and siw.
func TestConformance(t *testing.T) {
	name := testDevice(t)
	warmUp(t, name)
	verbstest.TestDevice(t, func(t *testing.T, o verbstest.Options) *verbs.Device { return openForSuite(t, name, o) })
}

// warmUp makes librdmacm open the descriptors that it keeps for the life of the
// process, the first time an identifier is bound. The suite looks for such things.
func warmUp(t *testing.T, name string) {
	t.Helper()
	dev := openForSuite(t, name, verbstest.Options{})
	l, err := verbs.Listen(dev, netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.Close(), dev.Close()); err != nil {
		t.Fatal(err)
	}
}

// testDevice returns the name of the device to test, or skips.
func testDevice(t testing.TB) string {
	t.Helper()
	if name := os.Getenv(deviceEnv); name != "" {
		return name
	}
	list, err := rdmacore.Devices()
	if err != nil {
		t.Skipf("no RDMA device here: %v", err)
	}
	return list[0].Name
}

func openForSuite(t *testing.T, name string, o verbstest.Options) *verbs.Device {
	t.Helper()
	if f := factOf(t, name); f != nil {
		t.Skipf("%s; TestDriver/%s asserts it", f.observed, f.name())
	}
	dev, err := rdmacore.Open(name)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	a, err := dev.Query()
	if err != nil {
		t.Fatal(err)
	}
	for why, skip := range map[string]bool{
		"has immediates, which cannot be switched off": o.NoImmediates && a.Caps&(verbs.CapWriteImm|verbs.CapSendImm) != 0,
		"has atomics, which cannot be switched off":    o.NoAtomics && a.Caps.Has(verbs.CapAtomics),
		"completes writes before the peer has them":    o.ConfirmWrites && !a.Caps.Has(verbs.CapExactStatus),
	} {
		if skip {
			if err := dev.Close(); err != nil {
				t.Error(err)
			}
			t.Skipf("device %s %s", name, why)
		}
	}
	return verbs.NewDevice(newHome(t, dev.Driver(), &a))
}

// home lets the suite reach the device by the loopback addresses, which RDMA
// devices do not have: it puts the device's own addresses in their place.
type home struct {
	verbs.DeviceDriver
	own map[netip.Addr]netip.Addr // by loopback address
}

func newHome(t *testing.T, dev verbs.DeviceDriver, a *verbs.DeviceAttr) *home {
	t.Helper()
	h := &home{DeviceDriver: dev, own: map[netip.Addr]netip.Addr{}}
	for _, ip := range a.Ports[0].Addrs {
		loop := netip.IPv6Loopback()
		if ip.Is4() {
			loop = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
		if _, found := h.own[loop]; !found && !ip.IsLinkLocalUnicast() {
			h.own[loop] = ip
		}
	}
	if len(h.own) == 0 {
		t.Fatalf("the port has no address: %+v", a.Ports[0])
	}
	return h
}

// out replaces a loopback address by the device's.
func (h *home) out(a netip.AddrPort) netip.AddrPort {
	if own, ok := h.own[a.Addr()]; ok {
		return netip.AddrPortFrom(own, a.Port())
	}
	return a
}

// in undoes out.
func (h *home) in(a netip.AddrPort) netip.AddrPort {
	for loop, own := range h.own {
		if a.Addr() == own {
			return netip.AddrPortFrom(loop, a.Port())
		}
	}
	return a
}

func (h *home) Listen(addr netip.AddrPort, cfg verbs.ListenConfig) (verbs.ListenerDriver, error) {
	l, err := h.DeviceDriver.Listen(h.out(addr), cfg)
	if err != nil {
		return nil, err
	}
	return homeListener{l, h}, nil
}

func (h *home) Dial(ctx context.Context, qp verbs.QPDriver, addr netip.AddrPort, p verbs.ConnParam) (verbs.ConnDriver, error) {
	p.Source = h.out(p.Source)
	c, err := h.DeviceDriver.Dial(ctx, qp, h.out(addr), p)
	if err != nil {
		return nil, err
	}
	return homeConn{c, h}, nil
}

type homeListener struct {
	verbs.ListenerDriver
	h *home
}

func (l homeListener) Addr() netip.AddrPort { return l.h.in(l.ListenerDriver.Addr()) }

func (l homeListener) Accept(ctx context.Context) (verbs.ConnRequestDriver, error) {
	r, err := l.ListenerDriver.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return homeRequest{r, l.h}, nil
}

type homeRequest struct {
	verbs.ConnRequestDriver
	h *home
}

func (r homeRequest) LocalAddr() netip.AddrPort  { return r.h.in(r.ConnRequestDriver.LocalAddr()) }
func (r homeRequest) RemoteAddr() netip.AddrPort { return r.h.in(r.ConnRequestDriver.RemoteAddr()) }

func (r homeRequest) Accept(ctx context.Context, qp verbs.QPDriver, p verbs.ConnParam) (verbs.ConnDriver, error) {
	c, err := r.ConnRequestDriver.Accept(ctx, qp, p)
	if err != nil {
		return nil, err
	}
	return homeConn{c, r.h}, nil
}

type homeConn struct {
	verbs.ConnDriver
	h *home
}

func (c homeConn) LocalAddr() netip.AddrPort  { return c.h.in(c.ConnDriver.LocalAddr()) }
func (c homeConn) RemoteAddr() netip.AddrPort { return c.h.in(c.ConnDriver.RemoteAddr()) }
