package ofiverbs

import "cinnabar/internal/na"

// fewEndings is the number of operations that end at a time without an allocation.
const fewEndings = 4

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

// finishUnlock releases the lock and completes the operations of list, which is built on c.endings. Up to fewEndings of them are copied to the stack
// before, because the next holder of the lock uses c.endings.
//
// +checklocksrelease:c.mu
func (c *conn) finishUnlock(list endings) {
	var few [fewEndings]ended
	n := 0
	if len(list) <= fewEndings {
		n = copy(few[:], list)
		clear(list)
		c.endings, list = list[:0], nil
	} else {
		c.endings = nil
	}
	c.mu.Unlock()
	endings(few[:n]).finish()
	list.finish()
}
