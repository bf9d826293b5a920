package ofitcp

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostmem"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
	"cinnabar/internal/progress"
	"cinnabar/internal/sockio"
)

// conn is a connection with a peer in full operation, both sides of the exchange of connection messages being over.
//
// There are two roles, each held by one goroutine at a time and only across non-blocking calls: the read role, see
// role.go, and the write role, see tx.go. State that both roles and the callers of the endpoint's methods share is guarded by mu,
// which is held for moments only. Order of locks: write role, peer.mu, conn.mu, peer.expected.
//
// A connection ends once, in end. Operations that the roles are not using complete there; the others when their role's
// holder sees that the connection is dead.
//
//	newConn, adopt           fail, broke, evict: the socket is closed at once
//	---------------> live ----------------------------------------------------> dead
//	                  |                                                           |
//	                  | part: the endpoint is closed                              | background, quiesce: no role
//	                  v                                                           v uses memory any more
//	              lingering ---------------------------------------------------> gone (dropConn)
//	               the peer may take bytes that TCP has; seeOff ends it
//	               when the peer closes its side, or after lingerTime
//
// dead is true from the second state on, and origin.done is closed. While a connection is live, the link of its peer is linkUp; linkState
// has the states before that.
type conn struct {
	ep   *Endpoint
	peer *peer
	sock *socket
	// inbound is true if the peer has made the connection.
	inbound bool
	pair    uint64 // pairOf(sock)
	host    uint64 // hostOf(sock)

	dead   atomic.Bool
	origin *origin        // its done is closed when dead
	used   atomic.Uint64  // the count of the endpoint's connections when bytes came last
	serves atomic.Bool    // the peer comes by itself, with requests, reads or writes
	linger *time.Timer    // bounds the seeing off; set before done is closed
	ending sync.WaitGroup // until end is through

	role       role
	onReadable func() bool // readable, made once
	spins      progress.Source
	rx         rxState // the read role's

	wmu invariants.Mutex // the write role
	// +checklocks:wmu
	tx      txState
	want    atomic.Bool  // there may be something to write
	sweep   atomic.Bool  // the batch holds something that is to be let go
	claims  atomic.Int32 // goroutines that wait for the write role; its holder gives it up for them
	blocked atomic.Bool  // the socket is full, and a goroutine waits for room
	waiting atomic.Bool  // that goroutine exists
	later   atomic.Bool  // a goroutine is about to write the gathered requests

	rxBytes atomic.Uint64
	txBytes atomic.Uint64

	mu invariants.Mutex
	// down is why the connection is dead.
	// +checklocks:mu
	down *failure
	// +checklocks:mu
	replies ring[reply]
	// +checklocks:mu
	queue ring[item]
	// stalled are transfers, queued too, that wait until the peer owes less.
	// +checklocks:mu
	stalled ring[*transfer]
	// +checklocks:mu
	reads ring[pendingRead]
	// +checklocks:mu
	acks ring[pendingAck]
	// seq numbers the messages in the order in which they are sent.
	// +checklocks:mu
	seq byte
	// corked is set while small answers are collected in cork. It is changed with mu held.
	corked atomic.Bool
	// +checklocks:mu
	cork []byte
	// canceled are operations of the batch that are to be given up.
	// +checklocks:mu
	canceled []*na.Op
	// batched is how many marks the batch has.
	// +checklocks:mu
	batched int
	// unwritten says that the batch has bytes that may not be written, also ones without a mark, such as collected answers.
	// +checklocks:mu
	unwritten bool
	// txMem is the memory that the batch reads for the peer, in its order.
	// +checklocks:mu
	txMem ring[*memory]
	// writeTo is the memory that the peer's write in progress goes to. The read role changes it, with mu held.
	writeTo [maxIOV]access
	// direct is the expected message that is read straight into its buffer.
	// +checklocks:mu
	direct directRecv

	account *hostquota.Account // where the connection is counted
	probing invariants.Mutex   // held while the socket is probed

	answers atomic.Int32 // to requests, in queue
	unsent  atomic.Int64 // their bytes, each with answerOverhead
	ration  atomic.Int64 // if positive: bytes that may be read although the peer leaves too much unread

	moving   atomic.Int32 // transfers that have not ended
	expects  atomic.Int32 // answers that the peer owes: to reads and writes,
	readsOut atomic.Int32 // of these, reads
	owes     atomic.Int32 // replies that this side owes the peer
	paused   atomic.Bool  // nothing is read, because owes or unsent is over its limit
}

// failure is why a connection is dead.
type failure struct {
	kind na.Kind
	err  error
}

// directRecv is an expected message that is read straight into its receiver's buffer.
type directRecv struct {
	op   *na.Op // nil if there is none, or it was given up
	buf  []byte
	busy bool // the reader is in a system call that fills buf
	err  error
}

// item is a message or a transfer that a caller sends.
type item struct {
	op     *na.Op
	what   string // for errors
	msg    []byte // a message with its header, or
	t      *transfer
	answer bool // to a request

	request bool // msg is a request
}

// reply is an acknowledgement, or the answer to a read, that this side owes the peer.
type reply struct {
	read  bool
	total uint64
	n     int // pieces
	from  [maxIOV]access
}

// maxReplies is the number of waiting replies to reads and writes of memory at which a connection stops reading. One read of the socket
// may bring some 400 requests beyond it, so the queue grows to 8,192 replies of 120 bytes: a peer that does not read its replies costs
// 960 KiB. They do not count towards Config.Quota, because the kernel's socket buffers, which hold more, do not count either.
const maxReplies = 4096

// maxExpects is how many answers a peer may owe a connection before transfers wait: fewer than the peer takes, if it is
// one of ours. Two that both had stopped reading would wait for each other until TCP gives up.
const maxExpects = maxReplies / 2

// newConn makes a connection that is counted in account, for as long as it lives if it is adopted.
func newConn(p *peer, sock *socket, account *hostquota.Account) *conn {
	c := &conn{ep: p.ep, peer: p, sock: sock, account: account, origin: &origin{peer: p, done: make(chan struct{})}, pair: pairOf(sock.Conn), host: hostOf(sock.Conn)}
	c.role.watch.Init(c)
	c.origin.conn.Store(c)
	c.origin.proven = p.ep.identify(p.addr.Addr(), p == p.ep.own, sock.Identity())
	c.onReadable = c.readable
	c.spins.Init(p.ep.cfg.Progress, progress.Socket)
	c.spins.Relieve(&p.ep.watch)
	c.role.resume = make(chan struct{}, 1)
	c.tx.init()
	c.role.turn.Store(turnBytes)
	c.ending.Add(1)
	return c
}

// start lets the connection run; adopt has counted the goroutine, which Close waits for.
func (c *conn) start() {
	shared.began(c)
	go c.background(0)
	c.kick() // sends the messages that have waited for the connection
}

// moved is how many bytes have moved in both directions.
func (c *conn) moved() uint64 { return c.rxBytes.Load() + c.txBytes.Load() }

// errLost is the cause of a connection that the peer closed.
var errLost = errors.New("the peer closed the connection")

// lost makes a socket's error readable.
func lost(err error) error {
	if errors.Is(err, io.EOF) {
		return errLost
	}
	if errors.Is(err, net.ErrClosed) {
		return errors.New("the connection is closed")
	}
	return err
}

// fail ends the connection. It completes the operations that no role is using; the roles complete the rest. It must be called without
// mu and peer.mu; calls after the first do nothing.
func (c *conn) fail(kind na.Kind, err error) { c.end(failure{kind, err}, endNow) }

// broke ends the connection after the failure of a system call, or of a copy, that moves its bytes. Memory that is gone is a
// fault for the system call (EFAULT) and for the copy alike.
func (c *conn) broke(err error) {
	if errors.Is(err, syscall.EFAULT) || errors.Is(err, hostmem.ErrFault) {
		err = fmt.Errorf("memory that is registered or transferred cannot be accessed, like that of a file that was truncated: %w", err)
		c.ep.cfg.Audit.Record(audit.Denied, causeFault, c.peer.account.Host(), slog.String(keyPeer, c.peer.str), errorAttr(err))
	}
	c.fail(na.Unreachable, lost(err))
}

// guarded calls one of the socket's methods, which may copy from or to memory that is gone. Where it passes the memory to the
// kernel, the kernel finds out.
func (c *conn) guarded(f func([][]byte) (int, error), bufs [][]byte) (n int, err error) {
	if c.sock.kernelCopies() {
		return f(bufs)
	}
	if fault := hostmem.Guard(func() { n, err = f(bufs) }); fault != nil {
		return 0, fault
	}
	return n, err
}

// part ends the connection because the endpoint is closed. Bytes that TCP has taken still reach the peer.
func (c *conn) part() { c.end(failure{na.Closed, nil}, endLingering) }

// endMode is the manner in which a connection ends.
type endMode uint8

const (
	endNow       endMode = iota // with all that is under way
	endLingering                // with a time for the peer to take its bytes
	endIdle                     // only if nothing is under way
)

// end ends the connection, and reports whether it has.
func (c *conn) end(f failure, how endMode) bool {
	p := c.peer
	unsent := c.findUnsent(&f)
	p.mu.Lock()
	c.mu.Lock()
	if c.down != nil || how == endIdle && !c.idleLocked() {
		c.mu.Unlock()
		p.mu.Unlock()
		unsent.release()
		return false
	}
	c.down = &f
	c.dead.Store(true)
	c.origin.conn.Store(nil)
	unsent.collectLocked()
	ended := c.collectLocked(&f)
	c.mu.Unlock()
	tags := p.lostLocked(c, how, unsent.tags())
	p.sendAgainLocked(unsent)
	p.mu.Unlock()
	unsent.release()

	if how == endLingering {
		_ = c.sock.CloseWrite() // fails only if the connection is gone already
		c.sock.WakeRead()
		c.sock.WakeWrite()
		c.linger = time.AfterFunc(lingerTime, func() { _ = c.sock.Close() })
	} else {
		if how == endIdle {
			c.sock.NotifyClose()
		}
		_ = c.sock.Close() // it is closed once, here
	}
	c.account.Give(hostquota.Connections, 1)
	close(c.origin.done)
	c.sweep.Store(true)
	c.kick()
	c.abortRx()
	c.handBack()
	for _, t := range ended {
		c.finish(t)
	}
	for _, w := range tags {
		w.Op.Finish(0, c.opError("receive", &f))
	}
	c.ep.late.lost(c)
	c.ep.trace("connection ended", p, f.err)
	c.ending.Done()
	return true
}

// lingerTime is for how long a connection is seen off: its peer usually closes at once.
const lingerTime = 500 * time.Millisecond

// collectLocked empties the queues of a connection that is dead, and returns the operations that can be completed.
//
// +checklocks:c.mu
func (c *conn) collectLocked(f *failure) []ended {
	var list []ended
	for c.replies.len() > 0 {
		r := c.replies.pop()
		r.exit()
	}
	c.owes.Store(0)
	for c.queue.len() > 0 {
		it := c.queue.pop()
		c.unqueued(&it)
		if it.t != nil {
			list = c.dropLocked(it.t, f, list)
			continue
		}
		list = append(list, ended{op: it.op, err: c.opError(it.what, f)})
	}
	for c.stalled.len() > 0 {
		list = c.dropLocked(c.stalled.pop(), f, list)
	}
	for c.reads.len() > 0 {
		list = c.dropLocked(c.reads.pop().t, f, list)
	}
	for c.acks.len() > 0 {
		list = c.dropLocked(c.acks.pop().t, f, list)
	}
	if d := &c.direct; d.op != nil {
		if d.err = c.opError("receive", f); !d.busy {
			list = append(list, ended{op: d.op, err: d.err})
			*d = directRecv{}
		}
	}
	c.cork = nil
	c.corked.Store(false)
	return list
}

// dropLocked ends a transfer of a dead connection, unless it was given up, and appends it to list if its memory is free.
//
// +checklocks:c.mu
func (c *conn) dropLocked(t *transfer, f *failure, list []ended) []ended {
	if t == nil {
		return list
	}
	t.queued = false
	if t.err == nil {
		t.err = c.opError(t.name(), f)
	}
	if t.over() {
		t.ended = true
		list = append(list, ended{t: t})
	}
	return list
}

// ended is an operation that is to be completed: a transfer, or another with its error.
type ended struct {
	t   *transfer
	op  *na.Op
	n   int64
	err error
}

// finish completes an operation. No lock may be held but the roles.
func (c *conn) finish(e ended) {
	if t := e.t; t != nil {
		op, n, err := t.op, int64(t.done), t.err
		*t = transfer{}
		transfers.Put(t)
		c.moving.Add(-1)
		op.Finish(n, err)
		return
	}
	e.op.Finish(e.n, e.err)
}

// opError is the error of an operation of a dead connection.
func (c *conn) opError(what string, f *failure) error {
	return &na.Error{Kind: f.kind, Op: what, Addr: c.peer.String(), Err: f.about(what)}
}

func (r *reply) exit() {
	for _, a := range r.from[:r.n] {
		a.m.exit()
	}
}

// usesMemory reports whether the peer is reading or writing m.
func (c *conn) usesMemory(m *memory) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.writeTo {
		if a.m == m {
			return true
		}
	}
	for i := range c.txMem.len() {
		if *c.txMem.at(i) == m {
			return true
		}
	}
	for i := range c.replies.len() {
		r := c.replies.at(i)
		for _, a := range r.from[:r.n] {
			if a.m == m {
				return true
			}
		}
	}
	return false
}

// push queues an item; the caller kicks afterwards. It returns the number of items that wait now; 0: the
// connection is dead.
func (c *conn) push(it item) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down != nil {
		return 0
	}
	if it.t != nil {
		it.t.queued = true
		c.moving.Add(1)
	}
	if it.answer {
		c.answers.Add(1)
		c.unsent.Add(it.unread())
	} else if c.paused.Load() {
		c.wake() // because this side waits for the peer from now on, see rationTime
	}
	c.queue.push(it)
	return c.queue.len()
}

// unread returns the number of bytes that an answer counts in conn.unsent.
func (it *item) unread() int64 { return int64(len(it.msg)) + answerOverhead }

// unqueued takes note that it has left the queue.
func (c *conn) unqueued(it *item) {
	if !it.answer {
		return
	}
	c.answers.Add(-1)
	n := it.unread()
	if after := c.unsent.Add(-n); drained(after+n, after) {
		c.resumeReading()
	}
}

// seeOff waits for the peer to end its side, if this endpoint has ended its own in good order, and closes the socket. The
// background goroutine does so last.
func (c *conn) seeOff() {
	c.quiesce()
	if c.linger == nil {
		return
	}
	junk := [][]byte{make([]byte, 4<<10)}
	_ = c.sock.WaitRead(func() bool {
		for {
			if _, err := c.sock.TryReadv(junk); err != nil {
				return !errors.Is(err, sockio.ErrWouldBlock)
			}
		}
	})
	c.linger.Stop()
	_ = c.sock.Close() // the timer may have done so
}

// quiesce waits until no goroutine touches memory or completes operations for a dead connection any more: callers of the
// endpoint's methods have roles, too, and Close does not know them. It keeps the read role for good.
func (c *conn) quiesce() {
	c.ending.Wait()
	for !c.role.held.CompareAndSwap(false, true) { // the reader sees next that the connection is dead
		runtime.Gosched()
	}
	c.letGo()
	c.wmu.Lock()
	c.work()
	c.wmu.Unlock()
}
