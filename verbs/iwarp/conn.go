package iwarp

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar/identity"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/internal/progress"
	"cinnabar/internal/sockio"
	"cinnabar/verbs"
)

// conn is the connection of a queue pair: a TCP stream in full operation.
//
// Its two directions are independent and each has a lock. rxMu is held by the reader
// of the socket: a poll of a completion queue, the background reader, or a post that
// delivers a held message. txMu is held by its writer: a post, or the background writer
// after the socket was full. Both locks are held only across non-blocking calls.
//
// The end of a connection has these states:
//
//	              Disconnect            all posted work is complete
//	    ┌── open ────────────▶ closing ────────────────▶ half-closed
//	    │     │                   │                           │
//	    ├─────┴───────────────────┴───────────────────────────┤
//	    │ refuse, and responses       │ a write               │ fail: lost, Terminate,
//	    │ are queued                  ▼ fails                 │ Close, end of stream
//	    │                        write-failed                 │
//	    ▼                             │ all input is read     │
//	draining ──────────────────────┐  │                       │
//	  responses are sent, or the   ▼  ▼                       │
//	  peer reads none for 2 s     failed ◀────────────────────┘
//	                                 │ teardown
//	                                 ▼
//	                              closed ─────▶ exited
//	                                 the peer closes, or 2 s pass
//
// A field stands for each state, and the later state counts where several fields are set:
//
//	state         field         input                  output
//	open          none          processed              sent
//	closing       closing       processed              sent; PostSend is refused
//	half-closed   sentAll       processed              end of the stream is sent
//	draining      draining      not read               queued responses only
//	write-failed  writeFailed   processed to its end   none
//	failed        failure       not read               none
//	closed        closed, done  discarded              rest of a frame, Terminate, end of the stream
//	exited        exited        none                   none: the goroutines have ended
//
// A goroutine that finds a reason for the end calls fail with the lock of its direction held, and
// teardown with no lock held. The first reason stands. In write-failed the input is still processed,
// because the peer's Terminate, if one has come, is a better reason than the failed write.
type conn struct {
	dev    *device
	qp     *qp
	sock   *socket
	polled bool // sock has joined poller
	local  netip.AddrPort
	remote netip.AddrPort
	host   hostquota.Host // of remote

	account  *hostquota.Account // of host; also counts the connection, unless this side has dialled
	traffic  atomic.Uint64      // reads and writes of the socket that moved bytes
	activity activity           // guarded by scan.mu
	exited   chan struct{}      // closed when both goroutines have ended

	id     identity.Peer   // of the peer
	param  verbs.ConnParam // in force, with the peer's private data
	active bool            // this side dialled
	crc    bool
	ird    int
	ord    int

	windows int // memory windows that are bound on the connection; guarded by keyTable.mu

	claim  progress.Claim // while it is taken, pollers read and the background reader is parked
	paused atomic.Bool    // nothing is read until a receive is posted
	resume chan struct{}  // capacity 1; wakes the background reader
	watch  progress.Watch
	seat   seat
	source progress.Source // decides for how long a reader that found input looks for more before it sleeps

	received  atomic.Bool // an FPDU of the peer has been received
	resendRTR atomic.Bool // the active side must send its opening message again
	canSend   atomic.Bool // false: the passive side must wait for the first FPDU (RFC 5044 section 7.1.2)

	// The states of the end, in the order of the table above.
	closing     atomic.Bool
	sentAll     atomic.Bool
	draining    atomic.Pointer[failure] // the later value of failure
	drainTimer  *time.Timer             // guarded by rxMu; ends draining if the peer reads no response
	writeFailed atomic.Pointer[failure] // the later value of failure, unless the input has a better one
	failure     atomic.Pointer[failure]
	closed      atomic.Bool
	done        chan struct{} // closed in state closed, for those that wait
	err         error         // result of Err; set before done is closed
	last        []byte        // bytes that writeLast sends; set before done is closed
	linger      *time.Timer   // ends state closed; set before done is closed
	goroutine   atomic.Int32  // number of background goroutines that have not ended: readLoop, and writeLoop, which starts when it is needed
	writer      atomic.Bool   // writeLoop has started

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
func newConn(q *qp, sock *socket, h handshake) *conn {
	d := q.pd.dev
	c := &conn{
		dev: d, qp: q, sock: sock, active: h.active,
		local: unmap(sock.LocalAddr()), remote: unmap(sock.RemoteAddr()),
		id: h.id, param: h.param, crc: h.agreed.CRC,
		ird: int(h.agreed.IRD), ord: int(h.agreed.ORD),
		resume: make(chan struct{}, 1), txWake: make(chan struct{}, 1), done: make(chan struct{}),
		exited: make(chan struct{}),
	}
	sock.attach(&c.traffic)
	c.host = hostOf(c.remote)
	c.account = d.book.Account(c.host)
	c.rx.init(rdmap.Options{Immediates: !d.cfg.NoImmediates, Atomics: !d.cfg.NoAtomics, Passive: !h.active})
	c.tx.init()
	c.watch.Init(c)
	c.seat.ready = c.readSeated
	c.source.Init(q.recvCQ.policy, progress.Socket)
	c.source.Relieve(q.recvCQ.watch)
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
func (c *conn) Identity() identity.Peer    { return c.id } // implements verbs.Identified
func (c *conn) Done() <-chan struct{}      { return c.done }

func (c *conn) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

// poll makes progress for a poll of a completion queue. With claim the poller is
// expected to poll again: until endClaim pollers read the connection, and the
// background goroutines wait.
//
// +checklocksignore: it does not know TryLock.
func (c *conn) poll(claim bool) {
	c.claim.Drive()
	if claim && sockio.Direct && !c.claim.Taken() { // without sockio.Direct only the background reader can receive bytes
		c.claim.Take()
		c.watched()
	}
	if c.txBlocked.Load() && c.claim.Taken() {
		c.txBlocked.Store(false)
		c.txWant.Store(true) // for afterRx
	}
	if c.rxMu.TryLock() {
		c.receiveLocked(true)
		c.rxMu.Unlock()
		c.leftOver()
	}
	c.afterRx()
}

// afterRx sends, tears down and wakes as the processed input requires. The caller does not hold rxMu.
func (c *conn) afterRx() {
	if c.txWant.Load() {
		c.kick()
	}
	c.teardownIfFailed()
	if s := c.qp.srq; s != nil && s.due.Load() {
		s.wake()
	}
}

// endClaim returns the connection from the pollers to the background goroutines.
func (c *conn) endClaim() {
	if c.claim.End() {
		c.wakeReader()
		if c.txBlocked.Load() {
			c.wakeWriter()
		}
	}
}

func (c *conn) wakeWriter() {
	c.startWriter()
	select {
	case c.txWake <- struct{}{}:
	default:
	}
}

// startWriter starts the background writer, unless it has started. wg.Go must not be called while the count of dev.wg is 0. The count is above
// 0 here, because readLoop counts, and ends only after teardown has called startWriter.
func (c *conn) startWriter() {
	if !c.writer.Load() && !c.writer.Swap(true) {
		c.dev.wg.Go(c.writeLoop)
	}
}

func (c *conn) wakeReader() {
	select {
	case c.resume <- struct{}{}:
	default:
	}
	if c.sock.Buffered() {
		c.sock.WakeRead() // because the socket does not report these bytes
	}
}

// readLoop is the background reader. It reads while no poller does. When data wakes it
// while pollers read, it parks until endClaim.
func (c *conn) readLoop() {
	defer c.leave()
	for {
		if err := c.waitInBackground(c.onReadable); err != nil {
			c.fail(lost(err))
			c.teardown()
			return
		}
		if c.closed.Load() {
			c.readUntilClosed()
			return
		}
		for (c.claim.Taken() || c.paused.Load()) && !c.closed.Load() {
			select {
			case <-c.resume:
			case <-c.done:
			}
		}
	}
}

// onReadable reads as readWhile does, on the background reader. WaitRead returns when onReadable returns true.
func (c *conn) onReadable() bool {
	if c.backgroundDone() {
		return true
	}
	c.rxMu.Lock()
	c.rxStats.wakeups++
	c.rxMu.Unlock()
	return c.readWhile(false, c.backgroundDone)
}

// backgroundDone reports whether the background reader has a reason not to read.
func (c *conn) backgroundDone() bool {
	return c.closed.Load() || c.claim.Taken() || c.paused.Load()
}

// spinInput is the number of bytes of input above which a reader does not look for more before it sleeps, because the peer needs processors
// for the next bytes of a longer transfer, and the reader would occupy one.
const spinInput = 16 << 10

// readWhile reads until done returns true or the socket is empty. If it has read something, but no more than spinInput, it looks for more for the
// time that source allows. It returns the last result of done. forCall says that the reader itself waits for a completion.
func (c *conn) readWhile(forCall bool, done func() bool) bool {
	s := c.source.Spin(forCall)
	defer s.End()
	input := uint64(0)
	for read := false; !done(); {
		c.rxMu.Lock()
		before := c.rxStats.bytes
		more := c.receiveLocked(forCall)
		n := c.rxStats.bytes - before
		c.rxMu.Unlock()
		got := n > 0
		input += n
		c.afterRx()
		switch {
		case got:
			if !read {
				read = true
				c.source.Answered()
			}
			s.Found()
		case more:
		case !read:
			return done()
		case input > spinInput, !s.Vain():
			c.source.Park()
			return done()
		}
	}
	return true
}

// readUntilClosed discards input until the peer closes the ended connection, so that the peer can read the last message. It first waits until
// the goroutine in the seat has left it, because that goroutine would otherwise wait for the peer, too, beyond the end of its context.
func (c *conn) readUntilClosed() {
	for c.seat.taken.Load() {
		<-c.resume
	}
	junk := [][]byte{make([]byte, 16<<10)}
	_ = c.waitInBackground(func() bool {
		for {
			if _, err := c.sock.TryReadv(junk); err != nil {
				return !errors.Is(err, sockio.ErrWouldBlock)
			}
		}
	})
}

// writeLoop is the background writer. It sends when the socket was full, or when one
// call had more than callerBytes to send, and no poller has the connection.
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

// onWritable writes until the socket is full or there is nothing to send. True ends the
// wait. It releases txMu after each batch of callerBytes, because posts and Stats need it.
func (c *conn) onWritable() bool {
	for more := true; more; {
		if c.closed.Load() {
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

// writeLast sends the bytes of c.last and ends the stream.
func (c *conn) writeLast() {
	last := [][]byte{c.last}
	_ = c.sock.WaitWrite(func() bool {
		for len(last[0]) > 0 {
			n, err := c.sock.TryWritev(last)
			if err != nil {
				return !errors.Is(err, sockio.ErrWouldBlock)
			}
			last[0] = last[0][min(n, len(last[0])):]
		}
		return c.sock.EndWriting() == nil
	})
}

// leave ends a background goroutine. The second of the two ends the connection.
func (c *conn) leave() {
	if c.goroutine.Add(-1) == 0 {
		c.linger.Stop()
		_ = c.sock.Close() // it may be closed already
		if c.polled {
			poller.Release()
		}
		if c.active {
			c.dev.own.Give(hostquota.Connections, 1)
		} else {
			c.account.Give(hostquota.Connections, 1)
		}
		c.dev.dropConn(c)
		close(c.exited)
	}
}

// Disconnect waits until ctx ends for the completion of all posted work, ends the
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
	case <-c.done: // the connection has ended meanwhile, which is no error of Disconnect
		return nil
	default:
	}
	c.fail(&failure{err: verbs.ErrDisconnected, abandoned: true})
	c.teardown()
	return &verbs.Error{Op: "disconnect", Err: err, Detail: "the peer " + c.remote.String() + " did not take part; the connection is ended all the same"}
}

// endSending ends this side of the stream. If the peer has ended its side before,
// the connection is over.
func (c *conn) endSending() {
	if !c.sentAll.Swap(true) {
		c.txMu.Lock()
		if !c.closed.Load() { // otherwise writeLast ends the stream behind the last message
			c.endStreamLocked()
		}
		c.releaseTx()
	}
	c.rxMu.Lock()
	switch {
	case c.rx.eof:
		c.rx.eof = false
		c.endOfStream()
	case c.rx.stalled: // the peer's end of the stream lies behind a message that will never have a receive
		c.fail(&failure{err: verbs.ErrDisconnected, status: verbs.StatusRetryExcErr, quiet: true})
	}
	c.rxMu.Unlock()
	c.teardownIfFailed()
}

// endStreamLocked ends this side of the stream, when the socket takes the end.
//
// +checklocks:c.txMu
func (c *conn) endStreamLocked() {
	if c.tx.ending = c.sock.EndWriting() != nil; c.tx.ending {
		c.blocked()
	}
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

// idle reports whether all posted requests are complete and all responses to the peer
// are sent.
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

const (
	// lingerTimeout bounds how long a closed connection waits for its peer to read the last
	// message and to close.
	lingerTimeout = 2 * time.Second

	// abandonedTimeout takes the place of lingerTimeout if Disconnect ended before the peer took part, because the program does not wait any longer.
	abandonedTimeout = 100 * time.Millisecond
)
