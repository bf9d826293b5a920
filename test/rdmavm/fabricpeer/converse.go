package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"

	"cinnabar/internal/na"
	"cinnabar/internal/na/ofiverbs"
)

const (
	maxSize = 16384 // bytes of a message that one packet carries
	// tag is that of all messages.
	tag = 1234

	formatIPv4 = 2 // FI_SOCKADDR_IN
	nameLen    = 16
	familyIPv4 = 2
	countLen   = 10

	question = "q\x00"
	answer   = "a\x00"
	counted  = "cnt ok\x00"
	farewell = "fin\x00"
)

// peer is the other side: the control connection to it, and its address on the fabric.
type peer struct {
	io.ReadWriter
	e    *ofiverbs.Endpoint
	addr na.Addr

	sent, received *pending
	buf            [2][]byte // for the receive that is posted, and the message before it
	next           int
}

// pending is an operation that a goroutine waits for.
type pending struct {
	op   na.Op
	done chan struct{}
}

func newPending() *pending {
	p := &pending{done: make(chan struct{}, 1)}
	p.op.Done = p
	return p
}

// Complete implements [na.Completer].
func (p *pending) Complete(*na.Op) { p.done <- struct{}{} }

func (p *pending) wait(ctx context.Context) error {
	select {
	case <-p.done:
		return p.op.Err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// converse is the whole conversation over c and e.
func converse(ctx context.Context, o options, e *ofiverbs.Endpoint, c io.ReadWriter) error {
	p := &peer{ReadWriter: c, e: e, sent: newPending(), received: newPending()}
	p.buf[0], p.buf[1] = make([]byte, maxSize), make([]byte, maxSize)
	client := o.connect.IsValid()
	if err := p.exchangeNames(client); err != nil {
		return fmt.Errorf("exchange of addresses: %w", err)
	}
	p.expect() // before the other side knows that it may send
	if err := p.exchange(client, question, answer); err != nil {
		return err
	}
	for i := range o.count {
		out := pattern(i, o.size)
		if i == o.corrupt {
			out[o.size/2] ^= 1
		}
		if err := p.turn(ctx, client, out, pattern(i, o.size)); err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
	}
	count := make([]byte, countLen)
	copy(count, strconv.Itoa(o.count))
	if err := p.exchange(client, string(count), counted); err != nil {
		return err
	}
	return p.turn(ctx, true, []byte(farewell), []byte(farewell))
}

// exchangeNames sends this side's address on the fabric and reads that of the other. The server is first.
func (p *peer) exchangeNames(client bool) error {
	if client {
		if err := p.readName(); err != nil {
			return err
		}
		return p.writeName()
	}
	if err := p.writeName(); err != nil {
		return err
	}
	return p.readName()
}

func (p *peer) writeName() error {
	b := binary.BigEndian.AppendUint32(nil, nameLen)
	b = binary.LittleEndian.AppendUint32(b, formatIPv4)
	_, err := p.Write(append(b, p.e.AppendAddr(nil, p.e.Addr())[8:]...)) // behind the length
	return err
}

func (p *peer) readName() error {
	b := make([]byte, 8+nameLen)
	if _, err := io.ReadFull(p, b); err != nil {
		return err
	}
	if n, format := binary.BigEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:]); n != nameLen || format != formatIPv4 {
		return fmt.Errorf("an address of %d bytes in format %d; this program knows %d bytes in format %d", n, format, nameLen, formatIPv4)
	}
	if b = b[8:]; binary.LittleEndian.Uint16(b) != familyIPv4 {
		return fmt.Errorf("an address of family %d, not IPv4", binary.LittleEndian.Uint16(b))
	}
	at := netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:]))
	addr, err := p.e.Lookup("ofi+verbs://" + at.String())
	p.addr = addr
	return err
}

// exchange sends the client's text and reads the server's, or the reverse on the server.
func (p *peer) exchange(client bool, ask, reply string) error {
	steps := []func() error{
		func() error { return p.put(ask) },
		func() error { return p.want(reply) },
	}
	if !client {
		steps = []func() error{
			func() error { return p.want(ask) },
			func() error { return p.put(reply) },
		}
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("control connection: %w", err)
		}
	}
	return nil
}

func (p *peer) put(s string) error {
	_, err := io.WriteString(p, s)
	return err
}

func (p *peer) want(s string) error {
	b := make([]byte, len(s))
	if _, err := io.ReadFull(p, b); err != nil {
		return err
	}
	if string(b) != s {
		return fmt.Errorf("%q comes instead of %q", b, s)
	}
	return nil
}

// turn sends one message and receives one, or the reverse, and checks the received bytes.
func (p *peer) turn(ctx context.Context, sendFirst bool, out, want []byte) error {
	if sendFirst {
		if err := p.send(ctx, out); err != nil {
			return err
		}
	}
	got, err := p.receive(ctx)
	if err != nil {
		return err
	}
	if err := compare(got, want); err != nil {
		return err
	}
	if sendFirst {
		return nil
	}
	return p.send(ctx, out)
}

// expect posts the receive for the next message. One message without a receive would be dropped, so a receive is always posted.
func (p *peer) expect() { p.e.RecvExpected(&p.received.op, p.addr, tag, p.buf[p.next]) }

// receive returns the next message, which is valid until the next call.
func (p *peer) receive(ctx context.Context) ([]byte, error) {
	if err := p.received.wait(ctx); err != nil {
		return nil, fmt.Errorf("receive: %w", err)
	}
	b := p.buf[p.next][:p.received.op.N]
	p.next ^= 1
	p.expect()
	return b, nil
}

func (p *peer) send(ctx context.Context, b []byte) error {
	p.e.SendExpected(&p.sent.op, p.addr, tag, b)
	if err := p.sent.wait(ctx); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

// alphabet has the characters of messages.
const alphabet = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

// pattern returns the bytes of message i.
func pattern(i, size int) []byte {
	b := make([]byte, size)
	for j := range b {
		b[j] = alphabet[(7*i+j)%len(alphabet)]
	}
	return b
}

// compare returns an error that names the first wrong byte.
func compare(got, want []byte) error {
	if bytes.Equal(got, want) {
		return nil
	}
	if len(got) != len(want) {
		return fmt.Errorf("%w: a message of %d bytes comes, not of %d", errWrong, len(got), len(want))
	}
	i := 0
	for got[i] == want[i] {
		i++
	}
	return fmt.Errorf("%w: byte %d is %#x, not %#x", errWrong, i, got[i], want[i])
}

var errWrong = errors.New("wrong bytes")
