package iwarp_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/netip"
	"runtime"
	"sync/atomic"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
	"cinnabar/verbs/oob"
)

// must ends the example on an error; programs return it.
func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// node is a process of the examples: a device, a domain, a queue pair.
type node struct {
	dev *verbs.Device
	pd  *verbs.PD
	cq  *verbs.CQ
	qp  *verbs.QP
}

func newNode() *node {
	n := &node{}
	var err error
	n.dev, err = iwarp.Open(iwarp.Config{})
	must(err)
	n.pd, err = n.dev.AllocPD()
	must(err)
	n.cq, err = n.dev.CreateCQ(64)
	must(err)
	n.qp, err = n.pd.CreateQP(verbs.QPConfig{SendCQ: n.cq})
	must(err)
	return n
}

// completion waits for the next one, which must be good.
func (n *node) completion(ctx context.Context) verbs.WC {
	wc := make([]verbs.WC, 1)
	_, err := n.cq.Wait(ctx, wc)
	must(err)
	must(wc[0].Err())
	return wc[0]
}

func (n *node) close(mrs ...*verbs.MR) {
	must(n.qp.Close())
	for _, mr := range mrs {
		must(mr.Close())
	}
	must(n.cq.Close())
	must(n.pd.Close())
	must(n.dev.Close())
}

// connectNodes has b accept a, with private data for each other.
func connectNodes(ctx context.Context, a, b *node, fromA, fromB []byte) (atA, atB *verbs.Conn) {
	l, err := verbs.Listen(b.dev, netip.MustParseAddrPort("127.0.0.1:0"))
	must(err)
	accepted := make(chan *verbs.Conn)
	go func() {
		r, err := l.Accept(ctx)
		must(err)
		c, err := r.Accept(ctx, b.qp, verbs.ConnParam{PrivateData: fromB})
		must(err)
		accepted <- c
	}()
	atA, err = verbs.Dial(ctx, a.qp, l.Addr(), verbs.ConnParam{PrivateData: fromA})
	must(err)
	atB = <-accepted
	must(l.Close())
	return atA, atB
}

// Send and receive need work on both sides: a receive has to be posted.
// parity: S16
func Example() {
	ctx := context.Background()
	a, b := newNode(), newNode()
	connectNodes(ctx, a, b, nil, nil)

	room, err := b.pd.AllocMR(64, verbs.LocalWrite)
	must(err)
	_, err = b.qp.PostRecv([]verbs.RecvWR{{ID: 1, SGL: []verbs.SGE{room.SGE(0, 64)}}})
	must(err)

	text, err := a.pd.RegMR([]byte("hello"), 0)
	must(err)
	_, err = a.qp.PostSend([]verbs.SendWR{{ID: 2, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{text.SGE(0, 5)}}})
	must(err)
	a.completion(ctx)
	wc := b.completion(ctx)
	fmt.Printf("request %d received %q\n", wc.ID, room.Bytes()[:wc.Len])
	a.close(text)
	b.close(room)
	// Output: request 1 received "hello"
}

// A write needs address and key of the peer's memory. Here they are in the private data of
// the connection.
// parity: S18
func Example_keyInPrivateData() {
	ctx := context.Background()
	a, b := newNode(), newNode()
	target, err := b.pd.AllocMR(64, verbs.LocalWrite|verbs.RemoteWrite)
	must(err)
	encoded, err := target.Region().AppendBinary(nil)
	must(err)
	conn, _ := connectNodes(ctx, a, b, nil, encoded)

	region, err := verbs.ParseRegion(conn.PrivateData())
	must(err)
	writeHello(ctx, a, region)
	fmt.Printf("%d bytes of room, %q in it\n", region.Size, target.Bytes()[:5])
	b.close(target)
	// Output: 64 bytes of room, "hello" in it
}

// writeHello writes a text and makes sure that it has arrived: iWARP acknowledges no
// write, but a read behind it is answered only after it.
func writeHello(ctx context.Context, a *node, to verbs.Region) {
	text, err := a.pd.RegMR([]byte("hello"), verbs.LocalWrite)
	must(err)
	_, err = a.qp.PostSend([]verbs.SendWR{
		{Op: verbs.OpWrite, SGL: []verbs.SGE{text.SGE(0, 5)}, Remote: to.RemoteAddr},
		{Op: verbs.OpRead, Flags: verbs.Signaled},
	})
	must(err)
	a.completion(ctx)
	a.close(text)
}

// Address and key of the peer's memory in a message.
// parity: S18
func Example_keyInMessage() {
	ctx := context.Background()
	a, b := newNode(), newNode()
	connectNodes(ctx, a, b, nil, nil)
	target, err := b.pd.AllocMR(64, verbs.LocalWrite|verbs.RemoteWrite)
	must(err)
	encoded, err := target.Region().AppendBinary(nil)
	must(err)

	room, err := a.pd.AllocMR(verbs.RegionLen, verbs.LocalWrite)
	must(err)
	_, err = a.qp.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{room.SGE(0, verbs.RegionLen)}}})
	must(err)
	message, err := b.pd.RegMR(encoded, 0)
	must(err)
	_, err = b.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{message.SGE(0, len(encoded))}}})
	must(err)
	a.completion(ctx)

	region, err := verbs.ParseRegion(room.Bytes())
	must(err)
	must(room.Close())
	writeHello(ctx, a, region)
	fmt.Printf("%q\n", target.Bytes()[:5])
	b.close(target, message)
	// Output: "hello"
}

// Address and key of the peer's memory, and the settings of its queue pair, over a plain socket.
// parity: S18
func Example_keyOutOfBand() {
	ctx := context.Background()
	a, b := newNode(), newNode()
	target, err := b.pd.AllocMR(64, verbs.LocalWrite|verbs.RemoteWrite)
	must(err)

	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		sock, err := l.Accept()
		must(err)
		defer sock.Close()
		_, _, err = oob.Config{Region: target.Region()}.Connect(ctx, sock, b.qp)
		must(err)
	}()
	sock, err := net.Dial("tcp", l.Addr().String())
	must(err)
	_, peer, err := oob.Config{Active: true}.Connect(ctx, sock, a.qp)
	must(err)
	<-done
	must(sock.Close())
	must(l.Close())

	writeHello(ctx, a, peer.Region)
	fmt.Printf("%q\n", target.Bytes()[:5])
	b.close(target)
	// Output: "hello"
}

// hello registers a text of a, to be written, and memory of b for it, and posts receive 7 of b, which needs no memory.
func hello(a, b *node) (text, target *verbs.MR) {
	text, err := a.pd.RegMR([]byte("hello"), 0)
	must(err)
	target, err = b.pd.AllocMR(64, verbs.LocalWrite|verbs.RemoteWrite)
	must(err)
	_, err = b.qp.PostRecv([]verbs.RecvWR{{ID: 7}})
	must(err)
	return text, target
}

// How the target learns of a write, first way: immediate data, which takes one of
// its receives. The receive needs no memory.
// parity: V37 S20
func Example_learnByImmediate() {
	ctx := context.Background()
	a, b := newNode(), newNode()
	connectNodes(ctx, a, b, nil, nil)
	text, target := hello(a, b)
	_, err := a.qp.PostSend([]verbs.SendWR{{Op: verbs.OpWriteImm, Imm: 42, SGL: []verbs.SGE{text.SGE(0, 5)}, Remote: target.Remote()}})
	must(err)
	wc := b.completion(ctx)
	fmt.Printf("%d bytes written, immediate %d: %q\n", wc.Len, wc.Imm, target.Bytes()[:wc.Len])
	a.close(text)
	b.close(target)
	// Output: 5 bytes written, immediate 42: "hello"
}

// Second way: a message behind the write, which is delivered after it.
// parity: V37 S20
func Example_learnBySend() {
	ctx := context.Background()
	a, b := newNode(), newNode()
	connectNodes(ctx, a, b, nil, nil)
	text, target := hello(a, b)
	_, err := a.qp.PostSend([]verbs.SendWR{
		{Op: verbs.OpWrite, SGL: []verbs.SGE{text.SGE(0, 5)}, Remote: target.Remote()},
		{Op: verbs.OpSend}, // of no bytes
	})
	must(err)
	wc := b.completion(ctx)
	fmt.Printf("request %d says: %q\n", wc.ID, target.Bytes()[:5])
	a.close(text)
	b.close(target)
	// Output: request 7 says: "hello"
}

// Third way: the target looks at the last word of the write, which this device
// stores last and at once. It uses no receive and no completion.
// parity: V37 S20
func Example_learnByPolling() {
	ctx := context.Background()
	a, b := newNode(), newNode()
	connectNodes(ctx, a, b, nil, nil)
	words := make([]uint64, 100)
	target, err := verbs.RegSlice(b.pd, words, verbs.LocalWrite|verbs.RemoteWrite)
	must(err)

	mine := make([]uint64, 100)
	for i := range mine {
		mine[i] = uint64(i)
	}
	source, err := verbs.RegSlice(a.pd, mine, 0)
	must(err)
	_, err = a.qp.PostSend([]verbs.SendWR{{Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: []verbs.SGE{source.SGE(0, 800)}, Remote: target.Remote()}})
	must(err)
	a.completion(ctx)
	for atomic.LoadUint64(&words[99]) == 0 {
		runtime.Gosched() // a real program polls a completion queue, or has something else to do
	}
	fmt.Println(words[1], words[50], words[99])
	a.close(source)
	b.close(target)
	// Output: 1 50 99
}
