package ofitcp

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/internal/na/ofiaddr"
)

// TestNobodyListens: a refused connection fails what waits for it, at once, with the address and the cause.
func TestNobodyListens(t *testing.T) {
	e := openEndpoint(t, Config{})
	a, err := e.Lookup(fmt.Sprintf("ofi+tcp://127.0.0.1:%d", freePort(t)))
	if err != nil {
		t.Fatal(err)
	}
	c := newClient(e, a, 0)
	for range 3 {
		c.tag++
		e.RecvExpected(&c.recv.op, a, c.tag, c.buf)
		e.SendRequest(&c.send.op, a, c.tag, c.msg)
		wantKind(t, c.send.park(t), na.Unreachable)
		err := c.recv.park(t)
		wantKind(t, err, na.Unreachable)
		if !strings.Contains(err.Error(), a.String()) || !strings.Contains(err.Error(), "refused") {
			t.Errorf("error without address and cause: %v", err)
		}
	}
	op := newCall()
	e.Get(&op.op, a, []na.Fragment{{Remote: &remote{size: 1, access: na.ReadOnly}, Local: make([]byte, 1)}})
	wantKind(t, op.park(t), na.Unreachable)
	until(t, "a peer that is not active", func() bool { return len(e.active.List()) == 0 }) // its operations end first
}

// TestDialRetry: with Config.DialRetry a server that starts late is reached.
func TestDialRetry(t *testing.T) {
	e := openEndpoint(t, Config{DialRetry: patience})
	port := freePort(t)
	a, err := e.Lookup(fmt.Sprintf("ofi+tcp://127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	op := newCall()
	e.SendRequest(&op.op, a, 1, make([]byte, e.Limits().RequestRoom))
	refused := time.NewTimer(20 * time.Millisecond) // during which attempts are refused
	<-refused.C
	openEcho(t, Config{Address: fmt.Sprintf("ofi+tcp://127.0.0.1:%d", port)})
	if err := op.park(t); err != nil {
		t.Error(err)
	}
}

// TestDialTimeout: a peer that accepts connections and does not answer.
func TestDialTimeout(t *testing.T) {
	e, r := openEndpoint(t, Config{DialTimeout: 30 * time.Millisecond}), newRaw(t)
	op := r.send(e, 1, "x")
	wantKind(t, op.park(t), na.Unreachable)
}

// TestLost: when the connection is lost, all that waits for the peer fails, and nothing of other peers.
func TestLost(t *testing.T) {
	e, r := openEndpoint(t, Config{}), newRaw(t)
	other := openEcho(t, Config{})
	bystander := newClient(e, addrOf(t, e, other), 0)
	to := r.lookup(e)
	first := r.send(e, 1, "x")
	c := r.accept(1)
	c.message()
	if err := first.park(t); err != nil {
		t.Fatal(err)
	}
	gone := to.Done()
	var ops []*call
	for i := range 10 {
		op := newCall()
		ops = append(ops, op)
		switch i % 3 {
		case 0:
			e.RecvExpected(&op.op, to, uint32(i), make([]byte, 10))
		case 1:
			e.Get(&op.op, to, []na.Fragment{{Remote: &remote{size: 10, access: na.ReadOnly}, Local: make([]byte, 10)}})
		case 2:
			e.Put(&op.op, to, []na.Fragment{{Remote: &remote{size: 10, access: na.WriteOnly}, Local: make([]byte, 10)}})
		}
	}
	for range 6 {
		c.message()
	}
	bystander.must(t, []byte("still here"))
	_ = c.Close()
	for _, op := range ops {
		err := op.park(t)
		wantKind(t, err, na.Unreachable)
		if !strings.Contains(err.Error(), "closed the connection") {
			t.Errorf("cause: %v", err)
		}
	}
	<-gone
	bystander.must(t, []byte("still here"))
}

// TestRestart: a peer that was restarted on the same port is reached with the same address.
// parity: H34 D06
func TestRestart(t *testing.T) {
	e := openEndpoint(t, Config{})
	server := openEcho(t, Config{})
	a := addrOf(t, e, server)
	c := newClient(e, a, 0)
	c.must(t, []byte("one"))
	for range 3 {
		gone := a.Done()
		closeEndpoint(t, server)
		<-gone
		if _, err := c.call(t, nil); na.KindOf(err) != na.Unreachable {
			t.Fatalf("call to a server that is gone: %v", err)
		}
		server = openEcho(t, Config{Address: a.String()})
		c.must(t, []byte("two"))
	}
}

// TestProtocolErrors: a message against the protocol ends its connection, and no other.
func TestProtocolErrors(t *testing.T) {
	g := golden(t)
	e := openEcho(t, Config{})
	m, _ := expose(t, e, e, make([]byte, 100), na.ReadOnly)
	key := m.(*memory).key
	w, _ := expose(t, e, e, make([]byte, 100), na.WriteOnly)
	wkey := w.(*memory).key
	bystander, _ := newRaw(t).dial(e, 1)
	_ = bystander
	good := newRaw(t)
	gc, _ := good.dial(e, 1)
	for name, b := range map[string][]byte{
		"unknown operation":          append([]byte{3, 9}, g["ack"][2:]...),
		"rendezvous":                 g["tag-rts"],
		"clear to send":              append([]byte{3, opCTS}, g["ack"][2:]...),
		"data of a rendezvous":       append([]byte{3, opData}, g["ack"][2:]...),
		"acknowledgement of nothing": g["ack"],
		"answer to nothing":          g["read-rsp"],
		"unknown key":                g["read-req"],
		"read behind the end":        appendReadReq(nil, []iov{{addr: 90, len: 11, key: key}}),
		"read far behind the end":    appendReadReq(nil, []iov{{addr: ^uint64(0) - 3, len: 11, key: key}}),
		"read of write-only":         appendReadReq(nil, []iov{{len: 1, key: wkey}}),
		"write of read-only":         append(appendWrite(nil, []iov{{len: 4, key: key}}, 4), 1, 2, 3, 4),
		"second piece wrong":         append(appendWrite(nil, []iov{{len: 2, key: wkey}, {len: 2, key: key}}, 4), 1, 2, 3, 4),
		"write behind the end":       append(appendWrite(nil, []iov{{addr: 99, len: 2, key: wkey}}, 2), 1, 2),
	} {
		r := newRaw(t)
		c, _ := r.dial(e, 1)
		c.write(b)
		if got := c.closed(); len(got) > 0 {
			t.Errorf("%s: answered % x", name, got)
		}
		good.ping(gc, 5)
	}
	if !bytes.Equal(w.(*memory).buf, make([]byte, 100)) {
		t.Error("memory was written")
	}
}

// TestDropped: messages that cannot be handled, and do not break the protocol, are dropped, and the next one is handled.
func TestDropped(t *testing.T) {
	e := openEcho(t, Config{})
	r := newRaw(t)
	c, _ := r.dial(e, 1)
	short := make([]byte, requestHeader+15)
	header(short).putRequest(1, len(short))
	noPort := r.rawRequest(1, nil)
	noPort[requestHeader+2], noPort[requestHeader+3] = 0, 0
	for name, b := range map[string][]byte{
		"late expected":         rawExpected(77, []byte("late")),
		"late and long":         rawExpected(78, make([]byte, 300<<10)),
		"tag beyond 33 bits":    rawExpected(1<<40, []byte("x")),
		"short request":         short,
		"no port in the prefix": noPort,
		"too long a request":    r.rawRequest(1, make([]byte, 5000)),
		"far too long":          r.rawRequest(1, make([]byte, 1<<20)),
	} {
		c.write(b)
		r.ping(c, 4)
		t.Log(name)
	}
}

// TestForeignPrefix: an address in a request that is not the connection's is not dialed; the answer goes back where the
// request came from.
func TestForeignPrefix(t *testing.T) {
	e, r, third := openEcho(t, Config{}), newRaw(t), newRaw(t)
	c, _ := r.dial(e, 1)
	b := third.rawRequest(6, []byte("hello"))
	c.write(b)
	if m, b := c.message(); m.tag != 6 || string(b) != "hello" {
		t.Errorf("answer %+v %q", m, b)
	}
}

// TestRequestForms: both forms of a request are taken, and one that wants an acknowledgement gets it.
func TestRequestForms(t *testing.T) {
	e, r := openEcho(t, Config{}), newRaw(t)
	c, _ := r.dial(e, 1)
	payload := append(ofiaddr.Append(nil, r.addr()), "hello"...)
	c.write(rawExpected(1<<32|55, payload)) // a tagged message with bit 32
	if m, b := c.message(); m.tag != 55 || string(b) != "hello" {
		t.Errorf("answer %+v %q", m, b)
	}
	plain := appendBase(nil, opMsg, 0, uint64(len(payload))) // without completion data: tag 0
	c.write(append(plain, payload...))
	if m, b := c.message(); m.tag != 0 || string(b) != "hello" {
		t.Errorf("answer %+v %q", m, b)
	}
	flagged := r.rawRequest(7, []byte("hello"))
	flagged[offFlags] |= flagDelivery
	c.write(flagged)
	got := map[string]bool{}
	for range 2 { // the acknowledgement goes before answers that are not out yet
		m, _ := c.message()
		got[fmt.Sprint(m.op, m.ack)] = true
	}
	if !got["0 true"] || !got["1 false"] {
		t.Errorf("got %v, want an acknowledgement and an answer", got)
	}
}

// TestNotListeningAnswers: the handler of an endpoint that does not listen can refuse what comes all the same.
func TestNotListeningAnswers(t *testing.T) {
	h := new(echo)
	started := make(chan struct{})
	h.e = openEndpoint(t, Config{Handler: handlerFunc(func(m *na.Message) na.Task {
		<-started
		return h.Request(m)
	})})
	close(started)
	if h.e.Listening() {
		t.Error("it listens")
	}
	r := newRaw(t)
	c, _ := r.dial(h.e, 1)
	r.ping(c, 1)
	h.e.Shutdown()
	c.write(r.rawRequest(2, nil))
	c.write(appendReadReq(nil, []iov{{}})) // ends the connection
	if b := c.closed(); len(b) > 0 {
		t.Errorf("answered after Shutdown: % x", b)
	}
}

// TestNotListening: an endpoint without a handler drops requests and goes on reading.
func TestNotListening(t *testing.T) {
	e, r := openEndpoint(t, Config{}), newRaw(t)
	c, _ := r.dial(e, 1)
	for i := range 100 {
		c.write(r.rawRequest(uint32(i), make([]byte, 1000)))
	}
	m, h := expose(t, e, e, []byte("memory"), na.ReadOnly)
	_ = m
	c.write(appendReadReq(nil, []iov{{len: 6, key: h.(*remote).key}}))
	if m, b := c.message(); m.op != opReadRsp || string(b) != "memory" {
		t.Errorf("%+v %q", m, b)
	}
}

// TestOrder: reads are answered and writes acknowledged in the order in which they came, with numbered messages.
func TestOrder(t *testing.T) {
	e, r := openEndpoint(t, Config{}), newRaw(t)
	c, _ := r.dial(e, 1)
	buf := make([]byte, 256)
	for i := range buf {
		buf[i] = byte(i)
	}
	_, h := expose(t, e, e, buf, na.ReadWrite)
	key := h.(*remote).key
	var b []byte
	for i := range 100 {
		b = append(b, appendReadReq(nil, []iov{{addr: uint64(i), len: 1, key: key}, {addr: uint64(i + 1), len: uint64(i % 3), key: key}})...)
		w := appendWrite(nil, []iov{{addr: 200, len: 1, key: key}, {addr: 201, len: 1, key: key}}, 2)
		b = append(b, append(w, byte(i), byte(i))...)
	}
	c.write(b)
	for i := range 100 {
		m, got := c.message()
		want := []byte{byte(i), byte(i + 1), byte(i + 2)}[:1+i%3]
		if m.op != opReadRsp || !bytes.Equal(got, want) {
			t.Fatalf("answer %d: %+v % x, want % x", i, m, got, want)
		}
		if m, _ := c.message(); !m.ack {
			t.Fatalf("answer %d: %+v, want an acknowledgement", i, m)
		}
	}
	if buf[200] != 99 || buf[201] != 99 {
		t.Error("writes are not in place")
	}
	c.write(appendReadReq(nil, []iov{{len: 0, key: key}}))
	if seq := c.read(baseLen)[offSeq]; seq != 200 {
		t.Errorf("sequence number %d, want 200", seq)
	}
}

// TestWrongReadLength: an answer that is shorter or longer than what was asked for fails the transfer, and the stream
// goes on.
func TestWrongReadLength(t *testing.T) {
	e, r := openEndpoint(t, Config{}), newRaw(t)
	to := r.lookup(e)
	c := r.connect(e)
	for _, n := range []int{0, 9, 11, 100_000} {
		dst := bytes.Repeat([]byte{0xee}, 10)
		op := newCall()
		e.Get(&op.op, to, []na.Fragment{{Remote: &remote{size: 10, access: na.ReadOnly}, Local: dst}})
		c.message()
		c.write(append(appendReadRsp(nil, uint64(n)), make([]byte, n)...))
		err := op.park(t)
		wantKind(t, err, na.Protocol)
		if !bytes.Equal(dst, bytes.Repeat([]byte{0xee}, 10)) {
			t.Errorf("memory changed by an answer of %d bytes", n)
		}
		e.Get(&op.op, to, []na.Fragment{{Remote: &remote{size: 10, access: na.ReadOnly}, Local: dst}})
		c.message()
		c.write(append(appendReadRsp(nil, 10), "0123456789"...))
		if err := op.park(t); err != nil || string(dst) != "0123456789" {
			t.Errorf("%q, %v", dst, err)
		}
	}
}

// TestTruncated: an answer that is longer than its buffer fails the call only.
func TestTruncated(t *testing.T) {
	e := openEndpoint(t, Config{})
	server := openEcho(t, Config{})
	c := newClient(e, addrOf(t, e, server), 0)
	c.must(t, []byte("fits"))
	full := c.buf
	c.buf = c.buf[:3]
	if _, err := c.call(t, []byte("longer")); na.KindOf(err) != na.Truncated {
		t.Errorf("got %v", err)
	}
	c.buf = full
	c.must(t, []byte("fits"))
}

// TestHalfOpen: connections without a request do not keep others out; beyond the limit, the oldest give way.
// parity: D07
func TestHalfOpen(t *testing.T) {
	const limit = 64
	e := openEcho(t, Config{Quota: hostquota.NewBook(hostquota.Limits{hostquota.Handshakes: limit})})
	r := newRaw(t)
	first := r.dialOnly(e)
	for range limit {
		c, err := net.Dial("tcp4", e.self.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	first.closed()
	c, _ := r.dial(e, 1)
	r.ping(c, 1)
}

// TestNothingBehindAnswer closes an endpoint between its answer to a connection request and the connection. It sends no refusal behind
// the answer, because the peer has a connection by then and takes all bytes for messages.
func TestNothingBehindAnswer(t *testing.T) {
	e := openEcho(t, Config{})
	r := newRaw(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	sock, err := e.prepare(&handshakeConn{tcp: s.(*net.TCPConn)})
	if err != nil {
		t.Fatal(err)
	}
	m := r.request(7)
	m.typ = cmRequest
	account := e.cfg.Quota.Account(hostquota.HostOf(r.addr().Addr()))
	setup := e.beginSetup(account)
	seal := func(closing bool) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.sealed = closing
	}
	seal(true)
	if e.assignPeer(&caller{addr: r.addr(), local: r.addr().Addr(), sock: sock, m: m, req: appendCM(nil, m), account: account, setup: setup}) {
		t.Error("an endpoint that closes has accepted a connection")
	}
	setup.end()
	seal(false)
	if err := sock.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != cmLen || got[offCMType] != cmResponse {
		t.Errorf("the peer got %x, want a response of %d bytes and nothing behind it", got, cmLen)
	}
}
