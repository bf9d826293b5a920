package iwarp_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/mpa"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
)

// patience bounds every wait; only a device that hangs reaches it.
var patience = patienceHere()

// patienceHere returns 8 seconds in a worker of the fuzzer, because that ends after 10 seconds with one input without a report.
func patienceHere() time.Duration {
	if slices.Contains(os.Args, "-test.fuzzworker") {
		return 8 * time.Second
	}
	return 20 * time.Second
}

// peer is the other end of a connection, of another make than the device: a plain
// TCP connection on which the test itself writes and reads what the pure packages
// encode and decode.
type peer struct {
	t      testing.TB
	device *verbs.Device // at the other end
	tc     *net.TCPConn
	crc    bool
	reply  mpa.Frame // what the device answered, if it was the passive side
	msns   rdmap.MSNs
}

func newPeer(t testing.TB, c net.Conn) *peer {
	t.Helper()
	p := &peer{t: t, tc: c.(*net.TCPConn)}
	if err := p.tc.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.tc.Close() })
	return p
}

// request is a request that the device accepts: revision 2, CRCs, 16 reads in
// each direction, no peer-to-peer set-up.
func request() mpa.Frame {
	return mpa.Frame{Revision: mpa.Revision2, Enhanced: true, CRC: true, Setup: mpa.Setup{IRD: 16, ORD: 16}}
}

// accept answers a request as a device without markers would.
func accept(req mpa.Frame) mpa.Frame {
	reply := req
	reply.Reply, reply.PrivateData = true, nil
	return reply
}

// dialRaw connects a peer by TCP to a listener of s's device.
func dialRaw(t testing.TB, s *side) (*peer, *verbs.Listener) {
	t.Helper()
	l, err := verbs.Listen(s.dev, netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return dialListener(t, l), l
}

func dialListener(t testing.TB, l *verbs.Listener) *peer {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return newPeer(t, c)
}

// acceptRaw has s, as passive side, connected by a peer that sends req.
func acceptRaw(t testing.TB, s *side, req mpa.Frame, param verbs.ConnParam) *peer {
	t.Helper()
	p, l := dialRaw(t, s)
	p.accepted(s, l, req, param)
	return p
}

// accepted has s accept the connection of p, which has dialed l and sends req.
func (p *peer) accepted(s *side, l *verbs.Listener, req mpa.Frame, param verbs.ConnParam) {
	t := p.t
	t.Helper()
	p.writeFrame(req)
	r, err := l.Accept(testContext(t))
	if err != nil {
		t.Fatal("accept:", err)
	}
	if s.conn, err = r.Accept(testContext(t), s.qp, param); err != nil {
		t.Fatal("accept:", err)
	}
	p.reply = p.readFrame()
	p.crc, p.device = p.reply.CRC, s.dev
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// listenRaw returns a TCP listener for a device to dial.
func listenRaw(t testing.TB) (*net.TCPListener, netip.AddrPort) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.(*net.TCPListener), l.Addr().(*net.TCPAddr).AddrPort()
}

// dialPeer has s dial a peer and returns the peer, which has read and sent nothing. The result of Dial follows on dialed, and the
// connection is then that of s.
func dialPeer(ctx context.Context, t testing.TB, s *side, param verbs.ConnParam) (p *peer, dialed <-chan error) {
	t.Helper()
	l, addr := listenRaw(t)
	result := make(chan error, 1)
	go func() {
		var err error
		s.conn, err = verbs.Dial(ctx, s.qp, addr, param)
		result <- err
	}()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return newPeer(t, c), result
}

// connectRaw has s, as active side, connect to a peer that answers its request
// with the result of answer.
func connectRaw(t testing.TB, s *side, answer func(req mpa.Frame) mpa.Frame, param verbs.ConnParam) *peer {
	t.Helper()
	p, dialed := dialPeer(testContext(t), t, s, param)
	reply := answer(p.readFrame())
	p.crc, p.device = reply.CRC, s.dev
	p.writeFrame(reply)
	if err := <-dialed; err != nil {
		t.Fatal("dial:", err)
	}
	return p
}

// sync orders what the test does before what the device does next, and after what it
// has done: the race detector does not see that between package net's sockets and
// the device's, but for locks.
func (p *peer) sync() {
	if p.device != nil {
		p.device.Stats()
	}
}

func (p *peer) write(b []byte) {
	p.t.Helper()
	p.sync()
	if _, err := p.tc.Write(b); err != nil {
		p.t.Fatal("peer writes:", err)
	}
}

func (p *peer) writeFrame(f mpa.Frame) {
	p.t.Helper()
	p.write(encodeFrame(p.t, f))
}

func encodeFrame(t testing.TB, f mpa.Frame) []byte {
	t.Helper()
	b, err := mpa.AppendFrame(nil, f)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// readFrame reads an MPA frame and not a byte more.
func (p *peer) readFrame() mpa.Frame {
	p.t.Helper()
	b := make([]byte, mpa.FrameLen, mpa.FrameLen+mpa.MaxPrivateData)
	p.readFull(b)
	b = b[:mpa.FrameLen+int(binary.BigEndian.Uint16(b[mpa.FrameLen-2:]))]
	p.readFull(b[mpa.FrameLen:])
	f, n, err := mpa.ParseFrame(b)
	if err != nil || n != len(b) {
		p.t.Fatalf("MPA frame %x: %d octets parsed, error %v", b, n, err)
	}
	return f
}

func (p *peer) readFull(b []byte) {
	p.t.Helper()
	if _, err := io.ReadFull(p.tc, b); err != nil {
		p.t.Fatalf("peer reads %d octets: %v", len(b), err)
	}
	p.sync()
}

// fpdu encodes one FPDU.
func (p *peer) fpdu(h ddp.Header, payload []byte) []byte {
	n := h.Len() + len(payload)
	b := mpa.AppendHeader(nil, n)
	b = ddp.AppendHeader(b, h)
	b = append(b, payload...)
	return mpa.AppendTrailer(b, n, mpa.Update(0, b), p.crc)
}

// send sends one FPDU and returns its header.
func (p *peer) send(h ddp.Header, payload []byte) ddp.Header {
	p.t.Helper()
	p.write(p.fpdu(h, payload))
	return h
}

// untagged is the header of the next message of op in a single segment.
func (p *peer) untagged(op rdmap.Opcode) ddp.Header {
	qn := op.Queue()
	return ddp.Header{Last: true, Version: ddp.Version, ULP: rdmap.Control(op), QN: qn, MSN: p.msns.Next(qn)}
}

// tagged is the header of a message of op in a single segment.
func tagged(op rdmap.Opcode, stag uint32, to uint64) ddp.Header {
	return ddp.Header{Tagged: true, Last: true, Version: ddp.Version, ULP: rdmap.Control(op), STag: stag, TO: to}
}

// writeTo is the header of a Write to r.
func writeTo(r verbs.RemoteAddr) ddp.Header { return tagged(rdmap.OpWrite, r.RKey, r.Addr) }

// open sends the zero-length Write after which a passive side may send.
func (p *peer) open() {
	p.t.Helper()
	p.send(tagged(rdmap.OpWrite, 0, 0), nil)
}

// read returns the next FPDU from the device.
func (p *peer) read() (ddp.Header, []byte) {
	p.t.Helper()
	h, payload, more := p.readNext()
	if !more {
		p.t.Fatal("the device has ended the stream")
	}
	return h, payload
}

// readNext is read for a stream that may be over; more is false if it is.
func (p *peer) readNext() (h ddp.Header, payload []byte, more bool) {
	p.t.Helper()
	head := make([]byte, mpa.HeaderLen)
	if _, err := io.ReadFull(p.tc, head); errors.Is(err, io.EOF) {
		return h, nil, false
	} else if err != nil {
		p.t.Fatal("peer reads:", err)
	}
	n := int(binary.BigEndian.Uint16(head))
	b := append(head, make([]byte, n+mpa.TrailerLen(n))...)
	p.readFull(b[mpa.HeaderLen:])
	end := mpa.HeaderLen + n
	if trailer := b[end:]; p.crc && !mpa.CheckTrailer(trailer, n, mpa.Update(0, b[:end])) {
		p.t.Fatalf("FPDU %x: wrong CRC", b)
	} else if !p.crc && !bytes.Equal(trailer, make([]byte, len(trailer))) {
		p.t.Fatalf("FPDU %x: the trailer is not zero with CRCs off", b)
	}
	h, hl := ddp.ParseHeader(b[mpa.HeaderLen:end])
	if hl == 0 {
		p.t.Fatalf("FPDU %x: no DDP header", b)
	}
	return h, b[mpa.HeaderLen+hl : end], true
}

// expect reads the next FPDU, which must be a segment of op.
func (p *peer) expect(op rdmap.Opcode) (ddp.Header, []byte) {
	p.t.Helper()
	h, payload := p.read()
	version, got := rdmap.ParseControl(h.ULP)
	for op != rdmap.OpWrite && got == rdmap.OpWrite && h.STag == 0 && len(payload) == 0 { // the opening message again, because this peer was silent for a while
		h, payload = p.read()
		version, got = rdmap.ParseControl(h.ULP)
	}
	if version != rdmap.Version || got != op || h.Tagged != op.Tagged() || !h.Tagged && h.QN != op.Queue() {
		p.t.Fatalf("got %v in %+v, want %v", got, h, op)
	}
	return h, payload
}

// readRequest sends a Read Request for size bytes at r, to be answered to STag 0x5e at offset 0.
func (p *peer) readRequest(r verbs.RemoteAddr, size int) ddp.Header {
	p.t.Helper()
	return p.send(p.untagged(rdmap.OpReadRequest), rdmap.AppendReadRequest(nil, rdmap.ReadRequest{
		SinkSTag: sinkSTag, Size: uint32(size), SourceSTag: r.RKey, SourceTO: r.Addr}))
}

const sinkSTag = 0x5e

// barrier returns when the device has acted upon all that was sent before: it is
// asked to answer an empty read.
func (p *peer) barrier() {
	p.t.Helper()
	p.readRequest(verbs.RemoteAddr{}, 0)
	if h, payload := p.expect(rdmap.OpReadResponse); len(payload) > 0 || h.STag != sinkSTag || !h.Last {
		p.t.Fatalf("empty read: answer %+v with %d octets", h, len(payload))
	}
}

// terminate reads a Terminate, which must be the next FPDU and the last.
func (p *peer) terminate() rdmap.Terminate {
	p.t.Helper()
	h, payload := p.expect(rdmap.OpTerminate)
	if want := (ddp.Header{Last: true, Version: ddp.Version, ULP: rdmap.Control(rdmap.OpTerminate), QN: ddp.QNTerminate, MSN: 1}); h != want {
		p.t.Errorf("header of the Terminate: %+v, want %+v", h, want)
	}
	term, swapped, n := rdmap.ParseTerminate(payload)
	if swapped || n != len(payload) {
		p.t.Errorf("Terminate %x: %d octets parsed, swapped %t", payload, n, swapped)
	}
	p.end()
	return term
}

// end expects the end of the stream.
func (p *peer) end() {
	p.t.Helper()
	var b [1]byte
	if n, err := p.tc.Read(b[:]); !errors.Is(err, io.EOF) {
		p.t.Errorf("peer reads %x, error %v; want the end of the stream", b[:n], err)
	}
}
