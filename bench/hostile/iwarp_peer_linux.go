package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/mpa"
	"cinnabar/internal/iwarp/rdmap"
)

// iwarpPeer is a connection to a software device, by hand: it has no device, so no rule of one binds it.
type iwarpPeer struct {
	c       *net.TCPConn
	private []byte // of the server's answer
	msn     uint32 // of the last untagged message of queue 0
}

// mpaHeader is the length of an MPA request or reply without private data.
const mpaHeader = 20

// errRejected is the answer of a server that refuses a connection.
var errRejected = errors.New("connection rejected")

// dialIWARP connects to the server of o with private data.
func dialIWARP(ctx context.Context, o *order, private []byte) (*iwarpPeer, error) {
	return dialSlowIWARP(ctx, o, private, 0)
}

// dialSlowIWARP is dialIWARP with a receive buffer of a given size in bytes; 0: the size that the system chooses.
func dialSlowIWARP(ctx context.Context, o *order, private []byte, receive int) (*iwarpPeer, error) {
	c, err := dialFrom(ctx, o.Local, hostPort(o.Server.Addr), receive)
	if err != nil {
		return nil, err
	}
	p := &iwarpPeer{c: c}
	if err := p.greet(private); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	context.AfterFunc(ctx, p.close)
	return p, nil
}

func (p *iwarpPeer) close() { _ = p.c.Close() } // the peer has nothing to lose

// mpaRequest returns the frame by which a connection begins.
func mpaRequest(private []byte) ([]byte, error) {
	return mpa.AppendFrame(nil, mpa.Frame{
		Revision: mpa.Revision2, Enhanced: true, CRC: true, PrivateData: private,
		Setup: mpa.Setup{IRD: 4, ORD: 4, PeerToPeer: true, RTRWrite: true},
	})
}

// greet exchanges the frames of MPA, and sends the first message, which is a write of 0 bytes.
func (p *iwarpPeer) greet(private []byte) error {
	b, err := mpaRequest(private)
	if err != nil {
		return err
	}
	_ = p.c.SetDeadline(time.Now().Add(handTime))
	if _, err := p.c.Write(b); err != nil {
		return err
	}
	head := make([]byte, mpaHeader)
	if _, err := io.ReadFull(p.c, head); err != nil {
		return err
	}
	head = append(head, make([]byte, binary.BigEndian.Uint16(head[18:]))...)
	if _, err := io.ReadFull(p.c, head[mpaHeader:]); err != nil {
		return err
	}
	_ = p.c.SetDeadline(time.Time{})
	reply, _, err := mpa.ParseFrame(head)
	if err != nil {
		return err
	}
	if p.private = reply.PrivateData; reply.Reject {
		return fmt.Errorf("%w: %q", errRejected, reply.PrivateData)
	}
	return p.write(0, 0, nil)
}

// maxSegment is how many bytes of a message go into one frame.
const maxSegment = 1400

// emit sends a message in segments, the first of which has the header h.
func (p *iwarpPeer) emit(h ddp.Header, data []byte) error {
	var b []byte
	h.Version = ddp.Version
	for {
		n := min(len(data), maxSegment)
		h.Last = n == len(data)
		b = appendFPDU(b, append(ddp.AppendHeader(nil, h), data[:n]...))
		if h.Last {
			break
		}
		h, data = h.Advance(n), data[n:]
	}
	_, err := p.c.Write(b)
	return err
}

// appendFPDU appends the frame around a segment.
func appendFPDU(b, ulpdu []byte) []byte {
	at := len(b)
	b = append(mpa.AppendHeader(b, len(ulpdu)), ulpdu...)
	return mpa.AppendTrailer(b, len(ulpdu), mpa.Update(0, b[at:]), true)
}

// write is an RDMA write.
func (p *iwarpPeer) write(stag uint32, to uint64, data []byte) error {
	return p.emit(ddp.Header{Tagged: true, ULP: rdmap.Control(rdmap.OpWrite), STag: stag, TO: to}, data)
}

// send is a message of queue 0. Only an invalidation has an STag.
func (p *iwarpPeer) send(op rdmap.Opcode, stag uint32, data []byte) error {
	p.msn++
	return p.emit(ddp.Header{ULP: rdmap.Control(op), Rsvd: stag, QN: ddp.QNSend, MSN: p.msn}, data)
}

// read asks for n bytes of remote memory, as the first read of the connection.
func (p *iwarpPeer) read(stag uint32, to uint64, n uint32) error {
	r := rdmap.ReadRequest{SinkSTag: 1, Size: n, SourceSTag: stag, SourceTO: to}
	return p.emit(ddp.Header{ULP: rdmap.Control(rdmap.OpReadRequest), QN: ddp.QNReadRequest, MSN: 1}, rdmap.AppendReadRequest(nil, r))
}

// relay forwards connections to a server from an address of the attacker's, because a device
// cannot choose the address that it dials from. It can show the segments that go to the server.
type relay struct {
	l net.Listener
}

// newRelay makes a relay, which ends with ctx. see is called with each segment that goes to the server, and may be nil.
func newRelay(ctx context.Context, o *order, see func(h ddp.Header, payload []byte)) (*relay, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go forward(ctx, o, c, see)
		}
	}()
	return &relay{l}, nil
}

func (r *relay) addr() netip.AddrPort { return netip.MustParseAddrPort(r.l.Addr().String()) }

// forward copies in both directions until one ends.
func forward(ctx context.Context, o *order, c net.Conn, see func(ddp.Header, []byte)) {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	defer func() { _ = c.Close() }()
	s, err := dialFrom(ctx, o.Local, o.Server.Addr, 0)
	if err != nil {
		return
	}
	go func() {
		_, _ = io.Copy(c, s)
		_ = c.Close()
	}()
	var w io.Writer = s
	if see != nil {
		w = io.MultiWriter(s, &tap{see: see})
	}
	_, _ = io.Copy(w, c)
	_ = s.Close()
}

// tap takes frames apart that go by.
type tap struct {
	see   func(ddp.Header, []byte)
	begun bool // the MPA request has gone by
	rest  []byte
}

// Write implements [io.Writer].
func (t *tap) Write(b []byte) (int, error) {
	t.rest = append(t.rest, b...)
	for {
		n := t.next()
		if n == 0 || n > len(t.rest) {
			return len(b), nil
		}
		if t.begun {
			t.show(t.rest[:n])
		}
		t.begun = true
		t.rest = t.rest[n:]
	}
}

// next returns the length of the first frame in t.rest, 0 if its header is not complete.
func (t *tap) next() int {
	switch {
	case !t.begun && len(t.rest) >= mpaHeader:
		return mpaHeader + int(binary.BigEndian.Uint16(t.rest[18:]))
	case t.begun && len(t.rest) >= mpa.HeaderLen:
		return mpa.FPDULen(int(binary.BigEndian.Uint16(t.rest)))
	}
	return 0
}

func (t *tap) show(frame []byte) {
	ulpdu := frame[mpa.HeaderLen:][:binary.BigEndian.Uint16(frame)]
	if h, n := ddp.ParseHeader(ulpdu); n > 0 {
		t.see(h, ulpdu[n:])
	}
}
