package verbs

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"testing"
)

func TestDialAccept(t *testing.T) {
	dev := memDevice(t)
	a, b := newSide(t, dev), newSide(t, dev)
	ac, pc := connect(t, dev, a.qp, b.qp, ConnParam{PrivateData: []byte("ping")}, ConnParam{PrivateData: []byte("pong")})
	if got := string(ac.PrivateData()) + string(pc.PrivateData()); got != "pongping" {
		t.Errorf("private data: got %q, want pongping", got)
	}
	if ac.QP() != a.qp || pc.QP() != b.qp || ac.RemoteAddr() != pc.LocalAddr() || ac.LocalAddr() != pc.RemoteAddr() {
		t.Error("queue pairs or addresses do not belong together")
	}
	if a.qp.State() != StateRTS || ac.Err() != nil {
		t.Errorf("state %v, %v", a.qp.State(), ac.Err())
	}
	ctx := testContext(t)
	mr := must(b.pd.RegMR(make([]byte, 8), LocalWrite))(t)
	src := must(a.pd.RegMR([]byte("hi there"), 0))(t)
	if _, err := b.qp.PostRecv([]RecvWR{{ID: 1, SGL: []SGE{mr.SGE(0, 8)}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.qp.PostSend([]SendWR{{ID: 2, Op: OpSend, Flags: Signaled, SGL: []SGE{src.SGE(0, 8)}}}); err != nil {
		t.Fatal(err)
	}
	if wc := waitOne(ctx, t, b.cq); wc.Op != WCRecv || wc.Len != 8 || string(mr.Bytes()) != "hi there" {
		t.Errorf("got %+v, %q", wc, mr.Bytes())
	}
	waitOne(ctx, t, a.cq)
	if err := errors.Join(ac.Disconnect(ctx), mr.Close(), src.Close()); err != nil {
		t.Error(err)
	}
	<-ac.Done()
	<-pc.Done()
	wantErr(t, ac.Err(), ErrDisconnected)
	wantErr(t, pc.Err(), ErrDisconnected)
}

// The limit itself is carried, one byte more is refused, with the limit in the
// text, by each of the calls that take private data.
func TestPrivateDataLimit(t *testing.T) {
	dev := memDevice(t)
	limit := must(dev.Query())(t).MaxPrivateData
	fits, tooMuch := bytes.Repeat([]byte{7}, limit), make([]byte, limit+1)
	a, b := newSide(t, dev), newSide(t, dev)
	ctx := testContext(t)
	_, err := Dial(ctx, a.qp, loopback, ConnParam{PrivateData: tooMuch})
	wantErr(t, err, ErrInvalid, "connect", "197 bytes", "limit of 196", "MaxPrivateData")

	l := must(Listen(dev, loopback))(t)
	defer l.Close()
	dialled := make(chan error, 1)
	go func() {
		c, err := Dial(ctx, a.qp, l.Addr(), ConnParam{PrivateData: fits})
		if err == nil && !bytes.Equal(c.PrivateData(), fits) {
			err = errors.New("the answer's private data differs")
		}
		dialled <- err
	}()
	r := must(l.Accept(ctx))(t)
	if !bytes.Equal(r.PrivateData(), fits) {
		t.Error("the request's private data differs")
	}
	wantErr(t, r.Reject(tooMuch), ErrInvalid, "reject", "limit of 196")
	_, err = r.Accept(ctx, b.qp, ConnParam{PrivateData: tooMuch})
	wantErr(t, err, ErrInvalid, "accept", "limit of 196")
	// What was refused here has not answered the request.
	_ = must(r.Accept(ctx, b.qp, ConnParam{PrivateData: fits}))(t)
	if err := <-dialled; err != nil {
		t.Error(err)
	}
	_, err = r.Accept(ctx, b.qp, ConnParam{})
	wantErr(t, err, ErrInvalid, "answered before")
	wantErr(t, r.Reject(nil), ErrInvalid, "answered before")
}

func TestReject(t *testing.T) {
	dev := memDevice(t)
	a := newSide(t, dev)
	ctx := testContext(t)
	l := must(Listen(dev, loopback))(t)
	defer l.Close()
	dialled := make(chan error, 1)
	go func() {
		_, err := Dial(ctx, a.qp, l.Addr(), ConnParam{})
		dialled <- err
	}()
	r := must(l.Accept(ctx))(t)
	if r.LocalAddr() != l.Addr() || !r.RemoteAddr().IsValid() {
		t.Errorf("addresses %v, %v", r.LocalAddr(), r.RemoteAddr())
	}
	if err := r.Reject([]byte("full")); err != nil {
		t.Error(err)
	}
	err := <-dialled
	if rejected, ok := errors.AsType[*RejectedError](err); !ok || string(rejected.PrivateData) != "full" {
		t.Errorf("got %v, want a RejectedError with private data", err)
	}
}

func TestConnParamLimits(t *testing.T) {
	dev, _ := newFake(t)
	pd := must(dev.AllocPD())(t)
	cq := must(dev.CreateCQ(4))(t)
	qp := must(pd.CreateQP(QPConfig{SendCQ: cq}))(t)
	closeAll(t, qp, cq, pd, dev)
	for want, p := range map[string]ConnParam{
		"RetryCount is 8, the most is 7":                             {RetryCount: 8},
		"RNRRetry is 9, the most is 7":                               {RNRRetry: 9},
		"ResponderResources is 9, over the device's limit of 8":      {ResponderResources: 9},
		"InitiatorDepth is 5, over the device's limit of 4":          {InitiatorDepth: 5},
		"57 bytes of private data are over the device's limit of 56": {PrivateData: make([]byte, 57)},
	} {
		_, err := Dial(t.Context(), qp, loopback, p)
		wantErr(t, err, ErrInvalid, want)
	}
	_, err := Dial(t.Context(), nil, loopback, ConnParam{})
	wantErr(t, err, ErrInvalid, "queue pair is nil")
}

func TestAcceptOnOtherDevice(t *testing.T) {
	dev, other := memDevice(t), memDevice(t)
	a, b := newSide(t, dev), newSide(t, other)
	ctx, cancel := context.WithCancel(testContext(t))
	l := must(Listen(dev, loopback))(t)
	defer l.Close()
	dialled := make(chan error, 1)
	go func() {
		_, err := Dial(ctx, a.qp, l.Addr(), ConnParam{})
		dialled <- err
	}()
	r := must(l.Accept(ctx))(t)
	_, err := r.Accept(ctx, b.qp, ConnParam{})
	wantErr(t, err, ErrInvalid, "another device")
	_, err = r.Accept(ctx, nil, ConnParam{})
	wantErr(t, err, ErrInvalid, "queue pair is nil")
	cancel()
	wantErr(t, <-dialled, context.Canceled)
}

func TestListener(t *testing.T) {
	dev := memDevice(t)
	_, err := ListenConfig{Backlog: -1}.Listen(dev, loopback)
	wantErr(t, err, ErrInvalid, "Backlog is -1")
	l := must(Listen(dev, loopback))(t)
	wantErr(t, dev.Close(), ErrBusy, "1 listener")
	if l.Addr().Port() == 0 || l.Device() != dev {
		t.Errorf("address %v", l.Addr())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = l.Accept(ctx)
	wantErr(t, err, context.Canceled)
	for range 2 {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	_, err = l.Accept(t.Context())
	wantErr(t, err, ErrClosed)
}

// Backlog bounds the requests that nobody has accepted.
func TestBacklogFull(t *testing.T) {
	dev := memDevice(t)
	first, second := newSide(t, dev), newSide(t, dev)
	l := must(ListenConfig{Backlog: 1}.Listen(dev, loopback))(t)
	dialled := make(chan error, 2)
	for _, s := range []side{first, second} {
		go func() {
			_, err := Dial(testContext(t), s.qp, l.Addr(), ConnParam{})
			dialled <- err
		}()
	}
	if err := <-dialled; err == nil { // the other one waits
		t.Error("the second request was not refused")
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-dialled; err == nil {
		t.Error("the waiting request was not refused by Close")
	}
}

// parity: V50
func TestResolve(t *testing.T) {
	ctx := testContext(t)
	for _, c := range []struct {
		hints Hints
		in    string
		want  []string
	}{
		{Hints{}, "192.0.2.1:18515", []string{"192.0.2.1:18515"}},
		{Hints{}, "[2001:db8::1]:80", []string{"[2001:db8::1]:80"}},
		{Hints{}, "[fe80::1%eth9]:80", []string{"[fe80::1%eth9]:80"}},
		{Hints{}, "[::ffff:192.0.2.1]:1", []string{"192.0.2.1:1"}},
		{Hints{}, ":7", []string{"[::]:7", "0.0.0.0:7"}},
		{Hints{Network: "ip4"}, ":7", []string{"0.0.0.0:7"}},
		{Hints{Network: "ip6"}, ":7", []string{"[::]:7"}},
		{Hints{Network: "ip4"}, "localhost:7", []string{"127.0.0.1:7"}},
		{Hints{}, "192.0.2.1:http", []string{"192.0.2.1:80"}},
	} {
		got, err := c.hints.Resolve(ctx, c.in)
		if err != nil {
			t.Errorf("%+v %s: %v", c.hints, c.in, err)
			continue
		}
		var want []netip.AddrPort
		for _, w := range c.want {
			want = append(want, netip.MustParseAddrPort(w))
		}
		if len(got) != len(want) {
			t.Errorf("%+v %s: got %v, want %v", c.hints, c.in, got, want)
			continue
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("%+v %s: got %v, want %v", c.hints, c.in, got, want)
			}
		}
	}
}

func TestResolveErrors(t *testing.T) {
	ctx := testContext(t)
	for want, c := range map[string]struct {
		hints Hints
		in    string
	}{
		"missing port in address":    {Hints{}, "192.0.2.1"},
		"no address of network ip6":  {Hints{Network: "ip6"}, "192.0.2.1:1"},
		"none of ip, ip4, ip6":       {Hints{Network: "tcp"}, "192.0.2.1:1"},
		"is no numeric address":      {Hints{NumericHost: true}, "localhost:1"},
		"unexpected '[' in address":  {Hints{}, "[[::1]:1"},
		"too many colons in address": {Hints{}, "::1:1"},
	} {
		_, err := c.hints.Resolve(ctx, c.in)
		wantErr(t, err, ErrInvalid, want)
	}
	for _, in := range []string{"192.0.2.1:65536", "192.0.2.1:no-such-service"} {
		if _, err := Resolve(ctx, in); err == nil {
			t.Errorf("%s: no error", in)
		}
	}
}
