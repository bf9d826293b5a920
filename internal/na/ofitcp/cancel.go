package ofitcp

import "cinnabar/internal/na"

func (c *conn) canceledError(what string) error {
	return &na.Error{Kind: na.Canceled, Op: what, Addr: c.peer.String()}
}

// name returns the name of the operation in errors.
func (t *transfer) name() string {
	if t.put {
		return "put"
	}
	return "get"
}

// cancel gives op up if it is one of this connection's, and reports whether that is certain.
//
// An operation that a role is using at the moment completes when the role is done with it, which takes moments: the reader's system
// call returns at once, and the writer copies the message that it has begun to send.
func (c *conn) cancel(op *na.Op) bool {
	c.mu.Lock()
	list, found := c.cancelLocked(op)
	c.mu.Unlock()
	if c.sweep.Load() {
		c.kick()
	}
	for _, e := range list {
		c.finish(e)
	}
	return found
}

// +checklocks:c.mu
func (c *conn) cancelLocked(op *na.Op) (list []ended, found bool) {
	if d := &c.direct; d.op == op && d.op != nil {
		if d.err = c.canceledError("receive"); !d.busy {
			list = append(list, ended{op: op, err: d.err})
			*d = directRecv{}
		}
		return list, true
	}
	for i := range c.queue.len() {
		if it := c.queue.at(i); it.op == op && it.t == nil {
			err := c.canceledError(it.what)
			c.unqueued(it)
			if it.request { // the peer does not learn of the memory in it
				c.ep.late.answered(c, uint64(it.tag()))
			}
			c.queue.remove(i)
			return []ended{{op: op, err: err}}, true
		}
	}
	if t := c.findLocked(op); t != nil {
		return c.giveUpLocked(t, c.canceledError(t.name()), nil), true
	}
	if c.batched > 0 {
		c.canceled = append(c.canceled, op)
		c.sweep.Store(true)
	}
	return nil, false
}

// findLocked finds the transfer of op.
//
// +checklocks:c.mu
func (c *conn) findLocked(op *na.Op) *transfer {
	for i := range c.queue.len() {
		if t := c.queue.at(i).t; t != nil && t.op == op {
			return t
		}
	}
	for i := range c.stalled.len() {
		if t := *c.stalled.at(i); t.op == op {
			return t
		}
	}
	for i := range c.reads.len() {
		if t := c.reads.at(i).t; t != nil && t.op == op {
			return t
		}
	}
	for i := range c.acks.len() {
		if t := c.acks.at(i).t; t != nil && t.op == op {
			return t
		}
	}
	return nil
}

// giveUpLocked ends t with err and appends it to list if its memory is free. Answers that still come go nowhere.
//
// +checklocks:c.mu
func (c *conn) giveUpLocked(t *transfer, err error, list []ended) []ended {
	if t.ended || t.err != nil {
		return list
	}
	t.err = err
	if t.queued {
		t.queued = false
		c.dequeueLocked(t)
	}
	for i := range c.reads.len() {
		if r := c.reads.at(i); r.t == t {
			r.t = nil
		}
	}
	for i := range c.acks.len() {
		if a := c.acks.at(i); a.t == t {
			a.t = nil
		}
	}
	if t.inBatch > 0 {
		c.sweep.Store(true)
	}
	if t.over() {
		t.ended = true
		list = append(list, ended{t: t})
	}
	return list
}

// +checklocks:c.mu
func (c *conn) dequeueLocked(t *transfer) {
	for i := range c.queue.len() {
		if c.queue.at(i).t == t {
			c.queue.remove(i)
			return
		}
	}
	for i := range c.stalled.len() {
		if *c.stalled.at(i) == t {
			c.stalled.remove(i)
			return
		}
	}
}
