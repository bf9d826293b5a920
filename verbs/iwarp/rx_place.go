package iwarp

import (
	"log/slog"
	"time"

	"cinnabar/internal/audit"
	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
)

// remoteRange finds the memory that a peer names, and checks key, domain, right
// and range (RFC 5041 section 7.1, RFC 5040 section 7.2). The result of
// a failure is one of the four protection errors.
func (c *conn) remoteRange(stag uint32, to, n uint64, right verbs.Access) (*mr, int, protection) {
	m := c.dev.keys.byRemote(stag)
	switch {
	case m == nil:
		return nil, 0, badSTag
	case m.pd != c.qp.pd || m.conn != nil && m.conn != c: // RFC 5040 section 5.2: a window belongs to one stream
		return nil, 0, badDomain
	case m.access&right == 0 || c.qp.rights()&right == 0:
		return nil, 0, badRight
	case to+n < to:
		return nil, 0, badWrap
	}
	off, ok := m.remote(to, n)
	if !ok {
		return nil, 0, badRange
	}
	return m, off, protectionOK
}

// protection is the outcome of remoteRange.
type protection int

const (
	protectionOK protection = iota
	badSTag
	badDomain
	badRight
	badRange
	badWrap
)

// String returns the cause by which the audit counts refused accesses. It is a constant for each value.
func (p protection) String() string {
	return [...]string{protectionOK: "no error", badSTag: "unknown key", badDomain: "key of another protection domain",
		badRight: "missing right", badRange: "outside of the region", badWrap: "address wraps around"}[p]
}

// deny ends the connection because of an access to memory that is refused: it counts it, logs it at the audit's rate, and
// delays new connections of a host that makes many. An access by a key that was just revoked does not count for the delay.
//
// +checklocks:c.rxMu
func (c *conn) deny(bad protection, key uint32, t *rdmap.Terminate) {
	if now := time.Now(); bad != badSTag || !c.dev.keys.wasRevoked(c.qp.pd, key, now) {
		c.dev.brake.deny(c.host, now)
	}
	c.dev.trail.Record(audit.Denied, bad.String(), c.host, c.logAttr())
	f := refused(t)
	f.recorded = true
	c.refuse(f)
}

// logAttr names the connection in log lines.
func (c *conn) logAttr() slog.Attr { return slog.String("conn", c.remote.String()) }

// The causes by which a Write and a Read Request or Atomic Request are refused.
// DDP has none for a missing right: RDMAP's says it for both.
var (
	writeCauses = [...]rdmap.Cause{badSTag: rdmap.TermDDPInvalidSTag, badDomain: rdmap.TermDDPSTagNotAssociated,
		badRight: rdmap.TermAccess, badRange: rdmap.TermDDPBaseBounds, badWrap: rdmap.TermDDPTOWrap}
	readCauses = [...]rdmap.Cause{badSTag: rdmap.TermInvalidSTag, badDomain: rdmap.TermSTagNotAssociated,
		badRight: rdmap.TermAccess, badRange: rdmap.TermBaseBounds, badWrap: rdmap.TermTOWrap}
)

// rights returns the rights that the queue pair gives to peers.
func (q *qp) rights() verbs.Access {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.attr.Access
}

// +checklocks:c.rxMu
func (c *conn) placeWrite() bool {
	r := &c.rx
	n := r.seg.Payload
	if n == 0 { // neither key nor range is looked at (RFC 5041 section 5.2)
		return true
	}
	h := r.seg.Header
	m, off, bad := c.remoteRange(h.STag, h.TO, uint64(n), verbs.RemoteWrite)
	if bad != protectionOK {
		t := writeCauses[bad].ForSegment(h, n)
		c.deny(bad, h.STag, &t)
		return false
	}
	if r.seg.Last {
		r.keep = min(n, publishLen)
		r.direct -= r.keep
		r.publish = m.buf[off+r.direct : off+n]
	}
	r.dst = append(r.dst, m.buf[off:off+r.direct])
	r.regions = append(r.regions, m)
	r.target = spanOf(m.buf[off : off+n])
	return true
}

// +checklocks:c.rxMu
func (c *conn) placeResponse() bool {
	r := &c.rx
	h, n := r.seg.Header, r.seg.Payload
	c.qp.mu.Lock()
	op := c.reads.front()
	var want readOp
	if op != nil {
		want = *op
	}
	c.qp.mu.Unlock()
	switch {
	case op == nil || want.isAtomic || h.STag != want.stag:
		t := rdmap.TermDDPInvalidSTag.ForSegment(h, n)
		t.Detail = "a read response without a read request"
		c.refuse(refused(&t).failOldest(verbs.StatusBadRespErr))
		return false
	case n > int(want.size-want.got) || h.TO != want.to+uint64(want.got):
		t := rdmap.TermDDPBaseBounds.ForSegment(h, n)
		t.Detail = "a read response outside of the read request"
		c.refuse(refused(&t).failOldest(verbs.StatusBadRespErr))
		return false
	}
	if n > 0 {
		off := want.sink.off + int(want.got)
		r.dst = append(r.dst, want.sink.m.buf[off:off+n])
		r.regions = append(r.regions, want.sink.m)
		c.follow(int(want.got), want.sink.m.buf[off+n:want.sink.off+int(want.size)])
	}
	return true
}

// placeSend finds the place of a segment of a Send: the receive that the message
// goes to, or memory that holds it until there is one.
//
// +checklocks:c.rxMu
func (c *conn) placeSend() bool {
	r := &c.rx
	if r.seg.First {
		if len(r.held) == 0 {
			r.bound = c.takeRecv(false)
		}
		if !r.bound && !c.hold(heldMsg{op: r.seg.Op, head: r.seg.Header, size: r.seg.Payload, inv: r.seg.Header.Rsvd, imm: r.imm, hasImm: r.immNext}, r.seg.Payload) && !c.posts() {
			return false
		}
		r.msgOff = 0
	}
	if !r.bound {
		return c.placeHeld()
	}
	if !c.fits(uint64(r.msgOff) + uint64(r.seg.Payload)) {
		return false
	}
	n := r.seg.Payload
	for _, s := range r.curSegs {
		if n == 0 {
			break
		}
		s.n = min(s.n, n)
		r.dst = append(r.dst, s.bytes())
		r.regions = append(r.regions, s.m)
		n -= s.n
	}
	return true
}

// posts takes a receive that was posted in a short time: after placeSend had found none, and before the connection, which has no
// room to hold the message, was on the list of waiting connections.
//
// +checklocks:c.rxMu
func (c *conn) posts() bool {
	r := &c.rx
	if !r.stalled || len(r.held) > 0 || !c.takeRecv(false) {
		return false
	}
	r.bound, r.stalled = true, false
	c.heldCount.Store(0)
	c.stopRNR()
	c.paused.Store(false)
	c.wakeReader()
	return true
}

// fits checks that the receive in use can take a message of at least total bytes.
//
// +checklocks:c.rxMu
func (c *conn) fits(total uint64) bool {
	r := &c.rx
	switch {
	case r.cur.status != verbs.StatusSuccess:
		c.failRecv(r.cur.status, rdmap.TermLocalCatastrophic, "the posted receive is not usable")
	case total > r.cur.total:
		c.failRecv(verbs.StatusLocLenErr, rdmap.TermDDPTooLong, "the message is longer than the posted receive")
	default:
		return true
	}
	return false
}

// failRecv reports status for the receive in use and ends the connection.
//
// +checklocks:c.rxMu
func (c *conn) failRecv(status verbs.WCStatus, cause rdmap.Cause, detail string) {
	r := &c.rx
	c.addRecv(verbs.WC{ID: r.cur.id, Status: status, Op: verbs.WCRecv}, false)
	r.bound = false
	t := cause.ForSegment(r.refusedSegment())
	t.Detail = detail
	f := refused(&t)
	f.quiet = true // the completion reports the error
	c.refuse(f)
}

// takeRecv takes the next posted receive, for a message that begins or that is held and complete.
//
// +checklocks:c.rxMu
func (c *conn) takeRecv(whole bool) bool {
	r := &c.rx
	s := c.qp.srq
	if r.overShare = s != nil && !whole && !s.mayBegin(c.host); r.overShare {
		return false
	}
	left, ok := c.qp.recvs().take(&r.cur)
	if !ok {
		return false
	}
	r.curSegs = r.cur.segs
	r.takes++
	if s != nil {
		s.taken(left)
	}
	return true
}

// addRecv adds the completion of the receive in use.
//
// +checklocks:c.rxMu
func (c *conn) addRecv(wc verbs.WC, solicited bool) {
	wc.QPNum = c.qp.num
	c.qp.recvCQ.add(cqe{qp: c.qp, slots: &c.qp.recvs().used, n: 1, wc: wc}, solicited)
	c.rx.completed = true
}

// placeGone fails the connection because the memory that the FPDU belongs to has
// been deregistered, or is a mapping that cannot be written any more.
//
// +checklocks:c.rxMu
func (c *conn) placeGone() {
	r := &c.rx
	h, n := r.seg.Header, r.seg.Payload
	switch {
	case r.seg.Op == rdmap.OpWrite:
		t := rdmap.TermDDPInvalidSTag.ForSegment(h, n)
		t.Detail = "the region was deregistered or unmapped while it was being written"
		c.refuse(refused(&t))
	case r.bound && h.QN == ddp.QNSend && !h.Tagged:
		c.failRecv(verbs.StatusLocProtErr, rdmap.TermLocalCatastrophic, "the receive's region was deregistered or unmapped")
	default:
		t := rdmap.TermLocalCatastrophic.Terminate()
		t.Detail = "the region was deregistered or unmapped while it was read into"
		c.refuse(refused(&t).failOldest(verbs.StatusLocProtErr))
	}
}
