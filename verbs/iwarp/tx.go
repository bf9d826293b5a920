package iwarp

import (
	"errors"
	"math"
	"runtime/debug"
	"slices"

	"cinnabar/internal/crc32c"
	"cinnabar/internal/hostmem"
	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/mpa"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/internal/sockio"
	"cinnabar/verbs"
)

// Sizes of one batch, which one call of TryWritev writes.
const (
	batchBytes   = 512 << 10 // payload
	batchVectors = 60        // sockio takes 64 in one system call
	scratchBytes = 15 << 10  // the largest capacity of scratch, for headers, trailers and control payloads
	firstScratch = 512       // the first capacity of scratch, which grows when it is full
	frameScratch = 96        // the most that one FPDU puts there
	smallPayload = 256       // the longest payload that is copied to scratch
	maxTrailer   = 3 + mpa.CRCLen
	callerBytes  = 1 << 20 // sent on the goroutine of a caller that must not block
	snapshotSize = 256 << 10
)

// Sizes of segments.
const (
	measureFrom = 256 << 10 // bytes of the stream before the MULPDU is looked at again
	measureStep = 4 << 20   // the most bytes between two looks: TCP's segments shrink too, when the path changes
	sizeStep    = 4 << 20   // bytes of a message after which its segments may have another size; see segmentLocked
	evenFrom    = 16 << 10  // payload from which the segments of a message are whole cache lines
	cacheLine   = 64
)

// txMsg is the message that is being cut into FPDUs.
type txMsg struct {
	active bool
	h      ddp.Header  // of the next segment
	segs   []seg       // payload in registered memory, or
	raw    []byte      // in memory of ours: inline data (in place)
	ctl    []byte      // or a control payload, copied behind its header
	left   int         // bytes of payload to go
	size   int32       // bytes of payload of the present segments, but for the last one of the message
	same   int32       // in a read response: payload bytes up to the next sizeStep; a segment that begins before it has this size
	end    txMark      // the effect of the last written byte
	resp   response    // the response that the message is, for its Terminate
	own    [maxSGE]seg // backs segs, which shrinks as the message goes out
	ctlBuf [rdmap.AtomicRequestLen]byte
}

// txMark is the request or response that is complete at a byte position of the stream.
type txMark struct {
	at       uint64
	w        *sendWQE // this request is sent
	response bool     // a response is sent
}

// txRegion is memory that the batch borrows.
type txRegion struct {
	m     *mr
	until uint64 // the stream position behind its last byte; openFrame: that of the frame in the making
}

const openFrame = math.MaxUint64

// txState is the sending half of a connection.
type txState struct {
	msg     txMsg
	w       *sendWQE // the request in transmission
	step    int      // which of its messages comes next
	turn    bool     // the last message was a response: a request's turn
	msns    rdmap.MSNs
	mulpdu  int           // bytes of the largest ULPDU that is sent
	measure uint64        // the stream position from which mulpdu is looked at again
	ending  bool          // the socket has not taken the end of the stream
	drained chan struct{} // signaled when a request or response completes, for Disconnect

	// The batch: vectors in stream order, and the memory that they lie in.
	iov      [][]byte
	at       int        // first vector that is not written
	scratch  []byte     // its capacity is fixed within a batch: vectors point into it
	flushed  int        // scratch up to here is in iov
	snapshot []byte     // fixed capacity, made when first needed
	regions  []txRegion // entered for each write
	marks    []txMark
	frames   []uint64 // stream positions at which FPDUs end
	start    uint64   // stream position of the batch
	queued   uint64   // stream position behind it
	written  uint64
	bytes    int // payload in the batch
}

func (t *txState) init() { t.scratch = make([]byte, 0, firstScratch) }

func (t *txState) idle() bool { return !t.msg.active && t.w == nil && t.at == len(t.iov) }

// releaseTx ends a use of txMu that is not for sending. A goroutine that wanted to send
// meanwhile has found the lock taken and set txWant, and releaseTx sends for it.
//
// +checklocksrelease:c.txMu
func (c *conn) releaseTx() {
	c.txMu.Unlock()
	if c.txWant.Load() {
		c.kick()
	}
}

// kick sends as much as possible: on this goroutine, or on the one that is sending
// already, or on the background writer when the socket is full.
//
// +checklocksignore: it does not know TryLock.
func (c *conn) kick() {
	c.txWant.Store(true)
	for c.txWant.Load() && !c.txBlocked.Load() && c.txMu.TryLock() {
		c.txWant.Store(false)
		if c.transmitLocked() {
			c.blocked() // a poller or the background writer sends the rest
		}
		c.txMu.Unlock()
	}
	c.teardownIfFailed()
}

// transmitLocked sends until there is nothing to send or the socket is full, or
// about callerBytes are sent; then there is more.
//
// +checklocks:c.txMu
func (c *conn) transmitLocked() (more bool) {
	end := c.tx.written + callerBytes
	for c.failure.Load() == nil && c.writeFailed.Load() == nil {
		if c.tx.at == len(c.tx.iov) && (c.nothingWaits() || !c.fillLocked()) {
			c.tx.signalDrained() // an answer may have been the last thing missing
			if c.tx.ending {
				c.endStreamLocked()
			}
			return false
		}
		if c.tx.written >= end {
			return true
		}
		if !c.writeLocked() {
			return false
		}
	}
	return false
}

// nothingWaits reports whether there is certainly nothing to send, without the work of fillLocked.
//
// +checklocks:c.txMu
func (c *conn) nothingWaits() bool {
	t := &c.tx
	return !t.msg.active && t.w == nil && c.qp.unsent.Load() == 0 && c.responses.ready.Load() == 0 && !c.resendRTR.Load()
}

// blocked leaves the sending to the pollers, or to the background writer if there are none, or the only one sleeps.
func (c *conn) blocked() {
	c.txBlocked.Store(true)
	if !c.claim.Taken() || c.seat.taken.Load() {
		c.wakeWriter()
	}
}

// writeLocked hands one batch, or the rest of one, to TCP.
//
// +checklocks:c.txMu
func (c *conn) writeLocked() bool {
	t := &c.tx
	if gone := t.enter(); gone != nil {
		c.regionGone(gone)
		return false
	}
	n, err := c.sock.TryWritev(t.iov[t.at:])
	t.exit()
	switch {
	case err == nil:
		c.txStats.bytes += uint64(n)
		c.txStats.calls++
		c.countTraffic()
		c.wroteLocked(n)
		return true
	case errors.Is(err, sockio.ErrWouldBlock):
		c.blocked()
	case c.sentAll.Load(): // an answer, asked for behind our end of the stream
		c.writeFailed.CompareAndSwap(nil, &failure{err: verbs.ErrDisconnected, status: verbs.StatusRetryExcErr, quiet: true})
	default:
		c.writeFailed.CompareAndSwap(nil, lost(err))
	}
	return false
}

// enter enters the regions of the rest of the batch. If one of them is closed, enter
// returns it and has entered none.
func (t *txState) enter() (gone *mr) {
	for i, r := range t.regions {
		if !r.m.enter() {
			for _, r := range t.regions[:i] {
				r.m.exit()
			}
			return r.m
		}
	}
	return nil
}

func (t *txState) exit() {
	for _, r := range t.regions {
		r.m.exit()
	}
}

// borrow notes that the frame in the making has bytes in m.
func (t *txState) borrow(m *mr) {
	if k := len(t.regions); k > 0 && t.regions[k-1].m == m {
		t.regions[k-1].until = openFrame
		return
	}
	t.regions = append(t.regions, txRegion{m, openFrame})
}

// endFrame notes where the frame in the making ends.
func (t *txState) endFrame(n int) {
	t.queued += uint64(n)
	t.frames = append(t.frames, t.queued)
	for i := len(t.regions) - 1; i >= 0 && t.regions[i].until == openFrame; i-- {
		t.regions[i].until = t.queued
	}
}

// release drops the regions that have all their bytes written. They may be closed now.
func (t *txState) release() {
	done := 0
	for done < len(t.regions) && t.regions[done].until <= t.written {
		done++
	}
	t.regions = slices.Delete(t.regions, 0, done)
}

func exitAll(list []*mr) {
	for _, m := range list {
		m.exit()
	}
}

// wroteLocked takes n written bytes off the batch.
//
// +checklocks:c.txMu
func (c *conn) wroteLocked(n int) {
	t := &c.tx
	t.written += uint64(n)
	for n > 0 {
		if b := t.iov[t.at]; n < len(b) {
			t.iov[t.at] = b[n:]
			break
		}
		n -= len(t.iov[t.at])
		t.at++
	}
	t.release()
	done := 0
	for _, m := range t.marks {
		if m.at > t.written {
			break
		}
		done++
		c.sentLocked(m)
	}
	t.marks = append(t.marks[:0], t.marks[done:]...)
}

// sentLocked completes the request or response of a mark.
//
// +checklocks:c.txMu
func (c *conn) sentLocked(m txMark) {
	if m.response {
		c.responses.finish()
		if f := c.draining.Load(); f != nil && c.responses.empty() {
			c.fail(f)
		}
	}
	if m.w != nil {
		c.qp.mu.Lock()
		m.w.sent = true
		c.qp.retireLocked()
		c.qp.mu.Unlock()
	}
	c.tx.signalDrained()
}

func (t *txState) signalDrained() {
	if t.drained == nil {
		return
	}
	select {
	case t.drained <- struct{}{}:
	default:
	}
}

// fillLocked makes the next batch and reports whether it has anything.
//
// +checklocks:c.txMu
func (c *conn) fillLocked() bool {
	t := &c.tx
	if t.scratchFull() && cap(t.scratch) < scratchBytes {
		t.scratch = make([]byte, 0, min(2*cap(t.scratch), scratchBytes))
	}
	clear(t.iov)
	clear(t.regions)
	t.iov, t.at, t.start = t.iov[:0], 0, t.queued
	t.regions, t.frames = t.regions[:0], t.frames[:0]
	t.scratch, t.flushed, t.snapshot, t.bytes = t.scratch[:0], 0, t.snapshot[:0], 0
	if t.written >= t.measure {
		c.measureLocked()
	}
	for t.room() {
		if !t.msg.active && !c.nextMessageLocked() {
			break
		}
		if !c.frameLocked() {
			break
		}
	}
	t.flush()
	return len(t.iov) > 0 && c.failure.Load() == nil
}

// measureLocked takes the MULPDU from the size of TCP's segments (RFC 5044 section 4.5), which grows with the
// window that the peer offers, over loopback from 32 KiB to 64 KiB, and shrinks with the path. It is due each
// time the stream has become twice as long, or measureStep longer. A frame that
// was made before keeps its size: TCP cuts it in two if it must, which costs time and is no error.
//
// +checklocks:c.txMu
func (c *conn) measureLocked() {
	t := &c.tx
	t.measure = max(t.written+min(t.written, measureStep), measureFrom)
	if t.mulpdu = c.dev.cfg.MaxULPDU; t.mulpdu == 0 {
		mss := c.sock.MSS()
		if c.sock.TLS != nil {
			mss = max(mss, tlsSegment)
		}
		t.mulpdu = mpa.MULPDU(mss)
	}
}

// room reports whether the batch takes another FPDU of a few vectors.
func (t *txState) room() bool {
	return t.bytes < batchBytes && len(t.iov) < batchVectors-2 && !t.scratchFull()
}

// scratchFull reports whether scratch has no room for a further FPDU.
func (t *txState) scratchFull() bool { return cap(t.scratch)-len(t.scratch) < frameScratch }

// flush makes a vector of the scratch bytes that are in none.
func (t *txState) flush() {
	if n := len(t.scratch); n > t.flushed {
		t.iov = append(t.iov, t.scratch[t.flushed:n])
		t.flushed = n
	}
}

// frameLocked appends the next FPDU of the message. False means that the batch
// has no room for it, or that the connection has failed.
//
// +checklocks:c.txMu
func (c *conn) frameLocked() bool {
	t := &c.tx
	m := &t.msg
	n := c.segmentLocked()
	if m.segs != nil {
		n = t.fit(n)
	}
	if rest := m.left - n; rest > 0 && rest < publishLen && m.h.Tagged && !m.end.response {
		// The last bytes of a Write stay together, for programs that poll them.
		if n = m.left - publishLen; n <= 0 {
			return false
		}
	}
	snap := c.crc && m.end.response && len(m.segs) > 0
	if snap && !c.snapshotRoom(n) {
		return false
	}
	m.h.Last = n == m.left
	start := len(t.scratch)
	t.scratch = mpa.AppendHeader(t.scratch, m.h.Len()+n)
	t.scratch = ddp.AppendHeader(t.scratch, m.h)
	t.scratch = append(t.scratch, m.ctl...)
	crc := c.update(0, t.scratch[start:])
	crc, ok := c.payloadLocked(n, crc, snap)
	if !ok {
		return false
	}
	ulpdu := m.h.Len() + n
	t.scratch = mpa.AppendTrailer(t.scratch, ulpdu, crc, c.crc)
	t.endFrame(mpa.FPDULen(ulpdu))
	t.bytes += n
	c.txStats.fpdus++
	m.left -= n
	if m.end.response {
		m.same -= int32(n)
	}
	if !m.h.Last {
		m.h = m.h.Advance(n)
		return true
	}
	m.active = false
	if m.end.response {
		c.responses.framed()
	}
	if m.end.w != nil || m.end.response {
		m.end.at = t.queued
		t.marks = append(t.marks, m.end)
	}
	return true
}

// segmentLocked returns the bytes of the message's next segment. Large ones are whole cache lines, so that those
// behind them begin at lines of their memory as the first did, because the peer copies and sums aligned memory faster. Those
// for an Ethernet, with jumbo frames too, fill TCP's segments to the last byte, so that each of the stream's
// segments begins with a frame, which devices that place data in hardware need to be fast (RFC 5044 appendix A).
//
// The segments of a read response have one size, and the last segment has the remaining bytes, so that the receiver can guess where each segment belongs
// (docs/adr/0060). A new size, which follows the MULPDU, begins only at the first segment that begins in another sizeStep of the response:
//
//	offset   0                        sizeStep                      2 sizeStep
//	         ├──────┬──────┬──────┬───┼──┬─────────┬─────────┬──────┼──┬─────┤
//	         │ size │ size │ size │ size │  size'  │  size'  │  size'  │ rest│
//
// +checklocks:c.txMu
func (c *conn) segmentLocked() int {
	m := &c.tx.msg
	if m.same <= 0 {
		size := ddp.MaxPayload(c.tx.mulpdu, m.h.Tagged)
		if m.left > size && size >= evenFrom {
			size &^= cacheLine - 1
		}
		m.size = int32(size)
		if m.end.response {
			m.same += sizeStep
		}
	}
	return min(m.left, int(m.size))
}

// fit shortens a segment of n bytes to the size that the remaining vectors of the batch can hold.
func (t *txState) fit(n int) int {
	room, sum := batchVectors-len(t.iov)-2, 0
	for _, s := range t.msg.segs {
		if room--; room < 0 || sum >= n {
			break
		}
		sum += s.n
	}
	return min(n, sum)
}

// snapshotRoom makes sure that n bytes can be copied, if need be by ending the batch.
//
// +checklocks:c.txMu
func (c *conn) snapshotRoom(n int) bool {
	t := &c.tx
	if t.snapshot == nil {
		t.snapshot = make([]byte, 0, snapshotSize)
	}
	return cap(t.snapshot)-len(t.snapshot) >= n
}

// payloadLocked appends n bytes of the message's payload and adds them to the CRC.
//
// +checklocks:c.txMu
func (c *conn) payloadLocked(n int, crc uint32, snap bool) (uint32, bool) {
	t := &c.tx
	m := &t.msg
	if m.ctl != nil || n == 0 {
		return crc, true
	}
	if n <= smallPayload && !m.end.response && m.raw == nil && len(m.segs) == 1 && cap(t.scratch)-len(t.scratch) >= n+maxTrailer {
		return c.smallLocked(n, crc)
	}
	t.flush()
	if m.raw != nil {
		b := m.raw[:n]
		m.raw = m.raw[n:]
		t.iov = append(t.iov, b)
		return c.update(crc, b), true
	}
	for n > 0 {
		s := m.segs[0]
		s.n = min(s.n, n)
		if !s.m.enter() {
			c.regionGone(s.m)
			return crc, false
		}
		b, sum, ok := c.sumLocked(s.bytes(), crc, snap)
		s.m.exit()
		if !ok {
			c.regionGone(s.m)
			return crc, false
		}
		if !snap {
			t.borrow(s.m)
		}
		crc = sum
		t.iov = append(t.iov, b)
		m.segs = advanceSegs(m.segs, s.n)
		n -= s.n
	}
	return crc, true
}

// smallLocked copies n bytes of payload behind the header, so that a small message is one piece of memory, which the kernel takes faster than
// three. The message may lie in one segment only.
//
// +checklocks:c.txMu
func (c *conn) smallLocked(n int, crc uint32) (sum uint32, ok bool) {
	t := &c.tx
	m := &t.msg
	s := m.segs[0]
	s.n = n
	if !s.m.enter() {
		c.regionGone(s.m)
		return crc, false
	}
	start := len(t.scratch)
	t.scratch, ok = appendGuarded(t.scratch, s.bytes())
	s.m.exit()
	if !ok {
		c.regionGone(s.m)
		return crc, false
	}
	m.segs = advanceSegs(m.segs, n)
	return c.update(crc, t.scratch[start:]), true
}

// sumLocked adds payload in registered memory to the CRC. With snap it copies the payload first, because the owner may
// change the memory at any time, which must not make the CRC wrong. ok is false if the memory is not there.
//
// +checklocks:c.txMu
func (c *conn) sumLocked(b []byte, crc uint32, snap bool) (payload []byte, sum uint32, ok bool) {
	if !c.crc {
		return b, 0, true
	}
	defer unguard(debug.SetPanicOnFault(true), &ok)
	if t := &c.tx; snap {
		t.snapshot = hostmem.AppendExposed(t.snapshot, b)
		b = t.snapshot[len(t.snapshot)-len(b):]
		c.txStats.staged += uint64(len(b))
	}
	return b, crc32c.Update(crc, b), true
}

func (c *conn) update(crc uint32, b []byte) uint32 {
	if !c.crc {
		return 0
	}
	return crc32c.Update(crc, b)
}

// regionGone fails the connection because memory that is being sent has been
// deregistered.
//
// +checklocks:c.txMu
func (c *conn) regionGone(m *mr) {
	if msg := &c.tx.msg; msg.end.response {
		t := rdmap.TermInvalidSTag.ForReadRequest(msg.resp.head, rdmap.ReadRequestLen, msg.resp.read)
		t.Detail = "the region was deregistered or unmapped while it was being read"
		c.fail(refused(&t))
		return
	}
	c.fail(&failure{status: verbs.StatusLocProtErr, quiet: true,
		err: verbs.Errorf("send", verbs.ErrInvalid, "region with lkey %#x was deregistered or unmapped while it was being sent", m.lkey)})
}
