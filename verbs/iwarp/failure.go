package iwarp

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"cinnabar/internal/audit"
	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/mpa"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
)

// failure is the reason for the end of a connection.
type failure struct {
	err       error            // for Conn.Err and events
	terminate *rdmap.Terminate // to be sent to the peer
	status    verbs.WCStatus   // status with which the oldest transmitted request completes; success: it is flushed like the others
	vendor    uint32           // vendor error of that completion: layer, type and code of a Terminate
	event     verbs.EventType  // raised unless quiet is set or a request has completed with status
	quiet     bool
	abandoned bool // Disconnect ended before the peer took part: teardown uses abandonedTimeout
	recorded  bool // the audit has counted it
}

// failOldest completes the oldest transmitted request with status s when the connection ends.
func (f *failure) failOldest(s verbs.WCStatus) *failure {
	f.status = s
	return f
}

// lost is the failure of the socket.
func lost(err error) *failure {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("the stream ended in the middle of a frame: %w", io.ErrUnexpectedEOF)
	}
	return &failure{status: verbs.StatusRetryExcErr, event: verbs.EventQPFatal,
		err: &verbs.Error{Op: "connection lost", Err: err}}
}

// refused is the failure of a connection on which the peer has broken a rule. t is sent to the peer.
func refused(t *rdmap.Terminate) *failure {
	f := &failure{terminate: t, vendor: uint32(t.Cause()), event: verbs.EventQPFatal,
		err: &verbs.Error{Op: "connection terminated by this side", Err: *t}}
	switch t.Layer {
	case rdmap.LayerRDMAP:
		if t.Type == rdmap.TypeRemoteProtection {
			f.event = verbs.EventQPAccessErr
		} else if t.Type == rdmap.TypeRemoteOperation {
			f.event = verbs.EventQPReqErr
		}
	case rdmap.LayerDDP:
		f.event = verbs.EventQPReqErr
		if t.Type == ddp.TypeTagged {
			f.event = verbs.EventQPAccessErr
		}
	}
	return f
}

// terminated is the failure of a connection that the peer has ended with Terminate message t.
func terminated(t rdmap.Terminate, swapped bool, n int, cfg Config) *failure {
	if n < 0 {
		t.Detail = "the message itself is malformed"
	} else if swapped {
		t.Detail = "in siw's bit order"
	}
	f := &failure{status: statusOf(t.Cause()), vendor: uint32(t.Cause()), event: verbs.EventQPFatal,
		err: &verbs.Error{Op: "connection terminated by the peer", Err: t}}
	if t.Cause() == rdmap.TermUnexpectedOpcode || t.Cause() == rdmap.TermDDPInvalidQN {
		f.err = &verbs.Error{Op: "connection terminated by the peer", Err: t, Detail: extensionAdvice(cfg)}
	}
	return f
}

// extensionAdvice names the options that turn off RFC 7306, for a peer that does not
// know it.
func extensionAdvice(cfg Config) string {
	switch {
	case cfg.NoImmediates && cfg.NoAtomics:
		return "the peer does not know an operation"
	case cfg.NoImmediates:
		return "if the peer does not know RFC 7306, open the device with Config.NoAtomics"
	case cfg.NoAtomics:
		return "if the peer does not know RFC 7306, open the device with Config.NoImmediates"
	}
	return "if the peer does not know RFC 7306, open the device with Config.NoImmediates and Config.NoAtomics"
}

// statusOf gives the completion status for a Terminate from the peer.
func statusOf(c rdmap.Cause) verbs.WCStatus {
	switch c {
	case rdmap.TermDDPNoBuffer:
		return verbs.StatusRNRRetryExcErr
	case rdmap.TermUnexpectedOpcode, rdmap.TermInvalidVersion, rdmap.TermCatastrophic, rdmap.TermDDPTooLong, rdmap.TermDDPInvalidQN,
		rdmap.TermCannotInvalidate, rdmap.TermOpCannotInvalidate:
		return verbs.StatusRemInvReqErr
	default: // the others go by layer and type
	}
	switch {
	case c.Layer() == rdmap.LayerRDMAP && c.Type() == rdmap.TypeRemoteProtection,
		c.Layer() == rdmap.LayerDDP && c.Type() == ddp.TypeTagged:
		return verbs.StatusRemAccessErr
	case c.Layer() == rdmap.LayerLLP:
		return verbs.StatusFatalErr
	}
	return verbs.StatusRemOpErr
}

// fail sets the reason for the end of the connection; the first reason stands. The
// caller may hold the lock of a direction, and calls teardown without it.
func (c *conn) fail(f *failure) { c.failure.CompareAndSwap(nil, f) }

// refuse is fail for an error of the peer in the input. The responses to the peer's
// earlier requests are sent first, and no input is read meanwhile.
//
// +checklocks:c.rxMu
func (c *conn) refuse(f *failure) {
	if c.responses.empty() || !c.draining.CompareAndSwap(nil, f) {
		c.fail(f)
		return
	}
	c.paused.Store(true)
	c.txWant.Store(true)
	c.awaitAnswers(f)
	if c.responses.empty() { // the last response was sent meanwhile
		c.fail(f)
	}
}

// awaitAnswers ends the connection with f when the peer has read nothing of the queued responses for lingerTimeout.
//
// +checklocks:c.rxMu
func (c *conn) awaitAnswers(f *failure) {
	before := c.traffic.Load()
	c.drainTimer = time.AfterFunc(lingerTimeout, func() {
		c.rxMu.Lock()
		if c.traffic.Load() != before && !c.closed.Load() {
			c.awaitAnswers(f)
			c.rxMu.Unlock()
			return
		}
		c.rxMu.Unlock()
		c.fail(f)
		c.teardown()
	})
}

// over reports whether inbound processing has ended.
func (c *conn) over() bool { return c.failure.Load() != nil || c.draining.Load() != nil }

func (c *conn) teardownIfFailed() {
	if f := c.writeFailed.Load(); f != nil && c.failure.Load() == nil {
		c.failAfterReading(f)
	}
	if c.failure.Load() != nil && !c.closed.Load() {
		c.teardown()
	}
}

// failAfterReading fails a connection that can no longer be written. The rest of the
// peer's input is read first: a peer that terminates the stream closes its socket
// with our data unread, TCP turns that into a reset, and the writer may see the
// reset before the reader sees the Terminate, which is the better reason.
func (c *conn) failAfterReading(f *failure) {
	for more := true; more; {
		c.rxMu.Lock()
		more = c.receiveLocked(false)
		c.rxMu.Unlock()
	}
	if p := c.draining.Load(); p != nil {
		f = p // this side has refused the input before
	}
	c.fail(f)
}

// teardown ends the connection, once. When it returns, the device does not access the
// queue pair's memory for it, the queue pair is in ERR, and all posted work is
// flushed. The background goroutines then send the rest of a frame and a Terminate,
// and wait for the peer to close.
func (c *conn) teardown() {
	f := c.failure.Load()
	c.rxMu.Lock()
	c.txMu.Lock()
	if c.closed.Load() {
		c.txMu.Unlock()
		c.rxMu.Unlock()
		<-c.done
		return
	}
	c.startWriter() // because writeLoop sends the last bytes
	c.closed.Store(true)
	c.last = c.lastBytes(f)
	bound, cur := c.dropRx()
	if c.drainTimer != nil {
		c.drainTimer.Stop()
	}
	c.txMu.Unlock()
	c.rxMu.Unlock()

	c.dev.keys.unbindAll(c)
	p := c.qp
	p.mu.Lock()
	p.state = verbs.StateErr
	if bound {
		p.recvCQ.add(cqe{qp: p, slots: &p.recvs().used, n: 1,
			wc: verbs.WC{ID: cur, Status: verbs.StatusWRFlushErr, Op: verbs.WCRecv, QPNum: p.num}}, false)
	}
	reported := p.flushLocked(f)
	p.mu.Unlock()
	p.sendCQ.detach(c)
	p.recvCQ.detach(c)
	if p.srq != nil {
		p.srq.forget(c)
		if p.srq.due.Load() {
			p.srq.wake()
		}
		p.raise(verbs.DeviceEvent{Type: verbs.EventQPLastWQEReached})
	}
	if !f.quiet && !reported && f.event != 0 {
		p.raise(verbs.DeviceEvent{Type: f.event, Vendor: f.vendor, Err: f.err})
	}
	c.dev.logEnd(c, f)
	c.err = f.err
	linger := lingerTimeout
	if f.abandoned {
		linger = abandonedTimeout
	}
	c.linger = time.AfterFunc(linger, func() { _ = c.sock.Close() }) // the goroutines end also if Close fails
	close(c.done)
	c.sock.WakeRead()
	c.sock.WakeWrite()
}

// lastBytes returns the bytes that must still be written: the rest of a frame of which
// a part has been written, as a copy, because its memory is the program's again, and
// a Terminate.
//
// +checklocks:c.txMu
func (c *conn) lastBytes(f *failure) []byte {
	t := &c.tx
	var out []byte
	if rest := t.restOfFrame(c.sock.Encrypted()); rest > 0 {
		var ok bool
		if out, ok = t.copyRest(rest); !ok {
			return nil // the memory is gone: the stream cannot be continued
		}
	}
	if f.terminate != nil {
		c.txStats.terminates++
		out = c.appendTerminate(out, f.terminate)
	}
	return out
}

// restOfFrame returns how many bytes behind the written ones must still be written: those that TLS has encrypted, and those that are then
// missing of an FPDU of which some are written or encrypted.
func (t *txState) restOfFrame(encrypted int) int {
	begin, at := t.start, t.written+uint64(encrypted)
	for _, end := range t.frames {
		if at <= begin {
			break
		}
		if at < end {
			return int(end - t.written)
		}
		begin = end
	}
	return encrypted
}

// copyRest copies the next n bytes of the batch.
func (t *txState) copyRest(n int) ([]byte, bool) {
	if t.enter() != nil {
		return nil, false
	}
	defer t.exit()
	out := make([]byte, 0, n+frameScratch)
	for _, b := range t.iov[t.at:] {
		var ok bool
		if out, ok = appendGuarded(out, b[:min(len(b), n-len(out))]); !ok {
			return nil, false
		}
	}
	return out, true
}

// appendTerminate appends the FPDU of a Terminate.
//
// +checklocks:c.txMu
func (c *conn) appendTerminate(b []byte, term *rdmap.Terminate) []byte {
	return appendTerminate(b, term, c.tx.msns.Next(ddp.QNTerminate), c.crc)
}

func appendTerminate(b []byte, term *rdmap.Terminate, msn uint32, crc bool) []byte {
	body := rdmap.AppendTerminate(nil, *term)
	h := ddp.Header{Last: true, Version: ddp.Version, ULP: rdmap.Control(rdmap.OpTerminate), QN: ddp.QNTerminate, MSN: msn}
	start := len(b)
	ulpdu := h.Len() + len(body)
	b = mpa.AppendHeader(b, ulpdu)
	b = ddp.AppendHeader(b, h)
	b = append(b, body...)
	return mpa.AppendTrailer(b, ulpdu, mpa.Update(0, b[start:]), crc)
}

// dropRx drops all references to memory of the input and returns the receive in use, if any.
//
// +checklocks:c.rxMu
func (c *conn) dropRx() (bound bool, id uint64) {
	r := &c.rx
	bound, id = r.bound, r.cur.id
	r.bound = false
	c.countUnfinished()
	r.held, r.heldBytes = nil, 0
	c.unreserve()
	if r.shared != nil {
		r.shared.Stop()
	}
	c.heldCount.Store(0)
	c.stopRNR()
	clear(r.dst[:cap(r.dst)])
	clear(r.regions[:cap(r.regions)])
	clear(r.cur.segs[:cap(r.cur.segs)])
	clear(r.plan[:cap(r.plan)])
	r.dst, r.regions, r.curSegs, r.publish = r.dst[:0], r.regions[:0], nil, nil
	r.run.rest, r.ahead.unread = nil, nil
	c.giveMoved()
	return bound, id
}

// logEnd records why a connection ended, unless it was in order. Lines about a remote host go through the audit, because
// a host that connects again and again could otherwise fill the log.
func (d *device) logEnd(c *conn, f *failure) {
	_, terminated := errors.AsType[rdmap.Terminate](f.err)
	switch {
	case f.recorded, errors.Is(f.err, verbs.ErrDisconnected):
	case f.terminate != nil && !f.ours():
		d.trail.Record(audit.Broken, "terminated by this side", c.host, c.logAttr(), slog.Any("err", f.err))
	case f.terminate == nil && terminated:
		d.trail.Record(audit.Broken, "terminated by the peer", c.host, c.logAttr(), slog.Any("err", f.err))
	default:
		if suppressed, ok := audit.Allow(c.host); ok {
			d.cfg.Logger.Warn("connection ended", "qp", c.qp.num, "conn", c.remote.String(), "err", f.err, "suppressed", suppressed)
		}
	}
}

// ours reports whether the Terminate is about this side's own receives or memory, not about a fault of the peer's.
func (f *failure) ours() bool {
	cause := f.terminate.Cause()
	return cause == rdmap.TermLocalCatastrophic || cause == rdmap.TermDDPNoBuffer
}
