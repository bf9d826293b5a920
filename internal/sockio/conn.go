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

// defaultMSS is the maximum segment size that MSS returns if the system reports none: an Ethernet frame without its IPv4 and TCP
// headers.
const defaultMSS = 1460

// Past is a deadline that has expired. A goroutine that is blocked in a read or a write returns as soon as this deadline is set.
var Past = time.Unix(1, 0)

// A Conn is a TCP connection with scatter/gather I/O that never blocks. Goroutines that have to wait park in Go's network poller.
//
// At most one goroutine at a time may call each of TryReadv, TryWritev, WaitRead and WaitWrite; the four may run at the same time. The
// other methods are safe for concurrent use.
type Conn struct {
	s      socket
	local  netip.AddrPort
	remote netip.AddrPort
}

// New returns a Conn on c and takes ownership of c: the caller must not read, write or close it, or set deadlines, from then on.
func New(c *net.TCPConn) (*Conn, error) {
	conn := &Conn{local: addrPort(c.LocalAddr()), remote: addrPort(c.RemoteAddr())}
	if err := conn.s.init(c); err != nil {
		return nil, fmt.Errorf("sockio: %w", err)
	}
	return conn, nil
}

// Join adds the connection to p, which then wakes the goroutine in [Conn.WaitRead]: a goroutine must call [Poller.Wait] in a loop.
// Join must be called before the first WaitRead, and at most once. A nil p is ignored.
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

// TryReadv reads the bytes that have arrived into bufs, filling each before the next, and returns the number of bytes read, at least
// one. It does not block: it returns [ErrWouldBlock] when no bytes have arrived, [io.EOF] after the peer's end of stream, and the
// socket's error after a failure. Empty buffers are skipped; if all are empty it returns 0 and nil. A call may read fewer bytes than
// have arrived: only ErrWouldBlock says that there are no more.
//
// TryReadv does not retain bufs or its slices.
func (c *Conn) TryReadv(bufs [][]byte) (int, error) { return c.s.tryReadv(bufs) }

// TryWritev sends as much of bufs, in their order, as the send buffer has room for, and returns the number of bytes, at least one. It
// does not block: it returns [ErrWouldBlock] when the send buffer is full, and the socket's error after a failure; a broken connection
// raises no SIGPIPE. Empty buffers are skipped; if all are empty it returns 0 and nil. A call may send fewer bytes than there is room
// for: only ErrWouldBlock says that there is none.
//
// TryWritev does not retain bufs or its slices. The caller may change the bytes that were sent.
func (c *Conn) TryWritev(bufs [][]byte) (int, error) { return c.s.tryWritev(bufs) }

// Stand with true saves system calls of WaitRead when many connections of one [Poller] have traffic: from the next time that WaitRead parks,
// the kernel reports all further bytes to the Poller, also while no goroutine is in WaitRead. A goroutine that is about to read without
// WaitRead calls Stand with false before, because each of these reports would wake the goroutine in [Poller.Wait]. Stand does nothing without
// a Poller.
func (c *Conn) Stand(on bool) { c.s.stand(on) }

// Doubt makes the next WaitRead ask the kernel whether bytes are unread. The kernel ends a read before memory that it cannot write, and returns the
// number of bytes stored so far, as after a read of all bytes, so the connection would count as drained. The goroutine that has called TryReadv
// calls Doubt right after it if a buffer may be such memory, for example a mapping of a file that may be truncated. Doubt has an effect only after
// Stand(true), because WaitRead otherwise asks the kernel in any case.
func (c *Conn) Doubt() { c.s.doubt() }

// WaitRead calls ready at once and again after every event that may have made the connection readable, until ready returns true; then
// it returns nil. After [Conn.Close] it returns an error that is [net.ErrClosed]. In between, the calling goroutine is parked.
//
// A ready that returns false should have met [ErrWouldBlock] from [Conn.TryReadv]. On Linux WaitRead calls it again at once as long as
// there are bytes to read. Elsewhere events are edges, so the goroutine that prevented ready from reading must read afterwards or call
// [Conn.WakeRead]. ready runs on the calling goroutine and may call any method but WaitRead. While no goroutine is in WaitRead,
// arriving data wakes none.
func (c *Conn) WaitRead(ready func() bool) error { return c.s.waitRead(ready) }

// WaitWrite is [Conn.WaitRead] for room in the send buffer, with
// [Conn.TryWritev] and [Conn.WakeWrite] in their places.
func (c *Conn) WaitWrite(ready func() bool) error { return c.s.waitWrite(ready) }

// WakeRead makes a WaitRead in progress call its ready, on its own goroutine, after this call has begun, so that ready sees the
// caller's earlier writes to memory. Without a WaitRead in progress it has no effect, because the next one calls ready anyway.
// WaitRead may call ready once more than there were wakes and events.
func (c *Conn) WakeRead() { c.s.wakeRead() }

// WakeWrite is [Conn.WakeRead] for WaitWrite.
func (c *Conn) WakeWrite() { c.s.wakeWrite() }

// CloseWrite sends the end of the stream behind the bytes written so far.
func (c *Conn) CloseWrite() error { return c.s.closeWrite() }

// Close closes the connection and ends WaitRead and WaitWrite; the descriptor is closed when both have returned. Close does not wait
// for them, so their ready functions may call it. Calls after the first return an error that is [net.ErrClosed].
//
// If received bytes lie unread the peer sees a reset, as always with TCP. It is certain that all bytes have reached the peer only when
// the peer has closed its side after a [Conn.CloseWrite].
func (c *Conn) Close() error { return c.s.close() }

// MSS returns the maximum segment size in force, in bytes, or 1460 if the system reports none.
func (c *Conn) MSS() int {
	if n := c.s.mss(); n > 0 {
		return n
	}
	return defaultMSS
}

// SetUserTimeout sets the time for which sent data may stay unacknowledged before the connection fails with syscall.ETIMEDOUT (RFC
// 5482; TCP_USER_TIMEOUT on Linux); zero restores the default of the system. Fractions of a millisecond are rounded up. On systems
// other than Linux the error is [errors.ErrUnsupported].
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

// Answers reports whether the peer's system still has the connection. It uses the means of the system, so the peer's program sees
// nothing: the connection answers if it is open in both directions and a segment from the peer arrives within d, or arrived less than
// d ago. A keep-alive probe provokes a segment. A system that does not have the connection any more answers the probe with a reset,
// and one that cannot be reached does not answer.
//
// Answers reports nothing about the peer's program beyond that, because the system answers also for a stopped program. A peer that has
// read nothing for longer than d while bytes wait to be sent counts as not answering, because keep-alive probes are not sent then.
// Receiving from stop ends the waiting; the connection then counts as one that answers. On systems other than Linux the error is
// [errors.ErrUnsupported].
func (c *Conn) Answers(d time.Duration, stop <-chan struct{}) (bool, error) {
	ok, err := c.s.answers(d, stop)
	if err != nil {
		return false, fmt.Errorf("sockio: probe: %w", err)
	}
	return ok, nil
}
