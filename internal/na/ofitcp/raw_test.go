package ofitcp

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"cinnabar/internal/na"
	"cinnabar/internal/na/ofiaddr"
)

// raw is a peer made by hand: a listener, and the connections that a test makes and takes.
type raw struct {
	t   testing.TB
	ln  *net.TCPListener
	tls *tls.Config // of connections that accept takes; nil: they are plain
}

func newRaw(t testing.TB) *raw {
	t.Helper()
	return newRawOn(t, net.IPv4(127, 0, 0, 1))
}

func newRawOn(t testing.TB, host net.IP) *raw {
	t.Helper()
	ln, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: host})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return &raw{t: t, ln: ln}
}

func (r *raw) addr() netip.AddrPort {
	a := r.ln.Addr().(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// rawConn is a connection of a raw peer.
type rawConn struct {
	t testing.TB
	*net.TCPConn
	tls *tls.Conn // nil: the connection is plain
}

// Read and Write move plaintext.
func (c *rawConn) Read(b []byte) (int, error) {
	if c.tls != nil {
		return c.tls.Read(b)
	}
	return c.TCPConn.Read(b)
}

func (c *rawConn) Write(b []byte) (int, error) {
	if c.tls != nil {
		return c.tls.Write(b)
	}
	return c.TCPConn.Write(b)
}

func (r *raw) wrap(c net.Conn, err error) *rawConn {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(patience)) // fails only when closed
	r.t.Cleanup(func() { _ = c.Close() })
	return &rawConn{t: r.t, TCPConn: c.(*net.TCPConn)}
}

func (r *raw) dialOnly(e *Endpoint) *rawConn {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: r.addr().Addr().AsSlice()}}
	return r.wrap(d.Dial("tcp4", e.self.String()))
}

func (r *raw) acceptOnly() *rawConn { return r.wrap(r.ln.Accept()) }

func (c *rawConn) read(n int) []byte {
	c.t.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(c, b); err != nil {
		c.t.Fatalf("read of %d bytes: %v", n, err)
	}
	return b
}

func (c *rawConn) write(b []byte) {
	c.t.Helper()
	if _, err := c.Write(b); err != nil {
		c.t.Fatal(err)
	}
}

// closed waits for the other end to close, and returns what it sent before.
func (c *rawConn) closed() []byte {
	c.t.Helper()
	b, err := io.ReadAll(c)
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() {
		c.t.Fatalf("the connection is not closed")
	}
	return b
}

func (c *rawConn) cm() cmMessage {
	c.t.Helper()
	b := c.read(cmLen)
	m, size := parseCMHead(b)
	if size != cmData {
		c.t.Fatalf("connection message % x", b)
	}
	m.parseCMData(b)
	return m
}

// request is a connection request of the raw peer.
func (r *raw) request(pid uint32) cmMessage {
	return cmMessage{typ: cmRequest, version: 1, port: r.addr().Port(), pid: pid, probe: probeLittle}
}

// dial connects to e and returns the answer.
func (r *raw) dial(e *Endpoint, pid uint32) (*rawConn, cmMessage) {
	r.t.Helper()
	c := r.dialOnly(e)
	c.write(appendCM(nil, r.request(pid)))
	return c, c.cm()
}

// accept takes a connection of an endpoint.
func (r *raw) accept(pid uint32) *rawConn {
	r.t.Helper()
	c := r.acceptOnly()
	if r.tls != nil {
		c.tls = tls.Server(c.TCPConn, r.tls)
	}
	m := c.cm()
	c.write(appendCM(nil, cmMessage{typ: cmResponse, version: m.version, port: m.port, pid: pid, probe: probeLittle}))
	return c
}

// message reads a message: its header parsed, and its payload.
func (c *rawConn) message() (message, []byte) {
	c.t.Helper()
	b := c.read(baseLen)
	b = append(b, c.read(header(b).hdrSize()-baseLen)...)
	var m message
	if n := parseHeader(&m, b); n != len(b) {
		c.t.Fatalf("header % x: %d", b, n)
	}
	if m.op == opReadReq {
		return m, nil
	}
	return m, c.read(int(m.payload))
}

// rawRequest is a request with its sender's address.
func (r *raw) rawRequest(tag uint32, data []byte) []byte {
	b := make([]byte, requestHeader)
	b = append(ofiaddr.Append(b, r.addr()), data...)
	header(b).putRequest(tag, len(b))
	return b
}

func rawExpected(tag uint64, data []byte) []byte {
	b := append(make([]byte, expectedHeader), data...)
	header(b).putExpected(uint32(tag), len(b))
	b[baseLen+4] = byte(tag >> 32)
	return b
}

// pingRaw has the connection's endpoint, which echoes, answer a request.
func (r *raw) ping(c *rawConn, tag uint32) {
	r.t.Helper()
	c.write(r.rawRequest(tag, []byte("hello")))
	m, b := c.message()
	if m.op != opTag || m.tag != uint64(tag) || string(b) != "hello" {
		r.t.Fatalf("answer %+v %q", m, b)
	}
}

// lookup returns the raw peer's address for e.
func (r *raw) lookup(e *Endpoint) na.Addr {
	r.t.Helper()
	a, err := e.Lookup(e.scheme + r.addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	return a
}

// send starts sending a request of e to the raw peer.
func (r *raw) send(e *Endpoint, tag uint32, data string) *call {
	c := newCall()
	e.SendRequest(&c.op, r.lookup(e), tag, append(make([]byte, e.Limits().RequestRoom), data...))
	return c
}

// connect returns the connection that e has made to send a first request, which r has read.
func (r *raw) connect(e *Endpoint) *rawConn {
	r.t.Helper()
	first := r.send(e, 1, "")
	c := r.accept(1)
	c.message()
	if err := first.park(r.t); err != nil {
		r.t.Fatal(err)
	}
	return c
}

// wantKind fails the test unless err is of a kind.
func wantKind(t testing.TB, err error, k na.Kind) {
	t.Helper()
	if na.KindOf(err) != k {
		t.Fatalf("got %v, want an error of kind %v", err, k)
	}
}
