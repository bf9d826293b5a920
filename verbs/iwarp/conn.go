package iwarp

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/internal/sockio"
	"cinnabar/verbs"
)

// conn is the connection of a queue pair: a TCP stream in full operation.
//
// Its two directions are independent and each has a lock: rxMu is the progress
// lock, held by whoever reads the socket (a poll of a completion queue, the
// background reader, a post that lets a held message in), and txMu by whoever
// writes it (a post, or the background writer when the socket was full). Both
// locks are held only across non-blocking calls.
//
// It ends once: whoever finds a reason calls fail with its lock held and
// teardown without any. After that the goroutines only see the peer off: they
// write a last message, read until the peer closes, and end.
type conn struct {
	dev    *device
	qp     *qp
	sock   *sockio.Conn
	local  netip.AddrPort
	remote netip.AddrPort
	host   hostquota.Host // of remote

	account  *hostquota.Account // of host; also counts the connection, unless this side has dialled
	traffic  atomic.Uint64      // reads and writes of the socket that moved bytes
	activity activity           // guarded by scan.mu
	left     chan struct{}      // closed when the last goroutine has ended

	param  verbs.ConnParam // in force, with the peer's private data
	active bool            // this side dialled
	crc    bool
	ird    int
	ord    int

	polls        atomic.Uint64 // how often someone polled
	polled       atomic.Bool   // whoever polls reads; the background reader is parked
	paused       atomic.Bool   // nothing is read until a receive is posted
	resume       chan struct{} // capacity 1: the background reader's turn
	watched      bool          // guarded by watcher.mu
	watchedPolls uint64        // guarded by watcher.mu

	heard     atomic.Bool // an FPDU of the peer has come
	nudge     atomic.Bool // the opening message is to be sent once more
	canSend   atomic.Bool // the passive side waits for the first FPDU (RFC 5044 section 7.1.2)
	closing   atomic.Bool // Disconnect has been called
	sentAll   atomic.Bool // and has sent what was posted
	failure   atomic.Pointer[failure]
	broken    atomic.Pointer[failure] // nothing more can be written: becomes failure when the peer's last words are read
	parting   atomic.Pointer[failure] // becomes failure when the answers owed have gone
	partTimer *time.Timer             // guarded by rxMu: bounds that
	torn      atomic.Bool
	done      chan struct{} // closed when torn
	err       error         // why, valid once done is closed
	last      []byte        // what is still to be written then; set before done is closed
	linger    *time.Timer   // cuts the seeing off short; set before done is closed
	goroutine atomic.Int32  // of the two background goroutines, how many run

	rxMu sync.Mutex
	// +checklocks:rxMu
	rx rxState
	// +checklocks:rxMu
	rxStats rxStats
	// heldCount is the number of messages that wait for a receive.
	heldCount atomic.Int32

	txMu sync.Mutex
	// +checklocks:txMu
	tx txState
	// +checklocks:txMu
	txStats   txStats
	txWant    atomic.Bool
	txBlocked atomic.Bool   // the socket is full; the background writer has the turn
	txWake    chan struct{} // capacity 1

	responses responseQueue
	reads     readQueue // guarded by qp.mu
}

// newConn builds the connection that handshake h has agreed on. Nothing runs yet.
func newConn(q *qp, sock *sockio.Conn, h handshake) *conn {
	d := q.pd.dev
	c := &conn{
		dev: d, qp: q, sock: sock, active: h.active,
		local: unmap(sock.LocalAddr()), remote: unmap(sock.RemoteAddr()),
		param: h.param, crc: h.agreed.CRC,
		ird: int(h.agreed.IRD), ord: int(h.agreed.ORD),
		resume: make(chan struct{}, 1), txWake: make(chan struct{}, 1), done: make(chan struct{}),
		left: make(chan struct{}),
	}
	c.host = hostOf(c.remote)
	c.account = d.book.Account(c.host)
	c.rx.init(rdmap.Options{Immediates: !d.cfg.NoImmediates, Atomics: !d.cfg.NoAtomics, Passive: !h.active})
	c.tx.init()
	c.responses.ring = make([]response, max(c.ird, 1))
	c.reads.ring = make([]readOp, c.ord+1) // and one for an RTR
	c.canSend.Store(h.active)
	c.goroutine.Store(2)
	return c
}

func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

func (c *conn) LocalAddr() netip.AddrPort  { return c.local }
func (c *conn) RemoteAddr() netip.AddrPort { return c.remote }
func (c *conn) Param() verbs.ConnParam     { return c.param }
func (c *conn) Done() <-chan struct{}      { return c.done }

func (c *conn) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

// poll makes progress on behalf of a poll of a completion queue. With claim the
// poller is expected back: until further notice the connection is his, and the
// background goroutines rest.
//
// +checklocksignore: it does not know TryLock.
func (c *conn) poll(claim bool) {
	c.polls.Add(1)
	if claim && sockio.Direct && !c.polled.Load() { // otherwise only the background reader brings bytes in
		c.polled.Store(true)
		c.dev.watch.add(c)
	}
	if c.txBlocked.Load() && c.polled.Load() {
		c.txBlocked.Store(false)
		c.txWant.Store(true) // for afterRx
	}
	if c.rxMu.TryLock() {
		c.receiveLocked(true)
		c.rxMu.Unlock()
	}
	c.afterRx()
}

// afterRx does what processing input has made necessary, without rxMu.
func (c *conn) afterRx() {
	if c.txWant.Load() {
		c.kick()
	}
	c.teardownIfFailed()
	if s := c.qp.srq; s != nil && s.due.Load() {
		s.wakeRefused()
	}
}

// handBack gives the connection to the background goroutines.
func (c *conn) handBack() {
	if c.polled.Swap(false) {
		c.wakeReader()
		if c.txBlocked.Load() {
			c.wakeWriter()
		}
	}
}

func (c *conn) wakeWriter() {
	select {
	case c.txWake <- struct{}{}:
	default:
	}
}

func (c *conn) wakeReader() {
	select {
	case c.resume <- struct{}{}:
	default:
	}
}

// readLoop is the background reader. It reads when nobody polls; woken by data
// while somebody does, it parks until the polling stops.
func (c *conn) readLoop() {
	defer c.leave()
	for {
		if err := c.sock.WaitRead(c.onReadable); err != nil {
			c.fail(lost(err))
			c.teardown()
			return
		}
		if c.torn.Load() {
			c.seeOff()
			return
		}
		if !c.polled.Load() && !c.paused.Load() {
			continue
		}
		select {
		case <-c.resume:
		case <-c.done:
		}
	}
}

// onReadable reads all there is; true ends the waiting.
func (c *conn) onReadable() bool {
	if c.torn.Load() || c.polled.Load() || c.paused.Load() {
		return true
	}
	for first, more := true, true; more && !c.torn.Load() && !c.polled.Load() && !c.paused.Load(); first = false {
		c.rxMu.Lock()
		if first {
			c.rxStats.wakeups++
		}
		more = c.receiveLocked(false)
		c.rxMu.Unlock()
		c.afterRx()
	}
	return c.torn.Load() || c.polled.Load() || c.paused.Load()
}

// seeOff waits for the peer to close, after a last message may have been sent.
func (c *conn) seeOff() {
	junk := [][]byte{make([]byte, 16<<10)}
	_ = c.sock.WaitRead(func() bool {
		for {
			if _, err := c.sock.TryReadv(junk); err != nil {
				return !errors.Is(err, sockio.ErrWouldBlock)
			}
		}
	})
}

// writeLoop is the background writer: it has the turn when the socket is full, or
// much is to be sent, and nobody polls.
func (c *conn) writeLoop() {
	defer c.leave()
	for {
		select {
		case <-c.txWake:
		case <-c.done:
			c.writeLast()
			return
		}
		if err := c.sock.WaitWrite(c.onWritable); err != nil {
			c.fail(lost(err))
		}
		c.kick()
		c.teardownIfFailed()
	}
}

// onWritable writes what it can; true ends the waiting. It gives the lock away
// now and then, for posts and for whoever wants the counters.
func (c *conn) onWritable() bool {
	for more := true; more; {
		if c.torn.Load() {
			return true
		}
		c.txMu.Lock()
		c.txWant.Store(false)
		c.txBlocked.Store(false)
		more = c.transmitLocked()
		c.txMu.Unlock()
	}
	return !c.txBlocked.Load()
}

// writeLast sends what teardown has left, ends the stream and gives the peer
// time to do the same.
func (c *conn) writeLast() {
	last := [][]byte{c.last}
	_ = c.sock.WaitWrite(func() bool {
		for len(last[0]) > 0 {
			n, err := c.sock.TryWritev(last)
			if err != nil {
				return !errors.Is(err, sockio.ErrWouldBlock)
			}
			last[0] = last[0][n:]
		}
		return true
	})
	_ = c.sock.CloseWrite() // fails only if the connection is gone already
}

// leave is the end of a background goroutine; the last one is the connection's.
func (c *conn) leave() {
	if c.goroutine.Add(-1) == 0 {
		c.linger.Stop()
		_ = c.sock.Close() // it may be closed already
		if c.active {
			c.dev.own.Give(hostquota.Connections, 1)
		} else {
			c.account.Give(hostquota.Connections, 1)
		}
		c.dev.dropConn(c)
		close(c.left)
	}
}

// Disconnect sends what was posted, however long ctx lets that take, ends the
// stream, and waits for the peer to end it too.
func (c *conn) Disconnect(ctx context.Context) error {
	c.closing.Store(true)
	err := c.drain(ctx)
	if err == nil {
		c.endSending()
		ctx, cancel := context.WithTimeout(ctx, c.dev.cfg.HandshakeTimeout)
		defer cancel()
		select {
		case <-c.done:
			return nil
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	select {
	case <-c.done: // ended by itself meanwhile: that is what was asked for
		return nil
	default:
	}
	c.fail(&failure{err: verbs.ErrDisconnected})
	c.teardown()
	return &verbs.Error{Op: "disconnect", Err: err, Detail: "the peer " + c.remote.String() + " did not take part; the connection is ended all the same"}
}

// endSending ends this side of the stream. If the peer has ended its side before,
// that was all.
func (c *conn) endSending() {
	if !c.sentAll.Swap(true) {
		c.txMu.Lock()
		if !c.torn.Load() { // else the last message is still to go, and writeLast ends the stream behind it
			_ = c.sock.CloseWrite() // fails only if the connection is gone, which its reader finds out
		}
		c.releaseTx()
	}
	c.rxMu.Lock()
	switch {
	case c.rx.eof:
		c.rx.eof = false
		c.endOfStream()
	case c.rx.stalled: // the peer's end of the stream lies behind what nobody is going to receive
		c.fail(&failure{err: verbs.ErrDisconnected, status: verbs.StatusRetryExcErr, quiet: true})
	}
	c.rxMu.Unlock()
	c.teardownIfFailed()
}

// drain waits until every posted request is complete.
func (c *conn) drain(ctx context.Context) error {
	wake := make(chan struct{}, 1)
	c.txMu.Lock()
	c.tx.drained = wake
	c.releaseTx()
	for !c.idle() {
		select {
		case <-wake:
		case <-c.done:
			return io.EOF
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// idle reports whether all that was posted is complete and all that the peer
// asked for is answered.
func (c *conn) idle() bool {
	c.txMu.Lock()
	c.qp.mu.Lock()
	idle := c.idleLocked()
	c.qp.mu.Unlock()
	c.releaseTx()
	return idle
}

// idleLocked is idle with its locks.
//
// +checklocks:c.txMu
// +checklocks:c.qp.mu
func (c *conn) idleLocked() bool {
	return c.qp.sq.tail == c.qp.sq.head && c.tx.idle() && c.responses.empty()
}

// lingerTimeout bounds how long a connection that is over sees its peer off.
const lingerTimeout = 2 * time.Second
