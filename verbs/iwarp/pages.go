package iwarp

import (
	"cinnabar/internal/hostmem"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
)

var _ verbs.QPPageGiver = (*qp)(nil)

// GivePages implements [verbs.QPPageGiver]. With the pages it gives back the memory that the queues of q have allocated for traffic.
func (q *qp) GivePages(written, received uint64, regions [][]byte) bool {
	q.mu.Lock()
	c := q.conn
	q.mu.Unlock()
	if c == nil || q.pd.dev.cfg.LockMemory || !c.givePages(written, received, regions) {
		return false
	}
	c.shrink()
	q.sendCQ.shrink()
	q.recvCQ.shrink()
	return true
}

// shrink frees the memory of the last batch and of the entries of the send queue, if nothing is posted or being sent. The next posts allocate
// it again.
//
// +checklocksignore: it does not know TryLock.
func (c *conn) shrink() {
	if !c.txMu.TryLock() {
		return
	}
	defer c.releaseTx()
	t := &c.tx
	if !t.idle() || len(t.marks) > 0 {
		return
	}
	t.iov, t.regions, t.marks, t.frames, t.snapshot = nil, nil, nil, nil, nil
	t.at, t.start = 0, t.queued
	if cap(t.scratch) > firstScratch {
		t.scratch, t.flushed = make([]byte, 0, firstScratch), 0
	}
	q := c.qp
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.sq.tail == q.sq.head {
		q.sq.shrink()
	}
}

// givePages gives the pages of regions back. It holds rxMu, because the reader of the connection writes to memory only while it holds rxMu.
func (c *conn) givePages(written, received uint64, regions [][]byte) bool {
	c.rxMu.Lock()
	defer c.rxMu.Unlock()
	r := &c.rx
	if c.over() || r.placed || r.bound || r.open != nil || len(r.held) > 0 || r.written != written || r.sent != received {
		return false
	}
	given := false
	for _, b := range regions {
		given = hostmem.Discard(b) || given
	}
	return given
}

// countPayload counts the payload of a complete FPDU for GivePages.
func (r *rxState) countPayload() {
	switch {
	case r.seg.Op == rdmap.OpWrite:
		r.written += uint64(r.seg.Payload)
	case isSend(r.seg.Op):
		r.sent += uint64(r.seg.Payload)
	}
}
