package flow

import "time"

// quietState decides when a connection gives the memory of its regions back to the system. A connection that has used more than
// quietFrom bytes of them does so when no record has come or gone for a quietTime and the program has released all records. The regions
// stay registered and the windows stay as they are, so the peer may write at any time; the pages then take memory again.
type quietState struct {
	timer   *time.Timer // nil before the first use of more than quietFrom bytes
	armed   bool        // timer runs
	used    int         // number of bytes that the peer has written to the ring and to receives since memory was given back, or more
	records uint64      // number of records in both directions when timer was set
	written uint64      // bytes of all records in the ring
	taken   uint64      // bytes of all messages in receives
}

// useLocked notes that the peer has written n bytes of the ring or of receives.
//
// +checklocks:c.mu
func (c *Conn) useLocked(n int) {
	q := &c.quiet
	q.used += n
	if q.armed || q.used <= quietFrom || c.err != nil {
		return
	}
	q.armed, q.records = true, c.stats.Received+c.stats.Sent
	if q.timer == nil {
		q.timer = time.AfterFunc(quietTime, c.giveMemory)
	} else {
		q.timer.Reset(quietTime)
	}
}

// giveMemory gives the memory of the regions back if the connection has been quiet. If the device cannot do so now or ever, the connection
// tries again after the next use of more than quietFrom bytes.
func (c *Conn) giveMemory() {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := &c.quiet
	if c.err != nil {
		return
	}
	if n := c.stats.Received + c.stats.Sent; n != q.records || !c.emptyLocked() {
		q.records = n
		q.timer.Reset(quietTime)
		return
	}
	q.armed, q.used = false, 0
	c.qp.GivePages(q.written, q.taken, c.ringMR, c.recvMR, c.sendMR)
	c.tx.spare, c.rx.queue, c.rx.first = nil, nil, 0 // emptyLocked has found no record in queue
}

// emptyLocked reports whether no record or message lies in the regions.
//
// +checklocks:c.mu
func (c *Conn) emptyLocked() bool {
	return c.rx.window.credit.Idle() && c.tx.completed == c.tx.window.credit.Sent() && c.tx.slots == [controls]bool{}
}
