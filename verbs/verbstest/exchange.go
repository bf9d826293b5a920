package verbstest

import (
	"bytes"
	"net"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/oob"
	"cinnabar/verbs/rdmacm"
)

// writeTo writes a known pattern to a region that the peer sent, and
// checks at the peer.
func (p *Pair) writeTo(r verbs.Region) {
	t := p.Active.t
	t.Helper()
	if r.Size != uint64(p.Passive.MR.Len()) {
		t.Fatalf("region = %+v, want %d bytes", r, p.Passive.MR.Len())
	}
	want := p.Active.Fill(0, 256, 11)
	wr := p.Active.Send(1, 0, 256)
	wr.Op, wr.Remote = verbs.OpWrite, r.Add(r.Size-256)
	p.Active.PostSend(wr)
	p.Active.Expect(1, verbs.StatusSuccess, verbs.WCWrite)
	p.sync()
	if got := p.Passive.MR.Bytes()[r.Size-256:]; !bytes.Equal(got, want) {
		t.Error("the bytes written to the region that the peer sent differ")
	}
}

// testExchangeTCP exchanges addresses over a plain socket and connects by them.
// parity: V60 S18
func testExchangeTCP(t *testing.T, dev *verbs.Device) {
	ctx := testContext(t)
	p := &Pair{Ctx: ctx, Dev: dev, Active: newSide(t, ctx, dev, PairConfig{}, false), Passive: newSide(t, ctx, dev, PairConfig{}, false)}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(t, "listener", l.Close)
	done := make(chan error, 1)
	go func() {
		sock, err := l.Accept()
		if err == nil {
			defer closeAll(t, "socket", sock.Close)
			p.Passive.Conn, _, err = oob.Config{Region: p.Passive.MR.Region()}.Connect(ctx, sock, p.Passive.QP)
		}
		done <- err
	}()
	sock, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(t, "socket", sock.Close)
	var info oob.QPInfo
	p.Active.Conn, info, err = oob.Config{Active: true}.Connect(ctx, sock, p.Active.QP)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if info.QPN != p.Passive.QP.Num()&0xffffff {
		t.Errorf("the peer's queue pair = %#x, want %#x", info.QPN, p.Passive.QP.Num())
	}
	p.writeTo(info.Region)
}

// testExchangeMessage sends the region in the first message of the connection.
// parity: S18
func testExchangeMessage(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{Before: func(p *Pair) { p.Active.PostRecv(1, 0, verbs.RegionLen) }})
	b, err := p.Passive.MR.Region().AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	copy(p.Passive.MR.Bytes(), b)
	p.Passive.PostSend(p.Passive.Send(2, 0, len(b)))
	p.Active.Expect(1, verbs.StatusSuccess, verbs.WCRecv)
	p.Passive.Expect(2, verbs.StatusSuccess, verbs.WCSend)
	r, err := verbs.ParseRegion(p.Active.MR.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	p.writeTo(r)
}

// testExchangePrivateData lets the answer to the connection request carry the region.
// parity: S18
func testExchangePrivateData(t *testing.T, dev *verbs.Device) {
	ctx := testContext(t)
	p := &Pair{Ctx: ctx, Dev: dev, Active: newSide(t, ctx, dev, PairConfig{}, false), Passive: newSide(t, ctx, dev, PairConfig{}, false)}
	b, err := p.Passive.MR.Region().AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	l := listen(t, dev, loopback)
	if err := p.connect(l, PairConfig{Passive: verbs.ConnParam{PrivateData: b}}); err != nil {
		t.Fatal(err)
	}
	r, err := verbs.ParseRegion(p.Active.Conn.PrivateData())
	if err != nil {
		t.Fatal(err)
	}
	p.writeTo(r)
}

// testEndpoints is the client and the server of rdma_client(1) and rdma_server(1):
// a message there, a message back.
// parity: V54
func testEndpoints(t *testing.T, dev *verbs.Device) {
	ctx := testContext(t)
	l, err := rdmacm.ListenEndpoints(dev, loopback, rdmacm.EndpointConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(t, "listener", l.Close)
	served := make(chan error, 1)
	go func() { served <- serveEndpoint(t, l) }()
	ep, err := rdmacm.NewEndpoint(dev, rdmacm.EndpointConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(t, "endpoint", ep.Close)
	buf := []byte("ping............")
	mr, err := ep.RegMsgs(buf)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(t, "memory region", mr.Close)
	if err := ep.PostRecv(1, mr, 8, 4); err != nil {
		t.Fatal(err)
	}
	if err := ep.Connect(ctx, l.Addr(), verbs.ConnParam{}); err != nil {
		t.Fatal(err)
	}
	if err := ep.PostSend(2, mr, 0, 4, 0); err != nil {
		t.Fatal(err)
	}
	if wc, err := ep.SendComp(ctx); err != nil || wc.ID != 2 {
		t.Errorf("send completion = %+v, %v", wc, err)
	}
	if wc, err := ep.RecvComp(ctx); err != nil || wc.ID != 1 || wc.Len != 4 || string(buf[8:12]) != "pong" {
		t.Errorf("receive completion = %+v, %v, %q; want pong", wc, err, buf[8:12])
	}
	if err := ep.Disconnect(ctx); err != nil {
		t.Errorf("Disconnect: %v", err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// serveEndpoint answers one ping.
func serveEndpoint(t *testing.T, l *rdmacm.EndpointListener) error {
	ctx := testContext(t)
	ep, err := l.GetRequest(ctx)
	if err != nil {
		return err
	}
	defer closeAll(t, "endpoint", ep.Close)
	buf := []byte("....pong")
	mr, err := ep.RegMsgs(buf)
	if err != nil {
		return err
	}
	defer closeAll(t, "memory region", mr.Close)
	if err := ep.PostRecv(1, mr, 0, 4); err != nil {
		return err
	}
	if err := ep.Accept(ctx, verbs.ConnParam{}); err != nil {
		return err
	}
	if _, err := ep.RecvComp(ctx); err != nil {
		return err
	}
	if string(buf[:4]) != "ping" {
		t.Errorf("received %q, want ping", buf[:4])
	}
	if err := ep.PostSend(2, mr, 4, 4, 0); err != nil {
		return err
	}
	if _, err := ep.SendComp(ctx); err != nil {
		return err
	}
	<-ep.Conn().Done() // the client has read the answer when it disconnects
	return nil
}

// testBothSidesWork shows the work of both programs in two-sided messages: each
// message needs a receive of the other side and gives it a completion, unlike the
// one-sided write of Learn/OneSided.
// parity: S16
func testBothSidesWork(t *testing.T, dev *verbs.Device) {
	const rounds = 50
	p := NewPair(t, dev, PairConfig{Before: func(p *Pair) {
		p.Active.PostRecv(0, 0, 64)
		p.Passive.PostRecv(0, 0, 64)
	}})
	for i := range uint64(rounds) {
		for _, dir := range [][2]*Side{{p.Active, p.Passive}, {p.Passive, p.Active}} {
			from, to := dir[0], dir[1]
			from.PostSend(from.Send(i, 64, 64))
			from.Expect(i, verbs.StatusSuccess, verbs.WCSend)
			to.Expect(i, verbs.StatusSuccess, verbs.WCRecv)
			to.PostRecv(i+1, 0, 64)
		}
	}
}
