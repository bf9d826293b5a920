package ofiverbs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
	"cinnabar/internal/na/ofiaddr"
	"cinnabar/verbs"
)

// conn is a connection: a queue pair with its completion queue and its buffers.
//
// Its goroutine, run, polls the completion queue for Config.Spin after each completion, then arms it and parks. A goroutine that waits
// for an operation polls in its place (drive). Only the holder of polling processes completions, so messages of a peer are handed on in
// the order in which they came.
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
	qp       *verbs.QP
	vc       *verbs.Conn // nil until the connection is made
	recvMR   *verbs.MR
	sendMR   *verbs.MR
	confirm  verbs.RemoteAddr // a byte of the peer, read behind writes that the device does not confirm
	byteMR   *verbs.MR        // the sink of that read; nil: writes are not confirmed
	receives []verbs.RecvWR   // one for each buffer; never changed

	stop   chan struct{} // closed by fail
	dead   atomic.Bool   // set by fail
	wanted atomic.Int32  // goroutines in drive
	resume chan struct{} // capacity 1: the last goroutine has left drive

	polling sync.Mutex // lock order: before mu
	// +checklocks:polling
	wcs [pollBatch]verbs.WC
	in  na.Message // the request that the handler is given; of the holder of polling

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
	// owed is the number of receives that are posted and not granted to the peer.
	// +checklocks:mu
	owed int
	// queue holds, from head on, messages that wait for a credit or a slot.
	// +checklocks:mu
	queue []item
	// +checklocks:mu
	head int
	// free lists the slots of sendMR that are not in use.
	// +checklocks:mu
	free []int
	// +checklocks:mu
	moves oneSided
	// wr and sge are used for each post.
	// +checklocks:mu
	wr [1]verbs.SendWR
	// +checklocks:mu
	sge [1]verbs.SGE
}

const (
	pollBatch = 16 // completions
	// fewEndings is the number of operations that end at a time without an allocation.
	fewEndings = 4
	// maxCredits is more than any receive queue holds. A peer that grants more breaks the protocol.
	maxCredits = math.MaxUint16
	// endTime bounds the orderly end of a connection.
	endTime = time.Second
	// spinRounds is the number of polls between two readings of the clock, after each of which other goroutines may run.
	spinRounds = 16
	// driveTime is the longest time that a driver polls while completions for others come.
	driveTime = 20 * time.Millisecond
)

// The id of a work request has its kind in the upper half, and the number of its slot in the lower half.
const (
	idReceive = iota << 32
	idSend
	idOneSided
	idKind = math.MaxUint32 << 32
)

// newConn makes the queues and the memory of a connection that does not exist yet. After an error nothing is left of it.
func newConn(p *peer, account *hostquota.Account) (*conn, error) {
	e := p.ep
	c := &conn{
		ep: e, peer: p, account: account, index: e.nextIndex(), stop: make(chan struct{}), resume: make(chan struct{}, 1),
		origin: &origin{peer: p, done: make(chan struct{})},
	}
	c.origin.conn.Store(c)
	if err := c.build(); err != nil {
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

// build makes the queues and the memory.
func (c *conn) build() (err error) {
	e, s := c.ep, &c.ep.shape
	if c.cq, err = e.cfg.Device.CreateCQ(s.depth()); err != nil {
		return err
	}
	c.qp, err = e.pd.CreateQP(verbs.QPConfig{
		SendCQ: c.cq, MaxSendWR: s.slots + s.oneSided, MaxRecvWR: s.receives, MaxSendSGE: 1, MaxRecvSGE: 1, SignalAll: true,
	})
	if err != nil {
		return err
	}
	if c.recvMR, err = e.pd.RegMR(make([]byte, s.receives*s.receive), verbs.LocalWrite); err != nil {
		return err
	}
	if c.sendMR, err = e.pd.RegMR(make([]byte, s.slots*s.receive), 0); err != nil {
		return err
	}
	sges := make([]verbs.SGE, s.receives)
	for i := range s.receives {
		sges[i] = c.recvMR.SGE(i*s.receive, s.receive)
		c.receives = append(c.receives, verbs.RecvWR{ID: idReceive | uint64(i), SGL: sges[i : i+1]})
	}
	_, err = c.qp.PostRecv(c.receives)
	return err
}

// confirmBy prepares the confirmation of writes by reads of a byte of the peer, if the device does not confirm them itself and the peer
// has such a byte.
func (c *conn) confirmBy(at verbs.RemoteAddr, ok bool) (err error) {
	if !ok || c.ep.attr.Caps.Has(verbs.CapExactStatus) {
		return nil
	}
	c.confirm = at
	c.byteMR, err = c.ep.pd.RegMR(make([]byte, 1), c.ep.sinkAccess(false))
	return err
}

// id returns the connection's part of the connection messages.
func (c *conn) id() connID { return connID{index: c.index, process: c.ep.process} }

// begin prepares a connection that the device has made. The caller then hands it to [Endpoint.adopt], and calls flush to send the first
// credits. Nothing is posted before, because a failure would end the connection before it is that of its peer.
func (c *conn) begin(peerIndex uint32, flow flowControl, passive bool) {
	c.peerIndex, c.flow = peerIndex, flow != flowOff
	caps := c.ep.attr.Caps
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = !passive || !caps.Has(verbs.CapActiveFirst) || caps.Has(verbs.CapPassiveSend)
	c.credits = 1
	c.owed = len(c.receives) - 1
	c.moves.init(c.ep.shape.oneSided)
	for i := range c.ep.shape.slots {
		c.free = append(c.free, i)
	}
}

// release closes the connection and all of its objects. Afterwards the device does not use their memory any more.
func (c *conn) release() error {
	var errs []error
	if c.qp != nil {
		errs = append(errs, c.qp.Close())
	}
	for _, mr := range []*verbs.MR{c.recvMR, c.sendMR, c.byteMR} {
		if mr != nil {
			errs = append(errs, mr.Close())
		}
	}
	if c.cq != nil {
		errs = append(errs, c.cq.Close())
	}
	return errors.Join(errs...)
}

// push queues it, and posts it if there is room. It returns false if the connection is dead. The caller holds no lock.
func (c *conn) push(it item) bool {
	if !c.enqueue(it) {
		return false
	}
	c.flush()
	return true
}

// enqueue is push without posting, which the caller does by flush when it holds no lock any more.
func (c *conn) enqueue(it item) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end != nil {
		return false
	}
	if it.t != nil {
		it.t.c = c
		c.moves.queue = append(c.moves.queue, it.t)
	} else {
		c.queue = append(c.queue, it)
	}
	return true
}

// flush posts all work for which there is room.
func (c *conn) flush() {
	var buf [fewEndings]ended
	c.mu.Lock()
	list := c.flushLocked(buf[:0])
	c.mu.Unlock()
	list.finish()
}

// ended is an operation that is over.
type ended struct {
	op    *na.Op // nil: only local has ended
	n     int64
	err   error
	local *local // a registration of the operation's memory; nil: none is left
}

type endings []ended

// finish completes the operations. The caller holds no lock.
func (list endings) finish() {
	for _, e := range list {
		e.local.release()
		if e.op != nil {
			e.op.Finish(e.n, e.err)
		}
	}
}

// flushLocked posts all work for which there is room, and appends the operations that are over with it to list. If the device refuses a
// request, the connection ends on another goroutine, because the caller may hold the locks that its end takes.
//
// +checklocks:c.mu
func (c *conn) flushLocked(list endings) endings {
	if !c.open || c.end != nil {
		return list
	}
	// A credit packet goes first, and may take the last credit, because the peer may be waiting for it to send one itself.
	if c.flow && c.owed >= c.grantFrom() && c.credits > 0 && len(c.free) > 0 {
		slot := c.takeSlotLocked()
		c.slot(slot).putCredit(c.peerIndex, c.owed)
		c.owed = 0
		c.postLocked(slot, headerLen)
	}
	for c.head < len(c.queue) && len(c.free) > 0 && (!c.flow || c.credits > 1) {
		it := c.queue[c.head]
		c.queue[c.head] = item{}
		if c.head++; 2*c.head >= len(c.queue) { // half is free: the array is kept for further messages
			c.queue, c.head = slices.Delete(c.queue, 0, c.head), 0
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
	return c.moveLocked(list)
}

// grantFrom returns the number of receives from which on they are granted.
func (c *conn) grantFrom() int { return len(c.receives) / 2 }

// +checklocks:c.mu
func (c *conn) takeSlotLocked() int {
	last := len(c.free) - 1
	slot := c.free[last]
	c.free = c.free[:last]
	return slot
}

// slot returns the memory of a slot.
func (c *conn) slot(i int) packet {
	n := c.ep.shape.receive
	return packet(c.sendMR.Bytes()[i*n : (i+1)*n])
}

// postLocked posts the packet of n bytes in a slot.
//
// +checklocks:c.mu
func (c *conn) postLocked(slot, n int) {
	if c.flow {
		c.credits--
	}
	c.sge[0] = c.sendMR.SGE(slot*c.ep.shape.receive, n)
	c.wr[0] = verbs.SendWR{ID: idSend | uint64(slot), Op: verbs.OpSend, SGL: c.sge[:]}
	if _, err := c.qp.PostSend(c.wr[:]); err != nil {
		c.failSoonLocked(fmt.Errorf("post a packet: %w", err))
	}
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
	n, err := c.cq.Poll(c.wcs[:])
	if err != nil {
		c.fail(na.Unreachable, err)
		return 0
	}
	for i := range c.wcs[:n] {
		c.completed(&c.wcs[i])
	}
	if n > 0 {
		c.flush()
	}
	return n
}

// completed processes one completion.
func (c *conn) completed(wc *verbs.WC) {
	err := wc.Err()
	slot := int(wc.ID & math.MaxUint32)
	if wc.ID&idKind == idOneSided {
		c.moved(slot, err)
	}
	switch {
	case err != nil:
		if wc.Status != verbs.StatusWRFlushErr { // the cause has been reported, or comes with the end of the connection
			c.fail(na.Unreachable, err)
		}
	case wc.ID&idKind == idSend:
		c.mu.Lock()
		c.free = append(c.free, slot)
		c.mu.Unlock()
	case wc.ID&idKind == idReceive:
		c.received(slot, wc)
	}
}

// received processes a packet in the buffer of a receive and posts the receive again.
func (c *conn) received(i int, wc *verbs.WC) {
	size := c.ep.shape.receive
	if wc.Op != verbs.WCRecv || wc.HasImm || int64(wc.Len) > int64(size) {
		c.violated(fmt.Errorf("a receive of %d bytes completes as %v with %d bytes", size, wc.Op, wc.Len))
		return
	}
	b := c.recvMR.Bytes()[i*size:][:wc.Len:wc.Len]
	m, err := parsePacket(b)
	if err == nil && m.conn != uint64(c.index) {
		err = fmt.Errorf("a packet for connection %d on connection %d", m.conn, c.index)
	}
	if err == nil && m.kind == kindCredit {
		err = c.granted(m.credits)
	}
	if err != nil {
		c.violated(err)
		return
	}
	switch m.kind {
	case kindRequest:
		c.request(m.tag, m.payload)
	case kindExpected:
		c.expected(m.tag, m.payload)
	case kindCredit:
	}
	if c.dead.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = true
	c.owed++
	if _, err := c.qp.PostRecv(c.receives[i : i+1]); err != nil {
		c.failSoonLocked(fmt.Errorf("post a receive: %w", err))
	}
}

// granted adds credits of the peer.
func (c *conn) granted(n uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.flow {
		return errors.New("credits from a peer that has said that it gives none")
	}
	if n > maxCredits || c.credits+n > maxCredits {
		return fmt.Errorf("%d credits beside %d; no device has room for so many packets", n, c.credits)
	}
	c.credits += n
	return nil
}

// violated ends the connection of a peer that breaks the protocol.
func (c *conn) violated(err error) {
	c.ep.broken(c.peer, causePacket, err)
	c.fail(na.Protocol, err)
}

// request hands a request on. The address at its start is that of the sender. It is checked and not used: responses go over the
// connection, because otherwise every peer could make this process dial third parties.
func (c *conn) request(tag uint32, b []byte) {
	e := c.ep
	if e.cfg.Handler == nil || e.refusing.Load() {
		return
	}
	n := len(e.prefix)
	if len(b) < n {
		e.broken(c.peer, causeSender, fmt.Errorf("a request of %d bytes was dropped; it must begin with an address of %d bytes", len(b), n))
		return
	}
	if _, err := ofiaddr.Parse(b[:n]); err != nil {
		e.broken(c.peer, causeSender, fmt.Errorf("a request was dropped: the sender's address in it: %w", err))
		return
	}
	c.in = na.Message{From: c.origin, Tag: tag, Data: b[n:]}
	if t := e.cfg.Handler.Request(&c.in); t != nil {
		e.runners.Run(t)
	}
	c.in.Data = nil
}

// expected hands an expected message to its waiter. One without a waiter is dropped: it is late.
func (c *conn) expected(tag uint32, b []byte) {
	w, ok := c.peer.expected.Take(tag)
	if !ok {
		return
	}
	n := copy(w.Buf, b)
	if n < len(b) {
		w.Op.Finish(int64(n), &na.Error{Kind: na.Truncated, Op: "receive", Addr: c.peer.str, Err: fmt.Errorf("a message of %d bytes in a buffer of %d", len(b), n)})
		return
	}
	w.Op.Finish(int64(n), nil)
}

// fail ends the connection, unless it is ending. It completes the operations that wait for it, except reads and writes that the device
// is working on: run completes these when the device does not use their memory any more.
func (c *conn) fail(kind na.Kind, err error) {
	c.mu.Lock()
	if c.end != nil {
		c.mu.Unlock()
		return
	}
	c.end = &na.Error{Kind: kind, Op: "connection", Addr: c.peer.str, Err: err}
	c.dead.Store(true)
	queue := c.queue[c.head:]
	c.queue, c.head = nil, 0
	list := c.moves.failQueued(kind, err)
	c.mu.Unlock()
	c.origin.conn.Store(nil)
	close(c.origin.done)
	close(c.stop)
	list.finish()
	requests := slices.DeleteFunc(slices.Clone(queue), func(it item) bool { return !it.request })
	responses := slices.DeleteFunc(queue, func(it item) bool { return it.request })
	failItems(c.peer, responses, kind, err)
	c.peer.lost(c, requests, kind, err)
	c.ep.trace("connection ended", c.peer, err)
}

// errEnded is the cause of an end without one of the device's own.
var errEnded = errors.New("the peer has ended the connection, or its process has ended")

// run is the goroutine of the connection. At the end it releases the objects of the connection.
func (c *conn) run() {
	defer c.ep.drop(c)
	c.progress()
	c.polling.Lock()
	defer c.polling.Unlock()
	c.mu.Lock()
	end := c.end
	c.mu.Unlock()
	if end.Kind == na.Closed { // work that was posted before, responses for example, is sent
		ctx, cancel := context.WithTimeout(context.Background(), endTime)
		_ = c.vc.Disconnect(ctx) // the queue pair is closed in any case
		cancel()
	}
	err := c.release()
	c.mu.Lock()
	list := c.moves.abandon(end)
	c.mu.Unlock()
	list.finish()
	c.account.Give(hostquota.Connections, 1)
	if err != nil {
		c.ep.cfg.Logger.Warn("objects of a connection are not released", keyPeer, c.peer.str, keyError, err)
	}
}

// progress polls and parks until the connection ends.
func (c *conn) progress() {
	for !c.dead.Load() {
		if c.wanted.Load() > 0 { // drivers poll
			select {
			case <-c.resume:
			case <-c.stop:
			}
			continue
		}
		if !c.pollFor() {
			continue
		}
		select {
		case <-c.cq.Event():
		case <-c.stop:
		case <-c.vc.Done():
			c.drain()
			err := c.vc.Err()
			if err == nil || errors.Is(err, verbs.ErrDisconnected) {
				err = errEnded
			}
			c.fail(na.Unreachable, err)
		}
	}
}

// drain processes the completions from before the end of the connection.
func (c *conn) drain() {
	c.polling.Lock()
	defer c.polling.Unlock()
	for !c.dead.Load() && c.poll() > 0 {
		continue
	}
}

// pollFor polls until nothing has come for the spin time, and then arms the completion queue. It returns false if the caller must not
// park: because of a completion behind that, a driver, or the end.
func (c *conn) pollFor() bool {
	c.polling.Lock()
	defer c.polling.Unlock()
	e := c.ep
	if e.spinning.Add(1) <= e.maxSpin {
		for until := time.Now().Add(e.cfg.Spin); ; {
			found := false
			for range spinRounds {
				found = c.poll() > 0 || found
				if c.dead.Load() || c.wanted.Load() > 0 {
					e.spinning.Add(-1)
					return false
				}
			}
			now := time.Now()
			if found {
				until = now.Add(e.cfg.Spin)
			} else if now.After(until) {
				break
			}
			runtime.Gosched()
		}
	}
	e.spinning.Add(-1)
	if err := c.cq.Arm(false); err != nil {
		c.fail(na.Unreachable, err)
		return false
	}
	return c.poll() == 0 && !c.dead.Load()
}

// drive polls for a goroutine that waits for ev, until ev is set, or nothing has come for the spin time, or for driveTime.
func (c *conn) drive(ev *na.Event) {
	if ev.IsSet() || c.ep.cfg.Spin < 0 {
		return
	}
	c.wanted.Add(1)
	c.driveUntil(ev)
	if c.wanted.Add(-1) == 0 {
		select {
		case c.resume <- struct{}{}:
		default:
		}
	}
}

func (c *conn) driveUntil(ev *na.Event) {
	begin := time.Now()
	until, last := begin.Add(c.ep.cfg.Spin), begin.Add(driveTime)
	for {
		for range spinRounds {
			if ev.IsSet() || c.dead.Load() {
				return
			}
			if c.tryPoll() > 0 {
				until = time.Now().Add(c.ep.cfg.Spin)
			}
		}
		if now := time.Now(); now.After(until) || now.After(last) {
			return
		}
		runtime.Gosched()
	}
}

// tryPoll is poll unless another goroutine polls or the connection is dead.
//
// +checklocksignore: the analyser does not know TryLock
func (c *conn) tryPoll() int {
	if !c.polling.TryLock() {
		return 0
	}
	defer c.polling.Unlock()
	if c.dead.Load() {
		return 0
	}
	return c.poll()
}

// cancel gives op up if it is one of this connection's, and reports whether that is certain.
func (c *conn) cancel(op *na.Op) bool {
	c.mu.Lock()
	for i := c.head; i < len(c.queue); i++ {
		if it := c.queue[i]; it.op == op {
			c.queue = slices.Delete(c.queue, i, i+1)
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
	n := len(c.queue) - c.head
	switch {
	case n == 0:
		return ""
	case !c.open:
		return "waiting for the first packet of the peer, which has made the connection"
	case c.flow && c.credits <= 1:
		return fmt.Sprintf("%d messages wait for credits of the peer, which has posted no further receives", n)
	}
	return fmt.Sprintf("%d messages wait for the device to send those before them", n)
}
