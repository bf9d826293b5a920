package verbs_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/internal/rig"
)

func TestDialAccept(t *testing.T) {
	dev := rig.MemDevice(t)
	a, b := rig.NewSide(t, dev), rig.NewSide(t, dev)
	ac, pc := rig.Connect(t, dev, a.QP, b.QP, verbs.ConnParam{PrivateData: []byte("ping")}, verbs.ConnParam{PrivateData: []byte("pong")})
	if got := string(ac.PrivateData()) + string(pc.PrivateData()); got != "pongping" {
		t.Errorf("private data: got %q, want pongping", got)
	}
	if ac.QP() != a.QP || pc.QP() != b.QP || ac.RemoteAddr() != pc.LocalAddr() || ac.LocalAddr() != pc.RemoteAddr() {
		t.Error("queue pairs or addresses do not belong together")
	}
	if a.QP.State() != verbs.StateRTS || ac.Err() != nil {
		t.Errorf("state %v, %v", a.QP.State(), ac.Err())
	}
	ctx := rig.Context(t)
	mr := rig.Must(b.PD.RegMR(make([]byte, 8), verbs.LocalWrite))(t)
	src := rig.Must(a.PD.RegMR([]byte("hi there"), 0))(t)
	if _, err := b.QP.PostRecv([]verbs.RecvWR{{ID: 1, SGL: []verbs.SGE{mr.SGE(0, 8)}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.QP.PostSend([]verbs.SendWR{{ID: 2, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{src.SGE(0, 8)}}}); err != nil {
		t.Fatal(err)
	}
	if wc := rig.WaitOne(ctx, t, b.CQ); wc.Op != verbs.WCRecv || wc.Len != 8 || string(mr.Bytes()) != "hi there" {
		t.Errorf("got %+v, %q", wc, mr.Bytes())
	}
	rig.WaitOne(ctx, t, a.CQ)
	if err := errors.Join(ac.Disconnect(ctx), mr.Close(), src.Close()); err != nil {
		t.Error(err)
	}
	<-ac.Done()
	<-pc.Done()
	rig.WantErr(t, ac.Err(), verbs.ErrDisconnected)
	rig.WantErr(t, pc.Err(), verbs.ErrDisconnected)
}

// The limit itself is carried, one byte more is refused, with the limit in the
// text, by each of the calls that take private data.
func TestPrivateDataLimit(t *testing.T) {
	dev := rig.MemDevice(t)
	limit := rig.Must(dev.Query())(t).MaxPrivateData
	fits, tooMuch := bytes.Repeat([]byte{7}, limit), make([]byte, limit+1)
	a, b := rig.NewSide(t, dev), rig.NewSide(t, dev)
	ctx := rig.Context(t)
	_, err := verbs.Dial(ctx, a.QP, rig.Loopback, verbs.ConnParam{PrivateData: tooMuch})
	rig.WantErr(t, err, verbs.ErrInvalid, "connect", "197 bytes", "limit of 196", "MaxPrivateData")

	l := rig.Must(verbs.Listen(dev, rig.Loopback))(t)
	defer l.Close()
	dialled := make(chan error, 1)
	go func() {
		c, err := verbs.Dial(ctx, a.QP, l.Addr(), verbs.ConnParam{PrivateData: fits})
		if err == nil && !bytes.Equal(c.PrivateData(), fits) {
			err = errors.New("the answer's private data differs")
		}
		dialled <- err
	}()
	r := rig.Must(l.Accept(ctx))(t)
	if !bytes.Equal(r.PrivateData(), fits) {
		t.Error("the request's private data differs")
	}
	rig.WantErr(t, r.Reject(tooMuch), verbs.ErrInvalid, "reject", "limit of 196")
	_, err = r.Accept(ctx, b.QP, verbs.ConnParam{PrivateData: tooMuch})
	rig.WantErr(t, err, verbs.ErrInvalid, "accept", "limit of 196")
	// What was refused here has not answered the request.
	_ = rig.Must(r.Accept(ctx, b.QP, verbs.ConnParam{PrivateData: fits}))(t)
	if err := <-dialled; err != nil {
		t.Error(err)
	}
	_, err = r.Accept(ctx, b.QP, verbs.ConnParam{})
	rig.WantErr(t, err, verbs.ErrInvalid, "answered before")
	rig.WantErr(t, r.Reject(nil), verbs.ErrInvalid, "answered before")
}

func TestReject(t *testing.T) {
	dev := rig.MemDevice(t)
	a := rig.NewSide(t, dev)
	ctx := rig.Context(t)
	l := rig.Must(verbs.Listen(dev, rig.Loopback))(t)
	defer l.Close()
	dialled := make(chan error, 1)
	go func() {
		_, err := verbs.Dial(ctx, a.QP, l.Addr(), verbs.ConnParam{})
		dialled <- err
	}()
	r := rig.Must(l.Accept(ctx))(t)
	if r.LocalAddr() != l.Addr() || !r.RemoteAddr().IsValid() {
		t.Errorf("addresses %v, %v", r.LocalAddr(), r.RemoteAddr())
	}
	if err := r.Reject([]byte("full")); err != nil {
		t.Error(err)
	}
	err := <-dialled
	if rejected, ok := errors.AsType[*verbs.RejectedError](err); !ok || string(rejected.PrivateData) != "full" {
		t.Errorf("got %v, want a RejectedError with private data", err)
	}
}

func TestConnParamLimits(t *testing.T) {
	dev, _ := rig.NewFake(t)
	pd := rig.Must(dev.AllocPD())(t)
	cq := rig.Must(dev.CreateCQ(4))(t)
	qp := rig.Must(pd.CreateQP(verbs.QPConfig{SendCQ: cq}))(t)
	rig.CloseAll(t, qp, cq, pd, dev)
	for want, p := range map[string]verbs.ConnParam{
		"RetryCount is 8, the most is 7":                             {RetryCount: 8},
		"RNRRetry is 9, the most is 7":                               {RNRRetry: 9},
		"ResponderResources is 9, over the device's limit of 8":      {ResponderResources: 9},
		"InitiatorDepth is 5, over the device's limit of 4":          {InitiatorDepth: 5},
		"57 bytes of private data are over the device's limit of 56": {PrivateData: make([]byte, 57)},
	} {
		_, err := verbs.Dial(t.Context(), qp, rig.Loopback, p)
		rig.WantErr(t, err, verbs.ErrInvalid, want)
	}
	_, err := verbs.Dial(t.Context(), nil, rig.Loopback, verbs.ConnParam{})
	rig.WantErr(t, err, verbs.ErrInvalid, "queue pair is nil")
}

func TestAcceptOnOtherDevice(t *testing.T) {
	dev, other := rig.MemDevice(t), rig.MemDevice(t)
	a, b := rig.NewSide(t, dev), rig.NewSide(t, other)
	ctx, cancel := context.WithCancel(rig.Context(t))
	l := rig.Must(verbs.Listen(dev, rig.Loopback))(t)
	defer l.Close()
	dialled := make(chan error, 1)
	go func() {
		_, err := verbs.Dial(ctx, a.QP, l.Addr(), verbs.ConnParam{})
		dialled <- err
	}()
	r := rig.Must(l.Accept(ctx))(t)
	_, err := r.Accept(ctx, b.QP, verbs.ConnParam{})
	rig.WantErr(t, err, verbs.ErrInvalid, "another device")
	_, err = r.Accept(ctx, nil, verbs.ConnParam{})
	rig.WantErr(t, err, verbs.ErrInvalid, "queue pair is nil")
	cancel()
	rig.WantErr(t, <-dialled, context.Canceled)
}

func TestListener(t *testing.T) {
	dev := rig.MemDevice(t)
	_, err := verbs.ListenConfig{Backlog: -1}.Listen(dev, rig.Loopback)
	rig.WantErr(t, err, verbs.ErrInvalid, "Backlog is -1")
	l := rig.Must(verbs.Listen(dev, rig.Loopback))(t)
	rig.WantErr(t, dev.Close(), verbs.ErrBusy, "1 listener")
	if l.Addr().Port() == 0 || l.Device() != dev {
		t.Errorf("address %v", l.Addr())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = l.Accept(ctx)
	rig.WantErr(t, err, context.Canceled)
	for range 2 {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	_, err = l.Accept(t.Context())
	rig.WantErr(t, err, verbs.ErrClosed)
}

// Backlog bounds the requests that nobody has accepted.
func TestBacklogFull(t *testing.T) {
	dev := rig.MemDevice(t)
	first, second := rig.NewSide(t, dev), rig.NewSide(t, dev)
	l := rig.Must(verbs.ListenConfig{Backlog: 1}.Listen(dev, rig.Loopback))(t)
	dialled := make(chan error, 2)
	for _, s := range []rig.Side{first, second} {
		go func() {
			_, err := verbs.Dial(rig.Context(t), s.QP, l.Addr(), verbs.ConnParam{})
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
	ctx := rig.Context(t)
	for _, c := range []struct {
		hints verbs.Hints
		in    string
		want  []string
	}{
		{verbs.Hints{}, "192.0.2.1:18515", []string{"192.0.2.1:18515"}},
		{verbs.Hints{}, "[2001:db8::1]:80", []string{"[2001:db8::1]:80"}},
		{verbs.Hints{}, "[fe80::1%eth9]:80", []string{"[fe80::1%eth9]:80"}},
		{verbs.Hints{}, "[::ffff:192.0.2.1]:1", []string{"192.0.2.1:1"}},
		{verbs.Hints{}, ":7", []string{"[::]:7", "0.0.0.0:7"}},
		{verbs.Hints{Network: "ip4"}, ":7", []string{"0.0.0.0:7"}},
		{verbs.Hints{Network: "ip6"}, ":7", []string{"[::]:7"}},
		{verbs.Hints{Network: "ip4"}, "localhost:7", []string{"127.0.0.1:7"}},
		{verbs.Hints{}, "192.0.2.1:http", []string{"192.0.2.1:80"}},
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
	ctx := rig.Context(t)
	for want, c := range map[string]struct {
		hints verbs.Hints
		in    string
	}{
		"missing port in address":    {verbs.Hints{}, "192.0.2.1"},
		"no address of network ip6":  {verbs.Hints{Network: "ip6"}, "192.0.2.1:1"},
		"none of ip, ip4, ip6":       {verbs.Hints{Network: "tcp"}, "192.0.2.1:1"},
		"is no numeric address":      {verbs.Hints{NumericHost: true}, "localhost:1"},
		"unexpected '[' in address":  {verbs.Hints{}, "[[::1]:1"},
		"too many colons in address": {verbs.Hints{}, "::1:1"},
	} {
		_, err := c.hints.Resolve(ctx, c.in)
		rig.WantErr(t, err, verbs.ErrInvalid, want)
	}
	for _, in := range []string{"192.0.2.1:65536", "192.0.2.1:no-such-service"} {
		if _, err := verbs.Resolve(ctx, in); err == nil {
			t.Errorf("%s: no error", in)
		}
	}
}
