package verbs_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
	"cinnabar/verbs/oob"
	"cinnabar/verbs/rdmacm"
)

// openIWARP opens the software device, whose connections are real TCP.
func openIWARP(t *testing.T) *verbs.Device {
	t.Helper()
	dev, err := iwarp.Open(iwarp.Config{})
	check(t, err)
	t.Cleanup(func() { check(t, dev.Close()) })
	return dev
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ending is a context that ends long after any healthy test.
func ending(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// end is one end of a connection.
type end struct {
	pd *verbs.PD
	cq *verbs.CQ
	qp *verbs.QP
}

func newEnd(t *testing.T, dev *verbs.Device) end {
	t.Helper()
	pd, err := dev.AllocPD()
	check(t, err)
	cq, err := dev.CreateCQ(64)
	check(t, err)
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq})
	check(t, err)
	t.Cleanup(func() {
		for _, c := range []io.Closer{qp, cq, pd} {
			check(t, c.Close())
		}
	})
	return end{pd, cq, qp}
}

// expect takes the next event, which must be of type want.
func expect(t *testing.T, ch *rdmacm.EventChannel, want rdmacm.EventType) *rdmacm.Event {
	t.Helper()
	e, err := ch.Get(ending(t))
	check(t, err)
	if e.Type != want {
		t.Fatalf("got event %v, want %v", e, want)
	}
	e.Ack()
	return e
}

// The asynchronous connection manager over real sockets, IPv4 and IPv6, with a
// listener on the unspecified address that takes both.
// parity: V52
func TestIWARPConnectionEvents(t *testing.T) {
	if l, err := net.Listen("tcp6", "[::1]:0"); err != nil {
		t.Skipf("this machine has no IPv6: %v", err)
	} else {
		check(t, l.Close())
	}
	dev := openIWARP(t)
	for _, host := range []string{"127.0.0.1", "::1"} {
		t.Run(host, func(t *testing.T) {
			a, b := newEnd(t, dev), newEnd(t, dev)
			client, server := rdmacm.NewEventChannel(nil), rdmacm.NewEventChannel(nil)
			defer func() { check(t, errors.Join(client.Close(), server.Close())) }()
			lid, err := server.NewID(dev)
			check(t, err)
			check(t, lid.Listen(netip.MustParseAddrPort("[::]:0"), verbs.ListenConfig{Backlog: 4}))
			cid, err := client.NewID(dev)
			check(t, err)
			addr := netip.AddrPortFrom(netip.MustParseAddr(host), lid.LocalAddr().Port())
			check(t, cid.ResolveAddr(addr.String(), 500*time.Millisecond))
			expect(t, client, rdmacm.EventAddrResolved)
			check(t, cid.ResolveRoute(500*time.Millisecond))
			expect(t, client, rdmacm.EventRouteResolved)
			check(t, cid.Connect(a.qp, verbs.ConnParam{PrivateData: []byte("ping")}))
			req := expect(t, server, rdmacm.EventConnectRequest)
			if !bytes.HasPrefix(req.Param.PrivateData, []byte("ping")) || req.ID.RemoteAddr().Addr().Unmap() != addr.Addr() {
				t.Errorf("request from %v with %q", req.ID.RemoteAddr(), req.Param.PrivateData)
			}
			check(t, req.ID.Accept(b.qp, verbs.ConnParam{PrivateData: []byte("pong")}))
			if e := expect(t, client, rdmacm.EventEstablished); !bytes.HasPrefix(e.Param.PrivateData, []byte("pong")) {
				t.Errorf("established with %q", e.Param.PrivateData)
			}
			expect(t, server, rdmacm.EventEstablished)
			check(t, cid.Disconnect())
			expect(t, client, rdmacm.EventDisconnected)
			expect(t, server, rdmacm.EventDisconnected)
		})
	}
}

// A listener that is gone refuses, a rejection carries its private data, and the
// time limit of a connect to a host that is silent is kept.
func TestIWARPConnectionFailures(t *testing.T) {
	dev := openIWARP(t)
	ctx := ending(t)
	a := newEnd(t, dev)
	l, err := verbs.Listen(dev, netip.MustParseAddrPort("127.0.0.1:0"))
	check(t, err)
	go func() {
		if r, err := l.Accept(ctx); err == nil {
			_ = r.Reject([]byte("full"))
		}
	}()
	_, err = verbs.Dial(ctx, a.qp, l.Addr(), verbs.ConnParam{})
	if r, ok := errors.AsType[*verbs.RejectedError](err); !ok || !bytes.HasPrefix(r.PrivateData, []byte("full")) {
		t.Errorf("got %v, want a rejection", err)
	}
	check(t, l.Close())
	b := newEnd(t, dev)
	if _, err := verbs.Dial(ctx, b.qp, l.Addr(), verbs.ConnParam{}); err == nil {
		t.Error("a closed listener accepts")
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never says a word
	check(t, err)
	defer silent.Close()
	c := newEnd(t, dev)
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	_, err = verbs.Dial(short, c.qp, silent.Addr().(*net.TCPAddr).AddrPort(), verbs.ConnParam{})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want DeadlineExceeded", err)
	}
}

// Queue pairs of two devices connect through a line over a plain socket, and the
// active side writes to the region that the line named.
func TestIWARPOutOfBand(t *testing.T) {
	devA, devB := openIWARP(t), openIWARP(t)
	ctx := ending(t)
	a, b := newEnd(t, devA), newEnd(t, devB)
	target, err := b.pd.AllocMR(1<<16, verbs.LocalWrite|verbs.RemoteWrite)
	check(t, err)
	source, err := a.pd.RegMR(bytes.Repeat([]byte{0xa5}, 1<<16), 0)
	check(t, err)
	t.Cleanup(func() { check(t, errors.Join(target.Close(), source.Close())) })

	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	passive := make(chan error, 1)
	go func() {
		sock, err := l.Accept()
		if err != nil {
			passive <- err
			return
		}
		defer sock.Close()
		c, _, err := oob.Config{Region: target.Region()}.Connect(ctx, sock, b.qp)
		if err == nil {
			<-c.Done()
		}
		passive <- err
	}()
	sock, err := net.Dial("tcp", l.Addr().String())
	check(t, err)
	defer sock.Close()
	c, peer, err := oob.Config{Active: true}.Connect(ctx, sock, a.qp)
	check(t, err)
	_, err = a.qp.PostSend([]verbs.SendWR{{
		Op: verbs.OpWrite, SGL: []verbs.SGE{source.SGE(0, 1<<16)}, Remote: peer.Region.RemoteAddr,
	}, {
		Op: verbs.OpRead, Flags: verbs.Signaled, Remote: peer.Region.RemoteAddr, // proves that the write has arrived
	}})
	check(t, err)
	wc := make([]verbs.WC, 1)
	_, err = a.cq.Wait(ctx, wc)
	check(t, err)
	check(t, c.Disconnect(ctx))
	check(t, <-passive)
	if !bytes.Equal(target.Bytes(), source.Bytes()) {
		t.Errorf("the target differs; completion %+v", wc[0])
	}
}

// RTR and RTS by hand are refused by name: iWARP connects through the connection manager.
func TestIWARPRefusesRawStates(t *testing.T) {
	dev := openIWARP(t)
	attr, err := dev.Query()
	check(t, err)
	if attr.Caps.Has(verbs.CapRawState) {
		t.Error("the device claims raw states")
	}
	a := newEnd(t, dev)
	for _, state := range []verbs.QPState{verbs.StateRTR, verbs.StateRTS} {
		err := a.qp.Modify(verbs.QPAttr{Mask: verbs.AttrState, State: state})
		if err == nil || !strings.Contains(err.Error(), state.String()) {
			t.Errorf("%v by hand: got %v", state, err)
		}
	}
}

// The device's limit of private data arrives whole; one byte more is refused
// with the limit.
func TestIWARPPrivateDataLimit(t *testing.T) {
	dev := openIWARP(t)
	ctx := ending(t)
	attr, err := dev.Query()
	check(t, err)
	fits := bytes.Repeat([]byte{7}, attr.MaxPrivateData)
	a, b := newEnd(t, dev), newEnd(t, dev)
	l, err := verbs.Listen(dev, netip.MustParseAddrPort("127.0.0.1:0"))
	check(t, err)
	defer l.Close()
	_, err = verbs.Dial(ctx, a.qp, l.Addr(), verbs.ConnParam{PrivateData: append(fits, 7)})
	if !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("one byte over the limit: got %v", err)
	}
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil && !bytes.Equal(r.PrivateData(), fits) {
			err = errors.New("the request's private data differs")
		}
		if err == nil {
			_, err = r.Accept(ctx, b.qp, verbs.ConnParam{PrivateData: fits})
		}
		accepted <- err
	}()
	c, err := verbs.Dial(ctx, a.qp, l.Addr(), verbs.ConnParam{PrivateData: fits})
	check(t, err)
	check(t, <-accepted)
	if !bytes.Equal(c.PrivateData(), fits) {
		t.Errorf("the answer has %d bytes of private data, want %d", len(c.PrivateData()), len(fits))
	}
	check(t, c.Disconnect(ctx))
}

// The synchronous endpoints over real sockets, found by a name whose other
// addresses do not answer.
// parity: V54
func TestIWARPEndpoints(t *testing.T) {
	dev := openIWARP(t)
	ctx := ending(t)
	l, err := rdmacm.ListenEndpoints(dev, netip.MustParseAddrPort("127.0.0.1:0"), rdmacm.EndpointConfig{})
	check(t, err)
	defer l.Close()
	got := make(chan string, 1)
	go func() {
		s, err := receiveOne(ctx, l)
		if err != nil {
			s = err.Error()
		}
		got <- s
	}()
	_, port, err := net.SplitHostPort(l.Addr().String())
	check(t, err)
	ep, err := rdmacm.DialEndpoint(ctx, dev, net.JoinHostPort("localhost", port), rdmacm.EndpointConfig{})
	check(t, err)
	mr, err := ep.RegMsgs([]byte("hello"))
	check(t, err)
	check(t, ep.PostSend(1, mr, 0, 5, 0))
	_, err = ep.SendComp(ctx)
	check(t, err)
	if s := <-got; s != "hello" {
		t.Errorf("got %q", s)
	}
	check(t, ep.Disconnect(ctx))
	check(t, errors.Join(mr.Close(), ep.Close()))
}

// receiveOne serves one endpoint that sends one message.
func receiveOne(ctx context.Context, l *rdmacm.EndpointListener) (s string, err error) {
	ep, err := l.GetRequest(ctx)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, ep.Close()) }()
	mr, err := ep.RegMsgs(make([]byte, 16))
	if err != nil {
		return "", err
	}
	defer mr.Close()
	if err := errors.Join(ep.PostRecv(0, mr, 0, 16), ep.Accept(ctx, verbs.ConnParam{})); err != nil {
		return "", err
	}
	wc, err := ep.RecvComp(ctx)
	return string(mr.Bytes()[:wc.Len]), err
}
