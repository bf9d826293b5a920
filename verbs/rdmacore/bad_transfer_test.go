//go:build linux

package rdmacore_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/oob"
	"cinnabar/verbs/verbstest"
)

// needExact skips where a completion does not say what the peer did.
func needExact(t *testing.T, dev *verbs.Device) {
	t.Helper()
	a, err := dev.Query()
	if err != nil {
		t.Fatal(err)
	}
	if !a.Caps.Has(verbs.CapExactStatus) {
		t.Skipf("device %s completes requests before the peer has looked at them", a.Name)
	}
}

// TestBadReceiver sends to a peer that has posted no receive, with no patience.
// parity(vm): V33
func TestBadReceiver(t *testing.T) {
	dev := badDevice(t, testDevice(t))
	needExact(t, dev)
	impatient := verbs.ConnParam{RNRRetry: -1}
	p := verbstest.NewPair(t, dev, verbstest.PairConfig{Active: impatient, Passive: impatient})
	p.Active.PostSend(p.Active.Send(1, 0, 8))
	wc := p.Active.Take(1)[0]
	wantError(t, wc.Err(), verbs.StatusRNRRetryExcErr, "RNR retry")
	p.Active.AwaitEnd()
	wantError(t, p.Active.Conn.Err(), verbs.StatusRNRRetryExcErr)
}

// TestBadKey writes with a key that the peer has not given.
// parity(vm): V03
func TestBadKey(t *testing.T) {
	dev := badDevice(t, testDevice(t))
	needExact(t, dev)
	p := verbstest.NewPair(t, dev, verbstest.PairConfig{})
	wr := p.Active.RDMA(1, verbs.OpWrite, 0, 8, p.Passive)
	wr.Remote.RKey ^= 1
	p.Active.PostSend(wr)
	wc := p.Active.Take(1)[0]
	wantError(t, wc.Err(), verbs.StatusRemAccessErr, "remote access error")
	for _, s := range []*verbstest.Side{p.Active, p.Passive} {
		s.AwaitEnd()
		wantError(t, s.Conn.Err(), nil)
	}
}

// writer writes to a peer's memory until a write fails.
type writer struct {
	qp     *verbs.QP
	cq     *verbs.CQ
	local  *verbs.MR
	remote verbs.RemoteAddr
	size   int
}

// run keeps requests outstanding, says begun once one is done, and returns the
// error of the first that fails.
func (w writer) run(ctx context.Context, begun func()) error {
	const depth = 4
	wr := verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: []verbs.SGE{w.local.SGE(0, w.size)}, Remote: w.remote}
	wcs := make([]verbs.WC, depth)
	free := depth
	for first := true; ; first = false {
		for ; free > 0; free-- {
			if _, err := w.qp.PostSend([]verbs.SendWR{wr}); err != nil {
				return err
			}
		}
		n, err := w.cq.Wait(ctx, wcs)
		if err != nil {
			return err
		}
		for _, wc := range wcs[:n] {
			if wc.Status != verbs.StatusSuccess {
				return wc.Err()
			}
		}
		if free = n; first {
			begun()
		}
	}
}

// writerOf writes from the active side of a pair to the passive one.
func writerOf(p *verbstest.Pair) writer {
	return writer{p.Active.QP, p.Active.CQ, p.Active.MR, p.Passive.MR.Remote(), p.Active.MR.Len()}
}

// TestBadPeerKilled kills the process that is written to.
// parity(vm): B46
func TestBadPeerKilled(t *testing.T) {
	dev := badDevice(t, testDevice(t))
	if inChild() != "" {
		p := passiveSide(t, dev)
		fmt.Printf("\nsays at %v %d %d\n", p.addr, p.mr.Remote().Addr, p.mr.RKey())
		p.serve(t)
		return
	}
	c := newChild(t, testDevice(t))
	var addr string
	var remote verbs.RemoteAddr
	if _, err := fmt.Sscan(c.await("at"), &addr, &remote.Addr, &remote.RKey); err != nil {
		t.Fatal(err)
	}
	s := spareSide(t, dev)
	conn, err := verbs.Dial(soon(t), s.qp, netip.MustParseAddrPort(addr), verbs.ConnParam{})
	if err != nil {
		t.Fatal(err)
	}
	err = writer{s.qp, s.cq, s.mr, remote, s.mr.Len()}.run(soon(t), func() {
		if err := c.cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
	})
	wantError(t, err, nil)
	if _, ok := errors.AsType[*verbs.StatusError](err); !ok {
		t.Errorf("the writes ended with %v, want a completion that failed", err)
	}
	_ = c.cmd.Wait() // it was killed
	select {
	case <-conn.Done():
		wantError(t, conn.Err(), nil)
	case <-soon(t).Done():
		t.Error("the connection did not end")
	}
}

// side is a queue pair with what it needs.
type side struct {
	qp   *verbs.QP
	cq   *verbs.CQ
	mr   *verbs.MR
	dev  *verbs.Device
	addr netip.AddrPort
	l    *verbs.Listener
}

// sideSize is the memory of a side, which one request writes.
const sideSize = 256 << 10

func spareSide(t *testing.T, dev *verbs.Device) *side {
	t.Helper()
	pd := newPD(t, dev)
	s := &side{dev: dev}
	var err error
	if s.mr, err = pd.AllocMR(sideSize, verbs.LocalWrite|verbs.RemoteWrite); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeWell(t, s.mr) })
	if s.cq, err = dev.CreateCQ(64); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeWell(t, s.cq) })
	if s.qp, err = pd.CreateQP(verbs.QPConfig{SendCQ: s.cq}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeWell(t, s.qp) })
	return s
}

func passiveSide(t *testing.T, dev *verbs.Device) *side {
	t.Helper()
	s := spareSide(t, dev)
	s.l = listenOn(t, dev, anyPort)
	s.addr = s.l.Addr()
	return s
}

// serve takes one connection and waits for its end, or the process'.
func (s *side) serve(t *testing.T) {
	t.Helper()
	ctx := soon(t)
	req, err := s.l.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := req.Accept(ctx, s.qp, verbs.ConnParam{})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-conn.Done():
	case <-ctx.Done():
	}
}

// byHand connects two queue pairs without the connection manager, which then
// cannot tell one side of the other's end.
func byHand(t *testing.T, a, b *side) {
	t.Helper()
	x, y := net.Pipe()
	var wg sync.WaitGroup
	for _, e := range []struct {
		s    *side
		sock net.Conn
	}{{a, x}, {b, y}} {
		wg.Go(func() {
			defer closeWell(t, e.sock)
			oob := oob.Config{Active: e.s == a, Param: verbs.ConnParam{RetryCount: 3}}
			if _, _, err := oob.Connect(soon(t), e.sock, e.s.qp); err != nil {
				t.Errorf("connect by hand: %v", err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// TestBadPeerSilent writes to a queue pair that vanishes without a word, as
// behind a cable that is cut. The requester gives up after its retries.
// parity(vm): B46
func TestBadPeerSilent(t *testing.T) {
	dev := badDevice(t, testDevice(t))
	a, err := dev.Query()
	if err != nil {
		t.Fatal(err)
	}
	if !a.Caps.Has(verbs.CapRawState) {
		t.Skipf("queue pairs of %s are connected by the connection manager alone, which tells of the end", a.Name)
	}
	from, to := spareSide(t, dev), spareSide(t, dev)
	byHand(t, from, to)
	err = writer{from.qp, from.cq, from.mr, to.mr.Remote(), sideSize}.run(soon(t), func() { closeWell(t, to.qp) })
	wantError(t, err, verbs.StatusRetryExcErr, "retry")
	if s := from.qp.State(); s != verbs.StateErr {
		t.Errorf("the queue pair is in %v", s)
	}
}

// TestBadPortDownWhileWriting takes the port down under a transfer. On one
// machine the bytes need no port, so the transfer may go on; what must come is the
// event, and an end when it is asked for.
// parity(vm): V41
func TestBadPortDownWhileWriting(t *testing.T) {
	if inChild() == "" {
		l := newLink(t)
		newChild(t, l.device, l.env()...).finish()
		return
	}
	dev := badDevice(t, inChild())
	p := verbstest.NewPair(t, dev, verbstest.PairConfig{})
	ctx, cancel := context.WithCancel(soon(t))
	begun, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- writerOf(p).run(ctx, func() { close(begun) }) }()
	<-begun
	netdev := downLink(t)
	ev, err := nextEvent(t, dev, verbs.EventPortErr)
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, ev.Err, nil, "port 1 of "+inChild(), "ip link set "+netdev+" up")
	cancel()
	err = <-ended
	t.Logf("the writes ended with: %v", err)
	if _, ok := errors.AsType[*verbs.StatusError](err); !ok && !errors.Is(err, context.Canceled) {
		t.Errorf("the writes ended with %v, want a failed completion or context.Canceled", err)
	}
	if err := p.Active.Conn.Disconnect(soon(t)); err != nil && !strings.Contains(err.Error(), "disconnect") {
		t.Error(err)
	}
	p.Active.AwaitEnd()
	t.Logf("the connection ended with: %v", p.Active.Conn.Err())
}
