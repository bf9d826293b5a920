package iwarp

import (
	"cinnabar/internal/hostmem"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
)

var _ verbs.QPPageGiver = (*qp)(nil)

// GivePages implements [verbs.QPPageGiver]. It holds rxMu, because the reader of the connection writes to memory only while it holds rxMu.
func (q *qp) GivePages(written, received uint64, regions [][]byte) bool {
	q.mu.Lock()
	c := q.conn
	q.mu.Unlock()
	if c == nil || q.pd.dev.cfg.LockMemory {
		return false
	}
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
