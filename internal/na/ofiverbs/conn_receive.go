package ofiverbs

import (
	"errors"
	"fmt"

	"cinnabar/internal/na"
	"cinnabar/internal/na/ofiaddr"
	"cinnabar/verbs"
)

// received processes a packet in the buffer of a receive, and adds a receive of the connection's own queue to again.
//
// +checklocks:c.polling
func (c *conn) received(i int, wc *verbs.WC) {
	size := c.receives.size
	if wc.Op != verbs.WCRecv || wc.HasImm || int64(wc.Len) > int64(size) {
		c.violated(fmt.Errorf("a receive of %d bytes completes as %v with %d bytes", size, wc.Op, wc.Len))
		return
	}
	c.touch()
	c.input.Add(uint64(wc.Len))
	m, err := parsePacket(c.receives.bytes(i, wc.Len))
	if err == nil && m.conn != uint64(c.index) {
		err = fmt.Errorf("a packet for connection %d on connection %d", m.conn, c.index)
	}
	if err == nil && m.kind == kindCredit {
		err = c.granted(m.credits)
		c.questioned(m.asks)
	}
	if err != nil {
		c.violated(err)
		return
	}
	switch m.kind {
	case kindRequest:
		c.request(m.tag, m.payload)
	case kindExpected:
		c.expected(m.tag, m.payload)
	case kindCredit:
	}
	if c.shared == nil && !c.dead.Load() {
		c.again = append(c.again, c.receives.wrs[i])
	}
}

// granted adds credits of the peer.
func (c *conn) granted(n uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.flow {
		return errors.New("credits from a peer that has said that it gives none")
	}
	if n > maxCredits || c.credits+n > maxCredits {
		return fmt.Errorf("%d credits beside %d; no device has room for so many packets", n, c.credits)
	}
	c.credits += n
	return nil
}

// violated ends the connection of a peer that breaks the protocol.
func (c *conn) violated(err error) {
	c.ep.broken(c.peer, causePacket, err)
	c.fail(na.Protocol, err)
}

// request hands a request on. The address at its start is that of the sender. It is checked and not used: responses go over the
// connection, because otherwise every peer could make this process dial third parties.
//
// +checklocks:c.polling
func (c *conn) request(tag uint32, b []byte) {
	e := c.ep
	if e.cfg.Handler == nil || e.refusing.Load() {
		return
	}
	n := len(e.prefix)
	if len(b) < n {
		e.broken(c.peer, causeSender, fmt.Errorf("a request of %d bytes was dropped; it must begin with an address of %d bytes", len(b), n))
		return
	}
	if _, err := ofiaddr.Parse(b[:n]); err != nil {
		e.broken(c.peer, causeSender, fmt.Errorf("a request was dropped: the sender's address in it: %w", err))
		return
	}
	if !c.serves.Load() {
		c.serves.Store(true)
	}
	c.in = na.Message{From: c.origin, Tag: tag, Data: b[n:]}
	if t := e.cfg.Handler.Request(&c.in); t != nil {
		c.offer(t)
	} else {
		c.handed = true
	}
	c.in.Data = nil
}

// expected hands an expected message to its waiter. One without a waiter is dropped: it is late.
func (c *conn) expected(tag uint32, b []byte) {
	c.ep.endKept(c.ep.late.answered(c, tag))
	w, ok := c.peer.expected.Take(tag)
	if !ok {
		return
	}
	n := copy(w.Buf, b)
	if n < len(b) {
		w.Op.Finish(int64(n), &na.Error{Kind: na.Truncated, Op: "receive", Addr: c.peer.str, Err: fmt.Errorf("a message of %d bytes in a buffer of %d", len(b), n)})
		return
	}
	w.Op.Finish(int64(n), nil)
}
