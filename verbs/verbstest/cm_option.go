package verbstest

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"cinnabar/verbs"
)

// dialWith connects a new pair over l with the given parameters of the side that dials.
func dialWith(t *testing.T, dev *verbs.Device, l *verbs.Listener, ap, pp verbs.ConnParam) (*Pair, error) {
	t.Helper()
	ctx := testContext(t)
	p := &Pair{Ctx: ctx, Dev: dev, Active: newSide(t, ctx, dev, PairConfig{}, false), Passive: newSide(t, ctx, dev, PairConfig{}, false)}
	return p, p.connect(l, PairConfig{Active: ap, Passive: pp})
}

// mustDial is dialWith for parameters that the device must take. It sends a message in each direction.
func mustDial(t *testing.T, dev *verbs.Device, l *verbs.Listener, ap, pp verbs.ConnParam) *Pair {
	t.Helper()
	p, err := dialWith(t, dev, l, ap, pp)
	if err != nil {
		t.Fatalf("connect with %+v and %+v: %v", ap, pp, err)
	}
	for _, dir := range [][2]*Side{{p.Active, p.Passive}, {p.Passive, p.Active}} {
		dir[1].PostRecv(1, 0, 8)
		dir[0].PostSend(dir[0].Send(2, 0, 8))
		dir[1].Expect(1, verbs.StatusSuccess, verbs.WCRecv)
		dir[0].Expect(2, verbs.StatusSuccess, verbs.WCSend)
	}
	return p
}

// freePort returns a TCP port of the loopback address on which no socket is.
func freePort(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).AddrPort().Port()
	closeAll(t, "socket", l.Close)
	return port
}

// testSource dials from an address, and from an address and a port that two connections share.
// parity: V55 N12
func testSource(t *testing.T, dev *verbs.Device) {
	l, second := listen(t, dev, loopback), listen(t, dev, loopback)
	p := mustDial(t, dev, l, verbs.ConnParam{Source: loopback}, verbs.ConnParam{})
	if got := p.Active.Conn.LocalAddr(); got.Addr() != loopback.Addr() || got.Port() == 0 {
		t.Errorf("local address = %v, want %v with a port", got, loopback.Addr())
	}
	from := netip.AddrPortFrom(loopback.Addr(), freePort(t))
	shared := verbs.ConnParam{Source: from, ReuseSource: true}
	for _, l := range []*verbs.Listener{l, second} {
		p := mustDial(t, dev, l, shared, verbs.ConnParam{})
		if got := p.Active.Conn.LocalAddr(); got != from {
			t.Errorf("local address = %v, want %v", got, from)
		}
		if got := p.Passive.Conn.RemoteAddr(); got != from {
			t.Errorf("the passive side sees %v, want %v", got, from)
		}
	}
	s := newSide(t, p.Ctx, dev, PairConfig{}, false)
	if _, err := verbs.Dial(p.Ctx, s.QP, listen(t, dev, loopback).Addr(), verbs.ConnParam{Source: from}); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("dial from a port in use: %v, want %v", err, syscall.EADDRINUSE)
	}
}

// testSourceRefused dials from addresses that cannot be the source; the queue pair then still connects.
// parity: V55 N12
func testSourceRefused(t *testing.T, dev *verbs.Device) {
	ctx := testContext(t)
	l := listen(t, dev, loopback)
	a, b := newSide(t, ctx, dev, PairConfig{}, false), newSide(t, ctx, dev, PairConfig{}, false)
	for _, from := range []netip.AddrPort{
		netip.MustParseAddrPort("192.0.2.1:0"), // RFC 5737: of no machine
		netip.MustParseAddrPort("[::1]:0"),     // of another family than the peer's
	} {
		if _, err := verbs.Dial(ctx, a.QP, l.Addr(), verbs.ConnParam{Source: from}); err == nil || ctx.Err() != nil {
			t.Errorf("Dial from %v: %v, want a refusal at once", from, err)
		}
	}
	if _, err := verbs.Dial(ctx, a.QP, l.Addr(), verbs.ConnParam{Source: loopback, ReuseSource: true}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("Dial with ReuseSource and no port: %v, want ErrInvalid", err)
	}
	dialled := make(chan error, 1)
	go func() {
		_, err := verbs.Dial(ctx, a.QP, l.Addr(), verbs.ConnParam{})
		dialled <- err
	}()
	req, err := l.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := req.Accept(ctx, b.QP, verbs.ConnParam{Source: loopback}); !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "Source") {
		t.Errorf("Accept with a Source: %v, want ErrInvalid and the name", err)
	}
	if _, err := req.Accept(ctx, b.QP, verbs.ConnParam{}); err != nil { // the refusal has not answered the request
		t.Error(err)
	}
	if err := <-dialled; err != nil {
		t.Error(err)
	}
}

// testOnlyIPv6 listens on all IPv6 addresses, and dials by each family.
// parity: V55
func testOnlyIPv6(t *testing.T, dev *verbs.Device) {
	needIPv6(t)
	l, err := verbs.ListenConfig{OnlyIPv6: true}.Listen(dev, netip.AddrPortFrom(netip.IPv6Unspecified(), 0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeAll(t, "listener", l.Close) })
	ctx := testContext(t)
	s := newSide(t, ctx, dev, PairConfig{}, false)
	if _, err := verbs.Dial(ctx, s.QP, netip.AddrPortFrom(loopback.Addr(), l.Addr().Port()), verbs.ConnParam{}); err == nil || ctx.Err() != nil {
		t.Errorf("Dial by IPv4: %v, want a refusal at once", err)
	}
	exchange(t, dev, l, netip.AddrPortFrom(netip.IPv6Loopback(), l.Addr().Port()))
}

// optionOf checks that a device without a capability refuses an option with an error that names the option and the device, and reports whether it has
// the capability.
func optionOf(t *testing.T, dev *verbs.Device, c verbs.Caps, p verbs.ConnParam, name string) bool {
	t.Helper()
	a := attr(t, dev)
	if a.Caps.Has(c) {
		return true
	}
	s := newSide(t, testContext(t), dev, PairConfig{}, false)
	_, err := verbs.Dial(s.ctx, s.QP, loopback, p)
	if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), a.Name) {
		t.Errorf("Dial with %s on a device without it: %v, want ErrUnsupported, and the names of both", name, err)
	}
	return false
}

// testTypeOfService connects with a type of service. The packets are looked at in the tests of the devices.
// parity: V55 N12
func testTypeOfService(t *testing.T, dev *verbs.Device) {
	wish := verbs.ConnParam{TypeOfService: 0x48}
	if !optionOf(t, dev, verbs.CapTypeOfService, wish, "TypeOfService") {
		return
	}
	l := listen(t, dev, loopback)
	p := mustDial(t, dev, l, wish, verbs.ConnParam{})
	for _, s := range []*Side{p.Active, p.Passive} {
		// A queue pair that knows its path to the peer has the traffic class of it.
		if a, _ := s.QP.Query(); a.Mask&verbs.AttrAV != 0 && a.AH.TrafficClass != wish.TypeOfService {
			t.Errorf("traffic class of the path = %#x, want %#x", a.AH.TrafficClass, wish.TypeOfService)
		}
	}
	if p, err := dialWith(t, dev, l, verbs.ConnParam{}, wish); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Accept with a type of service: %v, want success or ErrUnsupported", err)
	} else if err == nil {
		closeAll(t, "queue pairs", p.Active.QP.Close, p.Passive.QP.Close)
	}
	if needIPv6(t); !t.Failed() {
		mustDial(t, dev, listen(t, dev, netip.AddrPortFrom(netip.IPv6Loopback(), 0)), wish, verbs.ConnParam{})
	}
}

// testAckTimeout connects with an acknowledge timeout of each side.
// parity: V55
func testAckTimeout(t *testing.T, dev *verbs.Device) {
	s := newSide(t, testContext(t), dev, PairConfig{}, false)
	if _, err := verbs.Dial(s.ctx, s.QP, loopback, verbs.ConnParam{AckTimeout: 32}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("Dial with AckTimeout 32: %v, want ErrInvalid", err)
	}
	ap, pp := verbs.ConnParam{AckTimeout: 17}, verbs.ConnParam{AckTimeout: 16}
	if !optionOf(t, dev, verbs.CapAckTimeout, ap, "AckTimeout") {
		return
	}
	p := mustDial(t, dev, listen(t, dev, loopback), ap, pp)
	for _, c := range []struct {
		side *Side
		want uint8
	}{{p.Active, ap.AckTimeout}, {p.Passive, pp.AckTimeout}} {
		if a, _ := c.side.QP.Query(); a.Mask&verbs.AttrTimeout == 0 || a.Timeout != c.want {
			t.Errorf("timeout = %d (attributes %v), want %d", a.Timeout, a.Mask, c.want)
		}
	}
}
