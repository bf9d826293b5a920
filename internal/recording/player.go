package recording

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
)

// Player plays one side of a conversation to a program under test, which has the other side.
//
// A Player is not safe for concurrent use.
type Player struct {
	c        *Conversation
	dialer   bool // the side that the player has
	values   values
	received [][]byte // the messages of the program under test
}

// NewListener returns a Player of the side that listened.
func NewListener(c *Conversation) *Player { return &Player{c: c, values: values{}} }

// NewDialer returns a Player of the side that dialed.
func NewDialer(c *Conversation) *Player { return &Player{c: c, dialer: true, values: values{}} }

// Received returns the messages of the program under test, in their order. Ends of streams are not among them. The caller must
// not change them.
func (p *Player) Received() [][]byte { return p.received }

// Serve accepts one connection of l and plays the conversation over it, until the conversation is over or ctx ends. It closes the
// connection and leaves l open. If the program under test sends a different message, the error names the message.
func (p *Player) Serve(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() }) // Accept returns
	conn, err := l.Accept()
	if !stop() && err != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	if at, err := netip.ParseAddrPort(l.Addr().String()); err == nil {
		p.values["server"] = binary.BigEndian.AppendUint16(nil, at.Port())
	}
	return p.Play(ctx, conn)
}

// Play plays the conversation over conn, which it closes, until it is over or ctx ends.
func (p *Player) Play(ctx context.Context, conn net.Conn) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // reads and writes return
	defer stop()
	defer func() { _ = conn.Close() }() // all messages are sent by then
	for i := range p.c.Messages {
		if err := p.step(conn, &p.c.Messages[i]); err != nil {
			if ctx.Err() != nil {
				err = fmt.Errorf("%w (%w)", context.Cause(ctx), err)
			}
			return fmt.Errorf("message %d of %d: %w", i, len(p.c.Messages), err)
		}
	}
	return nil
}

func (p *Player) step(conn net.Conn, m *Message) error {
	switch own := m.FromDialer == p.dialer; {
	case own && m.End:
		return closeWrite(conn)
	case own:
		b, err := p.values.expand(m, nil)
		if err != nil {
			return err
		}
		_, err = conn.Write(b)
		return err
	case m.End:
		var b [1]byte
		switch n, err := conn.Read(b[:]); {
		case n > 0:
			return fmt.Errorf("byte %x comes where the stream should end", b[:n])
		case !errors.Is(err, io.EOF):
			return fmt.Errorf("where the stream should end: %w", err)
		}
		return nil
	}
	actual := make([]byte, m.Size())
	if n, err := io.ReadFull(conn, actual); err != nil {
		return fmt.Errorf("%d of %d bytes come: %w: %x", n, len(actual), err, actual[:min(n, 256)])
	}
	p.received = append(p.received, actual)
	return p.values.check(m, actual)
}

func closeWrite(conn net.Conn) error {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return conn.Close()
}
