package rstream

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"cinnabar/identity"
	"cinnabar/verbs"
	"cinnabar/verbs/flow"
)

// network is the name of the network in addresses and errors.
const network = "rdma"

// mostRecord is the largest number of bytes of a Write in one record. It is large because each record has a cost, and small enough that
// several records fit a small window.
const mostRecord = 64 << 10

// Conn is one end of a stream. It is a net.Conn.
type Conn struct {
	c          *flow.Conn
	most       int // bytes of one record
	readUntil  deadline
	writeUntil deadline

	reading sync.Mutex
	// +checklocks:reading
	rec flow.Record // the received record that Read copies from
	// +checklocks:reading
	rest []byte // of rec
	// +checklocks:reading
	held bool // rec is not released

	writing sync.Mutex // so that concurrent Writes do not mix

	closing sync.Once
	closed  chan struct{} // closed by Close
	err     error         // the result of Close; written in closing
}

func newConn(c *flow.Conn) *Conn {
	return &Conn{c: c, most: max(1, min(mostRecord, c.MaxRecord()/2)), readUntil: newDeadline(), writeUntil: newDeadline(), closed: make(chan struct{})}
}

// Dial connects to a listener of this package.
func Dial(ctx context.Context, dev *verbs.Device, addr netip.AddrPort) (*Conn, error) {
	c, err := flow.Dial(ctx, dev, addr, flow.Config{})
	if err != nil {
		return nil, opError("dial", addr, err)
	}
	return newConn(c), nil
}

// opError returns a *net.OpError for err, the error of a device. If err adds only the operation and the address to its cause, opError
// wraps the cause, because the text of the *net.OpError has both already.
func opError(op string, addr netip.AddrPort, err error) error {
	e, ok := errors.AsType[*verbs.Error](err)
	if ok && e.Op == op+" "+addr.String() && e.Kind == nil && e.Detail == "" && e.Err != nil && e.Error() == err.Error() {
		err = e.Err
	}
	return &net.OpError{Op: op, Net: network, Addr: address(addr), Err: err}
}

// Read implements [io.Reader]. It returns io.EOF after the peer's CloseWrite or Close.
func (c *Conn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if err := c.check(&c.readUntil); err != nil {
		return 0, c.error("read", err)
	}
	for len(c.rest) == 0 { // records may be empty
		if len(p) == 0 {
			return 0, nil
		}
		if err := c.release(); err != nil {
			return 0, c.error("read", err)
		}
		rec, err := c.c.Recv(c.readUntil.context())
		if err != nil {
			return 0, c.error("read", err)
		}
		c.rec, c.rest, c.held = rec, rec.Bytes(), true
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	if len(c.rest) == 0 {
		if err := c.release(); err != nil {
			return n, c.error("read", err)
		}
	}
	return n, nil
}

// release releases the record that Read has copied, because the peer needs its room for further records.
//
// +checklocks:c.reading
func (c *Conn) release() error {
	if !c.held {
		return nil
	}
	c.held = false
	return c.rec.Release()
}

// Write implements [io.Writer]. It waits while the peer does not read. At the deadline it returns the number of bytes that it has passed
// to the device.
func (c *Conn) Write(p []byte) (n int, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.check(&c.writeUntil); err != nil {
		return 0, c.error("write", err)
	}
	for len(p) > n {
		part := p[n:min(n+c.most, len(p))]
		if err := c.c.Send(c.writeUntil.context(), part); err != nil {
			return n, c.error("write", err)
		}
		n += len(part)
	}
	return n, nil
}

// check returns an error if the stream is closed or the time of d has passed, because an operation must not begin then even if it would
// not wait.
func (c *Conn) check(d *deadline) error {
	select {
	case <-c.closed:
		return net.ErrClosed
	default:
		return context.Cause(d.context())
	}
}

// error returns err in the form that programs expect of a [net.Conn]: io.EOF as it is, and otherwise a *net.OpError that wraps
// net.ErrClosed after Close, os.ErrDeadlineExceeded after the deadline, or err.
func (c *Conn) error(op string, err error) error {
	select {
	case <-c.closed:
		err = net.ErrClosed
	default:
	}
	switch {
	case errors.Is(err, io.EOF):
		return io.EOF
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = os.ErrDeadlineExceeded
	}
	return &net.OpError{Op: op, Net: network, Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

// CloseWrite ends this side's stream: the peer's Read returns io.EOF after the last byte. Reading goes on.
func (c *Conn) CloseWrite() error {
	if err := c.c.CloseWrite(); err != nil {
		return c.error("close", err)
	}
	return nil
}

// Close ends the stream. Bytes written before are delivered, if the peer takes them in time. Reads and writes under way fail
// with net.ErrClosed. A second Close fails with net.ErrClosed too, as for sockets.
func (c *Conn) Close() error {
	first := false
	c.closing.Do(func() {
		first = true
		close(c.closed)
		c.err = c.c.Close()
	})
	if !first {
		return c.error("close", net.ErrClosed)
	}
	if c.err != nil {
		return &net.OpError{Op: "close", Net: network, Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: c.err}
	}
	return nil
}

// LocalAddr implements [net.Conn].
func (c *Conn) LocalAddr() net.Addr { return address(c.c.LocalAddr()) }

// RemoteAddr implements [net.Conn].
func (c *Conn) RemoteAddr() net.Addr { return address(c.c.RemoteAddr()) }

// Identity returns the facts that are proven about the peer, as [verbs.Conn.Identity] does.
func (c *Conn) Identity() identity.Peer { return c.c.Identity() }

// SetDeadline implements [net.Conn].
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements [net.Conn].
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadline(&c.readUntil, t) }

// SetWriteDeadline implements [net.Conn].
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadline(&c.writeUntil, t) }

func (c *Conn) setDeadline(d *deadline, t time.Time) error {
	select {
	case <-c.closed:
		return c.error("set", net.ErrClosed)
	default:
	}
	d.set(t)
	return nil
}

// address is the IP address and port of one end of a stream. It implements [net.Addr].
type address netip.AddrPort

func (a address) Network() string { return network }
func (a address) String() string  { return netip.AddrPort(a).String() }

var _ net.Conn = (*Conn)(nil)
