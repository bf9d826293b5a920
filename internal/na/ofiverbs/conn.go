package ofiverbs

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
	"cinnabar/internal/progress"
	"cinnabar/verbs"
)

// conn is a connection: a queue pair with its completion queue and its buffers.
//
// Its goroutine, run, polls the completion queue until its spin ends (package progress), then arms the queue and parks. A goroutine that
// waits for an operation polls in place of run (drive). Only the holder of polling processes completions, so messages of a peer are handed
// on in the order in which they came.
//
//	newConn -> begin -> adopted by the endpoint: run --(fail, or the end of the queue pair)--> release
type conn struct {
	ep      *Endpoint
	peer    *peer
	origin  *origin
	account *hostquota.Account // that counts the connection

	index     uint32 // by which the peer names the connection
	peerIndex uint32 // by which packets to the peer name it
	flow      bool   // packets need credits

	cq       *verbs.CQ
	parker   verbs.CQParker // the driver of cq; nil: the device does not implement it
	qp       *verbs.QP
	vc       *verbs.Conn // nil until the connection is made
	shape    *shape
	receives receives     // of the connection alone, or those of shared
	shared   *sharedQueue // nil: the connection has a receive queue of its own
	sendMR   *verbs.MR
	confirm  verbs.RemoteAddr // a byte of the peer, read behind writes that the device does not confirm
	byteMR   *verbs.MR        // the sink of that read; nil: writes are not confirmed
	native   bool             // the peer is a program of this package
	inbound  atomic.Bool      // the peer has made the connection

	stop   chan struct{} // closed by fail
	gone   chan struct{} // closed when the objects of the connection are released and it is no longer counted
	dead   atomic.Bool   // set by fail
	later  atomic.Bool   // flushSoonLocked or gather has deferred work to the next call of flushLater
	resume chan struct{} // capacity 1: the goroutine of the connection may have to poll again

	source   progress.Source
	parkOver func() bool    // hasWork, made once
	wanted   atomic.Int32   // goroutines that poll in drive
	claim    progress.Claim // taken while drivers poll, so that the goroutine of the connection does not
	parked   atomic.Bool    // a goroutine has perhaps left drive without its event, and has parked
	serves   atomic.Bool    // the peer has sent a request
	yielded  yielded
	moving   atomic.Int32 // transfers that are not over
	turns    turns
	twoEnds  bool // upLocked has counted the connection by AddPair, and lost has not undone that; guarded by the peer's mutex

	touched atomic.Uint64 // number of connections of the endpoint at the last use of this one, see touch

	polls atomic.Uint64 // polls that have found completions
	fresh atomic.Bool   // packets were posted since the last poll
	input atomic.Uint64 // bytes of the packets that have come

	heard atomic.Bool // a packet of the peer, or an answer of its device, has come since the last look of the watcher
	seen  seen        // used by the endpoint's watcher alone

	polling    sync.Mutex // lock order: before mu
	background bool       // the goroutine of the connection polls; guarded by polling
	// +checklocks:polling
	wcs [pollBatch]verbs.WC
	// handed is true if the handler took a request during this poll and returned no task for it, because it runs on another goroutine.
	// +checklocks:polling
	handed bool
	// again holds receives that settle posts again.
	// +checklocks:polling
	again []verbs.RecvWR
	// freed holds the slots of the signaled sends that have completed during this poll.
	// +checklocks:polling
	freed []int
	// over holds what a completion has ended, until it is finished.
	// +checklocks:polling
	over endings
	in   na.Message // the request that the handler gets; guarded by polling

	mu invariants.Mutex
	// open says that packets may be sent: on the passive side of some devices only after the first packet of the peer.
	// +checklocks:mu
	open bool
	// used says that a message, a read or a write was posted.
	// +checklocks:mu
	used bool
	// end is the reason why the connection ends; nil while it lives.
	// +checklocks:mu
	end *na.Error
	// credits is the number of packets that the peer has room for.
	// +checklocks:mu
	credits uint64
	// window is the number of receives that the peer has credits for or is owed.
	// +checklocks:mu
	window int
	// owed is the number of receives that are posted and not granted to the peer.
	// +checklocks:mu
	owed int
	// allowed is the number of packets that the peer may still send. It counts for a connection with a shared receive queue only.
	// +checklocks:mu
	allowed int
	// queue holds, from head on, messages that wait for a credit or a slot.
	// +checklocks:mu
	queue []item
	// +checklocks:mu
	head int
	// responses is the number of responses in queue.
	// +checklocks:mu
	responses int
	// posted is the number of messages that have left queue for the device.
	// +checklocks:mu
	posted uint64
	// +checklocks:mu
	ending ending
	// probing says that the read of probeLocked is under way.
	// +checklocks:mu
	probing bool
	// answered is closed when that read completes; nil: no goroutine waits for that.
	// +checklocks:mu
	answered chan struct{}
	// free lists the slots of sendMR that are not in use.
	// +checklocks:mu
	free []int
	// prior has for the slot of each posted packet the slot of the packet before it, or noSlot if the one before it was signaled.
	// +checklocks:mu
	prior []int
	// silent is the number of packets since the last signaled one.
	// +checklocks:mu
	silent int
	// +checklocks:mu
	moves oneSided
	// endings is the empty list that flushLocked appends to. It is kept, because a list on the stack of the caller would move to the heap.
	// +checklocks:mu
	endings endings
	// batch and sges are the work requests that flushLocked posts together. Request batch[i] has the piece of memory sges[i].
	// +checklocks:mu
	batch []verbs.SendWR
	// +checklocks:mu
	sges []verbs.SGE
	// lastSlot is the slot of the last packet, or noSlot if that was signaled, and lastSend the index of its request in batch, negative if that has been
	// posted.
	// +checklocks:mu
	lastSlot, lastSend int
	// corked says that flush posts nothing, because the responses of several tasks are posted together.
	// +checklocks:mu
	corked bool
	// deferring is the number of goroutines that poll and call flushLater between two polls.
	// +checklocks:mu
	deferring int
}

const (
	pollBatch = 64 // completions
	noSlot    = -1
	// maxCredits is more than any receive queue holds. A peer that grants more breaks the protocol.
	maxCredits = math.MaxUint16
	// closeTime bounds the orderly end of a connection of an endpoint that is closed. It is below a second, because ^C must end a command within a
	// second. The responses of an engine that shuts down were sent before (Flush of package hg).
	closeTime = 500 * time.Millisecond
	// endTime bounds the orderly end of a connection that has given way, on which responses may still wait.
	endTime = time.Second
)

// The id of a work request has its kind in the upper half, and the number of its slot in the lower half.
const (
	idReceive = iota << 32
	idSend
	idOneSided
	idProbe
	idKind = math.MaxUint32 << 32
)

// newConn makes the queues and the memory of a connection that does not exist yet. After an error nothing is left of it.
// If share is true, the connection shares a receive queue when the endpoint has more than Config.OwnQueues connections.
func newConn(p *peer, account *hostquota.Account, share bool) (*conn, error) {
	e := p.ep
	c := &conn{
		ep: e, peer: p, account: account, index: e.nextIndex(), shape: &e.shape, stop: make(chan struct{}), gone: make(chan struct{}), resume: make(chan struct{}, 1),
		origin: &origin{peer: p, done: make(chan struct{})},
	}
	c.origin.conn.Store(c)
	c.turns.watch.Init(c)
	c.source.Init(e.cfg.Progress, progress.Socket)
	c.source.Relieve(&e.watcher) // Look takes c.mu, which no waiter holds
	c.parkOver = c.hasWork
	many := e.made.Add(1) > int64(e.cfg.OwnQueues)
	if err := c.build(share && many && e.sharedShape.receives > 0); err != nil {
		return nil, errors.Join(err, c.release())
	}
	return c, nil
}

// nextIndex returns an index that no other connection has.
func (e *Endpoint) nextIndex() uint32 {
	for {
		if n := e.lastID.Add(1); n != 0 {
			return n
		}
	}
}

// build makes the queues and the memory. share says that the connection gets a place in a shared receive queue, if there is one for it.
func (c *conn) build(share bool) (err error) {
	e := c.ep
	if share {
		c.shared = e.join()
	}
	if c.shared != nil {
		c.shape, c.receives = &e.sharedShape, c.shared.receives
	}
	s := c.shape
	if c.cq, err = e.cfg.Device.CreateCQ(s.depth()); err != nil {
		return err
	}
	c.parker, _ = c.cq.Driver().(verbs.CQParker)
	if f, ok := c.cq.Driver().(progress.Follower); ok {
		f.Follow(e.cfg.Progress, &e.watcher)
	}
	cfg := verbs.QPConfig{SendCQ: c.cq, MaxSendWR: s.sends(), MaxRecvWR: s.receives, MaxSendSGE: 1, MaxRecvSGE: 1}
	if c.shared != nil {
		cfg.SRQ = c.shared.srq
	}
	if c.qp, err = e.pd.CreateQP(cfg); err != nil {
		return err
	}
	if c.sendMR, err = e.regMR(make([]byte, s.slots*s.receive), 0); err != nil || c.shared != nil {
		return err
	}
	if c.receives, err = e.newReceives(s.receives, s.receive); err != nil {
		return err
	}
	_, err = c.qp.PostRecv(c.receives.wrs)
	return err
}

// confirmBy prepares the confirmation of writes by reads of a byte of the peer, if the device does not confirm them itself and the peer has such a
// byte. ok says that it has, which only programs of this package do.
func (c *conn) confirmBy(at verbs.RemoteAddr, ok bool) (err error) {
	c.native = ok
	if !ok || c.ep.attr.Caps.Has(verbs.CapExactStatus) {
		return nil
	}
	c.confirm = at
	c.byteMR, err = c.ep.regMR(make([]byte, 1), c.ep.sinkAccess(false))
	return err
}

// id returns the connection's part of the connection messages.
func (c *conn) id() connID { return connID{index: c.index, process: c.ep.process} }

// begin prepares a connection that the device has made. The caller then hands it to [Endpoint.adopt], and calls flush to send the first
// credits. Nothing is posted before, because a failure would end the connection before it is that of its peer.
func (c *conn) begin(peerIndex uint32, flow flowControl, passive bool) {
	c.inbound.Store(passive)
	c.peerIndex, c.flow = peerIndex, flow != flowOff
	caps := c.ep.attr.Caps
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = !passive || !caps.Has(verbs.CapActiveFirst) || caps.Has(verbs.CapPassiveSend)
	c.credits, c.allowed = 1, 1
	c.ending.since = time.Now()
	c.window = c.shape.window
	c.owed = c.window - 1
	c.moves.init(c.shape.oneSided)
	most := c.shape.slots + c.shape.oneSided
	c.batch, c.sges = make([]verbs.SendWR, 0, most), make([]verbs.SGE, 0, most)
	for i := range c.shape.slots {
		c.free = append(c.free, i)
	}
	c.prior, c.lastSlot, c.lastSend = make([]int, c.shape.slots), noSlot, -1
}

// release closes the connection and all of its objects. Afterwards the device does not use their memory any more.
func (c *conn) release() error {
	var errs []error
	if c.shared != nil && c.qp != nil {
		errs = append(errs, c.returnReceives())
	}
	if c.qp != nil {
		errs = append(errs, c.qp.Close())
	}
	own := c.receives.mr
	if c.shared != nil {
		own = nil
		c.mu.Lock()
		window := max(c.window, c.shape.window) // because begin has perhaps not been called
		c.mu.Unlock()
		errs = append(errs, c.ep.leave(c.shared, window))
	}
	for _, mr := range []*verbs.MR{own, c.sendMR, c.byteMR} {
		if mr != nil {
			errs = append(errs, mr.Close())
		}
	}
	if c.cq != nil {
		errs = append(errs, c.cq.Close())
	}
	c.ep.made.Add(-1)
	return errors.Join(errs...)
}

// returnReceives posts the receives again that the connection has taken from its shared queue and that run has not processed.
func (c *conn) returnReceives() error {
	_ = c.qp.Modify(verbs.QPAttr{Mask: verbs.AttrState, State: verbs.StateErr}) // so that the device ends the receive of a packet that has begun
	var wcs [pollBatch]verbs.WC
	for {
		n, err := c.cq.Poll(wcs[:])
		if n == 0 || err != nil {
			return err
		}
		for i := range wcs[:n] {
			if wcs[i].ID&idKind != idReceive {
				continue
			}
			slot := wcs[i].ID & math.MaxUint32
			if _, err := c.shared.srq.PostRecv(c.receives.wrs[slot : slot+1]); err != nil {
				return err
			}
		}
	}
}

// push queues it, and posts it if there is room. It returns false if the connection is dead. The caller holds no lock.
func (c *conn) push(it item) bool {
	gathers := it.request && c.peer.expected.Len() > gatherFrom
	c.mu.Lock()
	list := c.endings[:0]
	queued := c.enqueueLocked(it)
	if queued && !gathers {
		list = c.flushSoonLocked(list)
	}
	c.finishUnlock(list)
	if queued && gathers {
		c.gather()
	}
	return queued
}

const (
	// gatherFrom is the number of outstanding responses above which requests are gathered. A program with that many calls under way will
	// probably send more requests soon, and the peer is busy with the earlier ones meanwhile.
	gatherFrom = 8
	// gatherMost is the number of gathered messages at which they are posted at once.
	gatherMost = 32
)

// gather leaves the last queued request to a later flush, so that several requests are posted by one call of the device. That flush comes
// when gatherMost messages are queued, when a goroutine drives, or when the goroutine runs that gather starts for the first of them.
func (c *conn) gather() {
	c.mu.Lock()
	n := len(c.queue) - c.head
	c.mu.Unlock()
	if n >= gatherMost || !c.later.Swap(true) && !c.ep.spawn(c.flushLater) {
		c.later.Store(false)
		c.flush()
	}
}

// flushSoonLocked is flushLocked, or defers the work to the next call of flushLater. It defers the work if messages are under way, or were posted
// since the last poll, and a goroutine is between beginDeferring and endDeferring, because that goroutine then posts this work and further work by one call of the device.
//
// +checklocks:c.mu
func (c *conn) flushSoonLocked(list endings) endings {
	if c.deferring > 0 && (c.fresh.Load() || !c.sentLocked()) {
		c.later.Store(true)
		return list
	}
	return c.flushLocked(list)
}

// sentLocked reports whether the device has sent all packets, as far as that is known: it says nothing about those since the last signaled one, of which
// there are none on a device with exact statuses.
//
// +checklocks:c.mu
func (c *conn) sentLocked() bool { return len(c.free)+c.silent == c.shape.slots }

// flushLater posts the work that flushSoonLocked or gather has deferred.
func (c *conn) flushLater() {
	if c.later.Load() && c.later.Swap(false) {
		c.flush()
	}
}

// beginDeferring permits flushSoonLocked to defer work until endDeferring. The caller calls flushLater after each poll.
func (c *conn) beginDeferring() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deferring++
}

// endDeferring undoes beginDeferring, and posts the work that flushSoonLocked has deferred.
func (c *conn) endDeferring() {
	c.mu.Lock()
	c.deferring--
	c.mu.Unlock()
	c.flushLater()
}

// enqueue is push without posting, which the caller does by flush when it holds no lock any more.
func (c *conn) enqueue(it item) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.enqueueLocked(it)
}

// enqueueLocked is enqueue for a caller that holds the lock.
//
// +checklocks:c.mu
func (c *conn) enqueueLocked(it item) bool {
	if c.end != nil {
		return false
	}
	c.touch()
	if it.t != nil {
		it.t.c = c
		c.moving.Add(1)
		c.moves.queue = append(c.moves.queue, it.t)
	} else {
		c.queue = append(c.queue, it)
		if !it.request {
			c.responses++
		}
	}
	if c.responses > maxResponses {
		c.failSoonLocked(&unresponsive{fmt.Sprintf("the peer has not received %d responses to its requests; the limit is %d, so the peer must post receives, or have fewer calls under way", c.responses, maxResponses)})
	}
	return true
}

// flush posts all work for which there is room.
func (c *conn) flush() {
	c.mu.Lock()
	c.finishUnlock(c.flushLocked(c.endings[:0]))
}

// cork makes flush post nothing until uncork.
func (c *conn) cork() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.corked = true
}

// uncork ends cork, and posts the work that has come meanwhile.
func (c *conn) uncork() {
	c.mu.Lock()
	c.corked = false
	c.mu.Unlock()
	c.flush()
}

// flushLocked posts all work for which there is room, and appends the operations that are over with it to list. If the device refuses a
// request, the connection ends on another goroutine, because the caller may hold the locks that its end takes.
//
// +checklocks:c.mu
func (c *conn) flushLocked(list endings) endings {
	if !c.open || c.end != nil || c.corked {
		return list
	}
	// A credit packet goes first, and may take the last credit, because the peer may be waiting for it to send one itself.
	if c.flow && c.owed >= c.window/2 && c.credits > 0 && len(c.free) > 0 {
		slot := c.takeSlotLocked()
		c.slot(slot).putCredit(c.peerIndex, c.owed)
		c.allowed += c.owed
		c.owed = 0
		c.postLocked(slot, headerLen)
	}
	if c.ending.answer && len(c.free) > 0 && (!c.flow || c.credits > 1) {
		c.ending.answer = false
		c.postAskLocked(askNot)
	}
	for c.head < len(c.queue) && len(c.free) > 0 && (!c.flow || c.credits > 1) {
		it := c.queue[c.head]
		if it.request && c.ending.asked {
			break
		}
		c.queue[c.head] = item{}
		if c.head++; 2*c.head >= len(c.queue) { // half is free: the array is kept for further messages
			c.queue, c.head = slices.Delete(c.queue, 0, c.head), 0
		}
		c.posted++
		if !it.request {
			c.responses--
		}
		slot := c.takeSlotLocked()
		p := c.slot(slot)
		n := copy(p[headerLen:], it.msg)
		if it.request {
			p.putRequest(c.peerIndex, it.tag, n)
		} else {
			p.putExpected(c.peerIndex, it.tag, n)
		}
		c.used = true
		c.postLocked(slot, headerLen+n)
		list = append(list, ended{op: it.op, n: int64(n)})
	}
	if !c.ending.asked {
		list = c.moveLocked(list)
	}
	c.postBatchLocked()
	return list
}

// addLocked adds a work request with its piece of memory to batch, which flushLocked posts.
//
// +checklocks:c.mu
func (c *conn) addLocked(wr verbs.SendWR, sge verbs.SGE) {
	c.batch, c.sges = append(c.batch, wr), append(c.sges, sge)
}

// postBatchLocked posts all requests of batch by one call, because the software device then needs only one system call for them. The last packet is
// signaled if shape.signal packets or more were posted since the last signaled one. Its completion stands for those before it, which saves the device
// and the poller a completion each.
// If the device refuses a request, the connection ends, and the operations of all requests fail.
//
// +checklocks:c.mu
func (c *conn) postBatchLocked() {
	if len(c.batch) == 0 {
		return
	}
	if c.lastSend >= 0 && c.silent >= c.shape.signal {
		c.batch[c.lastSend].Flags |= verbs.Signaled
		c.lastSlot, c.silent = noSlot, 0
	}
	if c.lastSend >= 0 {
		c.lastSend = -1
		c.fresh.Store(true)
	}
	for i := range c.batch {
		c.batch[i].SGL = c.sges[i : i+1]
	}
	if _, err := c.qp.PostSend(c.batch); err != nil {
		c.failSoonLocked(fmt.Errorf("post requests: %w", err))
	}
	clear(c.batch)
	c.batch, c.sges = c.batch[:0], c.sges[:0]
}

// +checklocks:c.mu
func (c *conn) takeSlotLocked() int {
	last := len(c.free) - 1
	slot := c.free[last]
	c.free = c.free[:last]
	return slot
}

// slot returns the memory of a slot.
func (c *conn) slot(i int) packet {
	n := c.shape.receive
	return packet(c.sendMR.Bytes()[i*n : (i+1)*n])
}

// postLocked adds a send of the packet of n bytes in a slot to batch, which flushLocked posts.
//
// +checklocks:c.mu
func (c *conn) postLocked(slot, n int) {
	if c.flow {
		c.credits--
	}
	c.prior[slot] = c.lastSlot
	c.lastSlot, c.lastSend = slot, len(c.batch)
	c.silent++
	c.addLocked(verbs.SendWR{ID: idSend | uint64(slot), Op: verbs.OpSend}, c.sendMR.SGE(slot*c.shape.receive, n))
}

// failSoonLocked ends the connection from another goroutine.
//
// +checklocks:c.mu
func (c *conn) failSoonLocked(err error) {
	if c.ep.spawn(func() { c.fail(na.Unreachable, err) }) {
		return
	}
	// The endpoint is being closed, which ends the connection.
}

// poll processes completions, and returns how many.
//
// +checklocks:c.polling
func (c *conn) poll() int {
	if c.fresh.Load() {
		c.fresh.Store(false)
	}
	n, err := c.cq.Poll(c.wcs[:])
	if err != nil {
		c.fail(na.Unreachable, err)
		return 0
	}
	if n == 0 {
		if len(c.again) > 0 {
			c.settle(true)
		}
		return 0
	}
	c.polls.Add(1)
	for i := range c.wcs[:n] {
		c.completed(&c.wcs[i])
	}
	c.settle(false)
	return n
}

// againPart is the part of a connection's own receives, 1 of againPart, up to which settle leaves them unposted.
const againPart = 8

// settle frees the slots of completed sends, posts receives again, and posts all work for which there is room. A few receives of the
// connection's own queue are left to the next poll without a completion, at which idle is true, because posting them would delay the answer to the
// packets that have come.
//
// +checklocks:c.polling
func (c *conn) settle(idle bool) {
	over := 0
	c.mu.Lock()
	list := c.endings[:0]
	for _, slot := range c.freed {
		for ; slot != noSlot; slot = c.prior[slot] {
			c.free = append(c.free, slot)
		}
	}
	c.freed = c.freed[:0]
	if n := len(c.again); n > 0 {
		c.open, c.ending.heard = true, true
		if idle || c.shared != nil || n > c.shape.receives/againPart {
			over = c.postAgainLocked()
			c.again = c.again[:0]
		}
	}
	if over == 0 {
		list = c.flushLocked(list)
	}
	c.finishUnlock(list)
	if over > 0 {
		c.violated(fmt.Errorf("%d packets more than the peer has credits for", over))
	}
}

// postAgainLocked posts the receives in again to their queue, all by one call. It returns the number of packets among them that the peer had no
// credits for, which only a peer with a place in a shared queue can send.
//
// +checklocks:c.polling
// +checklocks:c.mu
func (c *conn) postAgainLocked() (over int) {
	n := len(c.again)
	var err error
	if c.shared == nil {
		_, err = c.qp.PostRecv(c.again)
		c.owed += n
	} else {
		_, err = c.shared.srq.PostRecv(c.again)
		if c.allowed -= n; c.allowed < 0 {
			return -c.allowed
		}
		window := c.shared.resize(c.window, n)
		c.owed += n + window - c.window
		c.window = window
	}
	if err != nil && c.end == nil {
		c.failSoonLocked(fmt.Errorf("post receives: %w", err))
	}
	return 0
}

// completed processes one completion.
//
// +checklocks:c.polling
func (c *conn) completed(wc *verbs.WC) {
	err := wc.Err()
	slot := int(wc.ID & math.MaxUint32)
	// A flushed read or write is over at the end of the connection (abandon), because its completion does not name the cause of that end.
	over := c.over[:0]
	if wc.ID&idKind == idOneSided && wc.Status != verbs.StatusWRFlushErr {
		over = c.moved(over, slot, err)
	}
	// The connection ends before the operation that failed on it does, so that the caller's next operation takes another connection.
	if err != nil && wc.Status != verbs.StatusWRFlushErr { // the cause of a flush has been reported, or comes with the end of the connection
		c.fail(na.Unreachable, err)
	}
	over.finish()
	clear(over)
	c.over = over
	if err == nil && (wc.ID&idKind != idSend || c.ep.attr.Caps.Has(verbs.CapExactStatus)) && !c.heard.Load() {
		c.heard.Store(true)
	}
	if c.shared != nil && wc.ID&idKind == idReceive { // also if it has failed, because the other connections of the queue need it
		c.again = append(c.again, c.receives.wrs[slot])
	}
	switch {
	case err != nil:
	case wc.ID&idKind == idSend:
		c.freed = append(c.freed, slot)
	case wc.ID&idKind == idReceive:
		c.received(slot, wc)
	case wc.ID&idKind == idProbe:
		c.probeEnded()
	}
}

// cancel gives op up if it is one of this connection's, and reports whether that is certain.
func (c *conn) cancel(op *na.Op) bool {
	c.mu.Lock()
	for i := c.head; i < len(c.queue); i++ {
		if it := c.queue[i]; it.op == op {
			c.queue = slices.Delete(c.queue, i, i+1)
			if !it.request {
				c.responses--
			}
			c.mu.Unlock()
			op.Finish(0, &na.Error{Kind: na.Canceled, Op: it.opName, Addr: c.peer.str})
			return true
		}
	}
	list, found := c.cancelMoveLocked(op)
	c.mu.Unlock()
	list.finish()
	return found
}

// report returns the reason why the connection sends nothing, or "".
func (c *conn) report() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reportLocked()
}

// reportLocked is report for a caller that holds the lock.
//
// +checklocks:c.mu
func (c *conn) reportLocked() string {
	n := len(c.queue) - c.head
	switch {
	case n == 0:
		return ""
	case c.ending.asked:
		return fmt.Sprintf("%d messages wait until the peer has ended the idle connection, as it was asked to, or has answered", n)
	case !c.open:
		return "waiting for the first packet of the peer, which has made the connection"
	case c.flow && c.credits <= 1:
		return fmt.Sprintf("%d messages wait for credits of the peer, which has posted no further receives", n)
	}
	return fmt.Sprintf("%d messages wait for the device to send those before them", n)
}
