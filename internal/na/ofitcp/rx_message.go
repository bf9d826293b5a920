package ofitcp

import (
	"errors"
	"fmt"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostmem"
	"cinnabar/internal/na"
	"cinnabar/internal/na/ofiaddr"
	"cinnabar/internal/peerbook"
)

// parse handles the messages in the stage, and the payload that has become complete.
func (c *conn) parse() {
	rx := &c.rx
	for !c.dead.Load() {
		if rx.body {
			if rx.left > 0 {
				c.takeStaged()
			}
			if rx.left > 0 || c.dead.Load() {
				return
			}
			rx.body = false
			c.bodyComplete()
			continue
		}
		n := parseHeader(&rx.m, rx.stage[rx.r:rx.w])
		if n < 0 {
			c.protocolError(errors.New(malformed(n)))
			return
		}
		if n == 0 || !c.begin(n) {
			break
		}
	}
	if rx.stage != nil && rx.r > 0 {
		rx.w = copy(rx.stage[:], rx.stage[rx.r:rx.w])
		rx.r = 0
	}
}

// protocolError ends the connection because the peer breaks the protocol.
func (c *conn) protocolError(err error) { c.offence(audit.Broken, causeMessage, err) }

// offence ends the connection because the peer has sent a message that is malformed or not allowed.
func (c *conn) offence(event audit.Event, cause string, err error) {
	c.ep.broken(c.peer, event, cause, err)
	c.fail(na.Protocol, err)
}

// begin handles the next message in the stage, which has a header of n bytes. False: more of it must come first.
func (c *conn) begin(n int) bool {
	rx := &c.rx
	m := &rx.m
	switch m.op {
	case opMsg:
		if m.ack {
			rx.r += n
			c.acknowledged()
			return true
		}
		return c.beginRequest(n, uint32(m.cqData))
	case opTag:
		if m.tag>>32 == 1 { // Mercury before 2.3, or with NA_OFI_UNEXPECTED_TAG_MSG
			return c.beginRequest(n, uint32(m.tag))
		}
		return c.beginExpected(n)
	case opReadReq:
		rx.r += n
		c.readRequested()
	case opReadRsp:
		rx.r += n
		c.beginRead()
	case opWrite:
		rx.r += n
		c.beginWrite()
	}
	return true
}

// fits reports whether a message is handled as a whole in the stage, and whether it is all there.
func (c *conn) fits(n int) (fits, there bool) {
	rx := &c.rx
	if rx.m.payload > uint64(stageBytes-n) {
		return false, false
	}
	return true, uint64(rx.w-rx.r) >= uint64(n)+rx.m.payload
}

// consume takes the message, which has a header of n bytes, out of the stage and returns its payload.
func (c *conn) consume(n int) []byte {
	rx := &c.rx
	p := rx.stage[rx.r+n : rx.r+n+int(rx.m.payload)]
	rx.r += n + int(rx.m.payload)
	if rx.bulk > 0 {
		rx.bulk--
	}
	return p
}

// startBody has the payload go to s.
func (c *conn) startBody(s sink) {
	rx := &c.rx
	rx.body, rx.left, rx.sink, rx.got = true, rx.m.payload, s, 0
	if rx.m.payload >= largePayload {
		rx.bulk = bulkMessages
	}
}

// takeStaged moves the payload's bytes in the stage to their place.
func (c *conn) takeStaged() {
	rx := &c.rx
	n := min(uint64(rx.w-rx.r), rx.left)
	if n == 0 {
		return
	}
	b := rx.stage[rx.r : rx.r+int(n)]
	rx.r += int(n)
	rx.left -= n
	switch rx.sink {
	case sinkRead:
		c.ep.stats.transferBytesStaged.Add(n)
		c.copyRead(b)
		return
	case sinkWrite:
		c.ep.stats.transferBytesStaged.Add(n)
		if err := c.copyWrite(b); err != nil {
			c.broke(err)
			return
		}
	case sinkDirect:
		c.mu.Lock()
		if d := &c.direct; d.op != nil {
			copy(d.buf[rx.got:], b)
		}
		c.mu.Unlock()
	case sinkRequest:
		copy(rx.request[rx.got:], b)
	case sinkNone:
	}
	c.filled(n)
}

// copyWrite copies b to registered memory, which may be a mapping of a file that is shorter by now.
func (c *conn) copyWrite(b []byte) error {
	return hostmem.Guard(func() {
		for i, off := c.rx.iov, c.rx.iovOff; len(b) > 0; i, off = i+1, 0 {
			a := &c.writeTo[i]
			k := int(min(a.n-off, uint64(len(b))))
			if !a.m.late.kept { // a late write is discarded
				hostmem.CopyExposed(a.bytes()[off:], b[:k])
			}
			b = b[k:]
		}
	})
}

// copyRead copies b to local memory, unless the transfer was given up. Memory that is gone fails the transfer only.
func (c *conn) copyRead(b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down != nil {
		return
	}
	r := c.reads.at(0)
	for len(b) > 0 && r.t != nil {
		k, err := hostmem.Copy(r.t.frags[r.frag].Local[r.off:], b)
		if err != nil {
			err = &na.Error{Kind: na.Invalid, Op: r.t.name(), Addr: c.peer.String(), Err: err}
			c.rx.ended = c.giveUpLocked(r.t, err, c.rx.ended)
			return
		}
		b = b[k:]
		r.frag, r.off = r.t.advance(r.frag, r.off, uint64(k))
		r.t.op.Progress.Add(int64(k))
	}
}

// bodyComplete handles a message after its payload has reached its place.
func (c *conn) bodyComplete() {
	rx := &c.rx
	s := rx.sink
	rx.sink = sinkNone
	switch {
	case rx.m.op == opReadRsp:
		c.answered()
	case s == sinkWrite:
		c.exitWrite()
		c.ep.stats.writesReceived.Add(1)
	case s == sinkDirect:
		c.received()
	case s == sinkRequest:
		b := rx.request
		rx.request = nil
		tag := uint32(rx.m.cqData)
		if rx.m.op == opTag {
			tag = uint32(rx.m.tag)
		}
		c.request(tag, b)
	}
	c.ackIfWanted()
}

// ackIfWanted acknowledges the message that is complete, if its sender wants that.
func (c *conn) ackIfWanted() {
	if c.rx.m.wantAck {
		c.reply(reply{})
	}
}

// reply queues an answer; replies leave in the order of the requests.
func (c *conn) reply(r reply) {
	c.mu.Lock()
	down := c.down != nil
	if !down {
		c.replies.push(r)
		c.owes.Add(1)
		c.rx.kick = true
	}
	c.mu.Unlock()
	if down {
		r.exit()
	}
}

// beginRequest handles a request as soon as it is complete. One that is too large is dropped: its sender was configured
// otherwise than this endpoint, and other messages of it are in order.
func (c *conn) beginRequest(n int, tag uint32) bool {
	rx := &c.rx
	if rx.m.payload > uint64(c.ep.cfg.MaxRequest) {
		c.ep.broken(c.peer, audit.Broken, causeLength, fmt.Errorf("a request of %d bytes was dropped; this endpoint takes %d (Config.MaxRequest)", rx.m.payload, c.ep.cfg.MaxRequest))
		rx.r += n
		c.startBody(sinkNone)
		return true
	}
	fits, there := c.fits(n)
	switch {
	case there:
		c.request(tag, c.consume(n))
		c.ackIfWanted()
		return true
	case fits:
		return false
	}
	rx.r += n
	rx.request = make([]byte, rx.m.payload)
	c.startBody(sinkRequest)
	return true
}

// request hands a request to the handler. One without a valid address of its sender, or to an endpoint without a handler,
// is dropped.
//
// The address in the request is not used: answers go to the peer at the other end of the connection that the request came
// over, which upstream's peers put there as well. Otherwise every peer could make this process dial third parties.
func (c *conn) request(tag uint32, b []byte) {
	c.ep.stats.requestsReceived.Add(1)
	c.serves.Store(true)
	c.spend(rationRequest)
	if !c.ep.takesRequests() {
		return
	}
	n := c.ep.prefix
	if len(b) < n {
		c.ep.broken(c.peer, audit.Broken, causeLength, fmt.Errorf("a request of %d bytes was dropped; it must begin with an address of %d bytes", len(b), n))
		return
	}
	if _, err := ofiaddr.Parse(b[:n]); n > 0 && err != nil {
		c.ep.broken(c.peer, audit.Broken, causeSender, fmt.Errorf("a request was dropped: the sender's address in it: %w", err))
		return
	}
	if rx := &c.rx; rx.r < rx.w && !rx.corked { // requests that are refused are answered at once, and more of them may come
		rx.corked = true
		c.setCork(true)
	}
	in := &c.rx.in
	*in = na.Message{From: c.origin, Tag: tag, Data: b[n:]}
	if t := c.ep.cfg.Handler.Request(in); t != nil {
		c.rx.tasks = append(c.rx.tasks, t)
	} else {
		c.rx.handed = true
	}
	in.Data = nil
}

// beginExpected handles an expected message. One without a waiter is dropped: it is late.
func (c *conn) beginExpected(n int) bool {
	rx := &c.rx
	fits, there := c.fits(n)
	if fits && !there {
		return false
	}
	c.ep.stats.expectedReceived.Add(1)
	w, ok := c.claimWaiter(there)
	c.ep.late.answered(c, rx.m.tag)
	if there {
		b := c.consume(n)
		if ok {
			rx.ended = append(rx.ended, ended{op: w.Op, n: int64(copy(w.Buf, b))})
		}
		c.ackIfWanted()
		return true
	}
	rx.r += n
	if ok {
		c.startBody(sinkDirect)
	} else {
		c.startBody(sinkNone)
	}
	return true
}

// claimWaiter finds the waiter for the expected message. If the message is not there as a whole, the connection takes its
// place at once, so that cancel always finds the operation.
func (c *conn) claimWaiter(there bool) (peerbook.Waiter, bool) {
	rx := &c.rx
	if rx.m.tag >= 1<<32 {
		return peerbook.Waiter{}, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down != nil {
		return peerbook.Waiter{}, false
	}
	w, ok := c.peer.expected.Take(uint32(rx.m.tag))
	if !ok {
		return w, false
	}
	if rx.m.payload > uint64(len(w.Buf)) {
		rx.ended = append(rx.ended, ended{op: w.Op, err: &na.Error{Kind: na.Truncated, Op: "receive", Addr: c.peer.String(),
			Err: fmt.Errorf("a message of %d bytes for a buffer of %d", rx.m.payload, len(w.Buf))}})
		return w, false
	}
	if !there {
		c.direct = directRecv{op: w.Op, buf: w.Buf[:rx.m.payload]}
	}
	return w, true
}

// received completes an expected message that was read straight into its buffer.
func (c *conn) received() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d := &c.direct; d.op != nil {
		c.rx.ended = append(c.rx.ended, ended{op: d.op, n: int64(len(d.buf))})
		*d = directRecv{}
	}
}

// acknowledged takes an acknowledgement to the oldest write that waits for one.
func (c *conn) acknowledged() {
	c.mu.Lock()
	if c.acks.len() == 0 {
		c.mu.Unlock()
		if !c.dead.Load() {
			c.protocolError(errors.New("an acknowledgement that nothing waits for"))
		}
		return
	}
	a := c.acks.pop()
	c.owedLess()
	c.doneLocked(a.t, a.n)
	c.mu.Unlock()
}

// owedLess takes note of an answer, which lets another transfer go on if some are stalled.
//
// +checklocks:c.mu
func (c *conn) owedLess() {
	c.expects.Add(-1)
	if c.stalled.len() > 0 {
		c.queue.push(item{t: c.stalled.pop()})
		c.rx.kick = true
	}
}

// doneLocked notes n bytes of t that the peer has sent or placed.
//
// +checklocks:c.mu
func (c *conn) doneLocked(t *transfer, n uint64) {
	if t == nil {
		return
	}
	t.done += n
	t.chunks--
	t.op.Progress.Add(int64(n))
	switch {
	case t.over():
		t.ended = true
		c.rx.ended = append(c.rx.ended, ended{t: t})
	case !t.queued && t.more():
		t.queued = true
		c.queue.push(item{t: t})
		c.rx.kick = true
	}
}

// beginRead finds the read that the message answers: the oldest. An answer that is shorter than the read, or
// longer, fails the transfer and goes nowhere; the stream is in order.
func (c *conn) beginRead() {
	c.mu.Lock()
	if c.reads.len() == 0 {
		c.mu.Unlock()
		if !c.dead.Load() {
			c.protocolError(errors.New("an answer to a read that was not asked for"))
		}
		return
	}
	r := c.reads.at(0)
	if t := r.t; t != nil && r.n != c.rx.m.payload {
		err := fmt.Errorf("%d bytes came in answer to a read of %d", c.rx.m.payload, r.n)
		c.rx.ended = c.giveUpLocked(t, &na.Error{Kind: na.Protocol, Op: t.name(), Addr: c.peer.String(), Err: err}, c.rx.ended)
	}
	c.mu.Unlock()
	c.startBody(sinkRead)
}

// answered notes that the oldest read is answered.
func (c *conn) answered() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down != nil {
		return
	}
	r := c.reads.pop()
	c.owedLess()
	c.readsOut.Add(-1)
	c.doneLocked(r.t, r.n)
}

// readRequested checks a read of the peer and queues the answer. An access that is not allowed ends the connection,
// because the protocol has no other answer to it.
func (c *conn) readRequested() {
	m := &c.rx.m
	r := reply{read: true, total: m.total()}
	for _, v := range m.iov[:m.niov] {
		mem, err := c.ep.mem.enter(c, v, na.ReadOnly)
		if err != nil {
			r.exit()
			c.offence(audit.Denied, causeRead, fmt.Errorf("a read that is not allowed: %w", err))
			return
		}
		r.from[r.n] = access{m: mem, off: v.addr, n: v.len}
		r.n++
	}
	c.ep.stats.readsReceived.Add(1)
	c.unasked()
	c.reply(r)
}

// unasked takes note that the peer comes by itself, not only in answer to calls: then the connection must always be read.
func (c *conn) unasked() {
	if c.peer.expected.Len() == 0 && !c.serves.Load() {
		c.serves.Store(true)
	}
}

// beginWrite checks a write of the peer and has its payload go straight to the memory.
func (c *conn) beginWrite() {
	m := &c.rx.m
	var to [maxIOV]access
	for i, v := range m.iov[:m.niov] {
		mem, err := c.ep.mem.enter(c, v, na.WriteOnly)
		if err != nil {
			for _, a := range to[:i] {
				a.m.exit()
			}
			c.offence(audit.Denied, causeWrite, fmt.Errorf("a write that is not allowed: %w", err))
			return
		}
		to[i] = access{m: mem, off: v.addr, n: v.len}
	}
	c.unasked()
	c.mu.Lock()
	c.writeTo = to
	c.mu.Unlock()
	c.rx.iov, c.rx.iovOff = 0, 0
	c.startBody(sinkWrite)
}

// exitWrite ends the use of memory by the peer's write.
func (c *conn) exitWrite() {
	c.mu.Lock()
	to := c.writeTo
	c.writeTo = [maxIOV]access{}
	c.mu.Unlock()
	for _, a := range to {
		if a.m != nil {
			a.m.exit()
		}
	}
}
