package flow

import (
	"context"
	"fmt"

	"cinnabar/verbs"
)

// headerLocked is the header of a message that leaves now, with the answers that are due.
//
// +checklocks:c.mu
func (c *Conn) headerLocked(k kind) header {
	h := header{kind: k, flags: c.tx.owed, granted: c.rx.window.granted(), known: uint32(c.tx.window.credit.Granted())}
	c.tx.owed = 0
	soon, now := c.rx.window.due()
	if soon {
		h.flags |= answerSoon
	}
	if now {
		h.flags |= answerNow
	}
	return h
}

// controlLocked sends a message without a record. There is always a slot for it, by the rules of asking and answering,
// unless the device is slow to report what it has sent: then the answers wait for the next message.
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
		slot := len(c.tx.out) + i
		h.put(c.slot(slot))
		c.tx.sgl = append(c.tx.sgl[:0], c.sendMR.SGE(slot*c.slotLen, headerLen))
		c.tx.wrs[0] = verbs.SendWR{ID: idControl | uint64(i), Op: verbs.OpSend, Flags: verbs.Signaled, SGL: c.tx.sgl}
		c.stats.Control++
		if _, err := c.qp.PostSend(c.tx.wrs[:1]); err != nil {
			c.failLocked(fmt.Errorf("post a control message: %w", err))
		}
		return true
	}
	return false
}

// slot is the memory of a message that is sent.
func (c *Conn) slot(i int) []byte { return c.sendMR.Bytes()[i*c.slotLen : (i+1)*c.slotLen] }

// askLocked asks the peer for room, for somebody who waits, unless it was asked already or has nothing to give back.
//
// +checklocks:c.mu
func (c *Conn) askLocked() {
	if !c.open || c.err != nil || !c.tx.window.askNow() {
		return
	}
	c.stats.Asked++
	if !c.controlLocked(kindControl, askNow) {
		c.tx.owed |= askNow
	}
}

// answerLocked answers the peer's questions if it is time, and says what else waits for a message.
//
// +checklocks:c.mu
func (c *Conn) answerLocked() {
	if c.tx.fin && !c.tx.finSent && c.tx.coming == 0 {
		c.tx.finSent = c.controlLocked(kindFin, 0)
	}
	if soon, now := c.rx.window.due(); soon || now {
		if soon {
			c.tx.owed |= answerSoon
		}
		if now {
			c.tx.owed |= answerNow
		}
	}
	if c.tx.owed != 0 {
		c.controlLocked(kindControl, 0)
	}
}

// CloseWrite tells the peer that no record follows: its Recv returns io.EOF after the last one. Those who wait to send still
// do. Receiving goes on.
func (c *Conn) CloseWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.mayLocked("close for writing"); err != nil {
		return err
	}
	c.tx.fin = true
	c.answerLocked()
	return nil
}

// linger waits until the device has sent everything, the connection is over, or the time is.
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
	c.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
	case <-c.done:
	}
}

// idleLocked tells whether all that was sent has left, or never will.
//
// +checklocks:c.mu
func (c *Conn) idleLocked() bool {
	if c.err != nil {
		return true
	}
	return c.tx.finSent && c.tx.completed == c.tx.window.credit.Sent() && c.tx.slots == [controls]bool{}
}
