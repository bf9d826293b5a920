//go:build linux

package rdmacore_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"cinnabar/verbs"
	"cinnabar/verbs/rdmacore"
)

// anyPort is where listeners of devices opened for the suite listen.
var anyPort = netip.MustParseAddrPort("127.0.0.1:0")

// spareQP makes a queue pair that is not connected, until the test ends.
func spareQP(t *testing.T, dev *verbs.Device) *verbs.QP {
	t.Helper()
	pd := newPD(t, dev)
	cq, err := dev.CreateCQ(16)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeWell(t, cq) })
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeWell(t, qp) })
	return qp
}

func listenOn(t *testing.T, dev *verbs.Device, addr netip.AddrPort) *verbs.Listener {
	t.Helper()
	l, err := verbs.Listen(dev, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeWell(t, l) })
	return l
}

// TestBadReject is refused by the peer's program, with its reason.
// parity(vm): V52 B47
func TestBadReject(t *testing.T) {
	const reason = "the disk is full"
	dev := badDevice(t, testDevice(t))
	l := listenOn(t, dev, anyPort)
	ctx := soon(t)
	rejected := make(chan error, 1)
	go func() {
		req, err := l.Accept(ctx)
		if err == nil {
			err = req.Reject([]byte(reason))
		}
		rejected <- err
	}()
	_, err := verbs.Dial(ctx, spareQP(t, dev), l.Addr(), verbs.ConnParam{})
	wantError(t, err, nil, "rejected by the peer", "private data")
	if re, ok := errors.AsType[*verbs.RejectedError](err); !ok || !strings.HasPrefix(string(re.PrivateData), reason) {
		t.Errorf("error %#v, want a RejectedError that says %q", err, reason)
	}
	if err := <-rejected; err != nil {
		t.Error(err)
	}
}

// TestBadNoListener dials a port where nobody listens.
// parity(vm): V50
func TestBadNoListener(t *testing.T) {
	dev := badDevice(t, testDevice(t))
	l := listenOn(t, dev, anyPort)
	addr := l.Addr()
	closeWell(t, l)
	_, err := verbs.Dial(soon(t), spareQP(t, dev), addr, verbs.ConnParam{})
	wantError(t, err, nil, "rejected", "nothing listens at that address")
}

// TestBadAddress uses addresses that belong to no RDMA device.
// parity(vm): V50
func TestBadAddress(t *testing.T) {
	dev := badDevice(t, testDevice(t))
	raw := verbs.NewDevice(dev.Driver().(*home).DeviceDriver) // without loopback addresses
	for _, addr := range []string{"127.0.0.1:7174", "203.0.113.9:7174"} {
		ap := netip.MustParseAddrPort(addr)
		l, err := verbs.Listen(raw, ap)
		if err == nil {
			closeWell(t, l)
		}
		wantError(t, err, nil, addr, "device")
		_, err = verbs.Dial(soon(t), spareQP(t, raw), ap, verbs.ConnParam{})
		wantError(t, err, nil, addr, "device")
	}
}

// TestBadHost dials a machine that is switched off: nobody answers ARP.
// parity(vm): V50 B47
func TestBadHost(t *testing.T) {
	if inChild() == "" {
		l := newLink(t)
		sh(t, "ip -n %[1]s link set p%[1]s arp off; ip neigh flush dev %[1]s", l.netdev)
		newChild(t, l.device, l.env()...).finish()
		return
	}
	dev := badDevice(t, inChild())
	addr := netip.AddrPortFrom(peerIP(t), 7174)
	_, err := verbs.Dial(soon(t), spareQP(t, dev), addr, verbs.ConnParam{})
	wantError(t, err, nil, addr.String(), "ARP")
}

// TestBadDeafHost dials a machine that has no RDMA. RoCE waits for it as long as
// the caller likes; on iWARP its TCP answers.
// parity(vm): V50
func TestBadDeafHost(t *testing.T) {
	if inChild() == "" {
		l := newLink(t)
		newChild(t, l.device, l.env()...).finish()
		return
	}
	dev := badDevice(t, inChild())
	addr := netip.AddrPortFrom(peerIP(t), 7174)
	if strings.HasPrefix(inChild(), "siw") {
		_, err := verbs.Dial(soon(t), spareQP(t, dev), addr, verbs.ConnParam{})
		wantError(t, err, nil, addr.String(), "nothing listens")
		return
	}
	_, err := verbs.Dial(soon(t), spareQP(t, dev), addr, verbs.ConnParam{Timeout: time.Second})
	wantError(t, err, context.DeadlineExceeded, addr.String(), "4791")
}

// TestBadPortDown connects and listens while the device's own port is down.
// parity(vm): V41
func TestBadPortDown(t *testing.T) {
	if inChild() == "" {
		l := newLink(t)
		newChild(t, l.device, l.env()...).finish()
		return
	}
	dev := badDevice(t, inChild())
	qp := spareQP(t, dev)
	netdev := downLink(t)
	ev, err := nextEvent(t, dev, verbs.EventPortErr)
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, ev.Err, nil, "port 1 of "+inChild(), "ip link set "+netdev+" up")
	_, err = verbs.Dial(soon(t), qp, netip.AddrPortFrom(peerIP(t), 7174), verbs.ConnParam{Timeout: 5 * time.Second})
	wantError(t, err, nil, "port 1 of "+inChild(), "ip link set "+netdev+" up")
	list, err := rdmacore.Devices()
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range list {
		if info.Name == inChild() && !strings.Contains(info.Ports[0].State, "DOWN") {
			t.Errorf("the listing says %+v, want a port that is down", info.Ports[0])
		}
	}
}

// nextEvent waits for an event of a type, and skips others.
func nextEvent(t *testing.T, dev *verbs.Device, typ verbs.EventType) (verbs.AsyncEvent, error) {
	t.Helper()
	for ev, err := range dev.Events(soon(t)) {
		if err != nil || ev.Type == typ {
			return ev, err
		}
	}
	return verbs.AsyncEvent{}, errors.New("no event")
}
