package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// rpcPeer is a connection to a server over ofi+tcp or ofi+verbs by hand.
type rpcPeer interface {
	// flood sends requests until the connection ends. At most window of them are without response at a time; 0: any number, and nothing is
	// read. body returns the part of a request behind the address of the sender.
	flood(ctx context.Context, ops *counter, window int, body func() []byte) error
	// readSegment asks for lendSize bytes of exposed memory.
	readSegment(at segmentPlace) error
	stream() net.Conn
	close()
}

// dialRPC connects to the server of o as a process of its own, and claims a port. A receive buffer of 0 bytes is the system's.
func dialRPC(ctx context.Context, o *order, port uint16, receive int) (rpcPeer, error) {
	if o.Service == rpcVerbs {
		return dialVerbs(ctx, o, port, rxmCredits, receive)
	}
	return dialOFI(ctx, o, port, rand.Uint32(), receive)
}

// hostPort returns the host and the port of an address, without its protocol.
func hostPort(addr string) string {
	if _, rest, ok := strings.Cut(addr, "://"); ok {
		return rest
	}
	return addr
}

// A peer of libfabric's tcp provider by hand: it identifies itself properly, and then breaks the rules.

// ofiPeer is a connection to a server over ofi+tcp.
type ofiPeer struct {
	c     net.Conn
	local netip.Addr
	port  uint16 // that the peer claims to listen on
	tag   uint32
}

// dialFrom opens a TCP connection from an address. A receive buffer of 0 bytes is the system's.
func dialFrom(ctx context.Context, local netip.Addr, to string, receive int) (*net.TCPConn, error) {
	d := net.Dialer{Timeout: handTime, KeepAlive: -1, LocalAddr: &net.TCPAddr{IP: local.AsSlice()}}
	if receive > 0 {
		d.Control = func(_, _ string, rc syscall.RawConn) (err error) {
			cerr := rc.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, receive) })
			return errors.Join(err, cerr)
		}
	}
	c, err := d.DialContext(ctx, "tcp4", to)
	if err != nil {
		return nil, err
	}
	t := c.(*net.TCPConn)
	// A connection that is reset leaves its port free: there would soon be none otherwise.
	return t, t.SetLinger(0)
}

// handTime bounds the exchange by which a connection begins.
const handTime = 2 * time.Second

// Offsets and values of the message by which either side begins a connection of libfabric's tcp provider.
const (
	ofiVersion    = 3
	ofiConnLen    = 40
	ofiAccepted   = 1
	ofiOpMessage  = 0
	ofiOpTagged   = 1
	ofiOpRead     = 2
	ofiBaseLen    = 16
	ofiTaggedLen  = 24
	ofiReadReqLen = 40
)

// dialOFI connects to the server at an address of ofi+tcp and claims a port.
func dialOFI(ctx context.Context, o *order, port uint16, pid uint32, receive int) (*ofiPeer, error) {
	c, err := dialFrom(ctx, o.Local, hostPort(o.Server.Addr), receive)
	if err != nil {
		return nil, err
	}
	var b [ofiConnLen]byte
	b[0] = ofiVersion
	binary.BigEndian.PutUint16(b[2:], 8) // the length of the part behind the first 32 bytes
	b[24] = 1
	binary.BigEndian.PutUint16(b[34:], port)
	binary.BigEndian.PutUint32(b[36:], pid)
	_ = c.SetDeadline(time.Now().Add(handTime))
	_, err = c.Write(b[:])
	if err == nil {
		_, err = io.ReadFull(c, b[:])
	}
	if err == nil && b[1] != ofiAccepted {
		err = fmt.Errorf("connection refused by message %d", b[1])
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	_ = c.SetDeadline(time.Time{})
	context.AfterFunc(ctx, func() { _ = c.Close() })
	return &ofiPeer{c: c, local: o.Local, port: port}, nil
}

func (p *ofiPeer) close()           { _ = p.c.Close() }
func (p *ofiPeer) stream() net.Conn { return p.c }

// ofiBase writes the base header of a message.
func ofiBase(b []byte, op byte, flags uint16, header int, size uint64) {
	b[0], b[1], b[6] = ofiVersion, op, byte(header)
	binary.LittleEndian.PutUint16(b[2:], flags)
	binary.LittleEndian.PutUint64(b[8:], size)
}

// appendRequest appends a request, which carries its sender's address.
func (p *ofiPeer) appendRequest(b, body []byte) []byte {
	p.tag++
	at := len(b)
	b = append(b, make([]byte, ofiTaggedLen+16)...)
	b = append(b, body...)
	m := b[at:]
	m[24] = 2 // AF_INET
	binary.BigEndian.PutUint16(m[26:], p.port)
	ip := p.local.As4()
	copy(m[28:], ip[:])
	ofiBase(m, ofiOpMessage, 1, ofiTaggedLen, uint64(len(m)))
	binary.LittleEndian.PutUint64(m[16:], uint64(p.tag))
	return b
}

// readRequest asks for n bytes at off of the memory behind key.
func readRequest(key, off, n uint64) []byte {
	b := make([]byte, ofiReadReqLen)
	ofiBase(b, ofiOpRead, 0, ofiReadReqLen, ofiReadReqLen)
	b[5] = 1
	binary.LittleEndian.PutUint64(b[16:], off)
	binary.LittleEndian.PutUint64(b[24:], n)
	binary.LittleEndian.PutUint64(b[32:], key)
	return b
}

func (p *ofiPeer) readSegment(at segmentPlace) error {
	_, err := p.c.Write(readRequest(at.key, 0, lendSize))
	return err
}

// mercuryHeader begins the body of a request for an RPC.
func mercuryHeader(id uint64, flags byte) []byte {
	b := make([]byte, 16)
	b[0], b[1], b[10] = 0xd7, 5, flags
	binary.BigEndian.PutUint64(b[2:], id)
	return b
}

// flagMore says that arguments did not fit into the message: a descriptor of them follows.
const flagMore = 1

// call is the body of a request for an RPC, from no parent, with arguments.
func call(id uint64, args ...byte) []byte {
	b := binary.LittleEndian.AppendUint64(mercuryHeader(id, 0), 0xffff)
	return append(b, args...)
}

// callNumber is the body of a request with a number as its argument.
func callNumber(id, n uint64) []byte { return call(id, binary.LittleEndian.AppendUint64(nil, n)...) }

// descriptor names total bytes behind key, which their owner lends for reading, as hg_proc_hg_bulk_t writes them.
func descriptor(total, key uint64) []byte {
	const address = 0x1000
	le := binary.LittleEndian
	d := le.AppendUint64(nil, total)
	d = le.AppendUint32(d, 1) // segments
	d = le.AppendUint32(d, 1) // for reading
	d = le.AppendUint64(d, address)
	d = le.AppendUint64(d, total)
	d = le.AppendUint64(d, 48) // the length of the transport's part
	d = le.AppendUint64(d, key)
	d = le.AppendUint64(d, total)
	d = le.AppendUint64(d, 1)
	d = append(d, 1, 0, 0, 0, 0, 0, 0, 0)
	d = le.AppendUint64(d, address)
	d = le.AppendUint64(d, total)
	return append(le.AppendUint64(nil, uint64(len(d))), d...)
}

// drain reads messages until the connection ends, and signals each response.
func (p *ofiPeer) drain(response func()) {
	head := make([]byte, ofiBaseLen)
	for {
		if _, err := io.ReadFull(p.c, head); err != nil {
			return
		}
		size := binary.LittleEndian.Uint64(head[8:])
		if size < ofiBaseLen {
			return
		}
		if _, err := io.CopyN(io.Discard, p.c, int64(size-ofiBaseLen)); err != nil {
			return
		}
		if head[1] == ofiOpTagged {
			response()
		}
	}
}

// flood sends requests until the connection ends. At most window of them are without response at a time; 0: any number,
// and nothing is read.
func (p *ofiPeer) flood(ctx context.Context, ops *counter, window int, body func() []byte) error {
	if window == 0 {
		for {
			if err := p.sendRequests(ops, floodBatch, body); err != nil {
				return err
			}
		}
	}
	sent := make(chan struct{}, window) // one for each request without response
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		p.drain(func() { answered(sent) })
	}()
	for {
		select {
		case sent <- struct{}{}:
		case <-gone:
			return io.EOF
		case <-ctx.Done():
			return nil
		}
		n := 1
		for ; n < floodBatch && len(sent) < window; n++ { // this goroutine is the only one that adds
			sent <- struct{}{}
		}
		if err := p.sendRequests(ops, n, body); err != nil {
			return err
		}
	}
}

// answered removes one request from sent, the requests without a response. It does nothing if there is none, because a response may come for no
// request.
func answered(sent <-chan struct{}) {
	select {
	case <-sent:
	default:
	}
}

// floodBatch is how many requests are written at a time.
const floodBatch = 16

// sendRequests sends n requests.
func (p *ofiPeer) sendRequests(ops *counter, n int, body func() []byte) error {
	var b []byte
	for range n {
		b = p.appendRequest(b, body())
	}
	_, err := p.c.Write(b)
	if err == nil {
		ops.add(n)
	}
	return err
}
