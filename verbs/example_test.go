package verbs_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// anyPort listens at a free port of this machine alone.
var anyPort = netip.MustParseAddrPort("127.0.0.1:0")

// node is one end of a connection in the examples.
type node struct {
	dev  *verbs.Device
	pd   *verbs.PD
	cq   *verbs.CQ
	qp   *verbs.QP
	conn *verbs.Conn
}

// newNode opens the software device and makes a queue pair on it.
func newNode() *node {
	n := &node{}
	var err error
	if n.dev, err = iwarp.Open(iwarp.Config{}); err != nil {
		log.Fatal(err)
	}
	if n.pd, err = n.dev.AllocPD(); err != nil {
		log.Fatal(err)
	}
	if n.cq, err = n.dev.CreateCQ(16); err != nil {
		log.Fatal(err)
	}
	if n.qp, err = n.pd.CreateQP(verbs.QPConfig{SendCQ: n.cq}); err != nil {
		log.Fatal(err)
	}
	return n
}

// close releases the node, the objects that depend on others first.
func (n *node) close() {
	if err := errors.Join(n.qp.Close(), n.cq.Close(), n.pd.Close(), n.dev.Close()); err != nil {
		log.Fatal(err)
	}
}

// newPair returns two connected nodes. The first has dialled.
func newPair(ctx context.Context) (active, passive *node) {
	active, passive = newNode(), newNode()
	l, err := verbs.Listen(passive.dev, anyPort)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			passive.conn, err = r.Accept(ctx, passive.qp, verbs.ConnParam{})
		}
		accepted <- err
	}()
	active.conn, err = verbs.Dial(ctx, active.qp, l.Addr(), verbs.ConnParam{})
	if err = errors.Join(err, <-accepted); err != nil {
		log.Fatal(err)
	}
	return active, passive
}

// A send puts a message into the oldest receive that the peer has posted.
func Example() {
	ctx := context.Background()
	a, b := newPair(ctx)
	defer a.close()
	defer b.close()

	from, err := a.pd.RegMR([]byte("hello"), 0)
	if err != nil {
		log.Fatal(err)
	}
	defer from.Close()
	to, err := b.pd.RegMR(make([]byte, 64), verbs.LocalWrite)
	if err != nil {
		log.Fatal(err)
	}
	defer to.Close()

	if _, err := b.qp.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{to.SGE(0, to.Len())}}}); err != nil {
		log.Fatal(err)
	}
	if _, err := a.qp.PostSend([]verbs.SendWR{{
		Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{from.SGE(0, from.Len())},
	}}); err != nil {
		log.Fatal(err)
	}
	wc := make([]verbs.WC, 1)
	if _, err := b.cq.Wait(ctx, wc); err != nil {
		log.Fatal(err)
	}
	if err := wc[0].Err(); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s: %s\n", wc[0].Op, to.Bytes()[:wc[0].Len])
	// Output: recv: hello
}

// The active side dials with private data, and the passive side sees it before it answers.
func ExampleDial() {
	ctx := context.Background()
	a, b := newNode(), newNode()
	defer a.close()
	defer b.close()
	l, err := verbs.Listen(b.dev, anyPort)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			fmt.Printf("the peer says %q\n", r.PrivateData())
			_, err = r.Accept(ctx, b.qp, verbs.ConnParam{PrivateData: []byte("welcome")})
		}
		served <- err
	}()

	conn, err := verbs.Dial(ctx, a.qp, l.Addr(), verbs.ConnParam{PrivateData: []byte("let me in")})
	if err = errors.Join(err, <-served); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("the answer is %q, the queue pair is in state %v\n", conn.PrivateData(), a.qp.State())
	if err := conn.Disconnect(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// the peer says "let me in"
	// the answer is "welcome", the queue pair is in state RTS
}

// A listener may refuse a request, with data that the peer finds in the error.
func ExampleConnRequest_Reject() {
	ctx := context.Background()
	a, b := newNode(), newNode()
	defer a.close()
	defer b.close()
	l, err := verbs.Listen(b.dev, anyPort)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			err = r.Reject([]byte("full"))
		}
		served <- err
	}()

	_, err = verbs.Dial(ctx, a.qp, l.Addr(), verbs.ConnParam{})
	if rejected, ok := errors.AsType[*verbs.RejectedError](err); ok {
		fmt.Printf("rejected: %s\n", rejected.PrivateData)
	}
	if err := <-served; err != nil {
		log.Fatal(err)
	}
	// Output: rejected: full
}

// A write changes the peer's memory without any code of the peer.
func ExampleQP_PostSend() {
	ctx := context.Background()
	a, b := newPair(ctx)
	defer a.close()
	defer b.close()
	target, err := b.pd.RegMR(make([]byte, 16), verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead)
	if err != nil {
		log.Fatal(err)
	}
	defer target.Close()
	local, err := a.pd.RegMR([]byte("one-sided......."), verbs.LocalWrite)
	if err != nil {
		log.Fatal(err)
	}
	defer local.Close()

	// Requests of one queue are processed in order, so the read sees what the write has written.
	if _, err := a.qp.PostSend([]verbs.SendWR{
		{ID: 1, Op: verbs.OpWrite, SGL: []verbs.SGE{local.SGE(0, 9)}, Remote: target.RemoteAt(4)},
		{ID: 2, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{local.SGE(9, 4)}, Remote: target.RemoteAt(4)},
	}); err != nil {
		log.Fatal(err)
	}
	wc := make([]verbs.WC, 1)
	if _, err := a.cq.Wait(ctx, wc); err != nil {
		log.Fatal(err)
	}
	if err := wc[0].Err(); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("request %d, %s: %s\n", wc[0].ID, wc[0].Op, local.Bytes()[9:13])
	// Output: request 2, rdma-read: one-
}

// A shared receive queue feeds any number of queue pairs.
func ExamplePD_CreateSRQ() {
	n := newNode()
	defer n.close()
	srq, err := n.pd.CreateSRQ(verbs.SRQConfig{MaxWR: 8, MaxSGE: 1})
	if err != nil {
		log.Fatal(err)
	}
	defer srq.Close()
	qp, err := n.pd.CreateQP(verbs.QPConfig{SendCQ: n.cq, SRQ: srq})
	if err != nil {
		log.Fatal(err)
	}
	defer qp.Close()
	accepted, err := srq.PostRecv(make([]verbs.RecvWR, 3))
	fmt.Println(accepted, err, srq.Query().MaxWR >= 8)
	// Output: 3 <nil> true
}

// Closing an object that others depend on fails, and the error lists them.
func ExamplePD_Close() {
	n := newNode()
	defer n.close()
	err := n.pd.Close()
	fmt.Println(errors.Is(err, verbs.ErrBusy))
	fmt.Println(err)
	// Output:
	// true
	// close protection domain: object still in use: close first: 1 queue pair
}

// An entry names a part of a region.
func ExampleMR_SGE() {
	n := newNode()
	defer n.close()
	mr, err := n.pd.RegMR(make([]byte, 4096), verbs.LocalWrite)
	if err != nil {
		log.Fatal(err)
	}
	defer mr.Close()
	sge := mr.SGE(1024, 512)
	fmt.Println(sge.Length, sge.Addr == mr.SGE(0, 1).Addr+1024, sge.LKey == mr.LKey())
	// Output: 512 true true
}

// Numbers are registered where they are.
func ExampleRegSlice() {
	n := newNode()
	defer n.close()
	mr, err := verbs.RegSlice(n.pd, []float64{1, 2, 3}, verbs.RemoteRead)
	if err != nil {
		log.Fatal(err)
	}
	defer mr.Close()
	fmt.Println(mr.Len(), "bytes")
	// Output: 24 bytes
}

// A region travels to the peer in a message or in private data.
func ExampleParseRegion() {
	n := newNode()
	defer n.close()
	mr, err := n.pd.RegMR(make([]byte, 100), verbs.LocalWrite|verbs.RemoteWrite)
	if err != nil {
		log.Fatal(err)
	}
	defer mr.Close()
	message, err := mr.Region().AppendBinary(nil)
	if err != nil {
		log.Fatal(err)
	}

	region, err := verbs.ParseRegion(message) // at the peer
	fmt.Println(len(message), region.Size, region == mr.Region(), err)
	// Output: 20 100 true <nil>
}

// A loop over the completions ends when its context does.
func ExampleCQ_All() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	a, b := newPair(ctx)
	defer a.close()
	defer b.close()
	var batch []verbs.SendWR
	for id := range uint64(3) {
		batch = append(batch, verbs.SendWR{ID: id, Op: verbs.OpSend, Flags: verbs.Signaled})
	}
	if _, err := b.qp.PostRecv(make([]verbs.RecvWR, len(batch))); err != nil {
		log.Fatal(err)
	}
	if _, err := a.qp.PostSend(batch); err != nil {
		log.Fatal(err)
	}
	for wc, err := range a.cq.All(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(wc.ID, wc.Status)
		if wc.ID == 2 {
			cancel()
		}
	}
	// Output:
	// 0 success
	// 1 success
	// 2 success
}

// A failed completion is an error that matches its status and lists the usual causes.
func ExampleWC_Err() {
	wc := verbs.WC{ID: 7, Status: verbs.StatusRemAccessErr, QPNum: 0x12}
	err := wc.Err()
	fmt.Println(errors.Is(err, verbs.StatusRemAccessErr))
	fmt.Println(err)
	// Output:
	// true
	// work request 7 on queue pair 0x000012: remote access error (status 10, vendor 0x0): the rkey is wrong or revoked, the range leaves the region, the access right is missing, or the protection domain differs
}

// A program asks for the abilities of a device before it chooses a protocol.
func ExampleDevice_Query() {
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	attr, err := dev.Query()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(attr.Transport, attr.Caps.Has(verbs.CapAtomics|verbs.CapSRQ))
	// Output: iWARP true
}

// A wish over the device's limit is refused before anything is sent.
func ExampleConnParam_Check() {
	attr := verbs.DeviceAttr{MaxPrivateData: 512}
	p := verbs.ConnParam{PrivateData: make([]byte, 600)}
	fmt.Println(p.Check("connect", &attr))
	// Output: connect: invalid argument: 600 bytes of private data are over the device's limit of 512 (DeviceAttr.MaxPrivateData)
}
