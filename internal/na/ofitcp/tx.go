package ofitcp

import (
	"errors"
	"runtime"

	"cinnabar/internal/hostmem"
	"cinnabar/internal/na"
	"cinnabar/internal/sockio"
)

// Sizes of a batch, which one call of TryWritev gets.
const (
	batchVectors = 60        // sockio takes 64 in one system call
	batchBytes   = 1 << 20   // about; a chunk or a message may exceed it
	scratchBytes = 4 << 10   // headers
	corkBytes    = 16 << 10  // small answers that leave together
	corkMessage  = corkBytes // the largest answer that is copied for it

	// A batch of leadFrom bytes or more is written by two calls, the first of which writes the lead (see leadOf). The kernel passes data on when
	// a packet of 64 KiB is full or the call ends, so the receiver copies the lead while the sender copies the rest. One call writes the rest,
	// because each further call would end a packet early.
	leadFrom  = 48 << 10
	leadWhole = 128 << 10 // the size of a batch from which on the lead is only leadLeast
	leadLeast = 24 << 10
)

// txState is the sending half of a connection: a batch of messages in the order of the stream.
type txState struct {
	iov     [][]byte
	at      int    // first vector that is not written
	scratch []byte // fixed capacity: vectors point into it
	spare   []byte // takes turns with conn.cork
	marks   []mark
	done    int      // number of marks, from the first one on, with ends that the written part of the stream has reached
	drained bool     // settle has found nothing to send after the batch was written
	begin   uint64   // position at which the batch begins
	queued  uint64   // position at which it ends
	written uint64   // position up to which the stream is written
	lead    [][]byte // memory for the result of next
	ended   []ended
}

// mark lists the operation and the accesses to memory that are over once the stream has been written up to a position.
type mark struct {
	end    uint64 // position
	first  int    // vectors of it
	last   int
	op     *na.Op // a message was sent,
	msg    []byte // the message, if it is a request; otherwise nil
	n      int    // of this many bytes
	t      *transfer
	access int // pieces of memory read for the peer
}

func (t *txState) init() {
	t.iov = make([][]byte, 0, batchVectors+4)
	t.lead = make([][]byte, 0, 4)
	t.marks = make([]mark, 0, 8)
}

// kick writes as much as the socket takes, or leaves it to the goroutine that is writing. It never blocks.
//
// +checklocksignore: it does not know TryLock.
func (c *conn) kick() {
	c.want.Store(true)
	for (c.sweep.Load() || c.want.Load() && !c.blocked.Load()) && c.claims.Load() == 0 && c.wmu.TryLock() {
		c.work()
		c.wmu.Unlock()
	}
}

// gatherFrom is the number of outstanding answers from which on requests are gathered. A program with that many calls under way is
// about to send more, and the first of them keep the peer busy.
const gatherFrom = 8

// gatherMax is how many messages wait for others at most.
const gatherMax = 64

// gather queues a request. It leaves together with others: when gatherMax messages are queued, when a goroutine begins to drive while at most gatherFrom
// answers are outstanding, when a driver has read gatherRounds times in vain, or when the goroutine that is started for the first of the requests gets its
// turn. False: the connection is dead.
func (c *conn) gather(it item) bool {
	n := c.push(it)
	if n == 0 {
		return false
	}
	if n >= gatherMax || !c.later.Swap(true) && !c.ep.spawn(c.sendLater) {
		c.sendGathered()
	}
	return true
}

// sendLater writes the gathered requests after the goroutines that can run now have had a turn. Most of these goroutines are callers that have got their answers,
// and queue further requests.
func (c *conn) sendLater() {
	runtime.Gosched()
	c.sendGathered()
}

// sendGathered writes the gathered requests.
func (c *conn) sendGathered() {
	c.later.Store(false)
	c.kick()
}

// work sweeps the batch and writes, as far as either is due.
//
// +checklocks:c.wmu
func (c *conn) work() {
	if c.sweep.Swap(false) {
		c.sweepBatch()
	}
	if !c.blocked.Load() && c.want.Swap(false) {
		c.transmit()
	}
}

// transmit writes until there is nothing to write, the socket is full, or another goroutine claims the write role.
//
// +checklocks:c.wmu
func (c *conn) transmit() {
	c.tx.drained = false
	for !c.dead.Load() && !c.sweep.Load() && c.claims.Load() == 0 {
		if c.tx.at == len(c.tx.iov) && (c.tx.drained || !c.fill()) {
			return // a goroutine that queues an item later sets c.want
		}
		n, err := c.guarded(c.sock.TryWritev, c.tx.next())
		clear(c.tx.lead)
		switch {
		case err == nil:
			c.txBytes.Add(uint64(n))
			c.wrote(n)
		case errors.Is(err, sockio.ErrWouldBlock):
			c.want.Store(true)
			c.block()
			return
		default:
			c.broke(err)
			return
		}
	}
	if !c.dead.Load() {
		c.want.Store(true) // for the time when the batch is swept, or the claim is over
	}
}

// leadOf returns the number of bytes of the lead of a batch of n bytes, or n if the batch has no lead. The receiver copies about twice as fast
// as the sender, and has to copy the rest after the sender has. The lead of a batch in one or two packets is therefore two thirds of it: the
// receiver has copied the lead when the rest comes. A larger batch fills several packets, which overlap without a lead.
func leadOf(n uint64) int {
	switch {
	case n < leadFrom:
		return int(n)
	case n < leadWhole:
		return int(n * 2 / 3)
	}
	return leadLeast
}

// next returns the vectors for the next call of TryWritev: all bytes that are not written, or only the lead if the call is the first for a
// batch that has one.
func (t *txState) next() [][]byte {
	rest := t.iov[t.at:]
	if t.written != t.begin || t.queued-t.begin < leadFrom {
		return rest
	}
	t.lead = t.lead[:0]
	for left := leadOf(t.queued - t.begin); left > 0; rest = rest[1:] {
		b := rest[0][:min(left, len(rest[0]))]
		t.lead = append(t.lead, b)
		left -= len(b)
	}
	return t.lead
}

// block leaves the writing to a goroutine that waits for room in the socket. The next connection has another one, if it
// needs one: an idle connection has none.
func (c *conn) block() {
	c.blocked.Store(true)
	if !c.waiting.Swap(true) && !c.ep.spawn(c.awaitRoom) {
		c.waiting.Store(false) // the endpoint is closed
	}
}

// awaitRoom writes when there is room, until the queue is empty.
func (c *conn) awaitRoom() {
	for {
		err := c.sock.WaitWrite(c.writable)
		c.waiting.Store(false)
		if err != nil && !c.dead.Load() {
			c.fail(na.Unreachable, lost(err))
		}
		if c.dead.Load() || !c.blocked.Load() || c.waiting.Swap(true) {
			return
		}
	}
}

// writable writes; true ends the waiting.
func (c *conn) writable() bool {
	c.unblock()
	return !c.blocked.Load() || c.dead.Load()
}

// unblock tries to write although the socket was full.
func (c *conn) unblock() {
	c.blocked.Store(false)
	c.kick()
}

// fill makes the next batch and reports whether it has anything.
//
// +checklocks:c.wmu
func (c *conn) fill() bool {
	t := &c.tx
	clear(t.iov)
	clear(t.marks)
	t.iov, t.at, t.marks, t.done, t.scratch = t.iov[:0], 0, t.marks[:0], 0, t.scratch[:0]
	t.begin = t.queued
	c.mu.Lock()
	c.canceled = c.canceled[:0] // they were not in a batch
	if len(c.cork) > 0 {
		t.add(c.cork)
		c.cork, t.spare = t.spare[:0], c.cork
	}
	for c.replies.len() > 0 && t.room(c.replies.at(0).pieces()) {
		c.fillReply()
	}
	for c.queue.len() > 0 && t.room(maxPieces) {
		c.fillItem()
	}
	c.batched = len(t.marks)
	c.unwritten = len(t.iov) > 0
	c.mu.Unlock()
	return len(t.iov) > 0
}

// room reports whether the batch takes a message of a header and some pieces.
func (t *txState) room(pieces int) bool {
	return t.queued-t.begin < batchBytes && len(t.iov)+1+pieces <= batchVectors+1 && len(t.scratch)+maxHeader <= scratchBytes
}

func (t *txState) add(b []byte) {
	t.iov = append(t.iov, b)
	t.queued += uint64(len(b))
}

// addHeader adds the header that f appends.
//
// +checklocks:c.mu
// +checklocks:c.wmu
func (c *conn) addHeader(f func(b []byte) []byte) {
	t := &c.tx
	if t.scratch == nil {
		t.scratch = make([]byte, 0, scratchBytes)
	}
	n := len(t.scratch)
	t.scratch = f(t.scratch)
	c.number(t.scratch[n:])
	t.add(t.scratch[n:])
}

// number gives a message the next sequence number, which debug builds of libfabric verify.
//
// +checklocks:c.mu
func (c *conn) number(h header) {
	h.setSeq(c.seq)
	c.seq++
}

// fillReply adds the oldest reply to the batch.
//
// +checklocks:c.mu
// +checklocks:c.wmu
func (c *conn) fillReply() {
	t := &c.tx
	r := c.replies.pop()
	if c.owes.Add(-1) == maxReplies/2 {
		c.resumeReading()
	}
	m := mark{first: len(t.iov)}
	if r.read {
		c.addHeader(func(b []byte) []byte { return appendReadRsp(b, r.total) })
	} else {
		c.addHeader(appendAck)
	}
	for _, a := range r.from[:r.n] {
		if a.n > 0 {
			t.iov = a.vectors(t.iov)
			t.queued += a.n
		}
		c.txMem.push(a.m)
	}
	m.access = r.n
	t.mark(m)
}

func (t *txState) mark(m mark) {
	m.end, m.last = t.queued, len(t.iov)
	t.marks = append(t.marks, m)
}

// fillItem adds the oldest message, or a chunk of the oldest transfer, to the batch. A transfer that has more goes to
// the end of the queue, so that others get their turn.
//
// +checklocks:c.mu
// +checklocks:c.wmu
func (c *conn) fillItem() {
	t := &c.tx
	it := c.queue.pop()
	c.unqueued(&it)
	m := mark{first: len(t.iov)}
	if it.t == nil {
		c.number(it.msg)
		t.add(it.msg)
		m.op, m.n = it.op, len(it.msg)
		if it.request {
			m.msg = it.msg
		}
		t.mark(m)
		return
	}
	x := it.t
	if !x.more() {
		x.queued = false
		return
	}
	if c.expects.Load() >= maxExpects {
		c.stalled.push(x)
		return
	}
	ch := x.next()
	if x.put {
		c.addHeader(func(b []byte) []byte { return appendWrite(b, ch.iovs[:ch.niov], ch.n) })
		n := len(t.iov)
		t.iov = x.local(t.iov, ch.frag, ch.off, ch.n, maxPieces)
		for _, b := range t.iov[n:] {
			t.queued += uint64(len(b))
		}
		x.inBatch++
		m.t = x
		c.acks.push(pendingAck{t: x, n: ch.n})
		c.ep.stats.writesSent.Add(1)
	} else {
		c.addHeader(func(b []byte) []byte { return appendReadReq(b, ch.iovs[:ch.niov]) })
		c.reads.push(pendingRead{t: x, frag: ch.frag, off: ch.off, n: ch.n})
		c.readsOut.Add(1)
		c.ep.stats.readsSent.Add(1)
	}
	c.expects.Add(1)
	t.mark(m)
	if x.queued = x.more(); x.queued {
		c.queue.push(it)
	}
}

// wrote takes n written bytes off the batch and completes the operations that are over.
//
// +checklocks:c.wmu
func (c *conn) wrote(n int) {
	t := &c.tx
	t.written += uint64(n)
	if t.done < len(t.marks) {
		if x := t.marks[t.done].t; x != nil {
			x.op.Progress.Add(int64(n))
		}
	}
	for n > 0 {
		if b := t.iov[t.at]; n < len(b) {
			t.iov[t.at] = b[n:]
			break
		}
		n -= len(t.iov[t.at])
		t.iov[t.at] = nil
		t.at++
	}
	if t.done < len(t.marks) && t.marks[t.done].end <= t.written {
		c.settle(false)
	}
}

// settle completes the marks that are written, or all.
//
// +checklocks:c.wmu
func (c *conn) settle(all bool) {
	t := &c.tx
	c.mu.Lock()
	for t.done < len(t.marks) && (all || t.marks[t.done].end <= t.written) {
		m := &t.marks[t.done]
		t.done++
		for range m.access {
			c.txMem.pop().exit()
		}
		c.settleLocked(m)
	}
	c.batched = len(t.marks) - t.done
	if c.batched == 0 {
		c.canceled = c.canceled[:0]
		if t.at == len(t.iov) && !all && len(c.cork) == 0 && c.replies.len() == 0 && c.queue.len() == 0 { // as fill would find
			c.unwritten = false
			t.drained = true
			clear(t.marks) // they refer to messages
		}
	}
	c.mu.Unlock()
	c.finishEnded()
}

// settleLocked notes the operations that end with a mark, of a live connection or a dead one.
//
// +checklocks:c.mu
// +checklocks:c.wmu
func (c *conn) settleLocked(m *mark) {
	if m.op != nil {
		e := ended{op: m.op, n: int64(m.n)}
		if m.end > c.tx.written {
			e.n, e.err = 0, c.sendError(m)
		}
		c.forgetCancel(m.op)
		c.tx.ended = append(c.tx.ended, e)
		m.op = nil
	}
	if m.t != nil {
		m.t.inBatch--
		c.endIfOver(m.t)
		m.t = nil
	}
}

// left returns the position before which bytes of the stream may have reached the peer.
//
// +checklocks:c.wmu
func (c *conn) left() uint64 { return c.tx.written + uint64(c.sock.Encrypted()) }

// sendError returns the error of a message that the dead connection has not written, as far as it knows.
//
// +checklocks:c.mu
// +checklocks:c.wmu
func (c *conn) sendError(m *mark) error {
	f, whole := c.down, "send"
	if m.end <= c.left() {
		whole = "receive"
	}
	return &na.Error{Kind: f.kind, Op: "send", Addr: c.peer.String(), Err: f.about(whole)}
}

// endIfOver notes a transfer that is over, once.
//
// +checklocks:c.mu
// +checklocks:c.wmu
func (c *conn) endIfOver(t *transfer) {
	if t.over() {
		t.ended = true
		c.tx.ended = append(c.tx.ended, ended{t: t})
	}
}

// finishEnded completes the operations that the write role has found to be over.
//
// +checklocks:c.wmu
func (c *conn) finishEnded() {
	for i := range c.tx.ended {
		e := c.tx.ended[i]
		c.tx.ended[i] = ended{}
		c.finish(e)
	}
	c.tx.ended = c.tx.ended[:0]
}

// sweepBatch lets go of memory that the batch must not use any more: all of it if the connection is dead, or else that of
// cancelled operations. Their messages have begun to be sent, or may have, so the rest is copied and sent.
//
// +checklocks:c.wmu
func (c *conn) sweepBatch() {
	t := &c.tx
	if c.dead.Load() {
		clear(t.iov)
		t.iov, t.at = t.iov[:0], 0
		c.settle(true)
		return
	}
	var fault error
	c.mu.Lock()
	for i := t.done; i < len(t.marks); i++ {
		m := &t.marks[i]
		if m.op != nil && c.forgetCancel(m.op) {
			fault = errors.Join(fault, c.tx.copyOut(m))
			c.tx.ended = append(c.tx.ended, ended{op: m.op, err: c.canceledError("send")})
			m.op = nil
		}
		if m.t != nil && m.t.err != nil {
			fault = errors.Join(fault, c.tx.copyOut(m))
			c.settleLocked(m)
		}
	}
	c.canceled = c.canceled[:0]
	c.mu.Unlock()
	if fault != nil {
		c.broke(fault)
	}
	c.finishEnded()
}

// copyOut replaces the unsent rest of a mark's vectors by a copy. After an error the connection must end, because the rest of
// the message is not to be had.
func (t *txState) copyOut(m *mark) (fault error) {
	for i := max(m.first, t.at); i < m.last; i++ {
		b := make([]byte, len(t.iov[i]))
		_, err := hostmem.Copy(b, t.iov[i])
		fault = errors.Join(fault, err)
		t.iov[i] = b
	}
	return fault
}

// forgetCancel removes op from the operations to be given up, and reports whether it was there.
//
// +checklocks:c.mu
func (c *conn) forgetCancel(op *na.Op) bool {
	for i, o := range c.canceled {
		if o == op {
			c.canceled = append(c.canceled[:i], c.canceled[i+1:]...)
			return true
		}
	}
	return false
}
