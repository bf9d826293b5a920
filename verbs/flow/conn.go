package flow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar/identity"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/waitlist"
	"cinnabar/regmem/ring"
	"cinnabar/verbs"
)

// Errors that callers branch on.
var (
	ErrTooLong = errors.New("record too long")                   // for the peer's ring; the error says how long it may be
	ErrClosed  = errors.New("connection closed")                 // by Close, or for writing by CloseWrite
	ErrPeer    = errors.New("the peer breaks the protocol")      // which ends the connection
	ErrSilent  = errors.New("the peer's device has been silent") // which ends the connection, see Config.KeepAlive
	// ErrGivenUp is the error of operations on a connection that has ended because another operation's context ended first, see
	// [Conn.Do].
	ErrGivenUp = errors.New("another operation on this connection was given up before its end, which ends the connection")
)

// Conn is one end of a connection.
type Conn struct {
	cfg   Config
	ownPD bool
	pd    *verbs.PD
	cq    *verbs.CQ
	qp    *verbs.QP
	conn  *verbs.Conn

	remote  verbs.RemoteAddr // the peer's ring
	slotLen int              // bytes of sendMR for one message
	ringMR  *verbs.MR        // where the peer writes long records
	recvMR  *verbs.MR        // buffers of receives
	sinkMR  *verbs.MR        // memory of Discard; nil if the memory of Discard is in recvMR
	discard verbs.SGE        // see Discard
	sendMR  *verbs.MR        // headers and short records to be sent
	written verbs.SendFlags  // of the writes of long records

	staging   atomic.Pointer[ring.Ring[*verbs.MR]] // for Send; nil until the first long record
	stagingMu sync.Mutex                           // held by stage, unstage and release
	// +checklocks:stagingMu
	stageMR *verbs.MR // of staging
	// calls unstage; nil before the first call of stage and after release
	// +checklocks:stagingMu
	stagingTimer *time.Timer
	// number of blocks that staging had allocated at the last call of unstage
	// +checklocks:stagingMu
	stagingBlocks uint64

	account *hostquota.Account // counts the memory of a connection of a Listener until release; nil: not counted

	ctx      context.Context    // ends with the connection
	stop     context.CancelFunc // ends ctx
	done     chan struct{}      // closed when the goroutine of run has ended
	watching sync.WaitGroup     // the goroutine of Config.KeepAlive
	closing  sync.Once
	closed   error // result of Close; written in closing

	// methods sendWaiting, readWaiting and drive, made once
	sendNext  waitlist.Take[*outgoing, uint64]
	readNext  waitlist.Take[struct{}, Record]
	driveNext func(context.Context, waitlist.Entry)

	closeLimit time.Duration // how long Close may take; minDisconnect of it is for the device's last messages, however long Close has lingered

	mu sync.Mutex
	// +checklocks:mu
	err error // why the connection is over
	// +checklocks:mu
	open bool // the device may send: always on the active side, after its first message on the passive side
	// +checklocks:mu
	first *time.Timer // on the passive side, ends the connection if it is not open by then
	// +checklocks:mu
	tx txState
	// +checklocks:mu
	rx       rxState
	oneSided *oneSidedOps // nil before the first call of Do
	driver   driver       // guarded by mu, except the elements of driver.wcs
	// +checklocks:mu
	quiet quietState
	// +checklocks:mu
	stats Stats
}

// Stats are the counters of a connection.
type Stats struct {
	Sent, Received           uint64 // records
	SentBytes, ReceivedBytes uint64
	Copied                   uint64 // bytes of payload that were copied on this side: Send does, SendFrom and Recv do not
	Asked                    uint64 // times that a sender had to ask for room
	Control                  uint64 // messages without a record that were sent
	Waited                   uint64 // records that had to wait for room
}

// newConn makes the queues and the memory of one end.
func newConn(dev *verbs.Device, cfg Config) (*Conn, error) {
	cfg, err := cfg.filled()
	if err != nil {
		return nil, err
	}
	c := &Conn{cfg: cfg, pd: cfg.PD, done: make(chan struct{}), closeLimit: maxClose}
	c.sendNext, c.readNext, c.driveNext = c.sendWaiting, c.readWaiting, c.drive
	c.driver.init()
	if err := c.build(dev); err != nil {
		return nil, errors.Join(err, c.release())
	}
	return c, nil
}

// build makes queues and memory. After an error the caller calls release.
func (c *Conn) build(dev *verbs.Device) (err error) {
	attr, err := dev.Query()
	if err != nil {
		return err
	}
	// The completion of the message behind a write means that the write is complete, and its memory free. But where completions
	// do not wait for the peer, Linux's siw lends the memory of work without a completion of its own to TCP for longer.
	if !attr.Caps.Has(verbs.CapExactStatus) {
		c.written = verbs.Signaled
	}
	if c.pd == nil {
		c.ownPD = true
		if c.pd, err = dev.AllocPD(); err != nil {
			return err
		}
	}
	receives := c.cfg.Records + controls
	sends := 2*c.cfg.Records + controls + atOnce*mostOneSided
	if c.cq, err = dev.CreateCQ(receives + sends); err != nil {
		return err
	}
	c.qp, err = c.pd.CreateQP(verbs.QPConfig{SendCQ: c.cq, MaxSendWR: sends, MaxRecvWR: receives, MaxRecvSGE: 1, MaxSendSGE: 1 + mostPieces})
	if err != nil {
		return err
	}
	if err := c.register(attr.ReadSink); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range receives {
		if err := c.postReceiveLocked(i); err != nil {
			return err
		}
	}
	return nil
}

// register makes the memory. It is of the Go heap, because a program may read a record after Close. sink are the rights of the sink of a read.
func (c *Conn) register(sink verbs.Access) (err error) {
	for _, m := range []struct {
		mr     **verbs.MR
		size   int
		access verbs.Access
	}{
		{&c.ringMR, c.cfg.Bytes, verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead}, // the peer wrote it, so the peer may read it: see ask
		{&c.recvMR, wholePages((c.cfg.Records+controls)*c.receiveLen() + discardLen), verbs.LocalWrite},
	} {
		if *m.mr, err = c.pd.RegMR(make([]byte, m.size), m.access); err != nil {
			return err
		}
	}
	if sink&^verbs.LocalWrite == 0 {
		c.discard = c.recvMR.SGE((c.cfg.Records+controls)*c.receiveLen(), discardLen)
		return nil
	}
	if c.sinkMR, err = c.pd.RegMR(make([]byte, discardLen), verbs.LocalWrite|sink); err != nil { // not in recvMR, because peers have no right to the messages there
		return err
	}
	c.discard = c.sinkMR.SGE(0, discardLen)
	return nil
}

// wholePages returns the size of memory for n bytes: whole pages if it is longer than one, because [verbs.QP.GivePages] gives no part of a page
// back.
func wholePages(n int) int {
	if page := os.Getpagesize(); n > page {
		return (n + page - 1) / page * page
	}
	return n
}

// discardLen is the size of the memory of Discard, which lies behind the buffers of receives, or in sinkMR.
const discardLen = 1

// Discard returns a byte of registered memory for the result of a read that the caller does not need.
func (c *Conn) Discard() verbs.SGE { return c.discard }

// receiveLen is the size of a receive's buffer.
func (c *Conn) receiveLen() int { return headerLen + c.cfg.Inline }

// hello returns the private data for the peer: the limits and the ring of this end.
func (c *Conn) hello() []byte {
	h := hello{records: uint16(c.cfg.Records), inline: uint32(c.cfg.Inline), bytes: uint32(c.cfg.Bytes), ring: c.ringMR.Remote()}
	return h.append(nil)
}

// begin starts the goroutines of a connected queue pair.
func (c *Conn) begin(conn *verbs.Conn, peer hello, active bool) error {
	c.conn = conn
	if err := c.prepare(peer); err != nil {
		return err
	}
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.mu.Lock()
	if active {
		c.open = true
		c.controlLocked(kindControl, 0) // so that the passive side may send
	} else {
		c.first = time.AfterFunc(firstLimit, c.unopened)
	}
	c.mu.Unlock()
	if c.cfg.KeepAlive > 0 {
		c.watching.Go(func() { c.watch(c.ctx) })
	}
	go c.run()
	return nil
}

// unopened ends the connection if the peer, which has dialed, has sent nothing, because such a connection holds memory for no use.
func (c *Conn) unopened() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.open {
		c.failLocked(fmt.Errorf("%w: nothing has come for %v after the connection was made", ErrSilent, firstLimit))
	}
}

// prepare makes the buffers and windows, because their sizes depend on the peer's limits.
func (c *Conn) prepare(peer hello) (err error) {
	records, inline := min(int(peer.records), c.cfg.Records), min(int(peer.inline), c.cfg.Inline)
	c.remote = peer.ring
	c.slotLen = headerLen + inline
	if c.sendMR, err = c.pd.RegMR(make([]byte, wholePages(controls*headerLen+records*c.slotLen)), 0); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tx = newTx(newSendWindow(records, int(peer.bytes), inline), records)
	c.rx.window = newRecvWindow(records, c.cfg.Bytes)
	return nil
}

// stage returns the ring to which Send copies long records. It makes the ring if there is none, which is so before the first long record,
// because many connections never send one, and after unstage.
func (c *Conn) stage(op string) (*ring.Ring[*verbs.MR], error) {
	if r := c.staging.Load(); r != nil {
		return r, nil
	}
	c.stagingMu.Lock()
	defer c.stagingMu.Unlock()
	if r := c.staging.Load(); r != nil {
		return r, nil
	}
	if err := c.writable(op); err != nil {
		return nil, err
	}
	mr, err := c.pd.RegMR(make([]byte, c.cfg.Bytes+leastBytes), 0)
	if err != nil {
		return nil, fmt.Errorf("flow: %s: memory for long records: %w", op, err)
	}
	r, err := ring.New(mr)
	if err != nil {
		return nil, errors.Join(err, mr.Close())
	}
	c.stageMR = mr // release closes it
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.writableLocked(op); err != nil {
		return nil, err
	}
	c.staging.Store(r)
	c.stagingBlocks = math.MaxUint64 // so that the first call of unstage keeps the ring
	c.stagingTimer = time.AfterFunc(stagingQuiet, c.unstage)
	return r, nil
}

// unstage frees the memory of staging, if the program has sent no long record for stagingQuiet and the device has sent all earlier ones.
// Otherwise it runs again after stagingQuiet.
func (c *Conn) unstage() {
	c.stagingMu.Lock()
	defer c.stagingMu.Unlock()
	r := c.staging.Load()
	if r == nil || c.stagingTimer == nil { // release has come first
		return
	}
	if n := r.Stats().Allocs; n != c.stagingBlocks || r.Close() != nil { // Close fails while blocks are in use
		c.stagingBlocks = n
		c.stagingTimer.Reset(stagingQuiet)
		return
	}
	c.staging.Store(nil)
	if err := c.stageMR.Close(); err != nil {
		c.fail(fmt.Errorf("memory for long records: %w", err))
		return // release tries again
	}
	c.stageMR = nil
}

// stageAgain is stage for a sender that got a ring which is closed now. If unstage closes it, stageAgain waits for the end of unstage and makes
// another ring. Otherwise the connection is over, and stageAgain returns the error.
func (c *Conn) stageAgain(op string) (*ring.Ring[*verbs.MR], error) {
	c.stagingMu.Lock()
	err := c.writable(op)
	c.stagingMu.Unlock()
	if err != nil {
		return nil, err
	}
	return c.stage(op)
}

// memory returns the number of bytes that a connection of cfg holds for its peer. The peer can make the device write to all of
// them. The ring for records to be sent does not count.
func (cfg Config) memory() int64 {
	n := int64(cfg.Records + controls)
	return int64(cfg.Bytes) + 2*n*int64(headerLen+cfg.Inline)
}

// Dial connects to a listener of package flow.
func Dial(ctx context.Context, dev *verbs.Device, addr netip.AddrPort, cfg Config) (*Conn, error) {
	c, err := newConn(dev, cfg)
	if err != nil {
		return nil, err
	}
	p := cfg.Param
	p.PrivateData = c.hello()
	conn, err := verbs.Dial(ctx, c.qp, addr, p)
	if err != nil {
		return nil, errors.Join(err, c.release())
	}
	peer, err := parseHello(conn.PrivateData())
	if err != nil {
		err = fmt.Errorf("flow: connect to %v: %w: %w", addr, ErrPeer, err)
	} else {
		err = c.begin(conn, peer, true)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Disconnect(ctx), c.release())
	}
	return c, nil
}

// PD returns the protection domain that regions for SendFrom must be of. Unless it was given in the Config, close these
// regions before the connection.
func (c *Conn) PD() *verbs.PD { return c.pd }

// QP returns the queue pair.
func (c *Conn) QP() *verbs.QP { return c.qp }

// LocalAddr returns the address of this end.
func (c *Conn) LocalAddr() netip.AddrPort { return c.conn.LocalAddr() }

// RemoteAddr returns the address of the peer.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.conn.RemoteAddr() }

// Identity returns the facts that are proven about the peer, as [verbs.Conn.Identity] does.
func (c *Conn) Identity() identity.Peer { return c.conn.Identity() }

// MaxRecord returns the length of the longest record that the peer receives, in bytes.
func (c *Conn) MaxRecord() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tx.window.longest()
}

// Stats returns the counters.
func (c *Conn) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

// Done is closed when the connection is over. Err then returns the reason.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err returns the reason for the end of the connection: nil while it is not over, io.EOF if the peer has ended it in order.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Abort ends the connection at once. All waiting and later calls return reason. The program must still call Close.
func (c *Conn) Abort(reason error) { c.fail(reason) }

// Close waits until the device has sent all records, for Config.Linger at most, ends the connection and releases its
// resources. It takes 5 s at most, unless Config.Linger is longer. The error then says that the peer took no part. The memory
// of records that were not released stays readable. Further calls return the result of the first.
func (c *Conn) Close() error {
	c.closing.Do(func() { c.closed = c.close() })
	return c.closed
}

func (c *Conn) close() error {
	begin := time.Now()
	_ = c.CloseWrite() // fails if the connection is over, which Close does not mind
	c.linger()
	c.fail(ErrClosed)
	ctx, cancel := context.WithTimeout(context.Background(), max(c.closeLimit-time.Since(begin), min(c.closeLimit, minDisconnect)))
	defer cancel()
	err := c.conn.Disconnect(ctx)
	c.stop()
	<-c.done
	c.watching.Wait()
	if errors.Is(err, verbs.ErrDisconnected) || errors.Is(err, verbs.ErrClosed) {
		err = nil
	}
	return errors.Join(err, c.release())
}

// release closes all objects of the connection and gives its memory back to the account.
func (c *Conn) release() (err error) {
	c.stagingMu.Lock()
	defer c.stagingMu.Unlock()
	if c.stagingTimer != nil {
		c.stagingTimer.Stop()
		c.stagingTimer = nil
	}
	if r := c.staging.Load(); r != nil {
		_ = r.Close() // its error is that unsent records are left in it
	}
	if c.qp != nil {
		err = c.qp.Close()
	}
	for _, mr := range []*verbs.MR{c.ringMR, c.recvMR, c.sinkMR, c.sendMR, c.stageMR} {
		if mr != nil {
			err = errors.Join(err, mr.Close())
		}
	}
	if c.cq != nil {
		err = errors.Join(err, c.cq.Close())
	}
	if c.ownPD && c.pd != nil {
		err = errors.Join(err, c.pd.Close())
	}
	if c.account != nil {
		c.account.Give(hostquota.Memory, c.cfg.memory())
	}
	return err
}

// fail ends the connection with a reason, unless it is over already. It wakes all waiting calls and ends the goroutine.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failLocked(err)
}

// +checklocks:c.mu
func (c *Conn) failLocked(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	for _, t := range []*time.Timer{c.first, c.quiet.timer} {
		if t != nil {
			t.Stop()
		}
	}
	c.stop()
	c.driver.endLocked()
	if r := c.staging.Load(); r != nil {
		r.End() // because pieces that the device had not sent are never freed
	}
	c.tx.waiters.End()
	c.rx.readers.Serve(c.readNext)
	c.rx.readers.End()
	c.tx.end(err)
	for slot := range uint64(mostOneSided) {
		c.endOneSidedLocked(slot, err)
	}
	c.driver.returnLocked()
}

// overLocked is the error of an operation on a connection that is over.
//
// +checklocks:c.mu
func (c *Conn) overLocked(op string) error {
	if c.err == io.EOF { //nolint:errorlint // set as it is
		return fmt.Errorf("flow: %s: %w: the peer has ended the connection", op, ErrClosed)
	}
	return fmt.Errorf("flow: %s: %w", op, c.err)
}
