package ofitcp

import (
	"time"

	"cinnabar/internal/hostquota"
)

// enterTurn begins a turn of the background goroutine, see [hostquota.Readers]. The caller must not have the read role, because callers
// that read the connection themselves would wait for the role meanwhile.
func (c *conn) enterTurn() {
	c.ep.readers.Enter(&c.role.inTurn, c.account, c.rxBytes.Load(), c.origin.holds.Load())
}

// nextTurn ends the turn of the background goroutine and begins the next one. The caller must not have the read role.
func (c *conn) nextTurn() {
	c.ep.readers.Next(&c.role.inTurn, c.account, c.rxBytes.Load(), c.origin.holds.Load())
}

// leaveTurn ends the turn of the background goroutine, if it is in one. The goroutine calls it, without the read role, before it waits
// or runs a task.
func (c *conn) leaveTurn() { c.ep.readers.Leave(&c.role.inTurn, c.account, c.rxBytes.Load()) }

// setup is the place in Endpoint.setups of a goroutine that sets up a connection.
type setup struct {
	e       *Endpoint
	account *hostquota.Account
	begun   time.Time
	over    bool
}

// beginSetup waits until the caller has a place in Endpoint.setups, to set up a connection of host a.
func (e *Endpoint) beginSetup(a *hostquota.Account) *setup {
	e.setups.Enter(a)
	return &setup{e: e, account: a, begun: time.Now()}
}

// end gives the place back. While the endpoint is crowded, end first pauses for setupSpan after each setupSpan of work, so that a
// processor that sets up a thousand connections has half of its time for other work. Further calls do nothing.
func (s *setup) end() {
	if s.over {
		return
	}
	s.over = true
	took := time.Since(s.begun)
	if s.e.crowded() && s.e.setupWork.Add(int64(min(took, setupSpan))) >= int64(setupSpan) {
		s.e.setupWork.Store(0)
		s.e.pause(setupSpan)
	}
	s.e.setups.Leave(s.account, took, s.e.yield)
}

// crowded reports whether at least crowd connections are in the handshake.
func (e *Endpoint) crowded() bool { return e.cfg.Quota.Used(hostquota.Handshakes) >= crowd }
