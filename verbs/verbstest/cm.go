package verbstest

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"cinnabar/verbs"
)

// dialTimeout ends dials that must fail by their context. It is no measure of
// anything: a device that answers sooner, or a machine that is slow, passes too.
const dialTimeout = 100 * time.Millisecond

// testAddresses compares the addresses that both sides report.
// parity: V57
func testAddresses(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	a, b := p.Active.Conn, p.Passive.Conn
	if a.LocalAddr() != b.RemoteAddr() || a.RemoteAddr() != b.LocalAddr() {
		t.Errorf("active side: %v to %v, passive side: %v to %v", a.LocalAddr(), a.RemoteAddr(), b.LocalAddr(), b.RemoteAddr())
	}
	if a.RemoteAddr().Port() == 0 || a.LocalAddr().Port() == 0 || a.RemoteAddr().Addr() != loopback.Addr() {
		t.Errorf("addresses %v and %v, want %v with two ports", a.LocalAddr(), a.RemoteAddr(), loopback.Addr())
	}
	if a.QP() != p.Active.QP || b.QP() != p.Passive.QP {
		t.Error("the connections do not name their queue pairs")
	}
	if err := a.Err(); err != nil {
		t.Errorf("cause of the end while connected = %v, want nil", err)
	}
}

// exchange connects over l and sends a message in each direction.
func exchange(t *testing.T, dev *verbs.Device, l *verbs.Listener, to netip.AddrPort) {
	t.Helper()
	ctx := testContext(t)
	p := &Pair{Ctx: ctx, Dev: dev, Active: newSide(t, ctx, dev, PairConfig{}, false), Passive: newSide(t, ctx, dev, PairConfig{}, false)}
	accepted := make(chan error, 1)
	go func() {
		req, err := l.Accept(ctx)
		if err == nil {
			p.Passive.Conn, err = req.Accept(ctx, p.Passive.QP, verbs.ConnParam{})
		}
		accepted <- err
	}()
	var err error
	if p.Active.Conn, err = verbs.Dial(ctx, p.Active.QP, to, verbs.ConnParam{}); err != nil {
		t.Fatalf("Dial(%v): %v", to, err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	if got := p.Active.Conn.RemoteAddr(); got != to {
		t.Errorf("remote address = %v, want %v", got, to)
	}
	if got := p.Passive.Conn.RemoteAddr().Addr(); got != to.Addr() {
		t.Errorf("the passive side sees %v, want %v", got, to.Addr())
	}
	for _, dir := range [][2]*Side{{p.Active, p.Passive}, {p.Passive, p.Active}} {
		dir[1].PostRecv(1, 0, 8)
		dir[0].PostSend(dir[0].Send(2, 0, 8))
		dir[1].Expect(1, verbs.StatusSuccess, verbs.WCRecv)
		dir[0].Expect(2, verbs.StatusSuccess, verbs.WCSend)
	}
	closeAll(t, "queue pairs", p.Active.QP.Close, p.Passive.QP.Close)
}

// needIPv6 skips where the machine has no IPv6 loopback.
func needIPv6(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		t.Skipf("this machine has no IPv6 loopback: %v", err)
	}
	closeAll(t, "listener", l.Close)
}

// parity: V57
func testIPv6(t *testing.T, dev *verbs.Device) {
	needIPv6(t)
	l := listen(t, dev, netip.AddrPortFrom(netip.IPv6Loopback(), 0))
	exchange(t, dev, l, l.Addr())
}

// testBothFamilies listens on all addresses and dials by each family.
// parity: V57
func testBothFamilies(t *testing.T, dev *verbs.Device) {
	needIPv6(t)
	l := listen(t, dev, netip.AddrPortFrom(netip.IPv6Unspecified(), 0))
	exchange(t, dev, l, netip.AddrPortFrom(loopback.Addr(), l.Addr().Port()))
	exchange(t, dev, l, netip.AddrPortFrom(netip.IPv6Loopback(), l.Addr().Port()))
}

// testPortTaken listens twice on one port, and again after the first has closed.
func testPortTaken(t *testing.T, dev *verbs.Device) {
	l := listen(t, dev, loopback)
	if second, err := verbs.Listen(dev, l.Addr()); err == nil {
		closeAll(t, "listener", second.Close)
		t.Fatal("two listeners share a port")
	}
	addr := l.Addr()
	closeAll(t, "listener", l.Close)
	l = listen(t, dev, addr)
	exchange(t, dev, l, addr)
}

// testReject refuses with a reason for the peer.
// parity: V52
func testReject(t *testing.T, dev *verbs.Device) {
	ctx := testContext(t)
	l := listen(t, dev, loopback)
	for _, reason := range []string{"", "not today"} {
		s := newSide(t, ctx, dev, PairConfig{}, false)
		rejected := make(chan error, 1)
		go func() {
			req, err := l.Accept(ctx)
			if err == nil {
				err = req.Reject([]byte(reason))
			}
			rejected <- err
		}()
		_, err := verbs.Dial(ctx, s.QP, l.Addr(), verbs.ConnParam{})
		var re *verbs.RejectedError
		if !errors.As(err, &re) || !bytes.HasPrefix(re.PrivateData, []byte(reason)) {
			t.Errorf("Dial: %v (%+v), want a rejection that says %q", err, re, reason)
		}
		if err := <-rejected; err != nil {
			t.Errorf("Reject: %v", err)
		}
		if s.QP.State() == verbs.StateRTS {
			t.Error("the queue pair is in RTS after a rejection")
		}
	}
	exchange(t, dev, l, l.Addr())
}

// testPrivateData carries as much as the device says, in both directions and in a
// rejection. Some transports pad it.
// parity: V53
func testPrivateData(t *testing.T, dev *verbs.Device) {
	limit := attr(t, dev).MaxPrivateData
	for _, n := range []int{0, 1, limit} {
		ask, answer := pattern(n, 1), pattern(n, 2)
		ctx := testContext(t)
		l := listen(t, dev, loopback)
		a, b := newSide(t, ctx, dev, PairConfig{}, false), newSide(t, ctx, dev, PairConfig{}, false)
		accepted := make(chan error, 1)
		go func() {
			req, err := l.Accept(ctx)
			if err != nil {
				accepted <- err
				return
			}
			if got := req.PrivateData(); !bytes.HasPrefix(got, ask) {
				t.Errorf("the request has %x, want %x", got, ask)
			}
			_, err = req.Accept(ctx, b.QP, verbs.ConnParam{PrivateData: answer})
			accepted <- err
		}()
		c, err := verbs.Dial(ctx, a.QP, l.Addr(), verbs.ConnParam{PrivateData: ask})
		if err != nil {
			t.Fatalf("Dial with %d bytes: %v", n, err)
		}
		if err := <-accepted; err != nil {
			t.Fatalf("Accept with %d bytes: %v", n, err)
		}
		if got := c.PrivateData(); !bytes.HasPrefix(got, answer) {
			t.Errorf("the answer has %x, want %x", got, answer)
		}
	}
}

func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i) + seed
	}
	return b
}

// testPrivateDataTooLong is refused everywhere, and the request can still be
// answered then.
// parity: V53
func testPrivateDataTooLong(t *testing.T, dev *verbs.Device) {
	long := make([]byte, attr(t, dev).MaxPrivateData+1)
	ctx := testContext(t)
	l := listen(t, dev, loopback)
	a, b := newSide(t, ctx, dev, PairConfig{}, false), newSide(t, ctx, dev, PairConfig{}, false)
	if _, err := verbs.Dial(ctx, a.QP, l.Addr(), verbs.ConnParam{PrivateData: long}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("Dial with %d bytes: %v, want ErrInvalid", len(long), err)
	}
	accepted := make(chan error, 1)
	go func() {
		req, err := l.Accept(ctx)
		if err != nil {
			accepted <- err
			return
		}
		if err := req.Reject(long); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("Reject with %d bytes: %v, want ErrInvalid", len(long), err)
		}
		if _, err := req.Accept(ctx, b.QP, verbs.ConnParam{PrivateData: long}); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("Accept with %d bytes: %v, want ErrInvalid", len(long), err)
		}
		_, err = req.Accept(ctx, b.QP, verbs.ConnParam{})
		accepted <- err
	}()
	if _, err := verbs.Dial(ctx, a.QP, l.Addr(), verbs.ConnParam{}); err != nil {
		t.Error(err)
	}
	if err := <-accepted; err != nil {
		t.Error(err)
	}
}

// testResources asks for outbound reads and checks that more than were granted
// can be posted: the device queues them.
// parity: V53
func testResources(t *testing.T, dev *verbs.Device) {
	few := verbs.ConnParam{ResponderResources: 2, InitiatorDepth: 2}
	p := NewPair(t, dev, PairConfig{Active: few, Passive: few})
	if got := p.Active.Conn.Param().InitiatorDepth; got < 1 {
		t.Errorf("InitiatorDepth in force = %d, want at least 1", got)
	}
	for i := range uint64(50) {
		p.Active.PostSend(p.Active.RDMA(i, verbs.OpRead, 0, 1000, p.Passive))
	}
	for i := range uint64(50) {
		p.Active.Expect(i, verbs.StatusSuccess, verbs.WCRead)
	}
	for name, bad := range map[string]verbs.ConnParam{
		"RetryCount": {RetryCount: 8}, "RNRRetry": {RNRRetry: 8},
		"InitiatorDepth": {InitiatorDepth: attr(t, dev).MaxQPInitRDAtom + 1},
	} {
		s := newSide(t, p.Ctx, dev, PairConfig{}, false)
		if _, err := verbs.Dial(p.Ctx, s.QP, loopback, bad); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s over the limit: %v, want ErrInvalid", name, err)
		}
	}
}

// testNoReads connects with no reads allowed: sends and writes work all the same.
func testNoReads(t *testing.T, dev *verbs.Device) {
	none := verbs.ConnParam{ResponderResources: -1, InitiatorDepth: -1}
	p := NewPair(t, dev, PairConfig{Active: none, Passive: none})
	p.Passive.PostRecv(1, 0, 8)
	p.Active.PostSend(p.Active.RDMA(2, verbs.OpWrite, 0, 8, p.Passive), p.Active.Send(3, 0, 8))
	p.Passive.Expect(1, verbs.StatusSuccess, verbs.WCRecv)
	p.Active.Expect(2, verbs.StatusSuccess, verbs.WCWrite)
	p.Active.Expect(3, verbs.StatusSuccess, verbs.WCSend)
}

// testBacklogFull dials more than may wait while the listener does not accept. All fail, the
// surplus without waiting for its context; then the listener still works.
// parity: V52
func testBacklogFull(t *testing.T, dev *verbs.Device) {
	const backlog, dials = 2, 8
	ctx := testContext(t)
	l, err := verbs.ListenConfig{Backlog: backlog}.Listen(dev, loopback)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(t, "listener", l.Close)
	short, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make(chan error, dials)
	var wg sync.WaitGroup
	for range dials {
		s := newSide(t, ctx, dev, PairConfig{Memory: 64}, false)
		wg.Go(func() {
			_, err := verbs.Dial(short, s.QP, l.Addr(), verbs.ConnParam{})
			errs <- err
		})
	}
	// Those that found no room come back on their own.
	for i := range dials - backlog {
		select {
		case err := <-errs:
			if err == nil {
				t.Error("a dial succeeded though the listener did not accept")
			}
		case <-ctx.Done():
			t.Fatalf("only %d of %d surplus dials were refused", i, dials-backlog)
		}
	}
	cancel()
	wg.Wait()
	for range backlog {
		if err := <-errs; err == nil {
			t.Error("a dial succeeded though the listener did not accept")
		}
	}
	closeAll(t, "listener", l.Close)
	l = listen(t, dev, loopback)
	exchange(t, dev, l, l.Addr())
}

// testCancelDial ends a dial that is not answered.
// parity: V50
func testCancelDial(t *testing.T, dev *verbs.Device) {
	l := listen(t, dev, loopback)
	s := newSide(t, testContext(t), dev, PairConfig{}, false)
	ctx, cancel := context.WithCancel(testContext(t))
	time.AfterFunc(dialTimeout/10, cancel)
	if _, err := verbs.Dial(ctx, s.QP, l.Addr(), verbs.ConnParam{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Dial: %v, want context.Canceled", err)
	}
	if s.QP.State() == verbs.StateRTS {
		t.Error("the queue pair is in RTS")
	}
}

// testCancelAccept ends an accept without a dial; the listener goes on.
func testCancelAccept(t *testing.T, dev *verbs.Device) {
	l := listen(t, dev, loopback)
	ctx, cancel := context.WithCancel(testContext(t))
	time.AfterFunc(dialTimeout/10, cancel)
	if _, err := l.Accept(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Accept: %v, want context.Canceled", err)
	}
	exchange(t, dev, l, l.Addr())
}

// testCloseListener ends waiting accepts and refuses waiting requests;
// connections that were accepted go on.
func testCloseListener(t *testing.T, dev *verbs.Device) {
	ctx := testContext(t)
	p := NewPair(t, dev, PairConfig{}) // its listener is closed already
	l := listen(t, dev, loopback)
	errs := make(chan error, 1)
	go func() {
		_, err := l.Accept(ctx)
		errs <- err
	}()
	closeAll(t, "listener", l.Close, l.Close)
	if err := <-errs; !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Accept: %v, want ErrClosed", err)
	}
	l = listen(t, dev, loopback)
	s := newSide(t, ctx, dev, PairConfig{}, false)
	go func() {
		_, err := verbs.Dial(ctx, s.QP, l.Addr(), verbs.ConnParam{})
		errs <- err
	}()
	closeAll(t, "listener", l.Close)
	if err := <-errs; err == nil || ctx.Err() != nil {
		t.Errorf("Dial to a listener that closed: %v, want a refusal", err)
	}
	p.sync()
}

// testConnectTwice dials with a queue pair that is connected.
func testConnectTwice(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	l := listen(t, dev, loopback)
	if _, err := verbs.Dial(p.Ctx, p.Active.QP, l.Addr(), verbs.ConnParam{}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("Dial with a connected queue pair: %v, want ErrInvalid", err)
	}
	p.sync()
}

// testManyClients serves clients one after the other and several at once.
func testManyClients(t *testing.T, dev *verbs.Device) {
	const clients = 8
	ctx := testContext(t)
	l := listen(t, dev, loopback)
	exchange(t, dev, l, l.Addr())
	exchange(t, dev, l, l.Addr())
	server := newSide(t, ctx, dev, PairConfig{}, false)
	var wg sync.WaitGroup
	errs := make([]error, 2*clients)
	for i := range clients {
		qp := server.NewQP(verbs.QPConfig{})
		s := newSide(t, ctx, dev, PairConfig{Memory: 64}, false)
		wg.Go(func() {
			req, err := l.Accept(ctx)
			if err == nil {
				_, err = req.Accept(ctx, qp, verbs.ConnParam{})
			}
			errs[i] = err
		})
		wg.Go(func() {
			if _, err := verbs.Dial(ctx, s.QP, l.Addr(), verbs.ConnParam{}); err != nil {
				errs[clients+i] = err
				return
			}
			errs[clients+i] = s.readMany(20, server.MR.Remote())
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// readMany reads 8 bytes so many times. It may run beside the test's goroutine.
func (s *Side) readMany(n int, from verbs.RemoteAddr) error {
	wr := s.Send(1, 0, 8)
	wr.Op, wr.Remote = verbs.OpRead, from
	var wc [1]verbs.WC
	for range n {
		if _, err := s.QP.PostSend([]verbs.SendWR{wr}); err != nil {
			return err
		}
		if _, err := s.CQ.Wait(s.ctx, wc[:]); err != nil {
			return err
		}
		if err := wc[0].Err(); err != nil {
			return err
		}
	}
	return nil
}

// testDialerGone lets the peer give up between its request and the answer.
func testDialerGone(t *testing.T, dev *verbs.Device) {
	l := listen(t, dev, loopback)
	a, b := newSide(t, testContext(t), dev, PairConfig{}, false), newSide(t, testContext(t), dev, PairConfig{}, false)
	ctx, cancel := context.WithCancel(testContext(t))
	dialled := make(chan error, 1)
	go func() {
		_, err := verbs.Dial(ctx, a.QP, l.Addr(), verbs.ConnParam{})
		dialled <- err
	}()
	req, err := l.Accept(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-dialled; !errors.Is(err, context.Canceled) {
		t.Errorf("Dial: %v, want context.Canceled", err)
	}
	c, err := req.Accept(testContext(t), b.QP, verbs.ConnParam{})
	if err == nil { // the answer was under way before the end was seen
		select {
		case <-c.Done():
		case <-testContext(t).Done():
			t.Error("a connection without a peer lives")
		}
	}
	exchange(t, dev, l, l.Addr())
}

// testPassiveSendsFirst posts a message at the passive side as soon as it has the
// connection. Where the transport forbids that, the device itself must wait.
// parity: V58
func testPassiveSendsFirst(t *testing.T, dev *verbs.Device) {
	if c := attr(t, dev).Caps; c.Has(verbs.CapActiveFirst) && !c.Has(verbs.CapPassiveSend) {
		t.Skip("the program must let the active side send first on this device, as its capabilities say")
	}
	for range 20 {
		p := NewPair(t, dev, PairConfig{Before: func(p *Pair) { p.Active.PostRecv(1, 0, 8) }})
		p.Passive.PostSend(p.Passive.Send(2, 0, 8))
		p.Active.Expect(1, verbs.StatusSuccess, verbs.WCRecv)
		p.Passive.Expect(2, verbs.StatusSuccess, verbs.WCSend)
		closeAll(t, "queue pairs", p.Active.QP.Close, p.Passive.QP.Close)
	}
}
