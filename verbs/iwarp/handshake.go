package iwarp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"cinnabar/identity"
	"cinnabar/internal/iwarp/mpa"
	"cinnabar/internal/sockio"
	"cinnabar/internal/tlsio"
	"cinnabar/verbs"
)

// handshake is the outcome of the exchange of MPA frames.
type handshake struct {
	active bool
	id     identity.Peer // of the peer
	agreed mpa.Agreed
	param  verbs.ConnParam
}

// asksCRC reports whether this side asks for the CRC on a connection between two addresses. TLS protects the bytes better.
func (c Config) asksCRC(local, remote netip.Addr) bool {
	within := local == remote || local.IsLoopback() && remote.IsLoopback()
	return !c.NoCRC && c.TLS == nil && !(c.NoLocalCRC && within)
}

// localFor translates connection parameters into the parameters of MPA's negotiation. It leaves mpa.Local.CRC to asksCRC.
func (c Config) localFor(op string, p verbs.ConnParam) (mpa.Local, error) {
	ird, err := depth(op, "ResponderResources", p.ResponderResources, c.Depth)
	if err != nil {
		return mpa.Local{}, err
	}
	ord, err := depth(op, "InitiatorDepth", p.InitiatorDepth, c.Depth)
	if err != nil {
		return mpa.Local{}, err
	}
	if limit := c.maxPrivateData(); len(p.PrivateData) > limit {
		return mpa.Local{}, verbs.Errorf(op, verbs.ErrInvalid, "%d bytes of private data; MPA revision %d carries %d", len(p.PrivateData), c.Revision, limit)
	}
	if p.RNRRetry > verbs.MaxRNRRetry {
		return mpa.Local{}, verbs.Errorf(op, verbs.ErrInvalid, "RNRRetry is %d; 7, for ever, is the most", p.RNRRetry)
	}
	return mpa.Local{Revision: uint8(c.Revision), IRD: ird, ORD: ord,
		PeerToPeer: !c.NoPeerToPeer && c.Revision == mpa.Revision2, RTRWrite: true, RTRRead: true, PrivateData: p.PrivateData}, nil
}

func depth(op, name string, v, byDefault int) (uint16, error) {
	switch {
	case v == 0:
		return uint16(byDefault), nil
	case v < 0:
		return 0, nil
	case v > maxDepth:
		return 0, verbs.Errorf(op, verbs.ErrInvalid, "%s is %d; this device has %d at most", name, v, maxDepth)
	}
	return uint16(v), nil
}

func (c Config) maxPrivateData() int { return mpa.MaxUserData(c.Revision == mpa.Revision2) }

// settle makes a handshake of the agreed parameters. It returns an error if this side cannot use them.
func (c Config) settle(op string, active bool, a mpa.Agreed, p verbs.ConnParam) (handshake, error) {
	// A revision-1 peer negotiates no depths, so those of this side hold (mpa.Agreed).
	a.IRD, a.ORD = min(a.IRD, maxDepth), min(a.ORD, maxDepth)
	if !active && a.RTR == mpa.RTRRead {
		a.IRD = max(a.IRD, 1) // room for the RTR itself, even if no other read is allowed (RFC 6581 section 9.1)
	}
	if c.ConfirmWrites && a.ORD == 0 {
		return handshake{}, verbs.Errorf(op, verbs.ErrInvalid, "Config.ConfirmWrites needs reads, and the peer allows none (IRD %d); ask it for responder resources", a.PeerIRD)
	}
	return handshake{active: active, agreed: a, param: verbs.ConnParam{
		PrivateData: a.PeerData, ResponderResources: int(a.IRD), InitiatorDepth: int(a.ORD),
		RetryCount: p.RetryCount, RNRRetry: p.RNRRetry, Timeout: p.Timeout}}, nil
}

// deadliner is a connection whose I/O ends at a deadline.
type deadliner interface{ SetDeadline(t time.Time) error }

// bound ends the I/O on nc when ctx ends, and at the latest after limit. done removes
// the bound; it returns ctx's cause if ctx has ended the I/O.
func bound(ctx context.Context, nc deadliner, limit time.Duration) (done func(err error) error) {
	_ = nc.SetDeadline(time.Now().Add(limit)) // fails only on a closed connection, where I/O fails too
	stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(sockio.Past) })
	return func(err error) error {
		stop()
		if err != nil && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) { // the same error as for a context's deadline
			return fmt.Errorf("no answer within %v: %w", limit, context.DeadlineExceeded)
		}
		if err == nil {
			err = nc.SetDeadline(time.Time{})
		}
		return err
	}
}

// frameBuffer takes the longest MPA frame.
type frameBuffer [mpa.FrameLen + mpa.MaxPrivateData]byte

// readFrame reads one MPA frame and not a byte more, because the bytes behind it belong
// to full operation.
func readFrame(nc io.Reader) (mpa.Frame, error) {
	var buf frameBuffer
	f, n, err := buf.readFixed(nc)
	if err != nil || n > 0 {
		return f, err
	}
	return buf.readData(nc)
}

// readRequest reads the request of a peer that has connected. Its fixed part has less time than the rest, because a peer
// that connects and sends nothing costs as much as one that is about to send.
func readRequest(ctx context.Context, nc *stream, limit time.Duration) (mpa.Frame, error) {
	var buf frameBuffer
	done := bound(ctx, nc, min(limit, requestTimeout))
	f, n, err := buf.readFixed(nc)
	if err = done(err); err != nil || n > 0 {
		return f, err
	}
	done = bound(ctx, nc, limit)
	f, err = buf.readData(nc)
	return f, done(err)
}

// readFixed reads the part that all frames have; n > 0 means that the frame has no other.
func (buf *frameBuffer) readFixed(nc io.Reader) (f mpa.Frame, n int, err error) {
	// The key first: a peer of another protocol may send less than a frame and wait.
	const keyLen = 16
	if _, err := io.ReadFull(nc, buf[:keyLen]); err != nil {
		return mpa.Frame{}, 0, err
	}
	if _, _, err := mpa.ParseFrame(buf[:keyLen]); err != nil {
		return mpa.Frame{}, 0, foreign(buf[:keyLen], err)
	}
	if _, err := io.ReadFull(nc, buf[keyLen:mpa.FrameLen]); err != nil {
		return mpa.Frame{}, 0, err
	}
	return mpa.ParseFrame(buf[:mpa.FrameLen])
}

// readData reads the private data behind the fixed part.
func (buf *frameBuffer) readData(nc io.Reader) (f mpa.Frame, err error) {
	size := mpa.FrameLen + int(binary.BigEndian.Uint16(buf[mpa.FrameLen-2:]))
	if size > len(buf) { // ParseFrame refuses this already; the slice below must not depend on it
		return f, &mpa.Error{Op: "parse frame", Field: "PD_Length", Problem: "too large"}
	}
	if _, err := io.ReadFull(nc, buf[mpa.FrameLen:size]); err != nil {
		return f, err
	}
	f, n, err := mpa.ParseFrame(buf[:size])
	if err == nil && n == 0 {
		err = io.ErrUnexpectedEOF
	}
	return f, err
}

func writeFrame(nc io.Writer, f mpa.Frame) error {
	b, err := mpa.AppendFrame(nil, f)
	if err != nil {
		return err
	}
	_, err = nc.Write(b)
	return err
}

// wrapMPA returns an error of package mpa as one of package verbs.
func wrapMPA(op string, err error) error {
	if r, ok := errors.AsType[*mpa.RejectedError](err); ok {
		if reason := refusalReason(r.PrivateData); reason != "" {
			return &verbs.Error{Op: op, Err: &verbs.RejectedError{Reason: reason}}
		}
		return &verbs.Error{Op: op, Err: &verbs.RejectedError{PrivateData: r.PrivateData, Reason: r.Error()}}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return &verbs.Error{Op: op, Detail: "the peer closed the connection during set-up; is it an iWARP listener?", Err: err}
	}
	return &verbs.Error{Op: op, Err: err}
}

// start makes the connection on s, for which h has been agreed, and moves the queue pair to RTS.
func (d *device) start(q *qp, s *stream, h handshake) (*conn, error) {
	nc, err := sockio.New(s.tcp)
	if err != nil {
		return nil, err
	}
	sock := &socket{tlsio.Stream{Conn: nc, TLS: s.tls}}
	h.id = s.identify(sock.RemoteAddr().Addr(), d.cfg.Token)
	set, _ := poller.Acquire() // after an error the set is nil, and the connection waits by itself
	sock.Join(set)
	c, err := d.run(q, sock, h, set != nil)
	if err != nil {
		_ = sock.Close() // the caller receives the error of run
		if set != nil {
			poller.Release()
		}
		return nil, err
	}
	c.kick()
	if h.active && h.agreed.RTR == mpa.RTRWrite {
		c.resendRTRLater(resendDelays[:])
	}
	return c, nil
}

// run makes the connection on sock, which stays the caller's if that fails. polled says that sock has joined the poller.
func (d *device) run(q *qp, sock *socket, h handshake, polled bool) (*conn, error) {
	if d.cfg.UserTimeout > 0 {
		if err := sock.SetUserTimeout(d.cfg.UserTimeout); err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return nil, err
		}
	}
	c := newConn(q, sock, h)
	c.polled = polled
	if h.active && h.agreed.RTR != mpa.RTRNone {
		c.sendRTR(h.agreed.RTR == mpa.RTRWrite)
		if f := c.failure.Load(); f != nil {
			return nil, f.err
		}
	}
	if err := q.connected(c); err != nil {
		return nil, err
	}
	if err := d.addConn(c); err != nil {
		q.disconnected(c)
		return nil, err
	}
	return c, nil
}

// reserve claims the queue pair for a connection that is being made.
func (q *qp) reserve(op string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return verbs.Errorf(op, verbs.ErrClosed, "queue pair %#06x is closed", q.num)
	case q.state != verbs.StateInit || q.connecting:
		return verbs.Errorf(op, verbs.ErrInvalid, "queue pair %#06x is in state %s or being connected; a new one, or one moved through RESET to INIT, can be connected", q.num, q.state)
	}
	q.connecting = true
	return nil
}

func (q *qp) release() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.connecting = false
}

// connected makes c the queue pair's connection.
func (q *qp) connected(c *conn) error {
	q.mu.Lock()
	if state := q.state; q.closed || state != verbs.StateInit {
		q.mu.Unlock()
		return verbs.Errorf("connect", verbs.ErrClosed, "queue pair %#06x was closed or put into state %s meanwhile", q.num, state)
	}
	q.conn, q.state = c, verbs.StateRTS
	q.attr.MaxRDAtomic, q.attr.MaxDestRDAtomic = uint8(min(c.ord, 255)), uint8(min(c.ird, 255))
	if n := c.param.RNRRetry; n != 0 {
		q.attr.RNRRetry = uint8(max(n, 0))
	}
	q.sendCQ.attach(c) // before another goroutine can find c and tear it down
	q.recvCQ.attach(c)
	q.mu.Unlock()
	return nil
}

// disconnected undoes connected for a connection that never ran.
func (q *qp) disconnected(c *conn) {
	q.sendCQ.detach(c)
	q.recvCQ.detach(c)
	q.mu.Lock()
	q.conn, q.state = nil, verbs.StateErr
	q.mu.Unlock()
	q.flush()
}
