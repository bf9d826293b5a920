package ofitcp

import (
	"fmt"
	"sync/atomic"
)

// Answers to requests wait here while a peer does not read them, each with the memory of its request. Beyond these the
// peer's connection is ended: such a peer has asked for more than it takes. The layer above bounds those of all peers,
// and one peer must not use that up, nor one host by many connections.
const (
	maxAnswers     = 8192           // of one connection
	maxHostAnswers = 2 * maxAnswers // of all connections with one host
)

// hostUse is what is counted for a host that there are connections with.
type hostUse struct {
	answers atomic.Int32 // to requests, in the connections' queues
	conns   int          // guarded by the endpoint's mu
}

// enterHost gives c the host of its peer.
//
// +checklocks:e.mu
func (e *Endpoint) enterHost(c *conn) {
	a := c.peer.addr.Addr()
	h := e.hosts[a]
	if h == nil {
		h = new(hostUse)
		e.hosts[a] = h
	}
	h.conns++
	c.host = h
}

// leaveHost forgets the host with its last connection.
//
// +checklocks:e.mu
func (e *Endpoint) leaveHost(c *conn) {
	if c.host.conns--; c.host.conns == 0 {
		delete(e.hosts, c.peer.addr.Addr())
	}
}

// unread returns an error if too many answers wait for the peer to read.
func (c *conn) unread() error {
	if n := c.answers.Load(); n >= maxAnswers {
		return fmt.Errorf("the peer has left %d answers to its requests unread; the limit is %d", n, maxAnswers)
	}
	if n := c.host.answers.Load(); n >= maxHostAnswers && c.answers.Load() > 0 {
		return fmt.Errorf("the peer's host has left %d answers to its requests unread; the limit is %d", n, maxHostAnswers)
	}
	return nil
}
