package ofitcp

import (
	"fmt"
	"sync/atomic"
)

// Answers to requests wait here while a peer does not read them, each with the memory of its request. Beyond these the
// peer's connection is ended: such a peer has asked for more than it takes. The layer above bounds those of all peers,
// and one peer must not use that up, nor one host by many connections. Of these only such are ended as have their share
// of what the host has: other processes of the host may be in order.
const (
	maxAnswers     = 8192           // of one connection
	maxHostAnswers = 2 * maxAnswers // of all connections with one host
)

// hostUse is what is counted for a host that there are connections with.
type hostUse struct {
	answers atomic.Int32 // to requests, in the connections' queues
	conns   atomic.Int32 // changed with the endpoint's mu held
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
	h.conns.Add(1)
	c.host = h
}

// leaveHost forgets the host with its last connection.
//
// +checklocks:e.mu
func (e *Endpoint) leaveHost(c *conn) {
	if c.host.conns.Add(-1) == 0 {
		delete(e.hosts, c.peer.addr.Addr())
	}
}

// unread returns an error if too many answers wait for the peer to read.
func (c *conn) unread() error {
	own := c.answers.Load()
	if own >= maxAnswers {
		return fmt.Errorf("the peer has left %d answers to its requests unread; the limit is %d", own, maxAnswers)
	}
	if n := c.host.answers.Load(); n >= maxHostAnswers && own >= max(1, maxHostAnswers/max(1, c.host.conns.Load())) {
		return fmt.Errorf("the peer's host has left %d answers to its requests unread, the peer %d; the limit for a host is %d", n, own, maxHostAnswers)
	}
	return nil
}
