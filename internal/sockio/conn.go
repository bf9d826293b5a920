package sockio

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// ErrWouldBlock is returned by [Conn.TryReadv] and [Conn.TryWritev] when nothing
// can be transferred now. It is returned as it is, never wrapped.
var ErrWouldBlock = errors.New("sockio: operation would block")

// defaultMSS is assumed where the system does not tell: an Ethernet frame
// without its IPv4 and TCP headers.
const defaultMSS = 1460

// Past is a deadline that has expired. A goroutine that is blocked on a connection, or in [Poller.Wait], returns as soon as this
// deadline is set.
var Past = time.Unix(1, 0)

// A Conn is a TCP connection with scatter/gather I/O that never blocks, next to
// waiting through Go's network poller.
//
// There may be one TryReadv at a time, one TryWritev, one WaitRead and one
// WaitWrite, all four at the same time; the caller's locks see to that. The
// other methods are safe for concurrent use.
type Conn struct {
	s      socket
	local  netip.AddrPort
	remote netip.AddrPort
}

// New returns a Conn on c, which it takes over: c must not be read, written or
// closed, nor get deadlines, by anyone else from then on.
func New(c *net.TCPConn) (*Conn, error) {
	conn := &Conn{local: addrPort(c.LocalAddr()), remote: addrPort(c.RemoteAddr())}
	if err := conn.s.init(c); err != nil {
		return nil, fmt.Errorf("sockio: %w", err)
	}
	return conn, nil
}

// Join adds the connection to p, which then wakes goroutines in [Conn.WaitRead]. Join must be called before the first WaitRead,
// and at most once.
func (c *Conn) Join(p *Poller) { c.s.join(p) }

// addrPort returns a, with an IPv4 address in its 4-byte form.
func addrPort(a net.Addr) netip.AddrPort {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := t.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// TryReadv reads what has arrived into bufs, filling each before the next, and
// returns how many bytes it read, at least one. Without blocking it returns
// [ErrWouldBlock] when nothing has arrived, [io.EOF] after the peer's end of
// stream, and the socket's error after a failure. Empty buffers are skipped; if
// all are empty it returns 0 and nil. A call may stop short of what has arrived:
// only ErrWouldBlock says that there is no more.
//
// bufs and the slice itself are not retained.
func (c *Conn) TryReadv(bufs [][]byte) (int, error) { return c.s.tryReadv(bufs) }

// TryWritev sends as much of bufs, in their order, as the send buffer takes and
// returns how many bytes that is, at least one. Without blocking it returns
// [ErrWouldBlock] when the send buffer is full and the socket's error after a
// failure; a broken connection raises no SIGPIPE. Empty buffers are skipped; if
// all are empty it returns 0 and nil. A call may stop short while there is room:
// only ErrWouldBlock says that there is none.
//
// bufs and the slice itself are not retained; what has been sent may be changed.
func (c *Conn) TryWritev(bufs [][]byte) (int, error) { return c.s.tryWritev(bufs) }

// WaitRead calls ready at once and again after every event that may have made
// the connection readable, until ready returns true; then it returns nil. After
// [Conn.Close] it returns an error that is [net.ErrClosed]. In between, the
// calling goroutine is parked.
//
// A ready that returns false should have met [ErrWouldBlock] from
// [Conn.TryReadv]: on Linux it is called again at once as long as there is
// something to read; elsewhere events are edges, and whoever kept it from reading must do so
// afterwards or call [Conn.WakeRead]. ready runs on the calling goroutine and
// may call any method but WaitRead. While nobody is in WaitRead, arriving data
// wakes nobody.
func (c *Conn) WaitRead(ready func() bool) error { return c.s.waitRead(ready) }

// WaitWrite is [Conn.WaitRead] for room in the send buffer, with
// [Conn.TryWritev] and [Conn.WakeWrite] in their places.
func (c *Conn) WaitWrite(ready func() bool) error { return c.s.waitWrite(ready) }

// WakeRead makes a WaitRead in progress call its ready, on its own goroutine,
// after this call has begun: what the caller changed before is seen by that
// ready. Without a WaitRead in progress it does nothing that lasts; the next one
// calls ready anyway. A ready may be called once more than wakes and events
// account for.
func (c *Conn) WakeRead() { c.s.wakeRead() }

// WakeWrite is [Conn.WakeRead] for WaitWrite.
func (c *Conn) WakeWrite() { c.s.wakeWrite() }

// CloseWrite sends the end of the stream behind the bytes written so far.
func (c *Conn) CloseWrite() error { return c.s.closeWrite() }

// Close closes the connection and ends WaitRead and WaitWrite; the descriptor is
// released when both have returned. It does not wait for them, so that it may be
// called from their ready functions. Calls after the first return an error that
// is [net.ErrClosed].
//
// If received bytes lie unread the peer sees a reset, as always with TCP. What
// had to reach the peer is certain only when the peer has closed its side after
// a [Conn.CloseWrite].
func (c *Conn) Close() error { return c.s.close() }

// MSS returns the maximum segment size in force, in bytes, or 1460 where the
// system does not tell.
func (c *Conn) MSS() int {
	if n := c.s.mss(); n > 0 {
		return n
	}
	return defaultMSS
}

// SetUserTimeout sets for how long sent data may stay unacknowledged before the
// connection fails with syscall.ETIMEDOUT (RFC 5482; TCP_USER_TIMEOUT on Linux);
// zero restores the system's default. Fractions of a millisecond are rounded up.
// Elsewhere than on Linux the error is [errors.ErrUnsupported].
func (c *Conn) SetUserTimeout(d time.Duration) error {
	ms := d / time.Millisecond
	if d%time.Millisecond > 0 {
		ms++
	}
	if d < 0 || ms > maxUserTimeout {
		return fmt.Errorf("sockio: user timeout %v: must be from 0 to %v", d, maxUserTimeout*time.Millisecond)
	}
	if err := c.s.setUserTimeout(int(ms)); err != nil {
		return fmt.Errorf("sockio: user timeout %v: %w", d, err)
	}
	return nil
}

// maxUserTimeout is the most milliseconds that the option's int can hold.
const maxUserTimeout = 1<<31 - 1

// LocalAddr returns the address of this end, also after Close.
func (c *Conn) LocalAddr() netip.AddrPort { return c.local }

// RemoteAddr returns the address of the peer, also after Close.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.remote }

// Answers reports whether the peer's system still has the connection. The system's own means are used, so that the peer's
// program sees nothing: the connection answers if it is open in both directions and a segment of the peer's arrives within
// d, or arrived less than d ago. One is provoked by a keep-alive probe. A system whose connection is gone answers the probe
// with a reset, and one that cannot be reached does not answer.
//
// Answers says nothing about the peer's program beyond that: the system answers for one that is stopped. A peer that has
// taken nothing for longer than d while bytes wait to be sent counts as not answering, because keep-alive probes are not
// sent then. Receiving from stop ends the waiting; the connection then counts as one that answers. Elsewhere than on Linux
// the error is [errors.ErrUnsupported].
func (c *Conn) Answers(d time.Duration, stop <-chan struct{}) (bool, error) {
	ok, err := c.s.answers(d, stop)
	if err != nil {
		return false, fmt.Errorf("sockio: probe: %w", err)
	}
	return ok, nil
}
