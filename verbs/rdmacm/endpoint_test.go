package rdmacm

import (
	"context"
	"errors"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/internal/rig"
)

// The client and the server of rdma_client(1) and rdma_server(1), each in a few
// lines: the client sends 16 bytes, the server answers.
func TestEndpoints(t *testing.T) {
	dev := rig.MemDevice(t)
	ctx := rig.Context(t)
	l := rig.Must(ListenEndpoints(dev, rig.Loopback, EndpointConfig{}))(t)
	rig.CloseAll(t, l)
	served := make(chan error, 1)
	go func() { served <- endpointServer(ctx, l) }()

	ep := rig.Must(NewEndpoint(dev, EndpointConfig{QP: verbs.QPConfig{MaxSendWR: 1, MaxRecvWR: 1}}))(t)
	mr := rig.Must(ep.RegMsgs([]byte("0123456789abcdef................")))(t)
	if err := ep.PostRecv(1, mr, 16, 16); err != nil {
		t.Fatal(err)
	}
	if err := ep.Connect(ctx, l.Addr(), verbs.ConnParam{}); err != nil {
		t.Fatal(err)
	}
	if err := ep.PostSend(2, mr, 0, 16, 0); err != nil {
		t.Fatal(err)
	}
	if wc, err := ep.SendComp(ctx); err != nil || wc.ID != 2 {
		t.Errorf("send: got %+v, %v", wc, err)
	}
	if wc, err := ep.RecvComp(ctx); err != nil || wc.ID != 1 || wc.Len != 16 || string(mr.Bytes()[16:]) != "fedcba9876543210" {
		t.Errorf("receive: got %+v, %v, %q", wc, err, mr.Bytes()[16:])
	}
	if err := ep.Disconnect(ctx); err != nil {
		t.Error(err)
	}
	rig.WantErr(t, ep.Close(), verbs.ErrBusy, "1 memory region")
	if err := errors.Join(mr.Close(), ep.Close(), ep.Close(), <-served); err != nil {
		t.Error(err)
	}
}

// endpointServer answers one message by its reverse.
func endpointServer(ctx context.Context, l *EndpointListener) (err error) {
	ep, err := l.GetRequest(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ep.Close()) }()
	mr, err := ep.RegMsgs(make([]byte, 16))
	if err != nil {
		return err
	}
	defer mr.Close()
	if err := errors.Join(ep.PostRecv(0, mr, 0, 16), ep.Accept(ctx, verbs.ConnParam{})); err != nil {
		return err
	}
	if _, err := ep.RecvComp(ctx); err != nil {
		return err
	}
	b := mr.Bytes()
	for i := range 8 {
		b[i], b[15-i] = b[15-i], b[i]
	}
	if err := ep.PostSend(0, mr, 0, 16, 0); err != nil {
		return err
	}
	_, err = ep.SendComp(ctx)
	<-ep.Conn().Done()
	return err
}

// One-sided operations between endpoints that share a domain and queues.
func TestEndpointReadWrite(t *testing.T) {
	dev := rig.MemDevice(t)
	ctx := rig.Context(t)
	s := rig.NewSide(t, dev)
	cfg := EndpointConfig{PD: s.PD, QP: verbs.QPConfig{SendCQ: s.CQ, RecvCQ: s.CQ}}
	l := rig.Must(ListenEndpoints(dev, rig.Loopback, cfg))(t)
	rig.CloseAll(t, l)
	accepted := make(chan *Endpoint, 1)
	go func() {
		ep, err := l.GetRequest(ctx)
		if err == nil {
			err = ep.Accept(ctx, verbs.ConnParam{})
		}
		if err != nil {
			t.Error(err)
		}
		accepted <- ep
	}()
	ep := rig.Must(DialEndpoint(ctx, dev, l.Addr().String(), cfg))(t)
	peer := <-accepted
	rig.CloseAll(t, ep, peer)
	if ep.PD() != s.PD || ep.QP() == peer.QP() || peer.Request() == nil || ep.Request() != nil {
		t.Error("the endpoints are not made as configured")
	}
	local := rig.Must(ep.RegMsgs([]byte("abcd....")))(t)
	target := rig.Must(peer.RegWrite(make([]byte, 4)))(t)
	source := rig.Must(peer.RegRead([]byte("wxyz")))(t)
	defer func() {
		if err := errors.Join(local.Close(), target.Close(), source.Close()); err != nil {
			t.Error(err)
		}
	}()
	if err := errors.Join(ep.PostWrite(1, local, 0, 4, 0, target.Remote()), ep.PostRead(2, local, 4, 4, 0, source.Remote())); err != nil {
		t.Fatal(err)
	}
	for _, op := range []verbs.WCOp{verbs.WCWrite, verbs.WCRead} {
		if wc, err := ep.SendComp(ctx); err != nil || wc.Op != op {
			t.Errorf("got %+v, %v, want %v", wc, err, op)
		}
	}
	if got := string(target.Bytes()) + string(local.Bytes()[4:]); got != "abcdwxyz" {
		t.Errorf("got %q", got)
	}
	if err := ep.PostWrite(3, local, 0, 4, 0, source.Remote()); err != nil {
		t.Fatal(err)
	}
	wc, err := ep.SendComp(ctx)
	rig.WantErr(t, err, verbs.StatusRemAccessErr)
	if wc.ID != 3 {
		t.Errorf("the failed completion is not returned: %+v", wc)
	}
}

func TestEndpointErrors(t *testing.T) {
	dev := rig.MemDevice(t)
	ctx := rig.Context(t)
	_, err := NewEndpoint(dev, EndpointConfig{QP: verbs.QPConfig{Type: verbs.UD}})
	rig.WantErr(t, err, errors.ErrUnsupported)
	_, err = NewEndpoint(dev, EndpointConfig{QP: verbs.QPConfig{MaxSendWR: 1 << 30}})
	rig.WantErr(t, err, verbs.ErrInvalid)
	_, err = DialEndpoint(ctx, dev, "127.0.0.1", EndpointConfig{})
	rig.WantErr(t, err, verbs.ErrInvalid, "missing port")
	if _, err := DialEndpoint(ctx, dev, "127.0.0.1:1", EndpointConfig{}); err == nil {
		t.Error("no error from a port where nobody listens")
	}
	ep := rig.Must(NewEndpoint(dev, EndpointConfig{}))(t)
	rig.CloseAll(t, ep)
	rig.WantErr(t, ep.Accept(ctx, verbs.ConnParam{}), verbs.ErrInvalid, "not made by GetRequest")
	rig.WantErr(t, ep.Disconnect(ctx), verbs.ErrInvalid, "not connected")
}

// Closing an endpoint that was made for a request rejects it.
func TestEndpointCloseRejects(t *testing.T) {
	dev := rig.MemDevice(t)
	ctx := rig.Context(t)
	l := rig.Must(ListenEndpoints(dev, rig.Loopback, EndpointConfig{}))(t)
	rig.CloseAll(t, l)
	dialled := make(chan error, 1)
	go func() {
		_, err := DialEndpoint(ctx, dev, l.Addr().String(), EndpointConfig{})
		dialled <- err
	}()
	ep := rig.Must(l.GetRequest(ctx))(t)
	if err := ep.Close(); err != nil {
		t.Error(err)
	}
	if _, ok := errors.AsType[*verbs.RejectedError](<-dialled); !ok {
		t.Error("the request was not rejected")
	}
}
