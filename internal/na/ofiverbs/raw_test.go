package ofiverbs

import (
	"context"
	"net/netip"
	"testing"

	"cinnabar/internal/na"
	"cinnabar/internal/na/ofiaddr"
	"cinnabar/verbs"
)

func addrOf(s string) netip.Addr { return netip.MustParseAddr(s) }

// rawPeer is a peer that speaks the protocol, or breaks it, by hand.
type rawPeer struct {
	dev *verbs.Device
	pd  *verbs.PD
	ln  *verbs.Listener
}

func newRawPeer(t testing.TB) *rawPeer {
	t.Helper()
	return newRawPeerOn(t, openDevice(t))
}

// newRawPeerOn is newRawPeer on a device of the caller's.
func newRawPeerOn(t testing.TB, dev *verbs.Device) *rawPeer {
	t.Helper()
	r := &rawPeer{dev: dev}
	var err error
	if r.pd, err = r.dev.AllocPD(); err != nil {
		t.Fatal(err)
	}
	if r.ln, err = verbs.Listen(r.dev, netip.MustParseAddrPort("127.0.0.1:0")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, c := range []interface{ Close() error }{r.ln, r.pd} {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return r
}

// addr returns the address of the peer as e sees it.
func (r *rawPeer) addr(t testing.TB, e *Endpoint) na.Addr {
	t.Helper()
	a, err := e.Lookup(formatAddr(r.ln.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// cmRequest returns a valid connection request of the peer.
func (r *rawPeer) cmRequest() cmRequest {
	return cmRequest{port: r.ln.Addr().Port(), flow: flowOn, eager: eagerLimit, receives: rawReceives, id: connID{index: rawIndex, process: 7}}
}

const (
	rawReceives = 32
	rawIndex    = 5
	rawBuffer   = headerLen + 4096
)

// rawConn is one connection of a rawPeer.
type rawConn struct {
	qp    *verbs.QP
	cq    *verbs.CQ
	recv  *verbs.MR
	send  *verbs.MR
	vc    *verbs.Conn
	index uint32 // that the endpoint has given
	flow  flowControl
	spare []message // that came while another was waited for
}

// queue makes the queue pair and its memory. The caller connects it.
func (r *rawPeer) queue(t testing.TB) *rawConn {
	t.Helper()
	c := &rawConn{}
	var err error
	if c.cq, err = r.dev.CreateCQ(2 * rawReceives); err != nil {
		t.Fatal(err)
	}
	c.cq.SetSpin(0) // simulated time stands still while a goroutine spins
	if c.qp, err = r.pd.CreateQP(verbs.QPConfig{SendCQ: c.cq, MaxSendWR: rawReceives, MaxRecvWR: rawReceives}); err != nil {
		t.Fatal(err)
	}
	if c.recv, err = r.pd.RegMR(make([]byte, rawReceives*rawBuffer), verbs.LocalWrite); err != nil {
		t.Fatal(err)
	}
	if c.send, err = r.pd.RegMR(make([]byte, eagerLimit+2*headerLen), 0); err != nil {
		t.Fatal(err)
	}
	for i := range rawReceives {
		c.post(t, i)
	}
	t.Cleanup(func() { c.close(t) })
	return c
}

func (c *rawConn) post(t testing.TB, i int) {
	t.Helper()
	if _, err := c.qp.PostRecv([]verbs.RecvWR{{ID: uint64(i), SGL: []verbs.SGE{c.recv.SGE(i*rawBuffer, rawBuffer)}}}); err != nil {
		t.Fatal(err)
	}
}

// close ends the connection.
func (c *rawConn) close(t testing.TB) {
	t.Helper()
	for _, o := range []interface{ Close() error }{c.qp, c.recv, c.send, c.cq} {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	}
}

// accept accepts the next request of an endpoint.
func (r *rawPeer) accept(t testing.TB) *rawConn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := r.ln.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	m, err := parseRequest(req.PrivateData())
	if err != nil {
		t.Fatal(err)
	}
	c := r.queue(t)
	c.index, c.flow = m.id.index, m.flow
	accept := cmAccept{id: connID{index: rawIndex, process: 7}, receives: rawReceives, flow: flowOn}
	if c.vc, err = req.Accept(ctx, c.qp, verbs.ConnParam{PrivateData: appendAccept(nil, accept)}); err != nil {
		t.Fatal(err)
	}
	return c
}

// dial connects to an endpoint with private data.
func (r *rawPeer) dial(t testing.TB, e *Endpoint, private []byte) (*rawConn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := r.queue(t)
	var err error
	if c.vc, err = verbs.Dial(ctx, c.qp, e.self, verbs.ConnParam{PrivateData: private}); err != nil {
		return nil, err
	}
	a, err := parseAccept(c.vc.PrivateData())
	if err != nil {
		t.Fatal(err)
	}
	c.index, c.flow = a.id.index, a.flow
	return c, nil
}

// mustDial connects with a valid request.
func (r *rawPeer) mustDial(t testing.TB, e *Endpoint) *rawConn {
	t.Helper()
	c, err := r.dial(t, e, appendRequest(nil, r.cmRequest()))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// put sends a packet as it is, and waits until the device has sent it.
func (c *rawConn) put(t testing.TB, b []byte) {
	t.Helper()
	copy(c.send.Bytes(), b)
	wr := verbs.SendWR{ID: 1 << 40, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{c.send.SGE(0, len(b))}}
	if _, err := c.qp.PostSend([]verbs.SendWR{wr}); err != nil {
		t.Fatal(err)
	}
	for c.step(t) != 1<<40 {
		continue
	}
}

// step waits for a completion, keeps the message if it is one, and returns the id.
func (c *rawConn) step(t testing.TB) uint64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var wc [1]verbs.WC
	if _, err := c.cq.Wait(ctx, wc[:]); err != nil {
		t.Fatal(err)
	}
	if err := wc[0].Err(); err != nil {
		t.Fatal(err)
	}
	if wc[0].Op == verbs.WCRecv {
		i := int(wc[0].ID)
		b := append([]byte(nil), c.recv.Bytes()[i*rawBuffer:][:wc[0].Len]...)
		m, err := parsePacket(b)
		if err != nil || m.conn != rawIndex {
			t.Fatalf("the endpoint sends a packet of connection %d: %v", m.conn, err)
		}
		c.spare = append(c.spare, m)
		c.post(t, i)
	}
	return wc[0].ID
}

// next returns the next packet of the endpoint.
func (c *rawConn) next(t testing.TB) message {
	t.Helper()
	for len(c.spare) == 0 {
		c.step(t)
	}
	m := c.spare[0]
	c.spare = c.spare[1:]
	return m
}

// credit grants credits to the endpoint.
func (c *rawConn) credit(t testing.TB, n int) {
	t.Helper()
	p := make(packet, headerLen)
	p.putCredit(c.index, n)
	c.put(t, p)
}

// request returns a valid request packet with the address of the peer in it.
func (r *rawPeer) request(c *rawConn, tag uint32, data string) packet {
	body := append(ofiaddr.Append(nil, r.ln.Addr()), data...)
	p := append(make(packet, headerLen), body...)
	p.putRequest(c.index, tag, len(body))
	return p
}
