package flow

import (
	"context"
	"fmt"

	"cinnabar/verbs"
)

// headerLocked returns the header of a message that is sent now, with the answers that are due.
//
// +checklocks:c.mu
func (c *Conn) headerLocked(k kind) header {
	h := header{kind: k, flags: c.tx.unsentFlags, granted: c.rx.window.granted(), known: uint32(c.tx.window.credit.Granted())}
	c.tx.unsentFlags = 0
	soon, now := c.rx.window.due()
	if soon {
		h.flags |= answerSoon
	}
	if now {
		h.flags |= answerNow
	}
	return h
}

// controlLocked sends a message without a record, and reports whether it did. By the rules of requests and answers there is always
// a slot for it, unless the device reports sent messages late: then the flags wait for the next message.
//
// +checklocks:c.mu
func (c *Conn) controlLocked(k kind, f flags) bool {
	if !c.open || c.err != nil {
		return false
	}
	for i, used := range c.tx.slots {
		if used {
			continue
		}
		c.tx.slots[i] = true
		h := c.headerLocked(k)
		h.flags |= f
		at := i * headerLen // because the slots of control messages lie before those of records
		h.put(c.sendMR.Bytes()[at : at+headerLen])
		c.tx.sgl = append(c.tx.sgl[:0], c.sendMR.SGE(at, headerLen))
		c.tx.wrs[0] = verbs.SendWR{ID: idControl | uint64(i), Op: verbs.OpSend, Flags: verbs.Signaled, SGL: c.tx.sgl}
		c.stats.Control++
		if _, err := c.qp.PostSend(c.tx.wrs[:1]); err != nil {
			c.failLocked(fmt.Errorf("post a control message: %w", err))
		}
		return true
	}
	return false
}

// askLocked requests a grant from the peer for a sender that waits, unless a request is outstanding or the peer has nothing to
// grant.
//
// +checklocks:c.mu
func (c *Conn) askLocked() {
	if !c.open || c.err != nil || !c.tx.window.askNow() {
		return
	}
	c.stats.Asked++
	if !c.controlLocked(kindControl, askNow) {
		c.tx.unsentFlags |= askNow
	}
}

// answerLocked answers the peer's requests that are due, and sends the end and the flags that wait for a message.
//
// +checklocks:c.mu
func (c *Conn) answerLocked() {
	if c.tx.fin && !c.tx.finSent && c.tx.waitingSenders == 0 {
		c.tx.finSent = c.controlLocked(kindFin, 0)
	}
	if soon, now := c.rx.window.due(); soon || now {
		if soon {
			c.tx.unsentFlags |= answerSoon
		}
		if now {
			c.tx.unsentFlags |= answerNow
		}
	}
	if c.tx.unsentFlags != 0 {
		c.controlLocked(kindControl, 0)
	}
}

// CloseWrite ends this direction of the connection: the peer's Recv returns io.EOF after the last record. Calls of Send that wait
// already still send. Recv still works.
func (c *Conn) CloseWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.writableLocked("close for writing"); err != nil {
		return err
	}
	c.tx.fin = true
	c.answerLocked()
	return nil
}

// linger waits until the device has sent everything or the connection is over, for Config.Linger at most.
func (c *Conn) linger() {
	ctx, cancel := context.WithTimeout(context.Background(), max(c.cfg.Linger, 0))
	defer cancel()
	idle := make(chan struct{})
	c.mu.Lock()
	if c.idleLocked() {
		c.mu.Unlock()
		return
	}
	c.tx.idle = append(c.tx.idle, idle)
	c.driver.returnLocked()
	c.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
	case <-c.done:
	}
}

// idleLocked reports whether the device has sent all messages, or never will.
//
// +checklocks:c.mu
func (c *Conn) idleLocked() bool {
	if c.err != nil {
		return true
	}
	return c.tx.finSent && c.tx.completed == c.tx.window.credit.Sent() && c.tx.slots == [controls]bool{}
}
