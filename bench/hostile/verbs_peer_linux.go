package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/mpa"
	"cinnabar/internal/iwarp/rdmap"
)

// A peer of libfabric's verbs provider with ofi_rxm, by hand: it identifies itself properly, and then breaks the rules.

// verbsPeer is a connection to a server over ofi+verbs on the software device.
type verbsPeer struct {
	*iwarpPeer
	local netip.Addr
	port  uint16 // that the peer claims to listen on
	index uint32 // that the server has given
	tag   uint32
}

// Lengths, offsets and values of connection requests and packets of ofi_rxm.
const (
	rxmRequestLen = 24
	rxmAcceptLen  = 16
	rxmEager      = 16384 // bytes
	rxmCredits    = 1     // announcement of flow control
	rxmNoCredits  = 2     // announcement of none: the server sends without credits
	rxmHeader     = 64
	rxmCtrl       = 4 // version
	rxmOp         = 2 // version
	rxmCredit     = 6 // type and operation of a credit packet
	rxmTagged     = 1 // operation of a response
	rxmData       = 1 << 17
	// rxmFirstGrant is fewer credits than a server of this module grants at first, unless the connection shares a receive queue because the
	// server has many.
	rxmFirstGrant = 31
)

// rxmRequest returns the private data of a connection request.
func rxmRequest(port uint16, flow byte) []byte {
	b := make([]byte, 1+rxmRequestLen)
	copy(b, []byte{rxmRequestLen, 1, 2, rxmCtrl, 3})
	le := binary.LittleEndian
	le.PutUint16(b[5:], port)
	b[7] = flow
	le.PutUint32(b[9:], rxmEager)
	le.PutUint32(b[13:], 128)
	le.PutUint32(b[17:], 1)
	le.PutUint32(b[21:], rand.Uint32()|1) // the process
	return b
}

// dialVerbs connects to the server of o as a process of its own, and claims a port.
func dialVerbs(ctx context.Context, o *order, port uint16, flow byte, receive int) (*verbsPeer, error) {
	c, err := dialSlowIWARP(ctx, o, rxmRequest(port, flow), receive)
	if err != nil {
		return nil, err
	}
	if len(c.private) < 1+rxmAcceptLen || c.private[0] != rxmAcceptLen {
		c.close()
		return nil, fmt.Errorf("the server accepts with % x", c.private)
	}
	return &verbsPeer{iwarpPeer: c, local: o.Local, port: port, index: binary.LittleEndian.Uint32(c.private[1:])}, nil
}

func (p *verbsPeer) stream() net.Conn { return p.c }

func (p *verbsPeer) readSegment(at segmentPlace) error {
	return p.read(uint32(at.key), at.addr, lendSize)
}

// packet returns a packet with an operation and a body.
func (p *verbsPeer) packet(typ, op byte, body []byte) []byte {
	b := make([]byte, rxmHeader, rxmHeader+len(body))
	b[0], b[1], b[32], b[34] = rxmCtrl, typ, rxmOp, op
	binary.LittleEndian.PutUint64(b[8:], uint64(p.index))
	binary.LittleEndian.PutUint64(b[40:], uint64(len(body)))
	return append(b, body...)
}

// grant gives the server credits.
func (p *verbsPeer) grant(n uint64) error {
	b := p.packet(rxmCredit, rxmCredit, nil)
	binary.LittleEndian.PutUint64(b[24:], n)
	return p.send(rdmap.OpSend, 0, b)
}

// request returns a request packet, which carries its sender's address.
func (p *verbsPeer) request(body []byte) []byte {
	p.tag++
	m := make([]byte, 16, 16+len(body))
	m[0] = 2 // AF_INET
	binary.BigEndian.PutUint16(m[2:], p.port)
	ip := p.local.As4()
	copy(m[4:], ip[:])
	b := p.packet(0, 0, append(m, body...))
	binary.LittleEndian.PutUint32(b[36:], rxmData)
	binary.LittleEndian.PutUint64(b[48:], uint64(p.tag))
	return b
}

// drain reads messages until the connection ends. It calls response for each response, and granted for the credits of the server.
func (p *verbsPeer) drain(response func(), granted func(n uint64)) {
	r := bufio.NewReaderSize(p.c, 64<<10)
	head := make([]byte, mpa.HeaderLen)
	frame := make([]byte, mpa.FPDULen(1<<16-1))
	for {
		if _, err := io.ReadFull(r, head); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint16(head))
		if _, err := io.ReadFull(r, frame[:mpa.FPDULen(n)-mpa.HeaderLen]); err != nil {
			return
		}
		h, at := ddp.ParseHeader(frame[:n])
		if at <= 0 || h.Tagged || h.QN != ddp.QNSend || h.MO != 0 || n-at < rxmHeader {
			continue
		}
		switch b := frame[at:n]; {
		case b[1] == rxmCredit:
			granted(binary.LittleEndian.Uint64(b[24:]))
		case b[34] == rxmTagged:
			response()
		}
	}
}

// rxmGrantOften is the number of responses after which a flood grants as many credits anew.
const rxmGrantOften = 1 << 14

// flood implements [rpcPeer].
func (p *verbsPeer) flood(ctx context.Context, ops *counter, window int, body func() []byte) error {
	if err := p.grant(2 * rxmGrantOften); err != nil {
		return err
	}
	if window == 0 {
		return p.floodUnread(ctx, ops, body)
	}
	sent := make(chan struct{}, window)   // one for each request without response
	credits := make(chan struct{}, 1<<16) // granted by the server and not used
	regrant := make(chan struct{}, 1)     // half of the own credits are used
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		responses := 0
		p.drain(func() {
			answered(sent)
			if responses++; responses%rxmGrantOften == 0 {
				regrant <- struct{}{}
			}
		}, func(n uint64) {
			for range min(n, uint64(cap(credits)-len(credits))) {
				credits <- struct{}{}
			}
		})
	}()
	for {
		select {
		case sent <- struct{}{}:
		case <-gone:
			return io.EOF
		case <-ctx.Done():
			return nil
		}
		select {
		case <-credits:
		case <-gone:
			return io.EOF
		case <-ctx.Done():
			return nil
		}
		var err error
		select {
		case <-regrant:
			answered(sent) // the credit goes to the packet of credits
			err = p.grant(rxmGrantOften)
		default:
			err = p.send(rdmap.OpSend, 0, p.request(body()))
			ops.add(1)
		}
		if err != nil {
			return err
		}
	}
}

// floodUnread sends requests and reads nothing, so it does not see the credits that the server grants. After the first grant it sends one request
// each millisecond, because the server posts a receive again when it has processed a request.
func (p *verbsPeer) floodUnread(ctx context.Context, ops *counter, body func() []byte) error {
	for n := 0; ctx.Err() == nil; n++ {
		if n >= rxmFirstGrant {
			pause(ctx, time.Millisecond)
		}
		if err := p.send(rdmap.OpSend, 0, p.request(body())); err != nil {
			return err
		}
		ops.add(1)
	}
	return nil
}

// isRejected reports whether the server has refused a connection, as it may.
func isRejected(err error) bool { return errors.Is(err, errRejected) }
