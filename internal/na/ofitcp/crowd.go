package ofitcp

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
)

const (
	// maxUnread is the limit of the bytes of answers that wait in the queue of one connection for the peer to read. A connection at the
	// limit reads no requests, because their answers would wait too; it reads again when half of the bytes have been sent. Each answer
	// counts answerOverhead bytes more than its length: about the memory that its request holds until the answer is sent.
	maxUnread      = 1 << 20
	answerOverhead = 2 << 10
	// maxAnswers is the number of answers in the queue of one connection at which the connection ends. Answers are added to the queue
	// after the connection has stopped reading because handlers were running then, and because of reads every rationTime.
	maxAnswers = 8192
	// rationTime is the interval at which a connection with too many unread answers reads rationBytes nevertheless, if this side
	// waits for a response or a transfer of the peer. Otherwise two endpoints that flood each other could wait for each other for ever.
	// rationBytes is maxUnread, because the peer ends its own pause when that many bytes have been read. A request that is read counts
	// rationRequest bytes more than its length, because this side does not wait for it, and its answer would wait too.
	rationTime    = 20 * time.Millisecond
	rationBytes   = maxUnread
	rationRequest = 16 << 10
)

// leavesUnread reports whether the unread answers of the peer, or those of its host as a whole, are at their limit, so that the
// connection should read no more requests. n is the number of bytes that wait on this connection.
func (c *conn) leavesUnread() (n int64, too bool) {
	n = c.unsent.Load()
	return n, n > 0 && (n >= maxUnread || !c.account.May(hostquota.Unsent, 1))
}

// pauseReading reports whether the connection must not be read now, because the peer leaves too many replies to its reads and
// writes, or too many answers to its requests, unread. It then sets c.paused. The caller has the read role.
func (c *conn) pauseReading() bool {
	owes := c.owes.Load() >= maxReplies
	n, unread := c.leavesUnread()
	if !owes && !(unread && c.ration.Load() <= 0) {
		return false
	}
	c.paused.Store(true)
	// A writer that lowered the numbers before c.paused was set has not called resumeReading, so they are compared again.
	if owes && c.owes.Load() > maxReplies/2 || unread && !drained(n, c.unsent.Load()) {
		return true
	}
	c.paused.Store(false)
	return false
}

// spend subtracts n bytes from the ration, if it is positive. The caller has the read role.
func (c *conn) spend(n int) {
	if c.ration.Load() > 0 {
		c.ration.Add(-int64(n))
	}
}

// drained reports whether a decrease of the bytes of unread answers ends a pause.
func drained(before, after int64) bool {
	return after == 0 || before > maxUnread/2 && after <= maxUnread/2
}

// resumeReading ends a pause, if there is one. It does not block.
func (c *conn) resumeReading() {
	if c.paused.Swap(false) {
		c.wake()
		c.sock.WakeRead() // because readable may have read nothing, and returned false because the pause was over by then
	}
}

// awaitsPeer reports whether this side waits for a response or for a transfer of the peer.
func (c *conn) awaitsPeer() bool {
	return c.peer.expected.Len() > 0 || c.expects.Load() > 0 || c.moving.Load() > 0
}

// unread returns an error if maxAnswers answers wait for the peer to read them.
func (c *conn) unread() error {
	if n := c.answers.Load(); n >= maxAnswers {
		return fmt.Errorf("the peer has left %d answers to its requests unread; the limit is %d", n, maxAnswers)
	}
	return nil
}

// takeConnection counts a connection for a host. If the limit, or the host's share of it, is used up, idle connections
// give way first; one does so, too, when little is left.
func (e *Endpoint) takeConnection(a *hostquota.Account) error {
	err := a.Take(hostquota.Connections, 1)
	for try := 0; err != nil && try < 4 && e.evictIdle(); try++ {
		err = a.Take(hostquota.Connections, 1)
	}
	if err == nil && e.cfg.Quota.Near(hostquota.Connections) {
		e.evictIdle()
	}
	return err
}

// evictIdle ends the connection that has been idle for longest, of the host that has most of them. A host that has no
// more than its fair share loses none. False: there is none.
func (e *Endpoint) evictIdle() bool {
	for range 4 { // a connection that is found may be in use by now
		worst := e.longestIdle()
		if worst == nil {
			return false
		}
		if worst.evict() {
			e.cfg.Audit.Record(audit.Evicted, causeIdle, worst.account.Host())
			return true
		}
	}
	return false
}

// longestIdle returns the connection that gives way next; nil: there is none.
func (e *Endpoint) longestIdle() (worst *conn) {
	for _, c := range e.connections() {
		if a := c.account; a.Host().IsZero() || a.Used(hostquota.Connections) <= a.Fair(hostquota.Connections) {
			continue
		}
		if (worst == nil || c.before(worst)) && c.idle() {
			worst = c
		}
	}
	return worst
}

// evict ends the connection if it is idle, and reports whether it has. A call that begins at the same time makes another
// connection, because its request finds this one dead and its receive stays with the peer.
func (c *conn) evict() bool { return c.end(failure{na.Unreachable, c.ep.evicted()}, endIdle) }

// evicted returns the error of operations on a connection that gives way to another one.
func (e *Endpoint) evicted() error {
	q := e.cfg.Quota
	return fmt.Errorf("the connection was idle and gave way to another one, because %d of %d connections are in use (Config.MaxConnections), or the process has no descriptor left (RLIMIT_NOFILE); raise the limit, or close connections",
		q.Used(hostquota.Connections), q.Limit(hostquota.Connections))
}

// before reports whether c gives way rather than d: its host has more connections, or c is the older in use.
func (c *conn) before(d *conn) bool {
	m, n := c.account.Used(hostquota.Connections), d.account.Used(hostquota.Connections)
	return m > n || m == n && c.used.Load() < d.used.Load()
}

// idle reports whether nothing is under way on the connection: no call, no request that is being handled, no transfer, no
// access to memory, and nothing to be sent.
func (c *conn) idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.idleLocked()
}

// idleLocked is idle.
//
// +checklocks:c.mu
func (c *conn) idleLocked() bool {
	if c.origin.holds.Load() > 0 || c.moving.Load() > 0 || c.expects.Load() > 0 || c.owes.Load() > 0 ||
		c.peer.expected.Len() > 0 && c.peer.conn.Load() == c || c.hasTasks() {
		return false
	}
	return c.down == nil && c.queue.len() == 0 && c.stalled.len() == 0 && !c.unwritten && len(c.cork) == 0 &&
		c.direct.op == nil && c.writeTo[0].m == nil
}

// touch notes that the connection is in use. The endpoint's clock counts the connections that were made, so that the hot
// path reads no time.
func (c *conn) touch() {
	if now := c.ep.stats.connections.Load(); c.used.Load() != now {
		c.used.Store(now)
	}
}

// outOfDescriptors reports whether an error says that the process, or the system, can have no more descriptors.
func outOfDescriptors(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// spare is a descriptor that is kept for the time when no other is left. Only the accepting goroutine uses it.
type spare struct{ f *os.File }

// open takes a descriptor, if one is left.
func (s *spare) open() { s.f, _ = os.Open(os.DevNull) }

// close gives it back.
func (s *spare) close() {
	if s.f != nil {
		_ = s.f.Close() // nothing was written
		s.f = nil
	}
}
